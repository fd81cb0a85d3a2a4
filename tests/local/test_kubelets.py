"""What real nodes are made of, as far as it can be told without root."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from kronos.local.kubelets import cgroups, containerd, node, preflight, programs, sandbox
from kronos.local.kubelets.archive import write_image
from kronos.local.kubelets.preflight import Machine
from kronos.local.kubelets.relay import Relay
from kronos.local.versions import Platform

ABLE = Machine(
    system="Linux",
    root=True,
    missing_controllers=list,
    file_systems=lambda: "nodev\toverlay\nnodev\ttmpfs\n",
    programs_built=False,
    images_built=False,
    has=lambda command: True,
    runs=lambda script: "",
)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"system": "Darwin"}, "Linux (this is Darwin)"),
        ({"root": False}, "root"),
        ({"missing_controllers": lambda: ["memory"]}, "control group controllers memory"),
        ({"file_systems": lambda: "nodev\ttmpfs\n"}, "file system overlay"),
        ({"has": lambda command: command != "ip"}, "command ip (package iproute2)"),
        ({"has": lambda command: command != "cc"}, "command cc (package gcc)"),
        ({"has": lambda command: command not in ("buildah", "docker")}, "package buildah or docker"),
        ({"runs": lambda script: "no" if "libseccomp" in script else ""}, "package libseccomp-dev"),
        ({"runs": lambda script: "not permitted" if "unshare" in script else ""}, "(not permitted)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_machine_that_lacks_something_is_told_what(change, said):
    lacking = list(preflight.missing(replace(ABLE, **change)))
    assert len(lacking) == 1
    assert said in lacking[0]


def test_a_machine_that_has_everything_lacks_nothing():
    assert list(preflight.missing(ABLE)) == []


def test_a_machine_that_has_built_everything_needs_no_tools_to_build():
    unneeded = ("cc", "pkg-config", "buildah", "docker")
    bare = replace(ABLE, programs_built=True, images_built=True, has=lambda command: command not in unneeded)
    assert list(preflight.missing(bare)) == []


def test_everything_that_is_missing_is_said_at_once():
    poor = replace(ABLE, root=False, has=lambda command: command != "ip", file_systems=lambda: "")
    assert len(list(preflight.missing(poor))) == 4


def test_nodes_have_addresses_of_their_own_apart_from_those_of_pods():
    pods = [sandbox.pod_range(index) for index in range(sandbox.MOST_NODES)]
    nodes = [sandbox.node_address(index) for index in range(sandbox.MOST_NODES)]
    assert len(set(pods)) == len(set(nodes)) == sandbox.MOST_NODES
    assert not {first.rsplit(".", 2)[0] for first, _ in pods} & {
        address.rsplit(".", 2)[0] for address in nodes
    }
    assert sandbox.GATEWAY not in {first for first, _ in pods}


def test_mounts_at_and_below_a_folder_are_found_the_last_first():
    lines = [
        "22 1 8:1 / / rw - ext4 /dev/sda rw",
        "23 22 0:5 / /state/nodes rw - tmpfs tmpfs rw",
        r"24 23 0:6 / /state/nodes/a\040b rw - tmpfs tmpfs rw",
        "25 22 0:7 / /state/nodes-other rw - tmpfs tmpfs rw",
    ]
    found = list(sandbox.mounts_below(Path("/state/nodes"), "\n".join(lines)))
    assert found == ["/state/nodes/a b", "/state/nodes"]


def test_a_cluster_below_a_folder_that_nodes_replace_is_refused(tmp_path: Path):
    with pytest.raises(sandbox.SandboxError, match=r"is below /run; choose one elsewhere"):
        sandbox.enter(Path("/run/somewhere"))


def groups_of_version_1(root: Path) -> None:
    for name in ("cpu", "cpuset", "memory", "pids"):
        (root / name).mkdir()
        for file in ("tasks", "cgroup.procs"):
            (root / name / file).write_text("")
    (root / "cpuset" / "cpuset.cpus").write_text("0-1")
    (root / "cpuset" / "cpuset.mems").write_text("0")


def test_groups_are_made_in_every_hierarchy_and_inherit_their_processors(tmp_path: Path):
    groups_of_version_1(tmp_path)
    assert cgroups.missing_controllers(tmp_path) == []
    cgroups.create("kronos-7-0", tmp_path)
    assert (tmp_path / "memory" / "kronos-7-0").is_dir()
    assert (tmp_path / "cpuset" / "kronos-7-0" / "cpuset.cpus").read_text() == "0-1"
    assert cgroups.names_with("kronos-7-", tmp_path) == {"kronos-7-0"}
    assert cgroups.names_with("kronos-71-", tmp_path) == set()


def test_groups_are_removed_from_the_innermost_outwards(tmp_path: Path):
    groups_of_version_1(tmp_path)
    (tmp_path / "memory" / "kronos-7-0" / "pods" / "one").mkdir(parents=True)
    cgroups.remove("kronos-7-0", tmp_path)
    assert cgroups.names_with("kronos-", tmp_path) == set()


def test_missing_controllers_are_named(tmp_path: Path):
    assert cgroups.missing_controllers(tmp_path) == list(cgroups.NEEDED)
    (tmp_path / "cgroup.controllers").write_text("cpu cpuset pids\n")
    assert cgroups.missing_controllers(tmp_path) == ["memory"]


def test_an_image_of_a_few_files_is_an_archive_that_runtimes_read(tmp_path: Path):
    write_image(tmp_path / "image.tar", "kronos.local/x:1", {"bin/x": b"program"}, ["/bin/x"], "x86_64")
    with tarfile.open(tmp_path / "image.tar") as archive:
        contents = {name: archive.extractfile(name).read() for name in archive.getnames()}  # type: ignore[union-attr]
    manifest = json.loads(contents["manifest.json"])
    assert manifest[0]["RepoTags"] == ["kronos.local/x:1"]
    config = json.loads(contents["config.json"])
    assert (config["architecture"], config["config"]["Entrypoint"]) == ("amd64", ["/bin/x"])
    with tarfile.open(fileobj=io.BytesIO(contents["layer.tar"])) as layer:
        assert layer.getmember("bin/x").mode == 0o755


def test_an_image_is_another_one_when_it_is_written_again(tmp_path: Path):
    (tmp_path / "image").write_bytes(b"1")
    first = containerd.identity(tmp_path / "image")
    assert containerd.identity(tmp_path / "image") == first
    (tmp_path / "image").write_bytes(b"22")
    assert containerd.identity(tmp_path / "image") != first


def test_a_new_store_begins_with_the_one_that_holds_most_of_its_images(tmp_path: Path):
    def hold(*images: str) -> None:
        folder = tmp_path / containerd.store_key(images)
        folder.mkdir()
        (folder / containerd.CONTENTS).write_text(json.dumps(images))

    assert containerd.best_start(tmp_path, ["a"]) == []
    hold("a", "x")
    hold("a", "b")
    assert containerd.best_start(tmp_path, ["a", "b", "c"]) == ["a", "b"]
    assert containerd.best_start(tmp_path, ["c"]) == []


def test_a_clone_shares_files_but_never_databases(tmp_path: Path):
    store = tmp_path / "store"
    (store / "content").mkdir(parents=True)
    (store / "content" / "blob").write_text("layer")
    (store / "meta.db").write_text("database")
    containerd.clone(store, tmp_path / "node")
    (tmp_path / "node" / "meta.db").write_text("changed")
    assert (store / "meta.db").read_text() == "database"
    assert (tmp_path / "node" / "content" / "blob").stat().st_ino == (
        store / "content" / "blob"
    ).stat().st_ino


def test_each_node_has_its_own_addresses_for_pods():
    settings = node.network_settings(2, Path("/run/node"))
    ipam = settings["plugins"][0]["ipam"]
    assert ipam["ranges"][0][0]["rangeStart"] == "10.244.3.1"
    assert ipam["dataDir"] == "/run/node"


def test_kubelets_change_nothing_of_the_machine(tmp_path: Path):
    settings = yaml.safe_load(
        yaml.safe_dump(node.kubelet_settings(tmp_path, "10.245.0.1", "kronos-7-0", Path("/run/socket")))
    )
    assert settings["makeIPTablesUtilChains"] is False
    assert settings["cgroupRoot"] == "/kronos-7-0"
    for path in (settings["podLogsDir"], settings["volumePluginDir"], settings["resolvConf"]):
        assert Path(path).is_relative_to(tmp_path)


def test_the_cache_folder_names_every_version():
    key = programs.key_of(Platform("linux", "amd64"))
    for part in ("kubelet-v", "containerd-v", "runc-v", "cni-v", "coredns-v", "linux-amd64"):
        assert part in key


async def test_a_relay_passes_both_directions_and_the_end_on():
    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read()).upper())
        writer.close()

    server = await asyncio.start_server(shout, "127.0.0.1", 0)
    listening = socket.create_server(("127.0.0.1", 0))
    relay = Relay(listening, server.sockets[0].getsockname()[1])
    await relay.start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", listening.getsockname()[1])
        writer.write(b"hello")
        writer.write_eof()
        assert await reader.read() == b"HELLO"
        writer.close()
        await writer.wait_closed()
    finally:
        relay.stop()
        server.close()


async def test_a_relay_to_nobody_closes_the_connection():
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    listening = socket.create_server(("127.0.0.1", 0))
    relay = Relay(listening, port)
    await relay.start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", listening.getsockname()[1])
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
    finally:
        relay.stop()
