"""The image that both build on: the user's choice, else the usual one, else one made here of Debian packages."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from kronos.local.images.errors import ImagesError
from kronos.local.images.runner import Runner
from kronos.local.images.tools import Tool

CHOICE = "KRONOS_BASE_IMAGE"
DEFAULT = "docker.io/library/python:3.11-slim-bookworm"
SUITE = "bookworm"
PACKAGES = ("python3", "python-is-python3", "libstdc++6")
"""Python under both of its names, and what the wheels need of C++."""
EXCLUDED = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*")
KEPT = ("/usr/share/doc/*/copyright",)
MERGED = "/usr/share/mmdebstrap/hooks/merged-usr"
"""Without this hook a package that moves folders comes along, and all of Perl with it."""
LEFTOVERS = ("/var/cache/debconf/*-old", "/var/lib/dpkg/*-old")


def find(tool: Tool, store: Path, chosen: str, runner: Runner) -> str:
    """The base image by a name or number that the tool knows, fetched or made if need be."""
    wanted = chosen or DEFAULT
    if tool.has(wanted):
        return wanted
    if chosen:
        return tool.pull(chosen)
    runner.progress(f"looking for the base image {wanted}")
    answer = tool.reaches(wanted)
    if answer.good:
        return tool.pull(wanted)
    if shutil.which("mmdebstrap") is None or os.geteuid() != 0:
        raise ImagesError(
            f"no registry offers the base image {wanted} ({answer.text}); name another one in {CHOICE}, or install "
            "mmdebstrap and run this as root, which makes one of Debian packages"
        )
    own = own_name()
    if not tool.has(own):
        archive = store / "base.tar.partial"
        try:
            label = "no registry offers the usual base image: making one of Debian packages, about 60 s"
            runner.run(bootstrap_command(archive), label)
            tool.import_root(archive, own)
        finally:
            archive.unlink(missing_ok=True)
    return own


def bootstrap_command(archive: Path) -> list[str]:
    """The command that makes the root file system of the smallest Debian with Python."""
    rules = [
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in EXCLUDED),
        *(f"--dpkgopt=path-include={pattern}" for pattern in KEPT),
    ]
    hooks = [f"--hook-dir={MERGED}"] if Path(MERGED).is_dir() else []
    cleaning = "--customize-hook=rm -f " + " ".join(f'"$1"{pattern}' for pattern in LEFTOVERS)
    packages = f"--include={','.join(PACKAGES)}"
    return [
        "mmdebstrap",
        "--quiet",
        "--format=tar",
        "--variant=essential",
        packages,
        *rules,
        *hooks,
        cleaning,
        SUITE,
        str(archive),
    ]


def own_name() -> str:
    """The name of the base made here, which changes with what it is made of."""
    recipe = repr(bootstrap_command(Path("base.tar")))
    return f"localhost/kronos-base:{SUITE}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
