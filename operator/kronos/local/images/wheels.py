"""The Python packages of an image, downloaded beforehand: a build may not reach an index from inside."""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from kronos.local.bootstrap import pip_environment
from kronos.local.images.inputs import CONSTRAINTS, ROOT, Image, requirements
from kronos.local.images.runner import Runner

PIP = "pip==25.3"
"""What installs the others inside; it comes along as a wheel, since a small base has none."""
NEWEST_GLIBC = 36
"""That of Debian 12: wheels for a newer one might not work on the base."""


def offered(environ: Mapping[str, str]) -> list[str]:
    """What pip finds before it asks an index: names and sizes of wheels, and places other than folders by their name.

    Only those of pinned packages count, so that an empty folder more or less changes no image.
    """
    pinned = {
        canonical(line.partition("==")[0])
        for line in (ROOT / CONSTRAINTS).read_text(encoding="utf-8").splitlines()
        if "==" in line
    }
    found = set()
    for place in pip_environment(environ).get("PIP_FIND_LINKS", "").split():
        folder = Path(place).expanduser()
        if not folder.is_dir():
            found.add(place)
            continue
        for wheel in folder.glob("*.whl"):
            if canonical(wheel.name.partition("-")[0]) in pinned:
                found.add(f"{wheel.name} {wheel.stat().st_size}")
    return sorted(found)


def canonical(name: str) -> str:
    """A package's name in its canonical form."""
    return re.sub(r"[-_.]+", "-", name).strip().lower()


def platforms(machine: str) -> list[str]:
    """Tags of wheels that work in the base, best first, whatever the C library of this machine is."""
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(NEWEST_GLIBC, 4, -1)]
    return [
        *tags,
        *(f"{name}_{machine}" for name in ("manylinux2014", "manylinux2010", "manylinux1", "linux")),
    ]


def download_command(python: str, machine: str, target: Path, wanted: Sequence[str]) -> list[str]:
    """The command that fills a folder with wheels for a version of Python."""
    only = ["--only-binary=:all:", f"--python-version={python}", "--implementation=cp"]
    tags = [f"--platform={tag}" for tag in platforms(machine)]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(target), *only, *tags]
    return [*pip, "--constraint", str(ROOT / CONSTRAINTS), *wanted]


def ensure(store: Path, image: Image, python: str, machine: str, runner: Runner) -> Path:
    """A folder with the wheels of an image and of pip. The caller holds the store's lock."""
    wanted = [*requirements(image), PIP]
    environment = pip_environment(runner.environ)
    inputs = (
        wanted,
        python,
        machine,
        offered(runner.environ),
        (ROOT / CONSTRAINTS).read_text(encoding="utf-8"),
    )
    folder = store / f"wheels-{image.name}-{hashlib.sha256(repr(inputs).encode()).hexdigest()[:16]}"
    if not folder.exists():
        for old in store.glob(f"wheels-{image.name}-*"):
            shutil.rmtree(old)
        label = f"fetching the Python packages of {image.reference}"
        if image.extra == "trainer" and not any(
            name.startswith("torch-") for name in offered(runner.environ)
        ):
            label += " (torch for CUDA, some GB; KRONOS_WHEELS may name a folder with a smaller build)"
        partial = folder.with_name(folder.name + ".partial")
        runner.run(download_command(python, machine, partial, wanted), label, environment)
        partial.rename(folder)
    return folder
