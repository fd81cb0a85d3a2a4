"""The search: every layout that the job allows, the ones that fit, best first, and why the others don't."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from kronos.api.fabric import FabricSpec
from kronos.api.job import TrainingJobSpec
from kronos.api.plan import Degrees
from kronos.strategy import explain
from kronos.strategy.communication import AxisTraffic, Network
from kronos.strategy.degrees import Rejection, Rejections, divisors, possible_degrees
from kronos.strategy.layout import Layout, Workload
from kronos.strategy.memory import MemoryBreakdown, memory
from kronos.strategy.stages import balance, schedule_for
from kronos.strategy.timing import StepTime, step_time

Objective = Literal["Time", "Efficiency", "Memory"]
Bottleneck = Literal["DataVolume", "ModelSize", "Both"]

NEAR_TIE = 0.01
"""Candidates whose costs differ by less than this share count as equal: predictions are no better than that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate(Layout):
    """A layout that fits, with what it is predicted to cost."""

    memory: MemoryBreakdown
    time: StepTime
    traffic: AxisTraffic

    def cost(self, objective: Objective) -> float:
        """What the objective minimises: seconds, accelerator-seconds, or bytes on the heaviest rank."""
        if objective == "Time":
            return self.time.total
        if objective == "Efficiency":
            return self.time.total * self.degrees.world_size
        return float(self.memory.total)


@dataclass(frozen=True, slots=True)
class Search:
    """What the search found."""

    candidates: tuple[Candidate, ...]
    """Layouts that fit, best first; one for each combination of degrees, with its best microbatch."""
    rejections: tuple[Rejection, ...]
    """Why others were refused, most frequent first."""
    bottleneck: Bottleneck | None
    """What limits the job; None exactly when there are no candidates."""
    refusal: str | None
    """One sentence that says why nothing fits; None exactly when there are candidates."""


def search(
    spec: TrainingJobSpec, fabric: FabricSpec, slots_per_domain: Mapping[str, int] | None = None
) -> Search:
    """All layouts of a job on a fabric, best first by the job's objective.

    `slots_per_domain` gives, by level name (and `node`), how many accelerators one domain has; see
    `communication.Network.of` for what is assumed without it and for the ValueError on wrong names. The answer depends
    on the arguments alone. It is exhaustive up to two prunings that can't lose the best layout: a larger microbatch
    never needs less memory, so the first that doesn't fit ends the row; and recomputing activations is never faster,
    so it is tried only where the objective is memory or where the layout doesn't fit without.
    """
    accelerator = fabric.accelerator(spec.accelerators.resource)
    if accelerator is None:
        rejection = explain.unknown_accelerator(spec.accelerators.resource, spec.placement.fabric)
        return Search(candidates=(), rejections=(rejection,), bottleneck=None, refusal=rejection.message)
    network = Network.of(fabric, slots_per_domain)
    workload = Workload.of(spec, accelerator)
    objective = spec.strategy.objective
    rejections = Rejections()
    stages: dict[int, tuple[int, ...]] = {}
    candidates: list[Candidate] = []
    nearest: tuple[Layout, MemoryBreakdown] | None = None
    misses = 0
    for degrees in possible_degrees(spec, rejections):
        count = degrees.pipeline_parallel
        if count not in stages:
            stages[count] = balance(spec.model.layers, count, workload.head_flops / workload.block_flops)
        least = _layout(workload, degrees, stages[count], 1, checkpointing=True)
        needed = memory(workload, least)
        if needed.total > workload.memory_bytes:
            misses += 1
            if nearest is None or needed.total < nearest[1].total:
                nearest = (least, needed)
            continue
        fitting = _fitting(workload, degrees, stages[count], everything=objective == "Memory")
        costed = (
            Candidate(
                degrees=degrees,
                microbatch_sequences=layout.microbatch_sequences,
                microbatches=layout.microbatches,
                activation_checkpointing=layout.activation_checkpointing,
                schedule=layout.schedule,
                stage_layers=layout.stage_layers,
                memory=needs,
                time=time,
                traffic=traffic,
            )
            for layout, needs in fitting
            for time, traffic in (step_time(workload, layout, network),)
        )
        candidates.append(min(costed, key=lambda candidate: _preference(candidate, objective)))
    found = rejections.most_frequent_first()
    if nearest is not None:
        found = explain.with_memory(found, workload, accelerator, *nearest, misses)
    if not candidates:
        refusal = explain.refusal(spec, found)
        return Search(candidates=(), rejections=found, bottleneck=None, refusal=refusal)
    ordered = _best_first(candidates, objective)
    return Search(
        candidates=ordered, rejections=found, bottleneck=_bottleneck(workload, ordered[0]), refusal=None
    )


