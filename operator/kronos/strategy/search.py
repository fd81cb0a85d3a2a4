"""The search: every layout that the job allows, the ones that fit, best first, and why the others don't."""

from __future__ import annotations

import dataclasses
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
from kronos.strategy.memory import MemoryBreakdown, MemoryModel
from kronos.strategy.stages import balance, schedule_for
from kronos.strategy.timing import StepModel, StepTime

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
    on the arguments alone. Every world size and every combination of degrees that the job allows is weighed.
    """
    accelerator = fabric.accelerator(spec.accelerators.resource)
    if accelerator is None:
        rejection = explain.unknown_accelerator(spec.accelerators.resource, spec.placement.fabric)
        return Search(candidates=(), rejections=(rejection,), bottleneck=None, refusal=rejection.message)
    workload = Workload.of(spec, accelerator)
    objective = spec.strategy.objective
    rejections = Rejections()
    weighing = _Weighing(workload, Network.of(fabric, slots_per_domain), objective)
    found = [weighing.best(degrees) for degrees in possible_degrees(spec, rejections)]
    candidates = [candidate for candidate in found if candidate is not None]
    nearest = weighing.nearest
    if nearest is not None:
        rejections.merge(explain.memory_short(accelerator, *nearest, len(found) - len(candidates)))
    refused = rejections.most_frequent_first()
    if not candidates:
        refusal = explain.refusal(spec, refused, nearest)
        return Search(candidates=(), rejections=refused, bottleneck=None, refusal=refusal)
    ordered = _best_first(candidates, objective)
    return Search(
        candidates=ordered, rejections=refused, bottleneck=_bottleneck(workload, ordered[0]), refusal=None
    )


class _Weighing:
    """Finds the best layout for given degrees, and remembers the one that missed least among those that don't fit."""

    def __init__(self, workload: Workload, network: Network, objective: Objective) -> None:
        self._workload = workload
        self._network = network
        self._objective = objective
        self._stage_layers: dict[int, tuple[int, ...]] = {}
        self.nearest: tuple[Layout, MemoryBreakdown] | None = None

    def best(self, degrees: Degrees) -> Candidate | None:
        """The cheapest layout with these degrees; None when none fits the memory."""
        workload = self._workload
        stages = self._balanced(degrees.pipeline_parallel)
        memory_model = MemoryModel(workload, degrees, stages)
        hopeless = memory_model.least > workload.memory_bytes
        if hopeless and self.nearest is not None and memory_model.least >= self.nearest[1].total:
            return None
        weighed = [(layout, memory_model.heaviest(layout)) for layout in _layouts(workload, degrees, stages)]
        fitting = [(layout, needed) for layout, needed in weighed if needed.total <= workload.memory_bytes]
        if not fitting:
            miss = min(weighed, key=lambda pair: pair[1].total)
            if self.nearest is None or miss[1].total < self.nearest[1].total:
                self.nearest = miss
            return None
        time_model = StepModel(workload, degrees, stages, self._network)
        if self._objective != "Memory":
            fitting = _worth_timing(fitting)
        costed = (_candidate(layout, needed, time_model) for layout, needed in fitting)
        return min(costed, key=lambda candidate: _preference(candidate, self._objective))

    def _balanced(self, count: int) -> tuple[int, ...]:
        workload = self._workload
        if count not in self._stage_layers:
            head_cost = workload.head_flops / workload.block_flops
            self._stage_layers[count] = balance(workload.shape.layers, count, head_cost)
        return self._stage_layers[count]


def _layouts(workload: Workload, degrees: Degrees, stage_layers: tuple[int, ...]) -> Iterator[Layout]:
    """Every microbatch size that divides a rank's part of the batch, without and with recomputing."""
    per_rank = workload.global_batch_size // degrees.batch_ranks
    for sequences in divisors(per_rank):
        microbatches = per_rank // sequences
        schedule = schedule_for(degrees.pipeline_parallel, microbatches)
        for recompute in (False, True):
            yield Layout(
                degrees=degrees,
                microbatch_sequences=sequences,
                microbatches=microbatches,
                activation_checkpointing=recompute,
                schedule=schedule,
                stage_layers=stage_layers,
            )


def _worth_timing(fitting: list[tuple[Layout, MemoryBreakdown]]) -> list[tuple[Layout, MemoryBreakdown]]:
    """Drop layouts that others with the same degrees are never slower than.

    Recomputing is never faster than not. Without a pipeline, fewer and larger microbatches are never slower: they do
    the same arithmetic and move the same bytes in fewer messages.
    """
    keeping = {layout.microbatches for layout, _ in fitting if not layout.activation_checkpointing}
    worth = [
        (layout, needed)
        for layout, needed in fitting
        if not layout.activation_checkpointing or layout.microbatches not in keeping
    ]
    if worth[0][0].degrees.pipeline_parallel > 1:
        return worth
    fewest = {layout.activation_checkpointing: (layout, needed) for layout, needed in worth}
    return list(fewest.values())


def _candidate(layout: Layout, needed: MemoryBreakdown, model: StepModel) -> Candidate:
    time, traffic = model.predict(layout)
    return Candidate(
        degrees=layout.degrees,
        microbatch_sequences=layout.microbatch_sequences,
        microbatches=layout.microbatches,
        activation_checkpointing=layout.activation_checkpointing,
        schedule=layout.schedule,
        stage_layers=layout.stage_layers,
        memory=needed,
        time=time,
        traffic=traffic,
    )


def _preference(candidate: Candidate, objective: Objective) -> tuple[float, float, bool, int]:
    """Orders the layouts of one combination of degrees; the fewest, largest microbatches on a tie."""
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
    model = MemoryModel(workload, alone, stage_layers)
    one = dataclasses.replace(workload, global_batch_size=1)
    least = min(model.heaviest(layout).total for layout in _layouts(one, alone, stage_layers))
    if least <= workload.memory_bytes:
        return "DataVolume"
    return "Both" if best.degrees.data_parallel > 1 else "ModelSize"
