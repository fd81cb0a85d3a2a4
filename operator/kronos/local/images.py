"""Kronos's two images as archives, built once for each state of what goes into them: ``python -m kronos.local.images``.

The tools are buildah or docker, whichever is there. Python packages are downloaded beforehand into a folder of wheels,
since a build may not reach an index from inside. Where the usual base image can't be pulled, one is made of Debian
packages. Archives lie in the user's cache, below ``images``, each in a folder named by a hash of its inputs.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kronos.local.binaries import cache_folder, exclusive

ROOT = Path(__file__).resolve().parents[3]
TAG = "0.1"
BASE_CHOICE = "KRONOS_BASE_IMAGE"
DEFAULT_BASE = "docker.io/library/python:3.11-slim-bookworm"
OWN_BASE = "localhost/kronos-base:bookworm"
PULL_SECONDS = 60
PYTHON = "3.11"
DEBIAN = "bookworm"
# Everything else of the smallest Debian stays: python3 alone is what the images need.
PACKAGES = "python3,python-is-python3"
EXCLUDED = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
PIP = "pip==25.3"
KEPT = 3
EXIT_NO_TOOL = 4
"""Exit code when nothing can build images here."""

Progress = Callable[[str], None]


class ImagesError(Exception):
    """An image could not be built; the message says what to change or which command failed."""


class NoToolError(ImagesError):
    """There is neither buildah nor docker."""


@dataclass(frozen=True)
class Image:
    """One image: its Dockerfile and what of the project goes into it."""

    name: str
    dockerfile: str
    extra: str
    sources: tuple[str, ...]

    @property
    def reference(self) -> str:
        """The name that manifests use."""
        return f"kronos/{self.name}:{TAG}"


_DECISIONS = ("strategy", "placement", "admission", "lifecycle", "controller")
IMAGES = (
    Image(
        "operator",
        "operator/Dockerfile",
        "operator",
        (
            "operator/kronos/__init__.py",
            "operator/kronos/api",
            *(f"operator/kronos/{name}" for name in _DECISIONS),
        ),
    ),
    Image(
        "trainer",
        "trainer_image/Dockerfile",
        "trainer",
        ("operator/kronos/__init__.py", "operator/kronos/api", "trainer_image/kronos_trainer"),
    ),
)


def ensure(progress: Progress) -> dict[str, Path]:
    """The archives of both images by the name that manifests use, built if they aren't there yet."""
    store = cache_folder(os.environ, Path.home()) / "images"
    base = os.environ.get(BASE_CHOICE, "")
    found = {image.reference: archive_of(store, image, base) for image in IMAGES}
    if all(path.exists() for path in found.values()):
        return found
    store.mkdir(parents=True, exist_ok=True)
    with exclusive(store / "lock", progress):
        builder: Builder | None = None
        for image in IMAGES:
            if not found[image.reference].exists():
                builder = builder or Builder.choose(store, base, progress)
                builder.build(image, found[image.reference])
            os.utime(found[image.reference].parent)
            for old in outdated(store, image):
                shutil.rmtree(old, ignore_errors=True)
    return found


def archive_of(store: Path, image: Image, base: str) -> Path:
    """Where the archive of an image lies."""
    return store / f"{image.name}-{input_hash(image, base)}" / f"{image.name}.tar"


def outdated(store: Path, image: Image) -> Iterator[Path]:
    """All but the archives of an image that were used last."""
    found = sorted(store.glob(f"{image.name}-*"), key=lambda path: path.stat().st_mtime)
    yield from found[:-KEPT]


def input_files(image: Image, root: Path = ROOT) -> list[Path]:
    """All files that go into an image, in a fixed order."""
    files = [root / image.dockerfile, root / "constraints.txt", root / "pyproject.toml"]
    for source in image.sources:
        path = root / source
        files += [path] if path.is_file() else sorted(path.rglob("*.py"))
    return files


