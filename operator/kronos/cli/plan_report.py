"""What `kubectl kronos plan` says about a job, as plain data: built from what the search found, written by `render`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from pydantic.alias_generators import to_camel

from kronos.api.fabric import FabricSpec
from kronos.api.job import TrainingJobSpec
from kronos.api.plan import Degrees, Schedule
from kronos.cli.fabrics import domain_sizes
from kronos.cli.manifests import Fabric, Job
from kronos.strategy import (
    Abilities,
    Bottleneck,
    Candidate,
    MemoryBreakdown,
    Objective,
    Rejection,
    Search,
    StepTime,
    advised,
    parameter_count,
    search,
)
from kronos.strategy.advice import without_pins
from kronos.strategy.alternatives import Alternative, ScalePoint, alternatives, scaling, stops_paying
from kronos.strategy.blocks import Checkpointing
from kronos.strategy.degrees import Pins
from kronos.strategy.layout import GIB
from kronos.strategy.shapes import active_parameter_count

RUNNERS_UP = 5
"""Candidates that are told about besides the chosen one."""


@dataclass(frozen=True, slots=True)
class ModelReport:
    """The model's size."""

    architecture: str
    layers: int
    parameter_count: int
    active_parameter_count: int
    """Parameters that one token passes through."""


@dataclass(frozen=True, slots=True)
class AcceleratorReport:
    """What the job runs on."""

    resource: str
    model: str
    memory_gib: float
    precision: str
    peak_tflops: float
    """In the job's precision."""


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """What one thing needs on the heaviest rank."""

    size_gib: float
    percent_of_limit: float


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """What the heaviest rank needs, and what there is."""

    items: Mapping[str, MemoryItem]
    """By the fields of `MemoryBreakdown`, in camelCase."""
    total_gib: float
    limit_gib: float
    percent_of_limit: float


@dataclass(frozen=True, slots=True)
class TimeItem:
    """What a step spends on one thing."""

    seconds: float
    percent_of_step: float


@dataclass(frozen=True, slots=True)
class TimeReport:
    """Where the time of a step goes."""

    items: Mapping[str, TimeItem]
    """By the fields of `StepTime`, in camelCase."""
    total_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenReport:
    """The layout that Kronos would choose, and what it is predicted to cost."""

    strategy: str
    """For people, such as `fsdp8·tp2`."""
    degrees: Degrees
    world_size: int
    schedule: Schedule
    virtual_stages: int
    microbatches: int
    microbatch_sequences: int
    global_batch_sequences: int
    checkpointing: Checkpointing
    sequence_parallel: bool
    stage_layers: tuple[int, ...]
    memory: MemoryReport
    time: TimeReport
    step_seconds: float
    tokens_per_second: float
    model_flops_utilization_percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerUpReport:
    """A layout that fits as well, and comes later."""

    strategy: str
    degrees: Degrees
    world_size: int
    checkpointing: Checkpointing
    step_seconds: float
    memory_gib: float
    model_flops_utilization_percent: float


@dataclass(frozen=True, slots=True)
class PinsReport:
    """What the job fixes of its strategy, and what that costs."""

    fields: tuple[str, ...]
    """Such as `strategy.tensorParallel 2`."""
    free: RunnerUpReport | None
    """What would be chosen without them; None when nothing would fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlternativeReport:
    """A split that one would think of, and what speaks against it."""

    strategy: str
    degrees: Degrees
    step_seconds: float | None
    """None when it can't run."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePointReport:
    """The fastest split on so many accelerators."""

    accelerators: int
    strategy: str
    degrees: Degrees
    checkpointing: Checkpointing
    step_seconds: float
    tokens_per_second: float
    speed_up: float
    """Against the fewest accelerators on which the job fits."""
    model_flops_utilization_percent: float


@dataclass(frozen=True, slots=True)
class ScalingReport:
    """What more accelerators would bring."""

    points: tuple[ScalePointReport, ...]
    pays_up_to_accelerators: int | None
    most_accelerators: int
    """The job's accelerators.max, where the curve ends."""


