"""KronosTrainingJob: what people read, and what the operator remembers between two looks at a job.

Everything that matters to a decision is here, so an operator that starts afresh goes on where another stopped. The
reservation of a gang's place is the pair `placement` + `strategy`: both are written in one update, or not at all.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kronos.api.base import Lenient, list_map
from kronos.api.plan import Degrees, GangMember, Schedule

Phase = Literal["Queued", "Starting", "Running", "Suspended", "Restarting", "Complete", "Failed"]
ConditionType = Literal["Ready", "Reconciling", "Stalled", "Admitted", "PodsReady", "Complete", "Failed"]
Bottleneck = Literal["DataVolume", "ModelSize", "Both"]


class Condition(Lenient):
    """One aspect of the job, in the convention of Kubernetes conditions."""

    type: ConditionType
    """The aspect."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: str = Field(min_length=1, max_length=1024)
    """Why, as one CamelCase word for programs."""
    message: str = Field(default="", max_length=32768)
    """Why, as one sentence for people."""
    last_transition_time: str = Field(json_schema_extra={"format": "date-time"})
    """When status last changed."""
    observed_generation: int = Field(default=0, ge=0)
    """Generation of the spec that this was observed for."""


class MemoryGiB(Lenient):
    """Predicted memory on the accelerator that needs the most, in GiB."""

    weights: float
    """Weights held all the time."""
    gradients: float
    """Gradients."""
    optimizer: float
    """Optimizer state."""
    activations: float
    """Activations kept for the backward pass."""
    unsharded: float = 0.0
    """Weights that FSDP has gathered, or casts of weights."""
    logits: float = 0.0
    """Logits and their gradients."""
    communication: float = 0.0
    """Buffers of collectives and of sends between stages."""
    reserve: float
    """Kept free for the framework."""
    total: float
    """Sum of the above."""
    limit: float
    """Memory of the accelerator."""


class StepBreakdown(Lenient):
    """Predicted time per step, in seconds."""

    compute: float
    """Matrix products."""
    tensor_parallel: float
    """Tensor-parallel collectives."""
    context_parallel: float = 0.0
    """Exchanges of ranks that share sequences."""
    expert_parallel: float = 0.0
    """Exchanges of ranks that hold different experts."""
    data_parallel: float
    """Gradient and weight collectives of data and sharded data parallel."""
    pipeline: float
    """Activations passed between stages."""
    pipeline_bubble: float
    """Stages waiting for each other."""
    optimizer: float = 0.0
    """The update of the weights."""


class Predicted(Lenient):
    """What the strategy is expected to cost."""

    step_seconds: float
    """Time per step, corrected by what earlier jobs measured on this fabric."""
    breakdown: StepBreakdown
    """Parts of the time per step."""
    correction: float = 1.0
    """By what the model's own prediction was multiplied; see the calibrations in the fabric's status."""
    tokens_per_second: float | None = None
    """Tokens of all accelerators together."""
    utilization: float | None = None
    """Model FLOPs utilization (MFU): share of the accelerators' peak that goes into the model's own arithmetic."""
    memory_gib: MemoryGiB = Field(alias="memoryGiB")
    """Memory."""


class StrategyStatus(Lenient):
    """The chosen strategy; complete enough to write the same plan again."""

    summary: str
    """Degrees for people, such as `fsdp4·tp2`."""
    bottleneck: Bottleneck
    """What limits the job: its data volume, the model's size, or both."""
    world_size: int = Field(ge=1)
    """Ranks in the gang."""
    degrees: Degrees
    """Ways each axis is split."""
    schedule: Schedule
    """Pipeline schedule."""
    microbatch_sequences: int = Field(ge=1)
    """Sequences per microbatch."""
    microbatches: int = Field(ge=1)
    """Microbatches per batch rank and step."""
    activation_checkpointing: bool
    """Whether blocks recompute their activations."""
    stage_layers: tuple[int, ...]
    """Layers on each pipeline stage."""
    predicted: Predicted
    """What it is expected to cost."""
    runner_up: str | None = None
    """The next best strategy and what it would have cost."""
    alternatives: tuple[str, ...] = Field(default=(), max_length=8)
    """Other splits that one would think of, each with what decided against it; `kubectl kronos plan` tells all."""
    pays_up_to: int | None = Field(default=None, ge=1)
    """Number of accelerators beyond which more would bring less than half of their share."""


