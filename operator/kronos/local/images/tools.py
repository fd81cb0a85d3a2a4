"""The programs that build images: buildah or docker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from kronos.local.images.errors import ImagesError, NoToolError
from kronos.local.images.inputs import IMAGES, ROOT, Image
from kronos.local.images.runner import Answer, Runner

ANSWER_SECONDS = 60.0
REGISTRY_SECONDS = 8.0
VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"


class Tool(Protocol):
    """What building asks of a tool."""

    def has(self, image: str) -> bool:
        """Whether an image lies on this machine."""

    def reaches(self, image: str) -> Answer:
        """Whether a registry offers an image, answered within seconds."""

    def pull(self, image: str) -> str:
        """Fetch an image; the result names it."""

    def import_root(self, archive: Path, name: str) -> None:
        """Make an image of a root file system."""

    def python_version(self, base: str) -> str:
        """The version of Python in an image, as ``3.11``."""

    def build(self, image: Image, base: str, context: Path, archive: Path) -> None:
        """Build an image and write its archive."""


def choose(has: Callable[[str], bool], docker_answers: Callable[[], bool], root: bool) -> str:
    """The tool that builds: buildah for root, who needs no daemon, else docker where it runs, else buildah."""
    if has("buildah") and root:
        return "buildah"
    if has("docker") and docker_answers():
        return "docker"
    if has("buildah"):
        return "buildah"
    if has("docker"):
        raise NoToolError(
            "images are built by docker or buildah: docker doesn't answer and buildah isn't installed"
        )
    raise NoToolError("images are built by docker or buildah, and neither is installed; install one of them")


class Buildah:
    """buildah with a store of its own, so that cleaning up touches no images of the user."""

    def __init__(self, store: Path, runner: Runner) -> None:
        """Keep layers below a folder whose lock the caller holds."""
        self._command = ["buildah", "--root", str(store / "layers"), "--runroot", str(store / "run")]
        self._runner = runner
        # Left from builds that were killed: the lock is ours.
        self._ask("rm", "--all")

    def _ask(self, *arguments: str, seconds: float = ANSWER_SECONDS) -> Answer:
        return self._runner.ask([*self._command, *arguments], seconds)

    def has(self, image: str) -> bool:
        """Whether an image lies in the store."""
        return self._ask("inspect", "--type", "image", image).good

    def reaches(self, image: str) -> Answer:
        """Whether a registry offers an image."""
        return self._ask("manifest", "inspect", image, seconds=REGISTRY_SECONDS)

    def pull(self, image: str) -> str:
        """Fetch an image from a registry, or from an archive named as ``oci-archive:path``."""
        return self._runner.run([*self._command, "pull", "--quiet", image], f"pulling the base image {image}")

    def import_root(self, archive: Path, name: str) -> None:
        """Make an image of a root file system."""
        container = self._ask("from", "scratch")
        steps = (
            ("add", "--quiet", container.text, str(archive), "/"),
            ("commit", "--quiet", container.text, name),
        )
        problems = (answer.text for step in steps if not (answer := self._ask(*step)).good)
        problem = next(problems, "") if container.good else container.text
        self._ask("rm", container.text)
        if problem:
            raise ImagesError(f"buildah can't make an image of a root file system: {problem}")

    def python_version(self, base: str) -> str:
        """Start the base's Python and ask."""
        container = self._ask("from", "--pull-never", base)
        if not container.good:
            raise ImagesError(f"the base image {base} can't be used: {container.text}")
        answer = self._ask("run", "--isolation", "chroot", container.text, "--", "python3", "-c", VERSION)
        self._ask("rm", container.text)
        return checked_version(base, answer)

    def build(self, image: Image, base: str, context: Path, archive: Path) -> None:
        """Build an image and write its archive; the layers with packages stay for the next time."""
        tag, packages = image.full_reference, packages_name(image)
        label = f"building the image {image.reference}"
        self._runner.run(
            self.build_command(image, base, context, packages, "packages"), f"{label}: installing packages"
        )
        self._runner.run(self.build_command(image, base, context, tag), label)
        push = [*self._command, "push", "--quiet", tag, f"docker-archive:{archive}:{tag}"]
        self._runner.run(push, f"writing the archive of {image.reference}")
        self._tidy(base)

    def _tidy(self, base: str) -> None:
        """Remove what no next build can use: names of earlier bases and versions, then layers without a name."""
        current = {name for image in IMAGES for name in (image.full_reference, packages_name(image))}
        listed = self._ask("images", "--no-trunc", "--format", "{{.ID}} {{.Name}}:{{.Tag}}").output
        for line in listed.splitlines():
            number, name = line.split()
            if name not in current | {base} and number.removeprefix("sha256:") != base:
                self._ask("rmi", name)
        self._ask("rmi", "--prune")

    def build_command(self, image: Image, base: str, context: Path, tag: str, target: str = "") -> list[str]:
        """The command line that builds an image, or one stage of it."""
        options = ["--isolation", "chroot", "--layers", "--pull-never", "--format", "docker"]
        stage = ["--target", target] if target else []
        return [*self._command, "bud", *options, *stage, *_common(image, base, tag), str(context)]


