"""The two images: what decides their content, which tool builds them, and what is left when a build fails."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import pytest

from kronos.local import images
from kronos.local.images import base, inputs, tools, wheels
from kronos.local.images.errors import ImagesError, NoToolError
from kronos.local.images.inputs import OPERATOR, TRAINER
from kronos.local.images.runner import Answer, Runner

PROJECT = """\
[project]
dependencies = ["pydantic>=2"]
[project.optional-dependencies]
operator = ["kopf>=1"]
trainer = ["torch>=2"]
dev = ["pytest>=9"]
[tool.ruff]
line-length = 110
"""
SURROUNDINGS: Mapping[str, object] = {"base": "python:3.11", "wheels": []}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A project with one small file wherever the real one has some."""
    for image in images.IMAGES:
        for source in image.sources:
            file = tmp_path / source if source.endswith(".py") else tmp_path / source / "module.py"
            write(file, f"# {source}\n")
        write(tmp_path / image.dockerfile, f"FROM scratch\n# {image.name}\n")
    write(tmp_path / "operator/kronos/local/module.py", "# local\n")
    write(tmp_path / "constraints.txt", "torch==2.13.0\n")
    write(tmp_path / "pyproject.toml", PROJECT)
    return tmp_path


def write(file: Path, content: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content, encoding="utf-8")


def hashes(root: Path) -> dict[str, str]:
    return {image.name: inputs.input_hash(image, SURROUNDINGS, root) for image in images.IMAGES}


def project(old: str, new: str) -> Callable[[Path], None]:
    assert old in PROJECT
    return lambda root: write(root / "pyproject.toml", PROJECT.replace(old, new))


def content(name: str) -> Callable[[Path], None]:
    return lambda root: write(root / name, "something else\n")


def renaming(old: str, new: str) -> Callable[[Path], None]:
    def rename(root: Path) -> None:
        (root / old).rename(root / new)

    return rename


@pytest.mark.parametrize(
    ("change", "affected"),
    [
        pytest.param(content("operator/kronos/controller/module.py"), {"operator"}, id="controller"),
        pytest.param(content("operator/kronos/strategy/deeper/new.py"), {"operator"}, id="new file"),
        pytest.param(
            renaming("operator/kronos/strategy/module.py", "operator/kronos/strategy/other.py"),
            {"operator"},
            id="renamed file",
        ),
        pytest.param(content("trainer_image/kronos_trainer/module.py"), {"trainer"}, id="trainer"),
        pytest.param(content("operator/kronos/api/module.py"), {"operator", "trainer"}, id="models"),
        pytest.param(content("operator/Dockerfile"), {"operator"}, id="operator's Dockerfile"),
        pytest.param(content("trainer_image/Dockerfile"), {"trainer"}, id="trainer's Dockerfile"),
        pytest.param(content("constraints.txt"), {"operator", "trainer"}, id="pins"),
        pytest.param(project("kopf>=1", "kopf>=2"), {"operator"}, id="operator's requirement"),
        pytest.param(project("torch>=2", "torch>=3"), {"trainer"}, id="trainer's requirement"),
        pytest.param(project("pydantic>=2", "pydantic>=3"), {"operator", "trainer"}, id="common requirement"),
        pytest.param(project("pytest>=9", "pytest>=10"), set(), id="requirement of tests"),
        pytest.param(project("110", "100"), set(), id="settings of other tools"),
        pytest.param(content("operator/kronos/local/module.py"), set(), id="local cluster"),
        pytest.param(content("operator/kronos/api/__pycache__/module.pyc"), set(), id="bytecode"),
        pytest.param(content("README.md"), set(), id="documents"),
        pytest.param(lambda root: os.utime(root / "constraints.txt", (0, 0)), set(), id="time of a file"),
    ],
)
def test_an_image_is_built_again_exactly_when_what_goes_in_changes(
    checkout: Path, change: Callable[[Path], None], affected: set[str]
) -> None:
    before = hashes(checkout)
    change(checkout)
    after = hashes(checkout)
    assert {name for name in after if after[name] != before[name]} == affected


def test_the_base_and_the_wheels_at_hand_are_inputs_too(checkout: Path) -> None:
    states = (SURROUNDINGS, {**SURROUNDINGS, "base": "mine"}, {**SURROUNDINGS, "wheels": ["torch.whl 1"]})
    assert len({inputs.input_hash(TRAINER, state, checkout) for state in states}) == 3


def test_a_build_sees_its_own_sources_and_wheels_alone(checkout: Path, tmp_path: Path) -> None:
    write(tmp_path / "downloaded" / "torch.whl", "wheel")
    context = tmp_path / "context"
    context.mkdir()
    inputs.fill_context(TRAINER, context, tmp_path / "downloaded", checkout)
    assert {str(file.relative_to(context)) for file in context.rglob("*") if file.is_file()} == {
        "constraints.txt",
        "pyproject.toml",
        "wheels/torch.whl",
        "operator/kronos/__init__.py",
        "operator/kronos/api/module.py",
        "trainer_image/kronos_trainer/module.py",
    }