def _layout(
    workload: Workload, degrees: Degrees, stage_layers: tuple[int, ...], sequences: int, *, checkpointing: bool
) -> Layout:
    microbatches = workload.global_batch_size // (degrees.batch_ranks * sequences)
    return Layout(
        degrees=degrees,
        microbatch_sequences=sequences,
        microbatches=microbatches,
        activation_checkpointing=checkpointing,
        schedule=schedule_for(degrees.pipeline_parallel, microbatches),
        stage_layers=stage_layers,
    )


def _fitting(
    workload: Workload, degrees: Degrees, stage_layers: tuple[int, ...], *, everything: bool
) -> Iterator[tuple[Layout, MemoryBreakdown]]:
    """Layouts with these degrees that fit: for each microbatch without recomputing if possible, else with.

    With `everything`, both ways where both fit.
    """
    keeping_fits = True
    for sequences in divisors(workload.global_batch_size // degrees.batch_ranks):
        if keeping_fits:
            layout = _layout(workload, degrees, stage_layers, sequences, checkpointing=False)
            needed = memory(workload, layout)
            keeping_fits = needed.total <= workload.memory_bytes
            if keeping_fits:
                yield layout, needed
        if everything or not keeping_fits:
            layout = _layout(workload, degrees, stage_layers, sequences, checkpointing=True)
            needed = memory(workload, layout)
            if needed.total <= workload.memory_bytes:
                yield layout, needed
            elif not keeping_fits:
                return


def _preference(candidate: Candidate, objective: Objective) -> tuple[float, float, bool, int]:
    """Orders the microbatches of one combination of degrees; the fewest, largest microbatches on a tie."""
    return (
        candidate.cost(objective),
        candidate.time.total,
        candidate.activation_checkpointing,
        candidate.microbatches,
    )


def _simplicity(candidate: Candidate) -> tuple[int | bool, ...]:
    """Orders near ties: fewer accelerators, fewer axes, then the axes that are the least trouble.

    Pipelining is the most trouble, then tensor parallelism, then sharding, then recomputing; no two combinations of
    degrees are equal here, so the order is total.
    """
    degrees = candidate.degrees
    model = (degrees.pipeline_parallel, degrees.tensor_parallel, degrees.sharded_data_parallel)
    axes = sum(degree > 1 for degree in (*model, degrees.data_parallel))
    return (degrees.world_size, axes, *model, candidate.activation_checkpointing)


def _best_first(candidates: list[Candidate], objective: Objective) -> tuple[Candidate, ...]:
    """By cost, but among those within a near tie of the cheapest remaining one, simplest first."""
    by_cost = sorted(candidates, key=lambda candidate: (candidate.cost(objective), _simplicity(candidate)))
    ordered: list[Candidate] = []
    tied: list[Candidate] = []
    for candidate in by_cost:
        if tied and candidate.cost(objective) > tied[0].cost(objective) * (1 + NEAR_TIE):
            ordered += sorted(tied, key=_simplicity)
            tied = []
        tied.append(candidate)
    return tuple(ordered + sorted(tied, key=_simplicity))


def _bottleneck(workload: Workload, best: Candidate) -> Bottleneck:
    """What limits the job.

    The model's size when one accelerator can't hold it with its optimizer, which is all that plain data parallelism
    could give it; both when replicas are used all the same; else the volume of data.
    """
    alone = Degrees()
    stage_layers = (workload.shape.layers,)
    least = memory(workload, _layout(workload, alone, stage_layers, 1, checkpointing=True))
    if least.total <= workload.memory_bytes:
        return "DataVolume"
    return "Both" if best.degrees.data_parallel > 1 else "ModelSize"
