"""What a container's root is planned to show."""

from __future__ import annotations

from pathlib import Path

from kronos.local.node.rootfs import Mount, plan, program_folders


def binds(mounts: list[Mount], kept: list[str]) -> list[list[object]]:
    return [step[1:] for step in plan(mounts, kept) if step[0] == "bind"]


def test_a_program_below_a_volume_stays_visible_and_read_only(tmp_path: Path):
    volume, checkout = tmp_path / "volume", "/tmp/checkouts/kronos"
    assert binds([Mount(volume, "/tmp")], [checkout, "/usr"]) == [
        [str(volume), "/tmp", False],
        [checkout, checkout, True],
    ]


def test_a_program_elsewhere_needs_nothing(tmp_path: Path):
    assert binds([Mount(tmp_path, "/data")], ["/opt/kronos"]) == [[str(tmp_path), "/data", False]]


def test_nothing_can_be_shown_inside_a_read_only_volume(tmp_path: Path):
    assert binds([Mount(tmp_path, "/tmp", read_only=True)], ["/tmp/kronos"]) == [
        [str(tmp_path), "/tmp", True]
    ]


def test_the_checkout_is_among_the_programs_once():
    folders = program_folders()
    checkout = str(Path(__file__).resolve().parents[2])
    assert sum(checkout == folder or checkout.startswith(f"{folder}/") for folder in folders) == 1
