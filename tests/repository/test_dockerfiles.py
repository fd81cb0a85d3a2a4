"""The Dockerfiles keep what the manifests rely on."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from kronos.api.job import Template
from kronos.local.images import IMAGES, Image, base
from kronos.local.images.inputs import TAG, source_files
from support.repository import ROOT

both = pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.name)
Instruction = tuple[str, str]


def stages(image: Image) -> list[list[Instruction]]:
    """The instructions of each stage, the FROM first; before the first FROM there are only arguments."""
    text = (ROOT / image.dockerfile).read_text(encoding="utf-8")
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    found: list[list[Instruction]] = [[]]
    for line in filter(None, map(str.strip, text.splitlines())):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            found.append([])
        found[-1].append((word, rest.strip()))
    return found


def of(kind: str, stage: list[Instruction]) -> list[str]:
    return [rest for word, rest in stage if word == kind]


def environment(image: Image) -> dict[str, str]:
    return dict(item.split("=", 1) for line in of("ENV", stages(image)[-1]) for item in shlex.split(line))


@both
def test_the_last_user_is_a_number_and_not_root(image: Image):
    user = of("USER", stages(image)[-1])[-1]
    # The kubelet can tell that a number isn't root, and refuses names where a pod says runAsNonRoot.
    assert re.fullmatch(r"[1-9][0-9]*:[1-9][0-9]*", user)


@both
def test_every_stage_stands_on_the_one_base(image: Image):
    arguments, *rest = stages(image)
    assert of("ARG", arguments) == [f"BASE={base.DEFAULT}"]
    assert {stage[0][1].split()[0] for stage in rest} == {"${BASE}"}


def test_the_base_is_pinned_to_a_version_of_python_and_of_debian():
    assert re.fullmatch(r"docker\.io/library/python:3\.\d+-slim-[a-z]+", base.DEFAULT)
    assert base.SUITE in base.DEFAULT


@both
def test_packages_are_installed_at_their_pinned_versions_and_as_wheels(image: Image):
    installs = [
        line
        for stage in stages(image)
        for line in of("RUN", stage)
        if re.search(r'"\$@" install|pip install', line)
    ]
    assert len(installs) == 1
    assert "-c /build/constraints.txt" in installs[0]
    assert "--only-binary=:all:" in installs[0]
    assert "--no-index --find-links=/build" in installs[0]


@both
def test_the_last_stage_takes_what_others_made_and_installs_nothing(image: Image):
    last = stages(image)[-1]
    assert all(copied.startswith("--from=") for copied in of("COPY", last))
    assert not of("ADD", last)
    assert not re.search(r"\binstall\b|apt-get|apk|curl|wget", " ".join(of("RUN", last)))


@both
def test_nothing_of_secrets_or_of_the_whole_checkout_is_copied(image: Image):
    copied = [shlex.split(line) for stage in stages(image)[1:-1] for line in of("COPY", stage)]
    named = {source for line in copied for source in line[:-1]}
    assert named == {"constraints.txt", "pyproject.toml", "wheel[s]", *image.sources}


@both
def test_bytecode_is_written_while_building_and_never_later(image: Image):
    compiled = [line for stage in stages(image)[1:-1] for line in of("RUN", stage) if "compileall" in line]
    # One for the packages, one for the sources. COPY keeps no times, so these may not decide.
    assert len(compiled) == 2
    assert all("--invalidation-mode unchecked-hash" in line for line in compiled)
    assert environment(image)["PYTHONDONTWRITEBYTECODE"] == "1"


@both
def test_what_libraries_write_goes_where_pods_have_room(image: Image):
    assert environment(image)["HOME"] == "/tmp"


@both
def test_labels_tell_the_version_that_manifests_name(image: Image):
    labels = dict(item.split("=", 1) for line in of("LABEL", stages(image)[-1]) for item in shlex.split(line))
    assert labels["org.opencontainers.image.version"] == TAG
    assert labels["org.opencontainers.image.title"] == f"kronos-{image.name}"


def entrypoint(image: Image) -> list[str]:
    (line,) = of("ENTRYPOINT", stages(image)[-1])
    words = json.loads(line)
    assert isinstance(words, list)
    return words


def test_the_operators_image_is_what_the_deployment_runs():
    deployment = yaml.safe_load((ROOT / "manifests" / "base" / "deployment.yaml").read_text(encoding="utf-8"))
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert (container["image"], container["command"]) == (IMAGES[0].reference, entrypoint(IMAGES[0]))


def test_the_trainers_image_is_what_jobs_run_unless_they_name_another():
    assert Template().image == IMAGES[1].reference
    assert entrypoint(IMAGES[1]) == ["python", "-m", "kronos_trainer"]


def imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{name.name}" for name in node.names)


@both
def test_an_image_holds_every_module_of_kronos_that_its_modules_import(image: Image):
    files = source_files(image)
    held = {source.removesuffix(".py").split("/", 1)[1].replace("/", ".") for source in image.sources}
    missing = {
        name
        for file in files
        for name in imported(file)
        if name.split(".")[0].startswith("kronos")
        and not any(f"{name}.".startswith(f"{package}.") for package in held)
        and name != "kronos"
    }
    assert not missing
    assert files
