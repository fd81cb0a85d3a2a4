"""`kubectl kronos plan`: which strategy Kronos would choose for a job, and why. Asks no cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from kronos.cli.complaints import InputError
from kronos.cli.fabrics import domain_sizes, fabric_for, level_complaints, parse_slots
from kronos.cli.inputs import STDIN, explained, name_of, read_text, tell
from kronos.cli.manifests import FABRIC, JOB, QUEUE, Fabric, Job, Manifests, parse
from kronos.cli.output import Output, tables, write_data
from kronos.cli.plan_report import PlanReport, plan_report
from kronos.cli.render import show_plan
from kronos.strategy import EVERYTHING, TRAINER

NO_PLAN = 3
"""Exit code when a job can't be split so that it fits."""


def plan(
    manifest: Annotated[
        str, typer.Argument(metavar="JOB.yaml", help="File with the jobs' manifests; - reads standard input.")
    ],
    fabric: Annotated[
        str | None,
        typer.Option(metavar="FABRIC.yaml", help="File with the KronosFabric, if that isn't among the jobs."),
    ] = None,
    slots: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LEVEL=COUNT,...",
            help="Accelerators in a domain of a level, such as node=8,rack=64. Default: 8 in a node, and 8 times "
            "those of the next narrower level in any other.",
        ),
    ] = None,
    any_trainer: Annotated[
        bool,
        typer.Option("--any-trainer", help="Weigh all that Kronos knows, not only what its trainer can run."),
    ] = False,
    output: Annotated[Output, typer.Option("-o", "--output", help="How to write the answer.")] = Output.TABLE,
) -> None:
    """Show which strategy Kronos would choose for a job, and why.

    Works from files alone: it asks no cluster, and takes all nodes to be free. Exit code 2 means that the input can't be
    used, 3 that a job can't be split so that it fits.
    """
    with explained():
        sizes = parse_slots(slots or [])
        chosen = _questions(manifest, fabric)
        for _, on in chosen:
            # Before anything is searched, since it says when a level in --slots is unknown.
            domain_sizes(on.spec, sizes)
    abilities = EVERYTHING if any_trainer else TRAINER
    reports = [plan_report(job, on, sizes, abilities) for job, on in chosen]
    _write(reports, output)
    if any(report.refusal for report in reports):
        raise typer.Exit(NO_PLAN)


def _questions(manifest: str, fabric: str | None) -> list[tuple[Job, Fabric]]:
    """The jobs of the manifests, each with its fabric."""
    found = parse(read_text(manifest), name_of(manifest))
    _tell_ignored(found, manifest)
    fabrics = found.fabrics
    if fabric is not None:
        fabrics = fabrics | _fabrics(fabric, manifest)
    if not found.jobs:
        raise InputError(f"{name_of(manifest)} holds no {JOB}; give a file with one")
    chosen = [(job, fabric_for(job, fabrics)) for job in found.jobs]
    wrong = [sentence for job, on in chosen for sentence in level_complaints(job, on)]
    if wrong:
        raise InputError(*wrong)
    for job, on in chosen:
        if on.name != (wanted := job.spec.placement.fabric):
            tell(f"note: {job.name} asks for the fabric {wanted}; this plan is for the fabric {on.name}")
    return chosen


def _fabrics(source: str, manifest: str) -> dict[str, Fabric]:
    if source == manifest == STDIN:
        raise InputError(
            "standard input can be read once; leave out --fabric, and put the fabric among the jobs"
        )
    found = parse(read_text(source), name_of(source))
    if not found.fabrics:
        raise InputError(f"{name_of(source)} holds no {FABRIC}; give a file with one to --fabric")
    found.ignored += [f"{JOB} {job.name}" for job in found.jobs]
    _tell_ignored(found, source)
    return found.fabrics


def _tell_ignored(found: Manifests, source: str) -> None:
    for what in (*found.ignored, *(f"{QUEUE} {name}" for name in found.queues)):
        tell(f"note: {name_of(source)}: {what} is ignored")


def _write(reports: list[PlanReport], output: Output) -> None:
    if output is not Output.TABLE:
        write_data(output, {"plans": reports})
        return
    with tables() as console:
        for position, report in enumerate(reports):
            if position:
                console.print()
                console.rule(characters="-")
            show_plan(console, report)
