"""Bytes on the heaviest rank, itemised.

What the trainer does, and what follows from it:
- Weights are fp32 masters and AdamW keeps two fp32 moments; FSDP shards all three. Gradients are fp32. That makes 16
  bytes per parameter, as in Rajbhandari et al. 2020 (ZeRO), where they are 2 + 2 + 12.
- bf16 has no second, permanent copy of the weights: FSDP casts what it gathers. Without FSDP autocast makes the casts:
  once per step, or where tensor parallelism splits the weights once per microbatch. They count as buffers.
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


class MemoryModel:
    """Memory of all layouts that have the same degrees and stages; what they share is counted once."""

    def __init__(self, workload: Workload, degrees: Degrees, stage_layers: tuple[int, ...]) -> None:
        self._reserve = RESERVE_BYTES + int(RESERVE_FRACTION * workload.memory_bytes)
        self._stages = [StageMemory(workload, degrees, stage) for stage in telling_stages(stage_layers)]

    @property
    def least(self) -> int:
        """No layout needs less than these bytes: what doesn't depend on the microbatch."""
        return self._reserve + max(stage.fixed for stage in self._stages)

    def heaviest(self, layout: Layout) -> MemoryBreakdown:
        """What the heaviest rank needs at its peak."""
        return max(self._stages, key=lambda stage: stage.peak(layout)).itemised(layout, self._reserve)


class StageMemory:
    """Bytes of one stage: per step, or where said per sequence of a microbatch."""

    def __init__(self, workload: Workload, degrees: Degrees, stage: Stage) -> None:
        tensor = degrees.tensor_parallel
        held = workload.part_elements(tensor, degrees.sharded_data_parallel)
        whole = workload.part_elements(tensor, 1)
        outside = whole.outside_blocks(stage.first, stage.last)
        held_elements = stage.layers * held.block + held.outside_blocks(stage.first, stage.last)
        whole_elements = stage.layers * whole.block + outside
        self._index = stage.index
        self._stages = degrees.pipeline_parallel
        self._weights = self._gradients = held_elements * FP32_BYTES
        self._optimizer = held_elements * MOMENT_BYTES
        self._buffers = _received(workload, degrees, stage)
        self._whole_gradients = self._gradients
        """Gradients when there are several microbatches."""
        if degrees.sharded_data_parallel > 1:
            self._whole_gradients = whole_elements * FP32_BYTES
            # Blocks are gathered one ahead of use; embedding, norm and head stay gathered through a pass. While a
            # group is reduced, its gradient exists once more as computed and once in fp32.
            blocks = stage.layers if self._stages > 1 else min(2, stage.layers)
            reduced = max(whole.block, outside) * (workload.compute_bytes + FP32_BYTES)
            self._buffers += (blocks * whole.block + outside) * workload.compute_bytes + reduced
        elif degrees.data_parallel > 1:
            self._buffers += min(whole_elements, max(BUCKET_ELEMENTS, whole.largest)) * FP32_BYTES
        self._casts = (0, 0)
        """Casts of weights per microbatch in flight: without recomputing, and with, when blocks don't keep theirs."""
        if workload.half and degrees.sharded_data_parallel == 1:
            head = (whole.embedding if workload.shape.tied_embeddings else whole.head) if stage.last else 0
            blocks = stage.layers * whole.block
            if tensor > 1:
                self._casts = ((blocks + head) * workload.compute_bytes, head * workload.compute_bytes)
                self._buffers += whole.block * workload.compute_bytes
            else:
                self._buffers += (blocks + head) * workload.compute_bytes

        length, residual = workload.shape.sequence_length, workload.residual_bytes
        block = length * block_activation_bytes(workload, tensor)
        # The final norm keeps its input, the head its own.
        ends = residual + length * workload.shape.hidden_size * workload.compute_bytes if stage.last else 0
        self._kept = (stage.layers * block + ends, stage.layers * residual + ends)
        """Activations per sequence in flight: without recomputing, and with, when only blocks' inputs are kept."""
        flowing = 2 * residual + length * 3 * workload.shape.ffn_size // tensor * workload.compute_bytes
        self._working = (flowing, flowing + block)
        """Per sequence, likewise: gradients in the residual stream and one feed-forward; the block being recomputed."""
        logits = 0
        if stage.last:
            logits = length * workload.shape.vocabulary_size // workload.vocabulary_ways(tensor)
        self._logits_kept = logits * (workload.compute_bytes + FP32_BYTES)
        """Per sequence in flight: logits, and the fp32 log-softmax that the loss keeps."""
        self._passing = logits * 2 * FP32_BYTES + (residual if tensor > 1 else 0)
        """Per sequence: the gradients of these two, and what a tensor-parallel all-reduce has on the wire."""

    @property
    def fixed(self) -> int:
        """Bytes that no choice of microbatches avoids."""
        return self._weights + self._gradients + self._optimizer + self._buffers

    def peak(self, layout: Layout) -> int:
        """Bytes without the reserve; what `itemised` adds up to, in a fraction of its time."""
        recompute = layout.activation_checkpointing
        kept = self._in_flight(layout)
        per_sequence = kept * (self._kept[recompute] + self._logits_kept)
        per_sequence += self._working[recompute] + self._passing
        gradients = self._gradients if layout.microbatches == 1 else self._whole_gradients
        fixed = self._weights + gradients + self._optimizer + self._buffers
        return fixed + kept * self._casts[recompute] + layout.microbatch_sequences * per_sequence

    def itemised(self, layout: Layout, reserve: int) -> MemoryBreakdown:
        """What a rank of this stage needs at its peak."""
        recompute = layout.activation_checkpointing
        sequences, kept = layout.microbatch_sequences, self._in_flight(layout)
        return MemoryBreakdown(
            weights=self._weights,
            gradients=self._gradients if layout.microbatches == 1 else self._whole_gradients,
            optimizer=self._optimizer,
            activations=sequences * (kept * self._kept[recompute] + self._working[recompute]),
            buffers=(
                self._buffers
                + kept * self._casts[recompute]
                + sequences * (kept * self._logits_kept + self._passing)
            ),
            reserve=reserve,
        )

    def _in_flight(self, layout: Layout) -> int:
        return in_flight(self._index, self._stages, layout.schedule, layout.microbatches)


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
