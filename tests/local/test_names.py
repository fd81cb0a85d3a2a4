"""Pods are found by the names that cluster DNS would give them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kronos.local.node.hosts import HeadlessService, Peer, addresses, hosts_text
from kronos.local.node.isolation import mentioned_peers, replace_names, replace_paths
from kronos.local.node.names import rewrite_in_place

GANG = HeadlessService("team", "gang", {"job": "j"})
ONE = Peer("team", "127.9.0.1", "one", "gang", {"job": "j", "rank": "0"})
TWO = Peer("team", "127.9.0.2", "two", "gang", {"job": "j"})


def service(**spec: object) -> dict:
    return {"metadata": {"namespace": "team", "name": "gang"}, "spec": spec}


def test_only_headless_services_with_a_selector_count() -> None:
    assert HeadlessService.from_object(service(clusterIP="None", selector={"job": "j"})) == GANG
    assert HeadlessService.from_object(service(clusterIP="10.0.0.1", selector={"job": "j"})) is None
    assert HeadlessService.from_object(service(clusterIP="None")) is None


def test_every_form_of_a_name_leads_to_the_pod() -> None:
    found = {name for name, address in addresses("team", [GANG], [ONE]) if address == ONE.address}
    forms = ["gang", "gang.team", "gang.team.svc", "gang.team.svc.cluster.local"]
    assert found == {*forms, *(f"one.{form}" for form in forms)}


def test_other_namespaces_need_the_namespace_in_the_name() -> None:
    names = {name for name, _ in addresses("other", [GANG], [ONE])}
    assert "one.gang.team" in names
    assert "one.gang" not in names
    assert "gang" not in names


@pytest.mark.parametrize(
    ("peer", "publish", "found"),
    [
        (ONE, False, True),
        (Peer("team", "127.9.0.3", "x", "gang", {"job": "other"}), False, False),
        (Peer("other", "127.9.0.3", "x", "gang", {"job": "j"}), False, False),
        (Peer("team", "127.9.0.3", "x", "gang", {"job": "j"}, ready=False), False, False),
        (Peer("team", "127.9.0.3", "x", "gang", {"job": "j"}, ready=False), True, True),
    ],
)
def test_a_service_publishes_the_pods_it_selects(peer: Peer, publish: bool, found: bool) -> None:
    headless = HeadlessService("team", "gang", {"job": "j"}, publish)
    assert bool(addresses("team", [headless], [peer])) is found


def test_the_hosts_file_holds_the_pod_itself_its_peers_and_what_the_machine_knows() -> None:
    machine = ["127.0.0.1 localhost", "# comment", "10.0.0.7 mirror one # note", ""]
    text = hosts_text(ONE, [GANG], [TWO, ONE], machine)
    lines = text.splitlines()
    assert lines[0] == "127.9.0.1 one.gang.team.svc.cluster.local one"
    assert "127.0.0.1 localhost" in lines
    assert "10.0.0.7 mirror" in lines
    two = next(line for line in lines if line.startswith("127.9.0.2 "))
    assert {"two.gang", "two.gang.team.svc.cluster.local", "gang"} <= set(two.split())
    assert hosts_text(ONE, [GANG], [ONE, TWO], machine) == text


def test_a_hosts_file_is_rewritten_in_place(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("a much longer text than what comes after\n")
    inode = path.stat().st_ino
    rewrite_in_place(path, "short\n")
    assert path.read_text() == "short\n"
    assert path.stat().st_ino == inode


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/data", "/real/d"),
        ("/data/x", "/real/d/x"),
        ("--out=/data:/data/y,rw", "--out=/real/d:/real/d/y,rw"),
        ("/database", "/database"),
        ("/my/data", "/my/data"),
        ("/data.bak", "/data.bak"),
        ("/data/sub/x", "/real/s/x"),
        ('open("/data/f")', 'open("/real/d/f")'),
    ],
)
def test_mount_paths_are_replaced_as_whole_components(text: str, expected: str) -> None:
    assert replace_paths(text, {"/data": "/real/d", "/data/sub": "/real/s"}) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one.gang", "127.9.0.1"),
        ("one.gang.team.svc.cluster.local:29500", "127.9.0.1:29500"),
        ("tcp://one.gang:29500,two.gang:29500", "tcp://127.9.0.1:29500,127.9.0.2:29500"),
        ("gang", "127.9.0.1"),
        ("gang:80", "127.9.0.1:80"),
        ("the gang is ready", "the gang is ready"),
        ("zone.gang", "zone.gang"),
        ("one.gang.other", "one.gang.other"),
        ("one.gang.", "127.9.0.1."),
    ],
)
def test_names_are_replaced_by_addresses(text: str, expected: str) -> None:
    assert replace_names(text, dict(reversed(addresses("team", [GANG], [ONE, TWO])))) == expected


def test_peers_are_recognised_before_they_have_an_address() -> None:
    words = ["tcp://one.gang.team.svc:1", "two.gang", "x.other", "gang"]
    assert mentioned_peers(words, ["gang"]) == {"one.gang", "two.gang"}
