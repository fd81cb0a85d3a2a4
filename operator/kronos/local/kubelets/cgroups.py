"""The control groups of nodes, which are all that a cluster could leave behind in the kernel."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
NEEDED = ("cpu", "cpuset", "memory", "pids")
REMOVAL_SECONDS = 5.0


def is_unified(root: Path = ROOT) -> bool:
    """Whether this machine has one hierarchy for all controllers (cgroup v2)."""
    return (root / "cgroup.controllers").exists()


def missing_controllers(root: Path = ROOT) -> list[str]:
    """Controllers that the kubelet needs and this machine lacks."""
    if is_unified(root):
        present = (root / "cgroup.controllers").read_text().split()
        return [name for name in NEEDED if name not in present]
    return [name for name in NEEDED if not (root / name / "tasks").exists()]


def hierarchies(root: Path = ROOT) -> list[Path]:
    """The top folder of each hierarchy; on machines with version 1 also of the one of version 2 beside it."""
    if is_unified(root):
        return [root]
    return [
        folder
        for folder in sorted(root.iterdir())
        if (folder / "cgroup.procs").exists() and not folder.is_symlink()
    ]


def create(name: str, root: Path = ROOT) -> None:
    """Make a node's group in every hierarchy."""
    if is_unified(root):
        enable = " ".join(f"+{controller}" for controller in NEEDED)
        (root / "cgroup.subtree_control").write_text(enable)
    for hierarchy in hierarchies(root):
        group = hierarchy / name
        group.mkdir(exist_ok=True)
        if hierarchy.name == "cpuset":
            # A new group has none, and nothing can run in it until it has.
            for setting in ("cpuset.cpus", "cpuset.mems"):
                (group / setting).write_text((hierarchy / setting).read_text())


def remove(name: str, root: Path = ROOT) -> None:
    """Remove a node's group with all below it, once its last process is gone; no group is no error."""
    deadline = time.monotonic() + REMOVAL_SECONDS
    for hierarchy in hierarchies(root):
        while (hierarchy / name).is_dir() and time.monotonic() < deadline:
            _remove_tree(hierarchy / name)
            if (hierarchy / name).is_dir():
                time.sleep(0.05)


def _remove_tree(group: Path) -> None:
    # A group with processes refuses to go, which leaves its parents as well.
    with contextlib.suppress(OSError):
        for child in group.iterdir():
            if child.is_dir():
                _remove_tree(child)
        group.rmdir()


def names_with(prefix: str, root: Path = ROOT) -> set[str]:
    """The groups at the top whose names begin so."""
    return {group.name for hierarchy in hierarchies(root) for group in hierarchy.glob(f"{prefix}*")}