class Docker:
    """The docker command line."""

    def __init__(self, runner: Runner) -> None:
        """Use the daemon that the user's settings name."""
        self._runner = runner

    def _ask(self, *arguments: str, seconds: float = ANSWER_SECONDS) -> Answer:
        return self._runner.ask(["docker", *arguments], seconds)

    def has(self, image: str) -> bool:
        """Whether the daemon holds an image."""
        return self._ask("image", "inspect", "--format", "{{.Id}}", image).good

    def reaches(self, image: str) -> Answer:
        """Whether a registry offers an image."""
        return self._ask("manifest", "inspect", image, seconds=REGISTRY_SECONDS)

    def pull(self, image: str) -> str:
        """Fetch an image."""
        self._runner.run(["docker", "pull", "--quiet", image], f"pulling the base image {image}")
        return image

    def import_root(self, archive: Path, name: str) -> None:
        """Make an image of a root file system."""
        self._runner.run(["docker", "import", str(archive), name], "importing the base image")

    def python_version(self, base: str) -> str:
        """Start the base's Python and ask."""
        run = ["run", "--rm", "--network=none", "--entrypoint=python3"]
        return checked_version(base, self._ask(*run, base, "-c", VERSION))

    def build(self, image: Image, base: str, context: Path, archive: Path) -> None:
        """Build an image and write its archive."""
        tag = image.full_reference
        self._runner.run(
            self.build_command(image, base, context, tag), f"building the image {image.reference}"
        )
        save = ["docker", "save", "--output", str(archive), tag]
        self._runner.run(save, f"writing the archive of {image.reference}")

    def build_command(self, image: Image, base: str, context: Path, tag: str) -> list[str]:
        """The command line that builds an image."""
        return ["docker", "build", *_common(image, base, tag), str(context)]


def packages_name(image: Image) -> str:
    """The name that keeps the layers with an image's packages."""
    return f"localhost/kronos-{image.name}-packages:latest"


def _common(image: Image, base: str, tag: str) -> Sequence[str]:
    return ["--build-arg", f"BASE={base}", "--file", str(ROOT / image.dockerfile), "--tag", tag]


def checked_version(base: str, answer: Answer) -> str:
    """The version that a base's Python told; ImagesError where there is none, or too old a one."""
    parts = answer.text.split(".")
    if not answer.good or len(parts) != 2 or not all(part.isdigit() for part in parts):
        raise ImagesError(f"the base image {base} has no Python that starts as python3: {answer.text}")
    if (int(parts[0]), int(parts[1])) < (3, 11):
        raise ImagesError(f"the base image {base} has Python {answer.text}, and Kronos needs 3.11 or newer")
    return answer.text
