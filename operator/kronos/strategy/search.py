"""The search: every layout that the job allows, the ones that fit, best first, and why the others don't."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
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
        return _cost(objective, self.time, self.memory, self.degrees)


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
        message = explain.memory_short(accelerator, *nearest)
        rejections.add(explain.MEMORY, lambda: message, len(found) - len(candidates))
    refused = rejections.most_frequent_first()
    if not candidates:
        refusal = explain.refusal(spec, refused, nearest)
        return Search(candidates=(), rejections=refused, bottleneck=None, refusal=refusal)
    ordered = _best_first(candidates, objective)
    return Search(
        candidates=ordered, rejections=refused, bottleneck=_bottleneck(workload, ordered[0]), refusal=None
    )


Weighed = tuple[Layout, MemoryBreakdown]


class _Weighing:
    """Finds the best layout for given degrees, and remembers the one that missed least among those that don't fit."""

    def __init__(self, workload: Workload, network: Network, objective: Objective) -> None:
        self._workload = workload
        self._network = network
        self._objective = objective
        self._stage_layers: dict[int, tuple[int, ...]] = {}
        self.nearest: Weighed | None = None

    def best(self, degrees: Degrees) -> Candidate | None:
        """The cheapest layout with these degrees; None when none fits the memory."""
        workload = self._workload
        stages = self._balanced(degrees.pipeline_parallel)
        memory_model = MemoryModel(workload, degrees, stages)
        hopeless = memory_model.least > workload.memory_bytes
        if hopeless and self.nearest is not None and memory_model.least >= self.nearest[1].total:
            return None
        fitting, missing = self._weighed(memory_model, degrees, stages)
        if not fitting:
            miss = min(missing, key=lambda weighed: weighed[1].total)
            if self.nearest is None or miss[1].total < self.nearest[1].total:
                self.nearest = miss
            return None
        time_model = StepModel(workload, degrees, stages, self._network)
        if self._objective != "Memory":
            fitting = _worth_timing(fitting)
        return self._cheapest(fitting, time_model)

    def _weighed(
        self, model: MemoryModel, degrees: Degrees, stage_layers: tuple[int, ...]
    ) -> tuple[list[Weighed], list[Weighed]]:
        """Layouts that fit and layouts that don't: every microbatch size that divides a rank's part of the batch.

        As long as they fill the pipeline, larger microbatches never need less memory, except that a single one lets FSDP
        keep gradients sharded: after the first that doesn't fit, those between are skipped. Recomputing is never
        faster, so where memory isn't the objective it is weighed only for microbatches that don't fit without.
        """
        fitting: list[Weighed] = []
        missing: list[Weighed] = []
        fit_without: set[int] = set()
        per_rank = self._workload.global_batch_size // degrees.batch_ranks
        filling = max(2, degrees.pipeline_parallel)
        for recompute in (False, True):
            full = False
            for sequences in divisors(per_rank):
                if (full and per_rank // sequences >= filling) or sequences in fit_without:
                    continue
                layout = _layout(degrees, stage_layers, per_rank, sequences, recompute)
                needed = model.heaviest(layout)
                full = needed.total > self._workload.memory_bytes
                (missing if full else fitting).append((layout, needed))
                if not (full or recompute or self._objective == "Memory"):
                    fit_without.add(sequences)
        return fitting, missing

    def _cheapest(self, fitting: list[Weighed], model: StepModel) -> Candidate:
        """The layout that costs least; on a tie the faster one, then the one with the fewest microbatches."""
        objective = self._objective
        timed = [(layout, needed, model.time(layout)) for layout, needed in fitting]
        layout, needed, time = min(
            timed,
            key=lambda option: (
                _cost(objective, option[2], option[1], option[0].degrees),
                option[2].total,
                option[0].microbatches,
            ),
        )
        return Candidate(
            degrees=layout.degrees,
            microbatch_sequences=layout.microbatch_sequences,
            microbatches=layout.microbatches,
            activation_checkpointing=layout.activation_checkpointing,
            schedule=layout.schedule,
            stage_layers=layout.stage_layers,
            memory=needed,
            time=time,
            traffic=model.traffic(layout),
        )

    def _balanced(self, count: int) -> tuple[int, ...]:
        workload = self._workload
        if count not in self._stage_layers:
            head_cost = workload.head_flops / workload.block_flops
            self._stage_layers[count] = balance(workload.shape.layers, count, head_cost)
        return self._stage_layers[count]


def _layout(
    degrees: Degrees, stage_layers: tuple[int, ...], per_rank: int, sequences: int, recompute: bool
) -> Layout:
    """The layout that works through `per_rank` sequences in microbatches of `sequences`."""
    microbatches = per_rank // sequences
    return Layout(
        degrees=degrees,
        microbatch_sequences=sequences,
        microbatches=microbatches,
        activation_checkpointing=recompute,
        schedule=schedule_for(degrees.pipeline_parallel, microbatches),
        stage_layers=stage_layers,
    )


def _worth_timing(fitting: list[Weighed]) -> list[Weighed]:
    """Drop layouts that another one with the same degrees is never slower than.

    Without a pipeline, fewer and larger microbatches never are: they do the same arithmetic and move the same bytes in
    fewer messages.
    """
    if fitting[0][0].degrees.pipeline_parallel > 1:
        return fitting
    fewest = {layout.activation_checkpointing: (layout, needed) for layout, needed in fitting}
    return list(fewest.values())


def _cost(objective: Objective, time: StepTime, memory: MemoryBreakdown, degrees: Degrees) -> float:
    if objective == "Time":
        return time.total
    if objective == "Efficiency":
        return time.total * degrees.world_size
    return float(memory.total)


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
    model = MemoryModel(dataclasses.replace(workload, global_batch_size=1), alone, stage_layers)
    layouts = (_layout(alone, stage_layers, 1, 1, recompute) for recompute in (False, True))
    if min(model.heaviest(layout).total for layout in layouts) <= workload.memory_bytes:
        return "DataVolume"
    return "Both" if best.degrees.data_parallel > 1 else "ModelSize"