@dataclass(frozen=True, slots=True)
class RejectionReport:
    """Why some splits were refused."""

    code: str
    message: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """All that is said about one job."""

    job: str
    namespace: str
    fabric: str
    accelerators_per_domain: Mapping[str, int]
    """By level, as given or assumed."""
    assumed_levels: tuple[str, ...]
    """Levels whose domains were assumed to be of the usual size, since nobody said."""
    pins: PinsReport | None
    """None when the job leaves all degrees to Kronos."""
    accelerators_limit: int | None
    """Accelerators of a domain of placement.required, where that is fewer than accelerators.max; else None."""
    any_trainer: bool
    objective: Objective
    model: ModelReport
    accelerator: AcceleratorReport | None
    """None when the fabric doesn't describe it."""
    bottleneck: Bottleneck | None
    chosen: ChosenReport | None
    """None exactly when there is a refusal."""
    runners_up: tuple[RunnerUpReport, ...]
    alternatives: tuple[AlternativeReport, ...]
    scaling: ScalingReport
    rejections: tuple[RejectionReport, ...]
    refusal: str | None


def plan_report(job: Job, fabric: Fabric, slots: Mapping[str, int], abilities: Abilities) -> PlanReport:
    """What Kronos would choose for a job on an empty cluster with domains of these sizes."""
    sizes = domain_sizes(fabric.spec, slots)
    spec, limit, refusal = _within_required(job.spec, sizes)
    found = (
        advised(spec, fabric.spec, slots, abilities)
        if refusal is None
        else Search(candidates=(), rejections=(), bottleneck=None, refusal=refusal)
    )
    best = found.candidates[0] if found.candidates else None
    others = alternatives(spec, fabric.spec, best, slots, abilities) if best else ()
    accelerator = _accelerator(spec, fabric.spec)
    return PlanReport(
        job=job.name,
        namespace=job.namespace,
        fabric=fabric.name,
        accelerators_per_domain=sizes,
        assumed_levels=tuple(level for level in sizes if level not in slots),
        pins=_pins(spec, fabric.spec, slots, abilities),
        accelerators_limit=limit,
        any_trainer=abilities.every_model,
        objective=spec.strategy.objective,
        model=ModelReport(
            spec.model.architecture,
            spec.model.layers,
            parameter_count(spec.model),
            active_parameter_count(spec.model),
        ),
        accelerator=accelerator,
        bottleneck=found.bottleneck,
        chosen=_chosen(spec, best, accelerator.memory_gib) if best and accelerator else None,
        runners_up=tuple(_runner_up(candidate) for candidate in found.candidates[1 : RUNNERS_UP + 1]),
        alternatives=tuple(_alternative(other) for other in others),
        scaling=_scaling(spec, fabric.spec, slots, abilities, found),
        rejections=tuple(_rejection(rejection) for rejection in found.rejections),
        refusal=found.refusal,
    )


def _within_required(
    spec: TrainingJobSpec, sizes: Mapping[str, int]
) -> tuple[TrainingJobSpec, int | None, str | None]:
    """The job with no more accelerators than a domain of the level that it requires has, how many, and why it can't be."""
    level = spec.placement.required
    room = sizes[level] if level is not None else spec.accelerators.max
    if room >= spec.accelerators.max:
        return spec, None, None
    if room < spec.accelerators.min:
        return (
            spec,
            room,
            f"placement.required asks for one {level}, which has {room} accelerators, fewer than accelerators.min "
            f"{spec.accelerators.min}; lower accelerators.min to {room}, require a wider level, or say with --slots what a "
            f"{level} has",
        )
    bounded = spec.accelerators.model_copy(update={"max": room})
    return spec.model_copy(update={"accelerators": bounded}), room, None


def _pins(
    spec: TrainingJobSpec, fabric: FabricSpec, slots: Mapping[str, int], abilities: Abilities
) -> PinsReport | None:
    fields = Pins.fields(spec)
    if spec.strategy.mode == "Fixed":
        fields = ("strategy.mode Fixed", *fields)
    if not fields:
        return None
    free = search(without_pins(spec), fabric, slots, abilities).candidates
    return PinsReport(fields, _runner_up(free[0]) if free else None)


