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


def test_a_mount_point_that_the_host_lacks_takes_its_folder_apart(tmp_path: Path) -> None:
    steps = plan([Mount(tmp_path, "/etc/kronos-test/deep", True)])
    assert ["tmpfs", "/etc", "755"] in steps
    assert ["host", "/etc/passwd"] in steps
    assert steps[-1] == ["bind", str(tmp_path), "/etc/kronos-test/deep", True]


def test_a_mount_inside_another_volume_comes_after_it(tmp_path: Path) -> None:
    steps = plan([Mount(tmp_path / "b", "/kronos-test/a/b"), Mount(tmp_path, "/kronos-test/a")])
    assert [step[2] for step in steps if step[0] == "bind"] == ["/kronos-test/a", "/kronos-test/a/b"]
    assert ["tmpfs", "/kronos-test", "755"] not in steps


def test_mount_points_follow_links_of_the_host(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert plan([Mount(tmp_path, f"{tmp_path}/link/new")])[-1][2] == f"{tmp_path.resolve()}/real/new"
