"""One way to run a job, and the numbers about the job that memory and time both follow from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Self

from kronos.api.fabric import Accelerator
from kronos.api.job import TrainingJobSpec
from kronos.api.plan import Degrees, Schedule
from kronos.api.training import ModelShape
from kronos.strategy import shapes
from kronos.strategy.blocks import FP32_BYTES, BlockWork, Checkpointing
from kronos.strategy.optimizers import Optimizer, state_bytes
from kronos.strategy.recipe import KRONOS, Recipe
from kronos.strategy.stages import balance

GIB = 2**30
MEMORY_EFFICIENCY = 0.8
"""Share of an accelerator's memory bandwidth that operations reach; fits the A100 runs of Narayanan et al., SC21, and
Korthikanti et al. 2022 (see tests/strategy/test_published_runs.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Everything the strategy decides about a job; the fields mean what they mean in `kronos.api.plan.Plan`."""

    degrees: Degrees
    microbatch_sequences: int
    microbatches: int
    checkpointing: Checkpointing
    schedule: Schedule
    stage_layers: tuple[int, ...]
    virtual_stages: int = 1
    """Parts of each stage under an interleaved schedule."""
    sequence_parallel: bool = False
    """Tensor ranks split norms and residuals along the sequence."""

    @property
    def activation_checkpointing(self) -> bool:
        """Whether blocks are recomputed from their inputs."""
        return self.checkpointing == "Full"


@dataclass(frozen=True, slots=True)
class PartElements:
    """Scalars of the parts of a model on one rank, and the bytes of optimizer state that belong to them."""

    embedding: int
    block: int
    experts: int
    """Of a block's, those that routed experts have."""
    head: int
    largest: int
    """Of the largest single tensor."""
    embedding_state: int
    block_state: int
    head_state: int

    def outside_blocks(self, first: bool, last: bool) -> int:
        """Scalars that a stage holds outside its blocks: embedding on the first stage, norm and head on the last."""
        return (self.embedding if first else 0) + (self.head if last else 0)

    def state_bytes(self, layers: int, first: bool, last: bool) -> int:
        """Optimizer state of a stage."""
        return (
            layers * self.block_state
            + (self.embedding_state if first else 0)
            + (self.head_state if last else 0)
        )


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
    bytes_per_second: float = float("inf")
    """What one accelerator reads and writes of its memory."""
    matmul_efficiency: float = 1.0
    """Share of the peak that large matrix products reach."""
    optimizer: Optimizer = "AdamW"
    recipe: Recipe = KRONOS
    leaf_sequences: int = 1
    """Every microbatch has a multiple of so many sequences: the leaves of a certified run."""

    @classmethod
    def of(cls, spec: TrainingJobSpec, accelerator: Accelerator) -> Self:
        """Take what matters from a job and from the accelerator that it asks for."""
        structure = spec.reproducibility.structure
        return cls.on(
            accelerator,
            shape=spec.model,
            global_batch_size=spec.optimization.global_batch_size,
            precision=spec.optimization.precision,
            optimizer=spec.optimization.optimizer,
            recipe=KRONOS,
            leaf_sequences=structure.leaf_sequences if structure else 1,
        )

    @classmethod
    def on(
        cls,
        accelerator: Accelerator,
        *,
        shape: ModelShape,
        global_batch_size: int,
        precision: Literal["fp32", "bf16"],
        optimizer: Optimizer,
        recipe: Recipe,
        leaf_sequences: int = 1,
    ) -> Self:
        """A model trained by a system on a kind of accelerator."""
        return cls(
            shape=shape,
            global_batch_size=global_batch_size,
            compute_bytes=2 if precision == "bf16" else FP32_BYTES,
            peak_flops=accelerator.flops_per_second(precision),
            memory_bytes=int(accelerator.memory * GIB),
            bytes_per_second=accelerator.memory_bytes_per_second * MEMORY_EFFICIENCY,
            matmul_efficiency=accelerator.matmul_share,
            optimizer=optimizer,
            recipe=recipe,
            leaf_sequences=leaf_sequences,
        )

    @property
    def half(self) -> bool:
        """Whether matrix products run in bf16 rather than fp32."""
        return self.compute_bytes != FP32_BYTES

    @cached_property
    def block(self) -> BlockWork:
        """What a block computes, moves and keeps."""
        return BlockWork(self.shape, self.recipe, self.compute_bytes)

    @cached_property
    def head_flops(self) -> int:
        """Forward FLOPs of the output head per token; tying it to the embedding doesn't change them."""
        return 2 * self.output_size * self.shape.hidden_size

    @cached_property
    def input_size(self) -> int:
        """Scalars per token that the embedding multiplies: a forecaster's patch; none where tokens are looked up."""
        patches = self.shape.patches
        return patches.length * patches.channels if patches else 0

    @cached_property
    def embedding_flops(self) -> int:
        """Forward FLOPs of a forecaster's embedding per token; looking a token up takes none."""
        return 2 * self.input_size * self.shape.hidden_size

    @cached_property
    def model_flops(self) -> float:
        """FLOPs of a sequence, forward and backward.

        The backward pass is twice the forward one, but of the embedding, whose input needs no gradient, it is as much.
        """
        flops = 3 * (self.shape.layers * self.block.flops + self.head_flops) + 2 * self.embedding_flops
        return self.shape.sequence_length * flops

    @cached_property
    def output_size(self) -> int:
        """Scalars that the head gives for each token; none for a custom model, whose layers are all that is known."""
        shape = self.shape
        if shape.custom is not None:
            return 0
        return shape.patches.horizon * shape.patches.channels if shape.patches else shape.vocabulary_size

    @cached_property
    def head_cost(self) -> float:
        """Cost of the head in units of one block."""
        return self.head_flops / self.block.flops

    @cached_property
    def embedding_cost(self) -> float:
        """Cost of the embedding in units of one block, of whose three passes it has two."""
        return 2 / 3 * self.embedding_flops / self.block.flops

    def balanced(self, stages: int) -> tuple[int, ...]:
        """Layers of each of so many pipeline stages; see `stages.balance`."""
        return balance(self.shape.layers, stages, self.head_cost, self.embedding_cost)

    @cached_property
    def residual_bytes(self) -> int:
        """Bytes of the residual stream of one sequence."""
        return self.shape.sequence_length * self.shape.hidden_size * self.recipe.residual_bytes

    def vocabulary_ways(self, tensor_parallel: int) -> int:
        """Ways in which embedding and head are split: like the rest, or not at all when that isn't even."""
        if self.shape.patches is not None or self.output_size % tensor_parallel:
            return 1
        return tensor_parallel

    def part_elements(self, tensor_parallel: int, sharded: int, expert_parallel: int = 1) -> PartElements:
        """Scalars of each part on the rank that holds most, when split so.

        Experts are dealt out among the ranks over which the rest is sharded, and sharded over what remains of these.
        """
        key = (tensor_parallel, sharded, expert_parallel)
        found = self._known_parts.get(key)
        if found is None:
            parts = self._parameters
            embedding, block, head = (sum(self._elements(tensor, key) for tensor in part) for part in parts)
            states = [
                sum(self._state(tensor, key, in_block) for tensor in part)
                for part, in_block in zip(parts, (False, True, False), strict=True)
            ]
            found = self._known_parts[key] = PartElements(
                embedding=embedding,
                block=block,
                experts=sum(self._elements(tensor, key) for tensor in parts[1] if tensor.experts),
                head=head,
                largest=max(self._elements(tensor, key) for part in parts for tensor in part),
                embedding_state=states[0],
                block_state=states[1],
                head_state=states[2],
            )
        return found

    def _elements(self, tensor: shapes.Tensor, split: tuple[int, int, int]) -> int:
        experts, rows, columns = self._shard(tensor, split)
        return experts * rows * columns

    def _state(self, tensor: shapes.Tensor, split: tuple[int, int, int], in_block: bool) -> int:
        return state_bytes(self.optimizer, tensor, self._shard(tensor, split), in_block=in_block)

    @staticmethod
    def _shard(tensor: shapes.Tensor, split: tuple[int, int, int]) -> tuple[int, int, int]:
        tensor_parallel, sharded, expert_parallel = split
        if tensor.experts:
            sharded = max(1, sharded // expert_parallel)
        return tensor.shard_shape(tensor_parallel, sharded, expert_parallel)

    @cached_property
    def _parameters(self) -> tuple[tuple[shapes.Tensor, ...], ...]:
        parts = shapes.parameters(self.shape)
        return parts.embedding, parts.block, parts.head

    @cached_property
    def _known_parts(self) -> dict[tuple[int, int, int], PartElements]:
        return {}
