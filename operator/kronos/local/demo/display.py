"""Shows the jobs: a table that is drawn over again on a terminal, a line per change elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kronos.local.demo.story import Row

_COLOURS = {"Running": "green", "Complete": "bold green", "Failed": "bold red", "Queued": "yellow"}
_MILESTONES = 4
"""Elsewhere than on a terminal, progress is told this often per job."""


def table_of(rows: Iterable[Row]) -> Table:
    """The live table."""
    table = Table(expand=True)
    for heading in ("Job", "Phase", "Pods", "Strategy"):
        table.add_column(heading, no_wrap=True)
    for heading in ("Step", "Loss", "Tokens/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("Why", ratio=1)
    for row in rows:
        phase = row.status.phase
        table.add_row(
            row.name,
            Text(phase, style=_COLOURS.get(phase, "cyan")),
            row.status.ready,
            row.strategy,
            "" if row.step is None else f"{row.step}/{row.steps}",
            "" if row.loss is None else f"{row.loss:.3f}",
            "" if row.tokens_per_second is None else f"{row.tokens_per_second:,.0f}",
            Text(row.status.reason),
        )
    return table


def line_of(row: Row) -> str:
    """The same in one line."""
    parts = [f"{row.name:8} {row.status.phase:10}"]
    if row.status.ready:
        parts.append(f"pods {row.status.ready}")
    if row.strategy:
        parts.append(row.strategy)
    if row.step is not None:
        parts.append(f"step {row.step}/{row.steps}")
    if row.loss is not None:
        parts.append(f"loss {row.loss:.3f}")
    if row.tokens_per_second is not None:
        parts.append(f"{row.tokens_per_second:,.0f} tokens/s")
    if row.status.reason:
        parts.append(row.status.reason)
    return "  ".join(parts)


def milestone(row: Row) -> tuple[object, ...]:
    """What must change before a row is worth another line."""
    part = None if row.step is None else row.step * _MILESTONES // row.steps
    return (row.status.phase, row.status.ready, row.status.reason, row.strategy, part)


class Display:
    """The demo's output; use it as a context manager around the time in which the table lives."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._told: dict[str, tuple[object, ...]] = {}
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """A sentence of its own, with the seconds since the start."""
        self._console.print(
            f"[{time.monotonic() - self._started:5.1f} s] {text}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )

    def show(self, rows: Iterable[Row]) -> None:
        """Show the jobs as they are now."""
        if self._live is not None:
            self._live.update(table_of(rows), refresh=True)
            return
        for row in rows:
            if self._told.get(row.name) != milestone(row):
                self._told[row.name] = milestone(row)
                self.say(line_of(row))
