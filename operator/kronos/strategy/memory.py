"""Bytes on the heaviest rank, itemised.

What the trainer does, and what follows from it:
- Weights are fp32 masters and AdamW keeps two fp32 moments; FSDP shards all three. Gradients are fp32. That makes 16
  bytes per parameter, as in Rajbhandari et al. 2020 (ZeRO), where they are 2 + 2 + 12.
- bf16 has no second, permanent copy of the weights: FSDP casts what it gathers; without FSDP, autocast keeps the casts
  of all matrices for the length of a step, which counts as a buffer.
- FSDP reduces gradients in the last microbatch only, so with several microbatches gradients are whole until then. In
  a pipeline it gathers a stage's weights once per step and keeps them, too.
- The residual stream and the norms are fp32 in either precision. Tensor parallelism splits attention heads,
  feed-forward and (where even) vocabulary; norms and residuals are whole on each rank.
- Attention is fused (scaled_dot_product_attention): no sequence x sequence matrix is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from kronos.api.plan import Degrees
from kronos.strategy.layout import FP32_BYTES, GIB, Layout, Workload
from kronos.strategy.stages import Stage, in_flight, telling_stages

MOMENT_BYTES = 2 * FP32_BYTES
"""AdamW's first and second moment of one parameter."""
BUCKET_ELEMENTS = 1 << 23
"""Gradients that replicas sum in one all-reduce; a larger tensor goes alone."""
RESERVE_BYTES = GIB // 2
"""Left for the process itself: device context, communicators, kernels' workspaces."""
RESERVE_FRACTION = 0.05
"""Share of the memory lost to fragmentation in the caching allocator."""


@dataclass(frozen=True, slots=True)
class MemoryBreakdown:
    """Bytes on one rank."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    buffers: int
    """Gathered or cast weights, logits with their gradient, and communication buffers."""
    reserve: int

    @property
    def total(self) -> int:
        """All of them together."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.buffers + self.reserve


def memory(workload: Workload, layout: Layout) -> MemoryBreakdown:
    """What the heaviest rank of one layout needs at its peak."""
    return MemoryModel(workload, layout.degrees, layout.stage_layers).heaviest(layout)


class MemoryModel:
    """Memory of all layouts that have the same degrees and stages; what they share is counted once."""

    def __init__(self, workload: Workload, degrees: Degrees, stage_layers: tuple[int, ...]) -> None:
        self._workload = workload
        self._degrees = degrees
        self._stages = [_StageMemory(workload, degrees, stage) for stage in telling_stages(stage_layers)]
        self._reserve = RESERVE_BYTES + int(RESERVE_FRACTION * workload.memory_bytes)

    @property
    def least(self) -> int:
        """No layout needs less than these bytes: what doesn't depend on the microbatch."""
        return self._reserve + max(
            stage.states + stage.sharded_gradients + stage.buffers for stage in self._stages
        )

    def heaviest(self, layout: Layout) -> MemoryBreakdown:
        """What the heaviest rank needs at its peak."""
        return max((self.on(stage, layout) for stage in self._stages), key=lambda breakdown: breakdown.total)

    def on(self, stage: _StageMemory, layout: Layout) -> MemoryBreakdown:
        """What a rank of one stage needs at its peak."""
        degrees = self._degrees
        kept = in_flight(stage.index, degrees.pipeline_parallel, layout.schedule, layout.microbatches)
        if layout.activation_checkpointing:
            activations = kept * stage.checkpointed + stage.recomputed
        else:
            activations = kept * stage.activations
        sequences = layout.microbatch_sequences
        whole = degrees.sharded_data_parallel > 1 and layout.microbatches > 1
        return MemoryBreakdown(
            weights=stage.weights,
            gradients=stage.whole_gradients if whole else stage.sharded_gradients,
            optimizer=stage.optimizer,
            activations=sequences * (activations + stage.working),
            buffers=stage.buffers
            + sequences * (kept * stage.logits + stage.logits_working + stage.partial_sum),
            reserve=self._reserve,
        )


