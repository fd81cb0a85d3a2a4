"""Planning a container's root: the host's, with volumes on top, even where the host has no such folder."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

Step = list[Any]


@dataclass(frozen=True)
class Mount:
    """A file or folder of the host and where the container sees it."""

    source: Path
    target: str
    read_only: bool = False


def program_folders() -> list[str]:
    """Where this Python and Kronos itself are: what pods run in place of an image."""
    checkout = Path(__file__).resolve().parents[4]
    folders = sorted({os.path.realpath(sys.prefix), os.path.realpath(sys.base_prefix), str(checkout)})
    return [folder for folder in folders if not any(is_below(folder, other) for other in folders)]


def plan(mounts: Sequence[Mount], kept: Sequence[str] = ()) -> list[Step]:
    """The steps that ``guard.py`` carries out on an empty root.

    The folders in ``kept`` stay visible where a writable volume would hide them, as one at ``/tmp`` does to a
    checkout below it. A mount point that the host lacks cannot be created there, so the nearest folder above
    it is replaced by an empty one that shows the same entries and has room for one more.
    """
    # Always taken apart: /dev gets a private /dev/shm, and the termination log has its usual place there.
    parents = {"/", "/dev"}
    binds: list[Step] = []
    targets: list[str] = []
    for mount in sorted(mounts, key=lambda item: len(PurePosixPath(item.target).parts)):
        target = os.path.realpath(mount.target)
        inside_volume = any(is_below(target, other) for other in targets)
        if not inside_volume and not os.path.lexists(target):
            parents.add(nearest_folder(target))
        binds.append(["bind", str(mount.source), target, mount.read_only])
        targets.append(target)
    steps: list[Step] = []
    for parent in sorted(parents, key=lambda path: (path.count("/"), path)):
        if parent != "/":
            steps.append(["tmpfs", parent, f"{stat.S_IMODE(Path(parent).stat().st_mode):o}"])
        steps += expand(parent)
    writable = [target for _, _, target, read_only in binds if not read_only]
    hidden = [folder for folder in kept if any(is_below(folder, target) for target in writable)]
    return steps + binds + [["bind", folder, folder, True] for folder in hidden]


def expand(folder: str) -> list[Step]:
    """Steps that show every entry of a folder of the host by itself."""
    steps: list[Step] = []
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda item: item.name):
            if entry.path == "/proc":
                steps.append(["proc"])
            elif entry.path == "/dev/shm":
                # Names in it often hold process ids, which repeat from one PID namespace to another.
                steps.append(["tmpfs", entry.path, "1777"])
            elif entry.is_symlink():
                steps.append(["symlink", entry.path, str(Path(entry.path).readlink())])
            else:
                steps.append(["host", entry.path])
    return steps


def nearest_folder(path: str) -> str:
    """The closest folder above a path that exists."""
    return next(str(parent) for parent in Path(path).parents if parent.is_dir())


def is_below(path: str, folder: str) -> bool:
    """Whether a path lies in a folder."""
    return path.startswith(folder.rstrip("/") + "/")