def _accelerator(spec: TrainingJobSpec, fabric: FabricSpec) -> AcceleratorReport | None:
    accelerator = fabric.accelerator(spec.accelerators.resource)
    if accelerator is None:
        return None
    precision = spec.optimization.precision
    return AcceleratorReport(
        resource=accelerator.resource,
        model=accelerator.model,
        memory_gib=accelerator.memory,
        precision=precision,
        peak_tflops=accelerator.flops_per_second(precision) / 1e12,
    )


def _chosen(spec: TrainingJobSpec, best: Candidate, limit_gib: float) -> ChosenReport:
    return ChosenReport(
        strategy=best.degrees.summary,
        degrees=best.degrees,
        world_size=best.degrees.world_size,
        schedule=best.schedule,
        virtual_stages=best.virtual_stages,
        microbatches=best.microbatches,
        microbatch_sequences=best.microbatch_sequences,
        global_batch_sequences=spec.optimization.global_batch_size,
        checkpointing=best.checkpointing,
        sequence_parallel=best.sequence_parallel,
        stage_layers=best.stage_layers,
        memory=_memory(best.memory, limit_gib),
        time=_time(best.time),
        step_seconds=best.time.total,
        tokens_per_second=best.tokens_per_second,
        model_flops_utilization_percent=100 * best.utilization,
    )


def _memory(memory: MemoryBreakdown, limit_gib: float) -> MemoryReport:
    def item(size: int) -> MemoryItem:
        return MemoryItem(size / GIB, 100 * size / GIB / limit_gib)

    items = {to_camel(field.name): item(getattr(memory, field.name)) for field in fields(memory)}
    total = item(memory.total)
    return MemoryReport(items, total.size_gib, limit_gib, total.percent_of_limit)


def _time(time: StepTime) -> TimeReport:
    def item(seconds: float) -> TimeItem:
        return TimeItem(seconds, 100 * seconds / time.total)

    items = {to_camel(field.name): item(getattr(time, field.name)) for field in fields(time)}
    return TimeReport(items, time.total)


def _runner_up(candidate: Candidate) -> RunnerUpReport:
    return RunnerUpReport(
        strategy=candidate.degrees.summary,
        degrees=candidate.degrees,
        world_size=candidate.degrees.world_size,
        checkpointing=candidate.checkpointing,
        step_seconds=candidate.time.total,
        memory_gib=candidate.memory.total / GIB,
        model_flops_utilization_percent=100 * candidate.utilization,
    )


def _alternative(other: Alternative) -> AlternativeReport:
    return AlternativeReport(
        strategy=other.degrees.summary,
        degrees=other.degrees,
        step_seconds=other.step_seconds,
        reason=other.reason,
    )


def _scaling(
    spec: TrainingJobSpec, fabric: FabricSpec, slots: Mapping[str, int], abilities: Abilities, found: Search
) -> ScalingReport:
    """The curve from the fewest accelerators that can hold the job, even where the job asks for more."""
    most = spec.accelerators.max
    if not found.candidates:
        return ScalingReport((), None, most)
    if spec.accelerators.min > 1 or spec.strategy.objective == "Memory":
        wider = {
            "accelerators": spec.accelerators.model_copy(update={"min": 1}),
            # The layouts that need the least memory aren't the fastest.
            "strategy": spec.strategy.model_copy(update={"objective": "Time"}),
        }
        found = search(spec.model_copy(update=wider), fabric, slots, abilities)
    points = scaling(found.candidates)
    return ScalingReport(tuple(_point(point, points[0]) for point in points), stops_paying(points), most)


def _point(point: ScalePoint, first: ScalePoint) -> ScalePointReport:
    return ScalePointReport(
        accelerators=point.world_size,
        strategy=point.degrees.summary,
        degrees=point.degrees,
        checkpointing=point.checkpointing,
        step_seconds=point.step_seconds,
        tokens_per_second=point.tokens_per_second,
        speed_up=first.step_seconds / point.step_seconds,
        model_flops_utilization_percent=100 * point.utilization,
    )


def _rejection(rejection: Rejection) -> RejectionReport:
    return RejectionReport(rejection.code, rejection.message, rejection.count)
