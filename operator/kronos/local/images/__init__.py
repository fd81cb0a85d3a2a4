"""Kronos's two images as archives, built once for each state of what goes into them: ``python -m kronos.local.images``.

The tools are buildah or docker, whichever is there. Python packages are downloaded beforehand into a folder of wheels,
since a build may not reach an index from inside. Where the usual base image can't be pulled, one is made of Debian
packages.

Archives lie in the user's cache, below ``images``, each in a folder named by a hash of its own inputs, so that a change
of the operator builds nothing of the trainer. The command prints one line for each image: the name that manifests use,
a tab, the archive. ``ctr -n k8s.io images import``, ``kind load image-archive`` and ``docker load`` take them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from kronos.local.binaries import cache_folder, exclusive
from kronos.local.images import base, tools, wheels
from kronos.local.images.errors import ImagesError, NoToolError
from kronos.local.images.inputs import IMAGES, Image, fill_context, input_hash
from kronos.local.images.runner import Progress, Runner

__all__ = ["IMAGES", "Image", "ImagesError", "NoToolError", "are_built", "ensure", "main"]

KEPT = 2
"""Archives of each image that stay: the current one, and one for whoever goes back and forth between two states."""
EXIT_NO_TOOL = 4
"""Exit code when nothing can build images here."""


def ensure(progress: Progress) -> Mapping[str, Path]:
    """The archives of both images by the name that manifests use, built if they aren't there yet."""
    store = cache_folder(os.environ, Path.home()) / "images"
    found = archives(store, os.environ)
    if not all(path.exists() for path in found.values()):
        store.mkdir(parents=True, exist_ok=True)
        with exclusive(store / "lock", progress):
            _build_missing(store, found, progress)
    for path in found.values():
        # What was used last is removed last. A cache that can't be written to serves as well.
        with contextlib.suppress(OSError):
            os.utime(path.parent)
    return found


def are_built() -> bool:
    """Whether the archives for the present inputs are there."""
    store = cache_folder(os.environ, Path.home()) / "images"
    return all(path.exists() for path in archives(store, os.environ).values())


def archives(store: Path, environ: Mapping[str, str]) -> dict[str, Path]:
    """Where the archives for the present inputs lie, or will."""
    surroundings = {
        "base": environ.get(base.CHOICE) or (base.DEFAULT, base.own_name()),
        "machine": os.uname().machine,
        "pip": wheels.PIP,
        "wheels": wheels.offered(environ),
    }
    return {
        image.reference: store / f"{image.name}-{input_hash(image, surroundings)}" / f"{image.name}.tar"
        for image in IMAGES
    }


def _build_missing(store: Path, found: Mapping[str, Path], progress: Progress) -> None:
    """Build what isn't there; the caller holds the lock, so anything unfinished was left by somebody who was killed."""
    for leftover in store.glob("*.partial"):
        if leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()
    # Another process may have built them while this one waited for the lock.
    missing = [image for image in IMAGES if not found[image.reference].exists()]
    if not missing:
        return
    runner = Runner(store / "build.log", os.environ, progress)
    tool = _tool(store, runner)
    chosen = base.find(tool, store, os.environ.get(base.CHOICE, ""), runner)
    python = tool.python_version(chosen)
    for image in missing:
        archive = found[image.reference]
        ready = wheels.ensure(store, image, python, os.uname().machine, runner)
        partial = archive.parent.with_name(archive.parent.name + ".partial")
        context = store / "context.partial"
        try:
            partial.mkdir()
            context.mkdir()
            fill_context(image, context, ready)
            tool.build(image, chosen, context, partial / archive.name)
            partial.rename(archive.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
            shutil.rmtree(context, ignore_errors=True)
        for old in outdated(store, image):
            shutil.rmtree(old, ignore_errors=True)


def _tool(store: Path, runner: Runner) -> tools.Tool:
    name = tools.choose(
        lambda command: shutil.which(command) is not None,
        lambda: runner.ask(["docker", "version"], tools.REGISTRY_SECONDS).good,
        os.geteuid() == 0,
    )
    return tools.Buildah(store, runner) if name == "buildah" else tools.Docker(runner)


def outdated(store: Path, image: Image) -> Iterator[Path]:
    """All but the archives of an image that were used last."""
    found = sorted(store.glob(f"{image.name}-*"), key=lambda path: path.stat().st_mtime)
    yield from found[:-KEPT]


def main() -> int:
    """Build both images; standard output gets a line for each, its name and its archive."""

    def show(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    try:
        built = ensure(show)
    except NoToolError as error:
        show(f"error: {error}")
        return EXIT_NO_TOOL
    except ImagesError as error:
        show(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        show("interrupted; what was fetched is kept, and nothing half-built is")
        return 130
    for name, path in built.items():
        print(f"{name}\t{path}")
    return 0