class LeftTo(Lenient):
    """The other system that admits the gang."""

    by: Literal["Kueue", "PodGroup"]
    """What its pods are marked for."""
    queue: str | None = None
    """Kueue's LocalQueue."""
    scheduler_name: str | None = None
    """The scheduler of its pods."""
    required_topology: str | None = None
    """Node label of the level that must hold the gang."""
    preferred_topology: str | None = None
    """Node label of the level that should hold the gang."""

    @property
    def name(self) -> str:
        """For people."""
        return (
            f"Kueue's LocalQueue {self.queue}"
            if self.by == "Kueue"
            else f"the scheduler {self.scheduler_name}"
        )


class PlacementStatus(Lenient):
    """The reserved place of the gang."""

    summary: str
    """For people, such as `3 nodes in 2 racks; each tensor group inside one node`."""
    members: tuple[GangMember, ...]
    """The pods, in order: the node of each and how many ranks it runs."""
    rank_map: str
    """Which rank sits at which place of the (pp, dp, fsdp, tp) mesh, as ranges such as `0-7,12-15,8-11`."""
    domains: dict[str, int] = Field(default_factory=dict)
    """Domains used at each level of the fabric."""
    reserved_at: str = Field(json_schema_extra={"format": "date-time"})
    """When the place was reserved."""
    ready_at: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    """When all members were running."""
    left_to: LeftTo | None = None
    """Who else decides about it; members have no node until that system has bound them all."""

    @property
    def bound(self) -> bool:
        """Whether the members' nodes are known."""
        return all(member.node for member in self.members)


class ProgressStatus(Lenient):
    """How far training has come, as last reported."""

    attempt: int = Field(default=0, ge=0)
    """The attempt that reported it."""
    began_at_step: int = Field(default=0, ge=0)
    """Optimizer steps that were done when that attempt began."""
    step: int = Field(ge=0)
    """Optimizer steps done."""
    steps: int = Field(ge=1)
    """Optimizer steps in all."""
    loss: float | None = None
    """Mean loss of the last step, in nats per token."""
    tokens_per_second: float | None = None
    """Tokens per second over recent steps."""
    measured_step_seconds: float | None = None
    """Time per step over recent steps."""
    prediction_error: str | None = None
    """By how much measured time per step exceeds the predicted one, such as `+12%`."""
    time_left: str | None = None
    """Estimated time to the last step, such as `16h40m`."""
    checkpoint_step: int | None = None
    """Step of the last complete checkpoint."""
    digest: str | None = None
    """SHA-256 over the final weights in canonical order."""


class RestartRecord(Lenient):
    """One time the gang was given up and started again."""

    at: str = Field(json_schema_extra={"format": "date-time"})
    """When."""
    attempt: int = Field(ge=1)
    """The attempt that ended."""
    cause: Literal[
        "TrainingFailed",
        "PodLost",
        "NodeLost",
        "StartTimeout",
        "PlaceLost",
        "Stopped",
        "Evicted",
        "Preempted",
    ]
    """Why, as one word; only TrainingFailed counts against restart.backoffLimit."""
    message: str = ""
    """Why, as one sentence."""
    node: str | None = None
    """The node where it began."""


class TrainingJobStatus(Lenient):
    """What is known about the job."""

    observed_generation: int = Field(default=0, ge=0)
    """Generation of the spec that this status speaks about."""
    phase: Phase = "Queued"
    """Where the job is in its life."""
    reason: str = ""
    """When the job isn't training: one sentence that says why."""
    ready: str = ""
    """Members that are running, of those in the gang, such as `3/4`."""
    conditions: tuple[Condition, ...] = Field(default=(), json_schema_extra=list_map("type"))
    """Aspects of the job, for programs."""
    attempt: int = Field(default=0, ge=0)
    """How often a place was reserved; 0 before the first time."""
    failures: int = Field(default=0, ge=0)
    """Failures of the training itself that count against restart.backoffLimit."""
    not_before: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    """The job isn't placed again before this time (back-off)."""
    strategy: StrategyStatus | None = None
    """The chosen strategy, once a place is reserved."""
    placement: PlacementStatus | None = None
    """The reserved place; absent while the job holds nothing."""
    progress: ProgressStatus | None = None
    """How far training has come."""
    restarts: tuple[RestartRecord, ...] = Field(default=(), max_length=20)
    """The last restarts, oldest first."""
    started_at: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    """When all ranks first trained."""
    finished_at: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    """When the job completed or failed."""


def encode_ranks(ranks: tuple[int, ...]) -> str:
    """Write a sequence of ranks as ascending runs: (0, 1, 2, 5, 4) becomes `0-2,5,4`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)


def decode_ranks(text: str) -> tuple[int, ...]:
    """The inverse of `encode_ranks`; ValueError on text that it can't have written."""
    ranks: list[int] = []
    for run in text.split(","):
        first, _, last = run.partition("-")
        ranks.extend(range(int(first), int(last or first) + 1))
    return tuple(ranks)
