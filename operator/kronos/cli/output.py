"""How answers are written: a table for people, JSON or YAML for programs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def tables() -> Iterator[Console]:
    """Where tables go: to the terminal, or as plain lines without trailing blanks to whatever else is there."""
    if sys.stdout.isatty():
        yield Console(highlight=False)
        return
    console = Console(highlight=False, width=None if "COLUMNS" in os.environ else TABLE_WIDTH)
    with console.capture() as captured:
        yield console
    typer.echo("\n".join(line.rstrip() for line in captured.get().split("\n")), nl=False)


def write_data(output: Output, answer: Any) -> None:
    """Write an answer for programs."""
    data = wire(answer)
    # Bytes, since both formats are UTF-8 whatever the terminal shows.
    typer.echo(as_json(data) if output is Output.JSON else as_yaml(data), nl=False)
