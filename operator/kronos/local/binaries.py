"""The control plane's executables, kept in the user's cache."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform as host
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from kronos.local.download import download
from kronos.local.gobuild import build
from kronos.local.versions import COMMANDS, Platform


def cache_folder(environ: Mapping[str, str], home: Path) -> Path:
    """The user's cache: ``$KRONOS_CACHE``, else ``kronos`` below the XDG cache folder."""
    if chosen := environ.get("KRONOS_CACHE"):
        return Path(chosen).absolute()
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else home / ".cache") / "kronos"


def ensure(progress: Callable[[str], None]) -> Path:
    """Return the folder with etcd, kube-apiserver and the rest, obtaining them first where necessary.

    They come from the cache, else from the official releases, else from a build of their Go modules.
    """
    platform = this_platform()
    cache = cache_folder(os.environ, Path.home())

    def fill(partial: Path) -> None:
        if not download(platform, partial, progress):
            progress("no official release within reach: building from Go modules, once")
            build(cache, partial, progress)

    return obtain(cache, platform.key, COMMANDS, fill, progress)


def this_platform() -> Platform:
    """The platform of this machine."""
    return Platform.of(host.system(), host.machine())


def obtain(
    cache: Path,
    key: str,
    commands: Sequence[str],
    fill: Callable[[Path], None],
    progress: Callable[[str], None],
) -> Path:
    """Return the folder ``key`` of the cache with all commands, calling ``fill`` for an empty one if need be."""
    folder = cache / key
    if is_complete(folder, commands):
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with exclusive(cache / f"{key}.lock", progress):
        if not is_complete(folder, commands):
            partial = folder.with_name(folder.name + ".partial")
            # The lock is ours, so anything here was left by somebody who was killed.
            shutil.rmtree(partial, ignore_errors=True)
            shutil.rmtree(folder, ignore_errors=True)
            partial.mkdir()
            try:
                fill(partial)
                partial.rename(folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    return folder


def is_complete(folder: Path, commands: Sequence[str] = COMMANDS) -> bool:
    """Whether every command is there."""
    return all(os.access(folder / command, os.X_OK) for command in commands)


@contextlib.contextmanager
def exclusive(path: Path, progress: Callable[[str], None]) -> Iterator[None]:
    """Hold a lock that the kernel releases even when this process is killed."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process that is obtaining the same programs")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
