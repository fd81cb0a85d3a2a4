"""How answers are written: a table for people, JSON or YAML for programs."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from typing import Any

import typer
from rich.console import Console

from kronos.cli.wire import as_json, as_yaml, wire

TABLE_WIDTH = 120
"""Columns where the output isn't a terminal."""


class Output(StrEnum):
    """How the answer is written."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def terminal() -> Console:
    """Where tables go."""
    wide = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(highlight=False, width=None if wide else TABLE_WIDTH)


def write_data(output: Output, answer: Any) -> None:
    """Write an answer for programs."""
    data = wire(answer)
    # Bytes, since both formats are UTF-8 whatever the terminal shows.
    typer.echo(as_json(data) if output is Output.JSON else as_yaml(data), nl=False)
