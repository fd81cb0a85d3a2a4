"""Runs commands of `kubectl kronos` in this process."""

from __future__ import annotations

import json
from typing import Any

import yaml
from typer.testing import CliRunner

from kronos.api.fabric import FabricSpec
from kronos.api.job import TrainingJobSpec
from kronos.cli.__main__ import app

API_VERSION = "training.kronos.dev/v1alpha1"


def manifest(*specs: TrainingJobSpec | FabricSpec | dict[str, Any], **names: str) -> str:
    """Documents as people write them: the jobs are called job-1, job-2..., the fabrics `fabric_name` (default)."""
    documents: list[dict[str, Any]] = []
    for number, spec in enumerate(specs, start=1):
        if isinstance(spec, dict):
            documents.append(spec)
            continue
        job = isinstance(spec, TrainingJobSpec)
        name = f"job-{number}" if job else names.get("fabric_name", "default")
        documents.append(
            {
                "apiVersion": API_VERSION,
                "kind": "KronosTrainingJob" if job else "KronosFabric",
                "metadata": {"name": name},
                "spec": spec.wire(),
            }
        )
    return yaml.safe_dump_all(documents)


class Answer:
    """What a command wrote, and its exit code."""

    def __init__(self, *arguments: str, stdin: str = "", columns: int = 120) -> None:
        environment = {"COLUMNS": str(columns), "TERM": "dumb"}
        result = CliRunner().invoke(app, arguments, input=stdin, env=environment)
        # SystemExit is how commands end; anything else is the traceback that nobody should see.
        assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
        self.code = result.exit_code
        self.output = result.stdout
        self.errors = result.stderr

    @property
    def text(self) -> str:
        """The output with wrapped lines joined."""
        return " ".join(self.output.split())

    @property
    def plans(self) -> list[dict[str, Any]]:
        """The plans of an answer in JSON."""
        found: list[dict[str, Any]] = json.loads(self.output)["plans"]
        return found


def plan(text: str, *options: str) -> Answer:
    """`kubectl kronos plan -` with a manifest on standard input."""
    return Answer("plan", "-", *options, stdin=text)
