"""Nodes as they are asked for, on the command line or in Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from kronos.local import LocalNode, default_topology
from kronos.local.__main__ import environment_lines, main, parse_process, read_nodes
from kronos.local.control import ExtraProcess, Settings


def test_the_default_is_two_racks_of_two_nodes_with_four_slots() -> None:
    nodes = default_topology()
    assert [node.name for node in nodes] == ["rack-a-0", "rack-a-1", "rack-b-0", "rack-b-1"]
    assert nodes[2].all_labels("amd64") == {
        "kubernetes.io/hostname": "rack-b-0",
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "topology.kubernetes.io/zone": "local",
        "kronos.dev/rack": "rack-b",
        "kronos.dev/accelerator.product": "CPU",
    }
    assert nodes[0].all_capacity()["kronos.dev/accelerator"] == "4"


@pytest.mark.parametrize("arguments", [(0, 1, 1), (27, 1, 1), (1, 0, 1), (1, 1, -1)])
def test_an_impossible_topology_is_refused(arguments: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="1 to 26 racks"):
        default_topology(*arguments)


def test_nodes_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "nodes.yaml"
    path.write_text("- name: big\n  labels: {zone: 1}\n  capacity: {cpu: 64}\n- name: small\n")
    assert read_nodes(path) == [LocalNode("big", {"zone": "1"}, {"cpu": "64"}), LocalNode("small")]
    path.write_text("- nmae: big\n")
    with pytest.raises(ValueError, match="a node needs a name"):
        read_nodes(path)


def test_settings_survive_the_way_to_the_supervisor() -> None:
    processes = [ExtraProcess("operator", ["run", "it"], {"A": "1"})]
    settings = Settings(Path("/s"), Path("/b"), 7, default_topology(), 4.0, {"X": "y"}, processes)
    assert Settings.from_json(settings.to_json()) == settings


def test_a_process_is_read_from_name_and_command() -> None:
    assert parse_process("operator=python -m 'a b'") == ExtraProcess("operator", ["python", "-m", "a b"])


def test_env_prints_lines_for_a_shell() -> None:
    lines = environment_lines(Path("/my state"), Path("/bin folder")).splitlines()
    assert lines == ["export KUBECONFIG='/my state/kubeconfig'", "export PATH='/bin folder':\"$PATH\""]


def test_commands_say_when_no_cluster_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--state", str(tmp_path)]) == 1
    assert f"error: no cluster runs in {tmp_path}" in capsys.readouterr().err
    assert main(["down", "--state", str(tmp_path)]) == 0