TORCH = "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, []),
        ({"KRONOS_WHEELS": "{folder}/wheels"}, [f"{TORCH} 5"]),
        ({"PIP_FIND_LINKS": "{folder}/wheels {folder}/empty"}, [f"{TORCH} 5"]),
        ({"PIP_FIND_LINKS": "{folder}/wheels", "KRONOS_WHEELS": "{folder}/wheels"}, [f"{TORCH} 5"]),
        ({"PIP_FIND_LINKS": "{folder}/missing"}, ["{folder}/missing"]),
        ({"PIP_FIND_LINKS": "{folder}/empty"}, []),
    ],
)
def test_of_folders_of_wheels_only_the_wheels_of_pinned_packages_count(
    tmp_path: Path, environ: dict[str, str], expected: list[str]
) -> None:
    write(tmp_path / "wheels" / TORCH, "wheel")
    write(tmp_path / "wheels" / "unrelated-1.0-py3-none-any.whl", "wheel")
    (tmp_path / "empty").mkdir()
    filled = {name: value.format(folder=tmp_path) for name, value in environ.items()}
    assert wheels.offered(filled) == [item.format(folder=tmp_path) for item in expected]


def test_wheels_are_fetched_for_the_base_and_not_for_this_machine() -> None:
    command = wheels.download_command("3.12", "aarch64", Path("/wheels"), ["torch>=2"])
    assert {"--python-version=3.12", "--only-binary=:all:", "--platform=manylinux_2_28_aarch64"} <= set(
        command
    )
    assert "--platform=manylinux_2_39_aarch64" not in command
    assert command[-3:] == ["--constraint", str(inputs.ROOT / "constraints.txt"), "torch>=2"]


@pytest.mark.parametrize(
    ("installed", "docker_answers", "root", "expected"),
    [
        ({"buildah", "docker"}, True, True, "buildah"),
        ({"buildah", "docker"}, True, False, "docker"),
        ({"buildah", "docker"}, False, False, "buildah"),
        ({"buildah"}, False, False, "buildah"),
        ({"docker"}, True, True, "docker"),
    ],
)
def test_the_tool_is_one_that_can_build(
    installed: set[str], docker_answers: bool, root: bool, expected: str
) -> None:
    assert tools.choose(installed.__contains__, lambda: docker_answers, root) == expected


@pytest.mark.parametrize(
    ("installed", "sentence"),
    [
        (set(), "images are built by docker or buildah, and neither is installed; install one of them"),
        (
            {"docker"},
            "images are built by docker or buildah: docker doesn't answer and buildah isn't installed",
        ),
    ],
)
def test_without_a_tool_one_sentence_says_so(installed: set[str], sentence: str) -> None:
    with pytest.raises(NoToolError) as caught:
        tools.choose(installed.__contains__, lambda: False, True)
    assert str(caught.value) == sentence


def test_the_command_has_an_exit_code_of_its_own_for_a_missing_tool(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("KRONOS_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert images.main() == images.EXIT_NO_TOOL
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert "neither is installed" in said.err


def runner(folder: Path, progress: Callable[[str], None] = lambda text: None) -> Runner:
    return Runner(folder / "log", dict(os.environ), progress)


def test_buildah_builds_without_a_daemon_and_asks_no_registry(tmp_path: Path) -> None:
    command = tools.Buildah(tmp_path, runner(tmp_path)).build_command(
        OPERATOR, "mybase", Path("/context"), "mytag", "packages"
    )
    joined = " ".join(command)
    assert joined.startswith(f"buildah --root {tmp_path}/layers --runroot {tmp_path}/run bud ")
    assert {"--pull-never", "--layers"} <= set(command)
    assert "--isolation chroot" in joined
    assert joined.endswith(
        f"--target packages --build-arg BASE=mybase --file {inputs.ROOT}/operator/Dockerfile --tag mytag /context"
    )


def test_docker_builds_the_same(tmp_path: Path) -> None:
    assert tools.Docker(runner(tmp_path)).build_command(TRAINER, "mybase", Path("/context"), "mytag") == [
        *("docker", "build", "--build-arg", "BASE=mybase"),
        *("--file", f"{inputs.ROOT}/trainer_image/Dockerfile", "--tag", "mytag", "/context"),
    ]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (Answer(True, "3.11\n"), ""),
        (Answer(True, "3.14\n"), ""),
        (Answer(True, "3.9\n"), "has Python 3.9, and Kronos needs 3.11 or newer"),
        (Answer(False, "python3: not found\n"), "has no Python that starts as python3: python3: not found"),
        (Answer(True, "hello\n"), "has no Python that starts as python3: hello"),
    ],
)
def test_a_base_without_a_python_that_will_do_is_refused(answer: Answer, problem: str) -> None:
    if not problem:
        assert tools.checked_version("mybase", answer) == answer.text
        return
    with pytest.raises(ImagesError) as caught:
        tools.checked_version("mybase", answer)
    assert str(caught.value) == f"the base image mybase {problem}"


