"""What the documents say about the repository is true."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from kronos.api.job import TrainingJobSpec
from support.repository import ROOT, tracked_files

DOCUMENTS = [path for path in tracked_files() if path.suffix == ".md"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE))
LINK = re.compile(r"\]\(([^)\s]+)\)")
COMMAND = re.compile(r"(?:^    |`|\$\(|^\s*run: )make ([a-z][a-z-]*)", re.MULTILINE)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(document: Path):
    for link in LINK.findall(document.read_text(encoding="utf-8")):
        if "://" not in link:
            assert (document.parent / link.partition("#")[0]).exists(), link


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_of_make_exists(document: Path):
    assert set(COMMAND.findall(document.read_text(encoding="utf-8"))) <= TARGETS


def test_the_readme_names_the_commands_of_a_newcomer():
    named = set(COMMAND.findall((ROOT / "README.md").read_text(encoding="utf-8")))
    assert {"demo", "test", "up", "env", "down"} <= named


def test_ci_runs_the_readmes_test_command_and_the_tests_on_real_nodes():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "set -eu" in script
    assert re.findall(r"^(?:exec )?make .*", script, re.MULTILINE) == ["make test", "exec make test-cluster"]


def test_every_target_is_listed_by_help():
    described = set(re.findall(r"^([a-z][a-z-]*):[^#\n]*## ", MAKEFILE, re.MULTILINE))
    assert described == TARGETS


def test_the_readmes_manifest_is_valid():
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        TrainingJobSpec.model_validate(yaml.safe_load(block)["spec"])


def test_every_dependency_is_justified():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    direct = [
        *project["dependencies"],
        *(item for extra in project["optional-dependencies"].values() for item in extra),
    ]
    text = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    for requirement in direct:
        name = re.match(r"[A-Za-z0-9-]+", requirement)
        assert name
        assert re.search(rf"\b{re.escape(name[0])}\b", text), name[0]
