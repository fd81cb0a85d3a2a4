"""What a simulation found, for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kronos.admission.simulation import Report, Times
from kronos.cli.render import count, new_table, seconds, sentence

if TYPE_CHECKING:
    from kronos.cli.simulate import Simulation

MOST_NEVER = 10
"""Jobs that could never start of which the reason is shown."""


def show_simulation(console: Console, simulation: Simulation) -> None:
    """Write what a simulation found."""
    report = simulation.report
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True, style="bold")
    facts.add_column()
    for name, value in _facts(simulation, report):
        facts.add_row(name, Text(value))
    console.print(facts)
    waits = new_table(
        console, "Waiting, from arrival to the first start", "Priority", "Mean", "Median", "p95", "Longest"
    )
    for name, times in [
        *((str(key), value) for key, value in sorted(report.waited_by_priority.items())),
        ("all", report.waited),
    ]:
        waits.add_row(name, *_times(times))
    console.print(waits)
    domains = new_table(console, "Domains that gangs used", "Level", "Used", "At least", "Ratio")
    for level, used in report.domains.items():
        ratio = f"{used.used / used.least:.3f}" if used.least else "-"
        domains.add_row(level, count(used.used), count(used.least), ratio)
    console.print(domains)
    for name, reason in list(report.never.items())[:MOST_NEVER]:
        sentence(console, f"{name} can never start: {reason}.")
    if len(report.never) > MOST_NEVER:
        sentence(console, f"{len(report.never) - MOST_NEVER} more can never start; -o json tells why.")


def _facts(simulation: Simulation, report: Report) -> Iterable[tuple[str, str]]:
    yield "Trace", f"{simulation.trace}, {count(report.jobs)} jobs"
    yield (
        "Cluster",
        f"{count(simulation.nodes)} nodes with {count(report.accelerators)} {simulation.resource}, fabric {simulation.fabric}",
    )
    yield "Finished", f"{count(report.finished)} jobs in {seconds(report.makespan_seconds)}"
    yield "Utilization", f"{report.utilization:.1%} of the accelerators' time"
    yield "Stranded", f"{report.stranded:.1%} of the free accelerators' time was on partly used nodes"
    yield "Preemptions", count(report.preemptions)
    yield "Overtaken", f"{count(report.overtaken)} starts while an older job of no lower priority waited"


def _times(times: Times) -> list[str]:
    return [seconds(value) if value else "0 s" for value in (times.mean, times.p50, times.p95, times.most)]