class _StageMemory:
    """Bytes of one stage: per step, or where said per sequence of a microbatch."""

    def __init__(self, workload: Workload, degrees: Degrees, stage: Stage) -> None:
        tensor = degrees.tensor_parallel
        held = workload.part_elements(tensor, degrees.sharded_data_parallel)
        whole = workload.part_elements(tensor, 1)
        outside = whole.outside_blocks(stage.first, stage.last)
        held_elements = stage.layers * held.block + held.outside_blocks(stage.first, stage.last)
        whole_elements = stage.layers * whole.block + outside
        self.index = stage.index
        self.weights = held_elements * FP32_BYTES
        self.optimizer = held_elements * MOMENT_BYTES
        self.states = self.weights + self.optimizer
        self.sharded_gradients = held_elements * FP32_BYTES
        self.whole_gradients = whole_elements * FP32_BYTES
        self.buffers = _received(workload, degrees, stage)
        if degrees.sharded_data_parallel > 1:
            # Blocks are gathered one ahead of use; embedding, norm and head stay gathered through a pass. While a
            # group is reduced, its gradient exists once more as computed and once in fp32.
            blocks = stage.layers if degrees.pipeline_parallel > 1 else min(2, stage.layers)
            reduced = max(whole.block, outside) * (workload.compute_bytes + FP32_BYTES)
            self.buffers += (blocks * whole.block + outside) * workload.compute_bytes + reduced
        else:
            if workload.half:
                self.buffers += whole_elements * workload.compute_bytes
            if degrees.data_parallel > 1:
                self.buffers += min(whole_elements, max(BUCKET_ELEMENTS, whole.largest)) * FP32_BYTES

        length, residual = workload.shape.sequence_length, workload.residual_bytes
        block = length * block_activation_bytes(workload, tensor)
        # The final norm keeps its input, the head its own.
        ends = residual + length * workload.shape.hidden_size * workload.compute_bytes if stage.last else 0
        self.activations = stage.layers * block + ends
        """Per sequence in flight, without recomputing."""
        self.checkpointed = stage.layers * residual + ends
        """Per sequence in flight, when blocks are recomputed: the blocks' inputs."""
        self.recomputed = block
        """Per sequence: the one block that is being recomputed."""
        self.working = 2 * residual + length * 3 * workload.shape.ffn_size // tensor * workload.compute_bytes
        """Per sequence: gradients that flow through the residual stream and through the feed-forward of one block."""
        logits = 0
        if stage.last:
            logits = length * workload.shape.vocabulary_size // workload.vocabulary_ways(tensor)
        self.logits = logits * (workload.compute_bytes + FP32_BYTES)
        """Per sequence in flight: logits, and the fp32 log-softmax that the loss keeps."""
        self.logits_working = logits * 2 * FP32_BYTES
        """Per sequence: the gradients of these two."""
        self.partial_sum = residual if tensor > 1 else 0
        """Per sequence: what a tensor-parallel all-reduce has on the wire."""


def block_activation_bytes(workload: Workload, tensor_parallel: int) -> int:
    """Bytes that one block keeps for its backward pass, per token, without recomputing.

    The method is that of Korthikanti et al. 2022 (arXiv 2205.05198), section 4: add up what each operation saves.
    Whole on each tensor rank and of hidden width: the norms' fp32 inputs, and the norms' outputs as the matrix products
    keep them, in fp32 once each, in bf16 one cast for each of the five products they enter. Split over tensor ranks: q,
    k, v and the attention's output (with an fp32 log-sum-exp per head), and of feed-forward width the two products'
    outputs, SiLU's output and the input of the last product. There is no dropout, hence no mask. Norms are taken to be
    fused, as on GPUs; unfused ones, as on CPUs, keep their normalised input too.
    """
    shape = workload.shape
    norm_inputs = 2 * shape.hidden_size * FP32_BYTES
    norm_outputs = (5 if workload.half else 2) * shape.hidden_size * workload.compute_bytes
    key_value = shape.kv_heads * shape.head_size
    split = 2 * shape.hidden_size + 2 * key_value + 4 * shape.ffn_size
    sums = shape.attention_heads * FP32_BYTES
    return norm_inputs + norm_outputs + (split * workload.compute_bytes + sums) // tensor_parallel


def _received(workload: Workload, degrees: Degrees, stage: Stage) -> int:
    """Receive buffers of a step: torch.distributed.pipelining has one per microbatch and direction, all at once."""
    directions = (not stage.first) + (not stage.last)
    return directions * workload.global_batch_size // degrees.batch_ranks * workload.residual_bytes
