"""The plan: one JSON document that tells every rank of a gang what to do.

The operator writes it, the trainer reads it, and nothing else passes between them. It holds decisions only (degrees,
who sits where, paths); everything in it is fixed for one attempt of one job.
"""

from __future__ import annotations

from math import isfinite, prod
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from kronos.api.base import Model
from kronos.api.training import Data, ModelShape, Optimization, Reproducibility

Schedule = Literal["None", "GPipe", "1F1B", "Interleaved1F1B", "ZeroBubble"]


class Degrees(Model):
    """How many ways each axis of parallelism splits the work; their product is the world size."""

    data_parallel: int = Field(default=1, ge=1)
    """Replicas that hold a full copy of their model shard and average gradients (DP, or the replicas of a hybrid)."""
    sharded_data_parallel: int = Field(default=1, ge=1)
    """Ranks over which FSDP shards weights, gradients and optimizer state."""
    tensor_parallel: int = Field(default=1, ge=1)
    """Ranks that share each matrix multiplication."""
    pipeline_parallel: int = Field(default=1, ge=1)
    """Stages that the layers are split into."""
    context_parallel: int = Field(default=1, ge=1)
    """Ranks that share each sequence."""
    expert_parallel: int = Field(default=1, ge=1)
    """Batch ranks over which the experts are dealt out; no factor of the world size."""

    @property
    def world_size(self) -> int:
        """Ranks in the gang."""
        return prod(
            (
                self.data_parallel,
                self.sharded_data_parallel,
                self.tensor_parallel,
                self.pipeline_parallel,
                self.context_parallel,
            )
        )

    @property
    def batch_ranks(self) -> int:
        """Ways in which the global batch is split: data parallel times sharded data parallel."""
        return self.data_parallel * self.sharded_data_parallel

    @property
    def summary(self) -> str:
        """For people: the axes that are split, such as `fsdp4·tp2`; `single` when none is."""
        parts = [
            f"{name}{degree}"
            for name, degree in (
                ("dp", self.data_parallel),
                ("fsdp", self.sharded_data_parallel),
                ("tp", self.tensor_parallel),
                ("pp", self.pipeline_parallel),
                ("cp", self.context_parallel),
                ("ep", self.expert_parallel),
            )
            if degree > 1
        ]
        return "·".join(parts) or "single"


class GangMember(Model):
    """One pod of the gang: the node that it is pinned to and the ranks that it runs."""

    node: str
    """Name of the Kubernetes node."""
    ranks: int = Field(ge=1)
    """Processes (one per accelerator) in this pod; global ranks are numbered through the members in order."""


class CheckpointPlan(Model):
    """When and where the trainer saves."""

    path: str
    """Folder that every rank can write and read, also after a restart on other nodes."""
    every_steps: int = Field(ge=1)
    keep: int = Field(ge=1)


class Plan(Model):
    """Everything the trainer needs; see the field docs. Mesh axes are (pp, dp, fsdp, tp), tp varying fastest."""

    format_version: Literal[1] = 1
    namespace: str
    job: str
    attempt: int = Field(ge=1)
    """1 for the first launch of the gang; each restart adds one."""
    model: ModelShape
    data: Data
    optimization: Optimization
    reproducibility: Reproducibility
    degrees: Degrees
    schedule: Schedule
    """Pipeline schedule; `None` exactly when there is a single stage."""
    microbatch_sequences: int = Field(ge=1)
    """Sequences in one microbatch of one batch rank."""
    microbatches: int = Field(ge=1)
    """Microbatches that each batch rank works through per step."""
    activation_checkpointing: bool
    """Recompute each block's activations in the backward pass."""
    stage_layers: tuple[int, ...]
    """Decoder layers on each pipeline stage, first to last."""
    members: tuple[GangMember, ...] = Field(min_length=1)
    rank_map: tuple[int, ...]
    """`rank_map[position]` is the global rank that sits at that position of the flattened (pp, dp, fsdp, tp) mesh."""
    checkpoint: CheckpointPlan | None = None
    rendezvous_timeout_seconds: int = Field(ge=1)
    """How long the members wait for each other before they give up."""
    collective_timeout_seconds: int = Field(default=600, ge=1)
    """How long a rank may wait inside one collective."""

    @property
    def world_size(self) -> int:
        """Ranks in the gang."""
        return self.degrees.world_size

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        world = self.degrees.world_size
        seats = sum(member.ranks for member in self.members)
        if seats != world:
            raise ValueError(f"the degrees multiply to {world} ranks but the members offer {seats}")
        if sorted(self.rank_map) != list(range(world)):
            raise ValueError(f"rankMap must hold each rank from 0 to {world - 1} exactly once")
        if (
            len(self.stage_layers) != self.degrees.pipeline_parallel
            or sum(self.stage_layers) != self.model.layers
        ):
            raise ValueError(
                "stageLayers must name one layer count per stage, adding up to the model's layers"
            )
        batch = self.degrees.batch_ranks * self.microbatches * self.microbatch_sequences
        if batch != self.optimization.global_batch_size:
            raise ValueError(
                f"{self.degrees.batch_ranks} batch ranks x {self.microbatches} microbatches x "
                f"{self.microbatch_sequences} sequences is {batch}, not the global batch size of "
                f"{self.optimization.global_batch_size}"
            )
        if (self.schedule == "None") != (self.degrees.pipeline_parallel == 1):
            raise ValueError("schedule is None exactly when there is one pipeline stage")
        return self


_MOST = 2**53 - 1
"""Numbers beyond this don't survive as JSON."""


def _finite(value: object) -> object:
    """A number that is none (a loss that diverged, say) is as good as no number."""
    return None if isinstance(value, float) and not isfinite(value) else value


Finite = Annotated[float | None, BeforeValidator(_finite)]
Seconds = Annotated[Annotated[float, Field(ge=0, le=1e9)] | None, BeforeValidator(_finite)]
Steps = Annotated[int, Field(ge=0, le=_MOST)]


class Progress(Model):
    """What rank 0's pod answers on its progress port, and the last word in a termination message."""

    step: Steps
    """Optimizer steps done."""
    began_at_step: Steps = 0
    """Optimizer steps that were done when this attempt began."""
    loss: Finite = None
    """Mean loss of the last step over the global batch, in nats per token."""
    tokens_per_second: Finite = None
    """Tokens of the global batch over the wall time of recent steps."""
    step_seconds: Seconds = None
    """Recent wall time per step."""
    checkpoint_step: Steps | None = None
    """Step of the last complete checkpoint."""
    digest: str | None = Field(default=None, max_length=128, pattern="^[0-9a-f]*$")
    """SHA-256 over the final weights in canonical order, once training is complete."""


class LastWords(Model):
    """The termination message of a pod: why it ended. At most 4096 bytes on the wire."""

    outcome: Literal["Complete", "Failed", "Stopped"]
    """`Stopped` means asked to stop (SIGTERM): state is saved where a checkpoint is configured."""
    rank: int | None = None
    """First failing global rank, when it failed."""
    step: int | None = None
    error: str | None = None
    """One line: the exception type and message, or the signal."""
    trace: str | None = None
    """The end of the traceback."""
    secondary: bool = False
    """True when this pod failed because another one did first (a peer closed the connection, a collective broke)."""
    progress: Progress | None = None


PROGRESS_PORT = 29400
"""Port on the first pod's IP where `GET /progress` answers with `Progress` as JSON."""
RENDEZVOUS_PORT = 29500
"""Port on the first pod where the members meet."""
PLAN_MOUNT = "/etc/kronos"
"""Folder in which the plan's ConfigMap is mounted; the file is `plan.json`."""
