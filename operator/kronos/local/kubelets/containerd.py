"""One containerd: its settings, its start, and the store of images that nodes begin with."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from kronos.local.binaries import exclusive
from kronos.local.kubelets.archive import write_image
from kronos.local.processes import GuardedProcess, last_lines, spawn
from kronos.local.versions import CONTAINERD_VERSION

PAUSE_IMAGE = "kronos.local/pause:1"
READY_SECONDS = 30.0
KEPT_STORES = 2
CONTENTS = "kronos-contents.json"
NAMESPACE = "k8s.io"


class ContainerdError(Exception):
    """containerd did not start, or refused an image."""


def settings(root: Path, state: Path, programs: Path, network: Path) -> str:
    """The configuration file; ``network`` is the folder of the CNI configuration."""
    return f"""\
version = 3
root = "{root}"
state = "{state}"
# The one listens on a path that nodes would share, the other would create a folder outside the cluster's.
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.internal.v1.opt"]

[grpc]
address = "{socket_of(state)}"

[ttrpc]
address = "{socket_of(state)}.ttrpc"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE_IMAGE}"

[plugins."io.containerd.cri.v1.runtime"]
netns_mounts_under_state_dir = true
# Only the more privileged may make a process less likely to be killed when memory runs out.
restrict_oom_score_adj = true

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{programs}"]
conf_dir = "{network}"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{programs / "runc"}"
SystemdCgroup = false
"""


def socket_of(state: Path) -> Path:
    """Where the containerd with this state folder listens."""
    return state / "containerd.sock"


def start(config: Path, programs: Path, log: Path) -> GuardedProcess:
    """Start containerd; killing the result kills its shims and containers as well."""
    path = f"{programs}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    with log.open("ab") as output:
        return spawn(
            [str(programs / "containerd"), "--config", str(config)],
            env={"PATH": path, "HOME": "/root"},
            stdout=output.fileno(),
            stderr=output.fileno(),
        )


async def wait_ready(process: GuardedProcess, state: Path, programs: Path, log: Path) -> None:
    """Return once containerd answers."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and process.running:
        if socket_of(state).exists() and await _ctr(programs, state, "version") is None:
            return
        await asyncio.sleep(0.05)
    raise ContainerdError(f"containerd has not started; the end of {log}:\n{last_lines(log)}")


async def _ctr(programs: Path, state: Path, *arguments: str) -> str | None:
    """Run ctr; what it says when it fails, None when it does not."""
    done = await asyncio.create_subprocess_exec(
        str(programs / "ctr"),
        f"--address={socket_of(state)}",
        f"--namespace={NAMESPACE}",
        *arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    said, _ = await done.communicate()
    return said.decode(errors="replace").strip() if done.returncode else None


async def prepare_store(
    cache: Path, programs: Path, images: Sequence[Path], scratch: Path, progress: Callable[[str], None]
) -> Path:
    """Return a containerd root in the cache that holds the images, importing those that no older one holds.

    ``scratch`` is an empty folder for the state of the containerd that imports.
    """
    wanted = [identity(path) for path in (programs / "pause", *images)]
    store = cache / "stores" / store_key(wanted)
    store.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(store.parent / "lock", progress):
        if not store.exists():
            partial = store.with_name("partial")
            shutil.rmtree(partial, ignore_errors=True)
            held = best_start(store.parent, wanted)
            if held:
                clone(store.parent / store_key(held), partial)
            new = [image for image in images if identity(image) not in held]
            progress(f"importing {len(new)} image{'s' if len(new) != 1 else ''}, once: about 30 s")
            await _import(partial, programs, new, scratch)
            # The clone's list is a link to the older store's own.
            (partial / CONTENTS).unlink(missing_ok=True)
            (partial / CONTENTS).write_text(json.dumps(wanted))
            partial.rename(store)
        os.utime(store)
        for old in outdated(store.parent):
            shutil.rmtree(old, ignore_errors=True)
    return store


def identity(file: Path) -> str:
    """A word that changes when a file of the cache is written again; reading all of an image takes seconds."""
    facts = file.stat()
    return f"{file.parent.name}/{file.name}:{facts.st_size}:{facts.st_mtime_ns}"


def store_key(identities: Sequence[str]) -> str:
    """The name of the store with these images, unpacked by this version."""
    return hashlib.sha256("\n".join((CONTAINERD_VERSION, *identities)).encode()).hexdigest()[:16]


def best_start(stores: Path, wanted: Sequence[str]) -> list[str]:
    """What the store with the largest part of the wanted images holds; nothing when there is none."""
    best: list[str] = []
    for path in stores.glob(f"*/{CONTENTS}"):
        held = json.loads(path.read_text())
        if path.parent.name == store_key(held) and _shared(held, wanted) > _shared(best, wanted):
            best = held
    return best


def _shared(held: Sequence[str], wanted: Sequence[str]) -> int:
    return len(set(held) & set(wanted))


def outdated(stores: Path) -> Iterator[Path]:
    """All but the stores used last; a running cluster holds its own links to what it needs."""
    found = sorted(
        (path for path in stores.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime
    )
    yield from found[:-KEPT_STORES]


async def _import(root: Path, programs: Path, images: Sequence[Path], scratch: Path) -> None:
    state, log, config = scratch / "state", scratch / "containerd.log", scratch / "containerd.toml"
    pause = scratch / "pause.tar"
    write_image(
        pause, PAUSE_IMAGE, {"pause": (programs / "pause").read_bytes()}, ["/pause"], os.uname().machine
    )
    config.write_text(settings(root, state, programs, scratch))
    process = start(config, programs, log)
    try:
        await wait_ready(process, state, programs, log)
        for image in (pause, *images):
            problem = await _ctr(programs, state, "images", "import", str(image))
            if problem is not None:
                raise ContainerdError(f"containerd refuses the image {image}: {problem}")
    finally:
        await process.stop(10.0)


def clone(store: Path, target: Path) -> None:
    """Give a node a root of its own that shares the files of images, which nothing ever changes."""
    for option in ("--link", "--reflink=auto"):
        done = subprocess.run(
            ["cp", "--archive", option, str(store), str(target)], capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            break
        # Links fail across file systems.
        shutil.rmtree(target, ignore_errors=True)
    else:
        raise ContainerdError(f"the images cannot be copied to {target}: {done.stderr.strip()[-300:]}")
    for database in target.rglob("*.db"):
        content = database.read_bytes()
        database.unlink()
        database.write_bytes(content)
