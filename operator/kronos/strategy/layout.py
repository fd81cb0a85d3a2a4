"""One way to run a job, and the numbers about the job that memory and time both follow from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

from kronos.api.fabric import Accelerator
from kronos.api.job import TrainingJobSpec
from kronos.api.plan import Degrees, Schedule
from kronos.api.training import ModelShape
from kronos.strategy import shapes

GIB = 2**30
FP32_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Everything the strategy decides about a job; the fields mean what they mean in `kronos.api.plan.Plan`."""

    degrees: Degrees
    microbatch_sequences: int
    microbatches: int
    activation_checkpointing: bool
    schedule: Schedule
    stage_layers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PartElements:
    """Scalars of the parts of a model on one rank."""

    embedding: int
    block: int
    head: int
    largest: int
    """Of the largest single tensor."""

    def outside_blocks(self, first: bool, last: bool) -> int:
        """Scalars that a stage holds outside its blocks: embedding on the first stage, norm and head on the last."""
        return (self.embedding if first else 0) + (self.head if last else 0)


@dataclass(frozen=True)
class Workload:
    """A job on a kind of accelerator, as numbers."""

    shape: ModelShape
    global_batch_size: int
    compute_bytes: int
    """Bytes per scalar that enters a matrix product: 2 in bf16, 4 in fp32."""
    peak_flops: float
    """FLOP/s of one accelerator in that precision."""
    memory_bytes: int
    """Memory of one accelerator."""

    @classmethod
    def of(cls, spec: TrainingJobSpec, accelerator: Accelerator) -> Self:
        """Take what matters from a job and from the accelerator that it asks for."""
        half = spec.optimization.precision == "bf16"
        peak = accelerator.peak_tflops
        return cls(
            shape=spec.model,
            global_batch_size=spec.optimization.global_batch_size,
            compute_bytes=2 if half else FP32_BYTES,
            peak_flops=(peak.bf16 if half else peak.fp32) * 1e12,
            memory_bytes=int(accelerator.memory_gib * GIB),
        )

    @property
    def half(self) -> bool:
        """Whether matrix products run in bf16 rather than fp32."""
        return self.compute_bytes != FP32_BYTES

    @cached_property
    def block_flops(self) -> int:
        """Forward FLOPs of one block per token."""
        return shapes.block_flops(self.shape)

    @cached_property
    def head_flops(self) -> int:
        """Forward FLOPs of the output head per token."""
        return shapes.head_flops(self.shape)

    @cached_property
    def residual_bytes(self) -> int:
        """Bytes of the residual stream of one sequence; it is fp32 whatever the precision."""
        return self.shape.sequence_length * self.shape.hidden_size * FP32_BYTES

    def vocabulary_ways(self, tensor_parallel: int) -> int:
        """Ways in which embedding and head are split: like the rest, or not at all when that isn't even."""
        return 1 if self.shape.vocabulary_size % tensor_parallel else tensor_parallel

    def part_elements(self, tensor_parallel: int, sharded: int) -> PartElements:
        """Scalars of each part on the rank that holds most, when split so."""
        key = (tensor_parallel, sharded)
        found = self._known_parts.get(key)
        if found is None:
            parts = self._parameters
            every = (*parts.embedding, *parts.block, *parts.head)
            found = self._known_parts[key] = PartElements(
                embedding=shapes.elements(parts.embedding, *key),
                block=shapes.elements(parts.block, *key),
                head=shapes.elements(parts.head, *key),
                largest=max(tensor.shard_elements(*key) for tensor in every),
            )
        return found

    @cached_property
    def _parameters(self) -> shapes.Parameters:
        return shapes.parameters(self.shape)

    @cached_property
    def _known_parts(self) -> dict[tuple[int, int], PartElements]:
        return {}
