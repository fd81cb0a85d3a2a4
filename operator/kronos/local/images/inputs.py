"""What goes into each image, and a name for its state."""

from __future__ import annotations

import hashlib
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
TAG = "0.1"
CONSTRAINTS = "constraints.txt"
PROJECT = "pyproject.toml"


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

    @property
    def full_reference(self) -> str:
        """The same as a kubelet resolves it."""
        return f"docker.io/{self.reference}"


_MODELS = ("operator/kronos/__init__.py", "operator/kronos/api")
_DECISIONS = ("strategy", "placement", "admission", "lifecycle", "controller")
OPERATOR = Image(
    "operator",
    "operator/Dockerfile",
    "operator",
    (*_MODELS, *(f"operator/kronos/{name}" for name in _DECISIONS)),
)
TRAINER = Image("trainer", "trainer_image/Dockerfile", "trainer", (*_MODELS, "trainer_image/kronos_trainer"))
IMAGES = (OPERATOR, TRAINER)


def source_files(image: Image, root: Path = ROOT) -> list[Path]:
    """The project's own files in an image, in a fixed order."""
    found: list[Path] = []
    for source in image.sources:
        path = root / source
        found += [path] if path.is_file() else sorted(path.rglob("*.py"))
    return found


def requirements(image: Image, root: Path = ROOT) -> list[str]:
    """The Python packages that an image asks for, from the project's own list."""
    project = tomllib.loads((root / PROJECT).read_text(encoding="utf-8"))["project"]
    return [*project["dependencies"], *project["optional-dependencies"][image.extra]]


def input_hash(image: Image, surroundings: Mapping[str, object], root: Path = ROOT) -> str:
    """A name that changes whenever the image would.

    Of the project's settings only the requirements count. ``surroundings`` is what else decides the content: the base,
    the machine, and the wheels that pip finds before it asks an index.
    """
    digest = hashlib.sha256(repr((requirements(image, root), sorted(surroundings.items()))).encode())
    for file in (root / image.dockerfile, root / CONSTRAINTS, *source_files(image, root)):
        digest.update(f"\0{file.relative_to(root)}\0".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


def fill_context(image: Image, context: Path, wheels: Path, root: Path = ROOT) -> None:
    """Put all that a build reads into an empty folder."""
    for file in (root / CONSTRAINTS, root / PROJECT, *source_files(image, root)):
        target = context / file.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        # With its time: builders take a file with another time for another file.
        shutil.copy2(file, target)
    (context / "wheels").mkdir()
    for wheel in wheels.iterdir():
        (context / "wheels" / wheel.name).hardlink_to(wheel)