def input_hash(image: Image, base: str, root: Path = ROOT) -> str:
    """A name that changes whenever the image would."""
    digest = hashlib.sha256(
        repr((base, PACKAGES, DEBIAN, PYTHON, PIP, EXCLUDED, os.uname().machine)).encode()
    )
    digest.update(os.environ.get("PIP_FIND_LINKS", "").encode())
    for file in input_files(image, root):
        digest.update(f"{file.relative_to(root)}\0".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


def requirements(extra: str, root: Path = ROOT) -> list[str]:
    """The Python packages of an image, from the project's own list."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*project["dependencies"], *project["optional-dependencies"][extra]]


def choose_tool(has: Callable[[str], bool], root: bool) -> str:
    """The tool that builds: buildah for root, who needs no daemon, docker for others, else what is there."""
    for tool in ("buildah", "docker") if root else ("docker", "buildah"):
        if has(tool):
            return tool
    raise NoToolError("images are built by buildah or docker, and neither is installed; install one of them")


class Builder:
    """Builds with one tool on one base."""

    def __init__(self, tool: str, store: Path, progress: Progress) -> None:
        self.tool = tool
        self.store = store
        self.progress = progress
        self.base = ""

    @classmethod
    def choose(cls, store: Path, base: str, progress: Progress) -> Builder:
        """Find a tool and a base image that is there or can be had."""
        tool = choose_tool(lambda command: shutil.which(command) is not None, os.geteuid() == 0)
        builder = cls(tool, store, progress)
        if tool == "buildah":
            # The store is ours and so is its lock: these are left from builds that were killed.
            run(builder.command("rm", "--all"))
        builder.base = builder.find_base(base)
        return builder

    def command(self, *arguments: str) -> list[str]:
        """A command line of the tool; buildah's own store stays in the cache."""
        if self.tool == "docker":
            return ["docker", *arguments]
        return [
            "buildah",
            "--root",
            str(self.store / "layers"),
            "--runroot",
            str(self.store / "run"),
            *arguments,
        ]

    def find_base(self, chosen: str) -> str:
        """The base image: the chosen one, else the usual one, else one made of Debian packages."""
        wanted = chosen or DEFAULT_BASE
        self.progress(f"pulling the base image {wanted}")
        problem = attempt(self.command("pull", wanted), PULL_SECONDS)
        if not problem:
            return wanted
        if chosen:
            raise ImagesError(f"the base image {chosen} can't be pulled: {problem}")
        if shutil.which("mmdebstrap") is None or os.geteuid() != 0:
            raise ImagesError(
                f"the base image {wanted} can't be pulled ({problem}); name another one in {BASE_CHOICE}, "
                "or install mmdebstrap and run this as root, which makes one of Debian packages"
            )
        if attempt(self.command("inspect", "--type", "image", OWN_BASE), PULL_SECONDS):
            self._make_base()
        return OWN_BASE

    def _make_base(self) -> None:
        self.progress("no registry within reach: making a base image of Debian packages, about 30 s")
        archive = self.store / "base.tar"
        options = [f"--dpkgopt=path-exclude={pattern}" for pattern in EXCLUDED]
        command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}", *options]
        run([*command, DEBIAN, str(archive)])
        try:
            if self.tool == "docker":
                run(self.command("import", str(archive), OWN_BASE))
                return
            container = run(self.command("from", "scratch"))
            run(self.command("add", "--quiet", container, str(archive), "/"))
            run(self.command("commit", "--quiet", "--rm", container, OWN_BASE))
        finally:
            archive.unlink(missing_ok=True)

    def build(self, image: Image, archive: Path) -> None:
        """Build one image and write its archive."""
        wheels = self.wheels(image)
        self.progress(f"building the image {image.reference}")
        with tempfile.TemporaryDirectory(dir=self.store, prefix="context-") as folder:
            context = Path(folder)
            fill_context(image, context, wheels)
            common = ["--build-arg", f"BASE={self.base}", "--file", str(ROOT / image.dockerfile)]
            tag = f"docker.io/{image.reference}"
            partial = archive.parent.with_name(archive.parent.name + ".partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            if self.tool == "docker":
                run(self.command("build", "--quiet", *common, "--tag", tag, str(context)))
                run(self.command("save", "--output", str(partial / archive.name), tag))
            else:
                bud = self.command(
                    "bud", "--isolation", "chroot", "--layers", "--quiet", "--pull-never", *common
                )
                # A tag keeps the layers of the first stage for the next build; what has none is removed.
                run(
                    [*bud, "--target", "build", "--tag", f"localhost/kronos-{image.name}-build", str(context)]
                )
                run([*bud, "--tag", tag, str(context)])
                run(self.command("push", "--quiet", tag, f"docker-archive:{partial / archive.name}:{tag}"))
                run(self.command("rmi", "--prune"))
            partial.rename(archive.parent)

    def wheels(self, image: Image) -> Path:
        """A folder with all Python packages of an image, and pip to install them with."""
        wanted = [*requirements(image.extra), PIP]
        constraints = ROOT / "constraints.txt"
        inputs = (
            wanted,
            constraints.read_text(encoding="utf-8"),
            os.environ.get("PIP_FIND_LINKS", ""),
            PYTHON,
        )
        folder = self.store / f"wheels-{image.name}-{hashlib.sha256(repr(inputs).encode()).hexdigest()[:16]}"
        if not folder.exists():
            self.progress(f"downloading the Python packages of {image.reference}")
            partial = folder.with_name(folder.name + ".partial")
            shutil.rmtree(partial, ignore_errors=True)
            for old in self.store.glob(f"wheels-{image.name}-*"):
                shutil.rmtree(old)
            options = ["--only-binary=:all:", f"--python-version={PYTHON}", "--disable-pip-version-check"]
            pip = [sys.executable, "-m", "pip", "download", "--quiet", *options]
            run([*pip, "-c", str(constraints), "-d", str(partial), *wanted])
            partial.rename(folder)
        return folder


def fill_context(image: Image, context: Path, wheels: Path, root: Path = ROOT) -> None:
    """Put all that a build reads into an empty folder."""
    for file in input_files(image, root):
        target = context / file.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    (context / "wheels").mkdir()
    for wheel in wheels.iterdir():
        os.link(wheel, context / "wheels" / wheel.name)


def attempt(command: Sequence[str], seconds: float) -> str:
    """Why a command fails, in its own last words; empty when it succeeds."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=seconds, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {seconds:g} s"
    if done.returncode == 0:
        return ""
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1].strip() if lines else f"exit code {done.returncode}"


def run(command: Sequence[str]) -> str:
    """Run a command and return the last line that it prints; ImagesError with its words when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        words = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise ImagesError(f"{Path(command[0]).name} failed with exit code {done.returncode}:\n{words}")
    lines = done.stdout.strip().splitlines()
    return lines[-1] if lines else ""


def main() -> int:
    """Build both images; standard output gets a line for each, its name and its archive."""

    def show(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    try:
        archives: Mapping[str, Path] = ensure(show)
    except NoToolError as error:
        show(f"error: {error}")
        return EXIT_NO_TOOL
    except ImagesError as error:
        show(f"error: {error}")
        return 1
    for name, path in archives.items():
        print(f"{name}\t{path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
