"""Questions that people ask about a choice: why not otherwise, and would more accelerators help?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

from kronos.api.fabric import FabricSpec
from kronos.api.job import Strategy, TrainingJobSpec
from kronos.api.plan import Degrees
from kronos.strategy.abilities import TRAINER, Abilities
from kronos.strategy.blocks import Checkpointing
from kronos.strategy.candidate import Candidate, Objective
from kronos.strategy.communication import Network
from kronos.strategy.degrees import Pins
from kronos.strategy.explain import gib, shortage
from kronos.strategy.search import search
from kronos.strategy.timing import StepTime
from kronos.strategy.words import TIME_ITEMS

WORTH = 0.5
"""More accelerators pay while they bring at least this share of the speed-up that as many of the present ones bring."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another way to split the job on as many accelerators, and why it wasn't chosen."""

    degrees: Degrees
    step_seconds: float | None
    """Predicted; None when it can't run."""
    reason: str
    """What speaks against it, without its name: a sentence without a full stop."""


def alternatives(
    spec: TrainingJobSpec,
    fabric: FabricSpec,
    chosen: Candidate,
    slots_per_domain: Mapping[str, int] | None = None,
    abilities: Abilities = TRAINER,
) -> tuple[Alternative, ...]:
    """The splits that one would think of first beside the chosen one, each with what decided against it.

    These are the pure ones (all replicas, all shards, all tensor, all stages), and those next to the chosen one: a factor of
    two moved from one axis to another. The nearest in time come first, then those that can't run.
    """
    network = Network.of(fabric, slots_per_domain)
    accelerator = fabric.accelerator(spec.accelerators.resource)
    assert accelerator is not None, "the search refuses resources that the fabric doesn't describe"
    found = []
    for degrees in dict.fromkeys(_neighbours(chosen.degrees)):
        fixed = _fixed(spec, degrees)
        answer = search(fixed, fabric, slots_per_domain, abilities)
        if answer.candidates:
            other = answer.candidates[0]
            pins = Pins.of(spec).against(degrees)
            reason = (
                _pinned(chosen, other, pins)
                if pins
                else _slower(chosen, other, network, spec.strategy.objective)
            )
            found.append(Alternative(degrees, other.time.total, reason))
            continue
        reason = shortage(accelerator, answer.nearest[1]) if answer.nearest else answer.refusal or ""
        found.append(Alternative(degrees, None, reason))
    return tuple(
        sorted(
            found,
            key=lambda other: (other.step_seconds is None, other.step_seconds or 0.0, other.degrees.summary),
        )
    )


def _fixed(spec: TrainingJobSpec, degrees: Degrees) -> TrainingJobSpec:
    """The same job with exactly these degrees."""
    strategy = Strategy(mode="Fixed", objective=spec.strategy.objective, **degrees.model_dump())
    world_size = degrees.world_size
    accelerators = spec.accelerators.model_copy(update={"min": world_size, "max": world_size})
    return spec.model_copy(update={"strategy": strategy, "accelerators": accelerators})


_AXES = (
    "data_parallel",
    "sharded_data_parallel",
    "tensor_parallel",
    "pipeline_parallel",
    "context_parallel",
)


def _neighbours(degrees: Degrees) -> Iterator[Degrees]:
    for axis in _AXES[:4]:
        pure = Degrees(**{axis: degrees.world_size})
        if pure != degrees and degrees.world_size > 1:
            yield pure
    for giver in _AXES:
        if getattr(degrees, giver) % 2:
            continue
        for taker in _AXES[:4]:
            if taker != giver:
                moved = {giver: getattr(degrees, giver) // 2, taker: getattr(degrees, taker) * 2}
                yield degrees.model_copy(update=moved)


def _pinned(chosen: Candidate, other: Candidate, pins: Sequence[str]) -> str:
    """It fits, and the job doesn't let it be chosen."""
    change = other.time.total / chosen.time.total - 1
    return f"excluded by strategy.{' and '.join(pins)}; it would have {change:+.1%} step time"


def _slower(chosen: Candidate, other: Candidate, network: Network, objective: Objective) -> str:
    """By how much another split is slower, and through what."""
    change = other.time.total / chosen.time.total - 1
    grown = max(
        fields(StepTime),
        key=lambda field: getattr(other.time, field.name) - getattr(chosen.time, field.name),
    ).name
    growth = getattr(other.time, grown) - getattr(chosen.time, grown)
    share = "most of it" if growth > (other.time.total - chosen.time.total) / 2 else "first of all"
    what = f"{share} {TIME_ITEMS[grown]}"
    level = network.crossed(1, other.degrees.tensor_parallel)
    if grown == "tensor_parallel" and level is not None and change >= 0.01:
        return f"tp{other.degrees.tensor_parallel} crosses {level}: {change:+.0%} step time"
    if grown == "compute" and other.checkpointing != chosen.checkpointing == "None":
        what = "since it must recompute activations to fit"
    elif grown == "compute" and other.degrees.tensor_parallel > chosen.degrees.tensor_parallel:
        what = "since its matrix products are thinner"
    elif grown == "compute" and other.degrees.pipeline_parallel > chosen.degrees.pipeline_parallel:
        what = "since its slowest stage has more than its share"
    if change < 0:
        return f"{change:+.1%} step time, but {_dearer(chosen, other, objective)}"
    if change < 0.01:
        return f"{change:+.1%} step time, which is as good, but less simple or no better for the objective"
    return f"{change:+.0%} step time, {what}"


def _dearer(chosen: Candidate, other: Candidate, objective: Objective) -> str:
    more = other.memory.total - chosen.memory.total
    return f"{gib(more)} more per accelerator" if objective == "Memory" and more > 0 else "less simple"


@dataclass(frozen=True, slots=True)
class ScalePoint:
    """The best strategy on so many accelerators."""

    world_size: int
    degrees: Degrees
    checkpointing: Checkpointing
    step_seconds: float
    tokens_per_second: float
    utilization: float


def scaling(candidates: Sequence[Candidate]) -> tuple[ScalePoint, ...]:
    """The fastest candidate for each number of accelerators on which one is faster than on fewer."""
    fastest: dict[int, Candidate] = {}
    for candidate in candidates:
        size = candidate.degrees.world_size
        if size not in fastest or candidate.time.total < fastest[size].time.total:
            fastest[size] = candidate
    points: list[ScalePoint] = []
    for size, best in sorted(fastest.items()):
        if points and best.time.total >= points[-1].step_seconds:
            continue
        points.append(
            ScalePoint(
                size,
                best.degrees,
                best.checkpointing,
                best.time.total,
                best.tokens_per_second,
                best.utilization,
            )
        )
    return tuple(points)


def stops_paying(points: Sequence[ScalePoint]) -> int | None:
    """The accelerators beyond which more bring less than `WORTH` of their share; None without points.

    Seen from each point, the best that any larger number brings counts, so that a number which divides the batch badly
    doesn't end the curve.
    """
    if not points:
        return None
    at = points[0]
    for later in points[1:]:
        added = later.world_size / at.world_size - 1
        gained = at.step_seconds / later.step_seconds - 1
        if gained >= WORTH * added:
            at = later
    return at.world_size
