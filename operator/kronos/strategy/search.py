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
from kronos.strategy.abilities import TRAINER, Abilities
from kronos.strategy.blocks import Checkpointing
from kronos.strategy.candidate import Candidate, Objective
from kronos.strategy.communication import Network
from kronos.strategy.degrees import Rejection, Rejections, families
from kronos.strategy.layout import Layout, Workload
from kronos.strategy.memory import MemoryBreakdown, MemoryModel
from kronos.strategy.weighing import Weighing
from kronos.strategy.widths import Widths

Bottleneck = Literal["DataVolume", "ModelSize", "Both"]

NEAR_TIE = 0.01
"""Candidates whose costs differ by less than this share count as equal: predictions are no better than that."""


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
    objective: Objective = "Time"
    """By which the candidates are ordered."""
    nearest: tuple[Layout, MemoryBreakdown] | None = None
    """Of the layouts that need more memory than there is, the one that misses least, and what it needs."""


def search(
    spec: TrainingJobSpec,
    fabric: FabricSpec,
    slots_per_domain: Mapping[str, int] | None = None,
    abilities: Abilities = TRAINER,
) -> Search:
    """All layouts of a job on a fabric, best first by the job's objective.

    `slots_per_domain` gives, by level name (and `node`), how many accelerators one domain has; see
    `communication.Network.of` for what is assumed without it and for the ValueError on wrong names. `abilities` say what
    the trainer can do. The answer depends on the arguments alone. Every world size and every combination of degrees that
    the job allows is weighed.
    """
    accelerator = fabric.accelerator(spec.accelerators.resource)
    if accelerator is None:
        return _refused(explain.unknown_accelerator(spec.accelerators.resource, spec.placement.fabric))
    lacking = abilities.lacks(spec)
    if lacking is not None:
        return _refused(Rejection("TrainerCannot", lacking, 1))
    workload = Workload.of(spec, accelerator)
    objective = spec.strategy.objective
    rejections = Rejections()
    network = Network.of(fabric, slots_per_domain)
    weighing = Weighing(workload, network, objective, abilities)
    widths = Widths.of(spec.placement, network.slots_of)
    candidates = weighing.candidates(list(families(spec, abilities, rejections, widths)))
    if weighing.nearest is not None:
        message = explain.memory_short(accelerator, *weighing.nearest)
        rejections.add(explain.MEMORY, lambda: message, weighing.short)
    explain.note_slow(rejections, weighing.slow, candidates)
    refused = rejections.most_frequent_first()
    if not candidates:
        refusal = explain.refusal(spec, refused)
        return Search(
            candidates=(), rejections=refused, bottleneck=None, refusal=refusal, nearest=weighing.nearest
        )
    ordered = _best_first(candidates, objective)
    return Search(
        candidates=ordered,
        rejections=refused,
        bottleneck=_bottleneck(workload, ordered[0]),
        refusal=None,
        objective=objective,
        nearest=weighing.nearest,
    )


def _refused(rejection: Rejection) -> Search:
    return Search(candidates=(), rejections=(rejection,), bottleneck=None, refusal=rejection.message)


def _simplicity(candidate: Candidate) -> tuple[int | bool, ...]:
    """Orders near ties: fewer accelerators, fewer axes, then the axes that are the least trouble.

    Experts on different ranks are the most trouble, then split sequences, pipelining, tensor parallelism, sharding, and
    recomputing; no two combinations of degrees are equal here, so the order is total.
    """
    degrees = candidate.degrees
    model = (
        degrees.expert_parallel,
        degrees.context_parallel,
        degrees.pipeline_parallel,
        degrees.tensor_parallel,
        degrees.sharded_data_parallel,
    )
    axes = sum(degree > 1 for degree in (*model, degrees.data_parallel))
    return (degrees.world_size, axes, *model, candidate.checkpointing != "None")


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
    kinds: tuple[Checkpointing, ...] = ("None", "Full")
    layouts = (
        Layout(
            degrees=alone,
            microbatch_sequences=1,
            microbatches=1,
            checkpointing=kind,
            schedule="None",
            stage_layers=stage_layers,
        )
        for kind in kinds
    )
    if min(model.needed(layout) for layout in layouts) <= workload.memory_bytes:
        return "DataVolume"
    return "Both" if best.degrees.data_parallel > 1 else "ModelSize"
