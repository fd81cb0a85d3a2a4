"""`kubectl kronos simulate`: what would happen to a trace of jobs on a cluster. Asks no cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer
from pydantic import ValidationError

from kronos.admission.simulation import Report, Rules, TraceJob, simulate
from kronos.api.fabric import NODE_LEVEL, FabricSpec
from kronos.cli.complaints import InputError, complaints
from kronos.cli.fabrics import domain_sizes, parse_slots
from kronos.cli.inputs import STDIN, explained, name_of, read_text
from kronos.cli.manifests import FABRIC, parse
from kronos.cli.output import Output, tables, write_data
from kronos.cli.simulation_table import show_simulation
from kronos.lifecycle.queues import limit
from kronos.placement import PODS, Node, Topology

NEVER = 3
"""Exit code when a job of the trace could never start."""
MOST_NODES = 100_000


@dataclass(frozen=True, slots=True)
class Simulation:
    """A report with what was asked."""

    trace: str
    fabric: str
    nodes: int
    resource: str
    report: Report


def simulate_trace(
    trace: Annotated[
        str,
        typer.Argument(metavar="TRACE.jsonl", help="Jobs, one JSON object a line; - reads standard input."),
    ],
    fabric: Annotated[
        str,
        typer.Option(
            metavar="FABRIC.yaml", help="File with the KronosFabric, and KronosQueues if there are any."
        ),
    ],
    nodes: Annotated[int, typer.Option(min=1, max=MOST_NODES, help="Nodes of the cluster.")],
    slots: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LEVEL=COUNT,...",
            help="Accelerators in a domain of a level, such as node=8,rack=64. Default: 8 in a node, and 8 times those of "
            "the next narrower level in any other.",
        ),
    ] = None,
    restart: Annotated[
        float, typer.Option(min=0.0, help="Seconds that a stopped job loses when it goes on.")
    ] = 60.0,
    output: Annotated[Output, typer.Option("-o", "--output", help="How to write the answer.")] = Output.TABLE,
) -> None:
    """Replay a trace of jobs on a fabric: waiting times, utilization, preemptions, domains used.

    The decisions are those of the operator. Exit code 2 means that the input can't be used, 3 that a job of the trace could
    never start.
    """
    with explained():
        name, spec, rules = _cluster(fabric, restart)
        jobs = _jobs(trace, spec, rules)
        topology = Topology.build(
            _nodes(spec, nodes, domain_sizes(spec, parse_slots(slots or [])), rules.resource), spec
        )
        report = simulate(jobs, topology, rules)
    answer = Simulation(name_of(trace), name, nodes, rules.resource, report)
    if output is Output.TABLE:
        with tables() as console:
            show_simulation(console, answer)
    else:
        write_data(output, answer)
    if report.never:
        raise typer.Exit(NEVER)


def _cluster(source: str, restart: float) -> tuple[str, FabricSpec, Rules]:
    """The fabric by name, and the rules."""
    if source == STDIN:
        raise InputError("standard input is for the trace; give a file to --fabric")
    found = parse(read_text(source), name_of(source))
    if len(found.fabrics) != 1:
        raise InputError(f"{source} holds {len(found.fabrics) or 'no'} {FABRIC}; give a file with one")
    (fabric,) = found.fabrics.values()
    queues = {name: limit(name, queue) for name, queue in found.queues.items()}
    return fabric.name, fabric.spec, Rules(fabric.spec.accelerators[0].resource, queues, restart)


def _jobs(source: str, fabric: FabricSpec, rules: Rules) -> list[TraceJob]:
    jobs: dict[str, TraceJob] = {}
    wrong: list[str] = []
    for number, line in enumerate(read_text(source).splitlines(), start=1):
        if not line.strip():
            continue
        place = f"{name_of(source)}, line {number}"
        try:
            job = TraceJob.model_validate_json(line)
        except ValidationError as error:
            wrong += complaints(error, TraceJob, place)
            continue
        wrong += [f"{place}: {sentence}" for sentence in _unfit(job, jobs, fabric, rules.queues)]
        jobs[job.name] = job
    if not jobs and not wrong:
        wrong.append(f"{name_of(source)} holds no job; write one JSON object a line")
    if wrong:
        raise InputError(*wrong)
    return list(jobs.values())


def _unfit(
    job: TraceJob, others: Mapping[str, TraceJob], fabric: FabricSpec, queues: Mapping[str, object]
) -> list[str]:
    """What is wrong with a job beside the others and on the fabric."""
    wrong = []
    if job.name in others:
        wrong.append(f"the name {job.name} is taken by an earlier line; change one of them")
    if job.topology_mode != "none" and job.topology_level not in fabric.level_names:
        given = f"{job.topology_level}, which the fabric lacks" if job.topology_level else "missing"
        wrong.append(f"topology_level is {given}; change it to one of {', '.join(fabric.level_names)}")
    if queues and job.queue not in queues:
        wrong.append(f"queue is {job.queue or 'missing'}; change it to one of {', '.join(sorted(queues))}")
    return wrong


def _nodes(fabric: FabricSpec, count: int, sizes: Mapping[str, int], resource: str) -> Sequence[Node]:
    """Nodes of one size, in domains of the given sizes, filled one after the other."""
    per_node = sizes[NODE_LEVEL]
    labels = {level.node_label: max(1, sizes[level.name] // per_node) for level in fabric.levels}
    return [
        Node(
            f"node-{at}",
            {label: str(at // size) for label, size in labels.items()},
            {resource: per_node, PODS: 110},
        )
        for at in range(count)
    ]