class Stub:
    """A tool in whose place files are written; it holds some images, and its registry offers some."""

    def __init__(self, held: set[str], offered: Collection[str] = ()) -> None:
        self.held = held
        self.offered = offered
        self.calls: list[str] = []
        self.failing = ""

    def has(self, image: str) -> bool:
        return image in self.held

    def reaches(self, image: str) -> Answer:
        return Answer(image in self.offered, "no such host")

    def pull(self, image: str) -> str:
        self.calls.append(f"pull {image}")
        return image

    def import_root(self, archive: Path, name: str) -> None:
        assert archive.read_text(encoding="utf-8") == "root\n"
        self.calls.append("import")
        self.held.add(name)

    def python_version(self, name: str) -> str:
        return "3.11"

    def build(self, image: images.Image, name: str, context: Path, archive: Path) -> None:
        self.calls.append(f"build {image.name}")
        archive.write_text("archive", encoding="utf-8")
        if image.name == self.failing:
            raise ImagesError("it failed")


@pytest.mark.parametrize(
    ("held", "offered", "chosen", "expected", "calls"),
    [
        (set(), {base.DEFAULT}, "", base.DEFAULT, [f"pull {base.DEFAULT}"]),
        ({base.DEFAULT}, set(), "", base.DEFAULT, []),
        ({"mine"}, {base.DEFAULT}, "mine", "mine", []),
        ({base.DEFAULT}, {"mine"}, "mine", "mine", ["pull mine"]),
        ({base.own_name()}, set(), "", base.own_name(), []),
        (set(), set(), "", base.own_name(), ["import"]),
    ],
)
def test_the_base_is_the_chosen_one_or_the_usual_one_or_made_here(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    held: set[str],
    offered: set[str],
    chosen: str,
    expected: str,
    calls: list[str],
) -> None:
    programs = tmp_path / "programs"
    write(programs / "mmdebstrap", '#!/bin/sh\nfor last; do :; done\necho root >"$last"\n')
    (programs / "mmdebstrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    tool = Stub(set(held), offered)
    assert base.find(tool, tmp_path, chosen, runner(tmp_path)) == expected
    assert tool.calls == calls
    assert not list(tmp_path.glob("*.partial"))


def test_where_no_base_can_be_had_the_error_says_what_would_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        ImagesError, match=r"\(no such host\); name another one in KRONOS_BASE_IMAGE, or install"
    ):
        base.find(Stub(set()), tmp_path, "", runner(tmp_path))


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Stub:
    """A cache of its own, and a stub in the place of buildah and docker."""
    stub = Stub({base.DEFAULT})
    monkeypatch.setenv("KRONOS_CACHE", str(tmp_path))
    monkeypatch.delenv("KRONOS_BASE_IMAGE", raising=False)
    monkeypatch.setattr(images, "_tool", lambda store, runner: stub)
    monkeypatch.setattr(wheels, "ensure", lambda store, *rest: made(store / "wheels"))
    return stub


def made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


def quiet(text: str) -> None:
    """Progress that nobody reads."""


def test_what_is_built_is_used_again(tool: Stub) -> None:
    first = images.ensure(quiet)
    assert tool.calls == ["build operator", "build trainer"]
    assert set(first) == {"kronos/operator:0.1", "kronos/trainer:0.1"}
    assert all(path.read_text(encoding="utf-8") == "archive" for path in first.values())
    assert images.ensure(quiet) == first
    assert tool.calls == ["build operator", "build trainer"]
    assert images.are_built()


def test_only_what_is_missing_is_built(tool: Stub) -> None:
    shutil.rmtree(images.ensure(quiet)["kronos/operator:0.1"].parent)
    assert not images.are_built()
    images.ensure(quiet)
    assert tool.calls == ["build operator", "build trainer", "build operator"]


def test_a_failed_build_leaves_nothing_half_built(tool: Stub, tmp_path: Path) -> None:
    tool.failing = "trainer"
    with pytest.raises(ImagesError, match="it failed"):
        images.ensure(quiet)
    assert [path.name for path in tmp_path.rglob("*.tar")] == ["operator.tar"]
    tool.failing = ""
    assert all(path.exists() for path in images.ensure(quiet).values())
    assert tool.calls == ["build operator", "build trainer", "build trainer"]


def test_what_a_killed_build_left_is_removed(tool: Stub, tmp_path: Path) -> None:
    store = tmp_path / "images"
    write(store / "trainer-0123.partial" / "trainer.tar", "half")
    write(store / "context.partial" / "wheels" / "torch.whl", "wheel")
    write(store / "base.tar.partial", "half")
    images.ensure(quiet)
    assert not list(store.glob("*.partial"))


def test_of_earlier_archives_the_last_used_stays(tool: Stub, tmp_path: Path) -> None:
    for age, name in enumerate(("trainer-newer", "trainer-older", "operator-other")):
        write(tmp_path / "images" / name / "x.tar", "archive")
        os.utime(tmp_path / "images" / name, (1000 - age, 1000 - age))
    current = {path.parent.name for path in images.ensure(quiet).values()}
    left = {path.parent.name for path in (tmp_path / "images").glob("*/*.tar")}
    assert left == current | {"trainer-newer", "operator-other"}
