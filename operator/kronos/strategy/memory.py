"""Bytes on the heaviest rank, itemised.

Assumptions about the trainer, all of which its code must keep:
- Weights are fp32 masters, sharded by FSDP2 over shardedDataParallel; with bf16 its mixed precision casts each block as
  it is gathered, so there is no second, permanent copy. Gradients are accumulated in fp32, AdamW keeps two fp32 moments:
  16 bytes per parameter, as in Rajbhandari et al. 2020 (ZeRO), where the same 16 are 2 + 2 + 12.
- Without pipelining every microbatch's gradients are reduce-scattered, so gradients stay sharded. In a pipeline, torch
  keeps a stage's weights and fp32 gradients unsharded from the first to the last backward pass of a step.
- Tensor parallelism splits attention heads, feed-forward and vocabulary; norms and residuals are whole on each rank.
- Attention is fused (scaled_dot_product_attention): no sequence x sequence matrix is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from kronos.strategy.layout import GIB, Layout, Workload
from kronos.strategy.stages import Stage, telling_stages

MASTER_BYTES = 4
GRADIENT_BYTES = 4
ADAMW_BYTES = 8
"""First and second moment, fp32."""
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
    """Unsharded FSDP blocks, logits with their gradient, and communication buffers."""
    reserve: int

    @property
    def total(self) -> int:
        """All of them together."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.buffers + self.reserve


def memory(workload: Workload, layout: Layout) -> MemoryBreakdown:
    """What the heaviest rank needs at its peak."""
    stages = telling_stages(layout.stage_layers, layout.schedule, layout.microbatches)
    return max((stage_memory(workload, layout, stage) for stage in stages), key=lambda breakdown: breakdown.total)


def stage_memory(workload: Workload, layout: Layout, stage: Stage) -> MemoryBreakdown:
    """What a rank of one pipeline stage needs at its peak."""
    degrees = layout.degrees
    held = workload.part_elements(degrees.tensor_parallel, degrees.sharded_data_parallel)
    held_elements = stage.layers * held.block + held.outside_blocks(stage.first, stage.last)
    return MemoryBreakdown(
        weights=held_elements * MASTER_BYTES,
        gradients=held_elements * GRADIENT_BYTES,
        optimizer=held_elements * ADAMW_BYTES,
        activations=_activations(workload, layout, stage),
        buffers=_gathered(workload, layout, stage) + _logits(workload, layout, stage) + _received(workload, layout),
        reserve=RESERVE_BYTES + int(RESERVE_FRACTION * workload.memory_bytes),
    )


def block_activation_bytes(workload: Workload, tensor_parallel: int) -> int:
    """Bytes that one block keeps for its backward pass, per token, without checkpointing.

    The method is that of Korthikanti et al. 2022 (arXiv 2205.05198), section 4: count the tensors that each operation
    saves. Whole on each tensor rank, of hidden width: the inputs of the two norms and their outputs (which the
    projections save). Split over tensor ranks: q, k, v and the output of fused attention (with one fp32 log-sum-exp
    per head), and of feed-forward width w1's and w3's outputs, SiLU's output and the product that enters w2. There is no
    dropout, hence no mask.
    """
    shape = workload.shape
    key_value = shape.kv_heads * shape.head_size
    split = 2 * shape.hidden_size + 2 * key_value + 4 * shape.ffn_size
    scalars = 4 * shape.hidden_size + split // tensor_parallel
    return scalars * workload.activation_bytes + 4 * shape.attention_heads // tensor_parallel


def _activations(workload: Workload, layout: Layout, stage: Stage) -> int:
    """Activations of all microbatches in flight, and the gradients that flow through the block in its backward pass."""
    shape = workload.shape
    tensor_parallel = layout.degrees.tensor_parallel
    tokens = layout.microbatch_sequences * shape.sequence_length
    hidden_bytes = shape.hidden_size * workload.activation_bytes
    block = block_activation_bytes(workload, tensor_parallel)
    kept = stage.layers * (hidden_bytes if layout.activation_checkpointing else block)
    if stage.last:
        # The final norm's input and output. They live for the one microbatch whose loss is being computed.
        passing = 2 * hidden_bytes
    else:
        passing = 0
    if layout.activation_checkpointing:
        passing += block
    flowing = (2 * shape.hidden_size + 3 * shape.ffn_size // tensor_parallel) * workload.activation_bytes
    return tokens * (stage.in_flight * kept + passing + flowing)


def _gathered(workload: Workload, layout: Layout, stage: Stage) -> int:
    """Unsharded weights and gradients that exist beside the sharded ones.

    FSDP2 gathers the block in use and prefetches the next; embedding, norm and head are one more group, kept gathered
    from forward to backward. While a group's gradients are reduced there is one unsharded copy in the arithmetic's
    type and one in fp32 that enters the reduce-scatter. In a pipeline with FSDP the whole stage stays unsharded.
    A single fp32 shard needs none of it.
    """
    degrees = layout.degrees
    if degrees.sharded_data_parallel == 1 and workload.activation_bytes == MASTER_BYTES:
        return 0
    whole = workload.part_elements(degrees.tensor_parallel, 1)
    outside = whole.outside_blocks(stage.first, stage.last)
    reduced = max(whole.block, outside) * (workload.activation_bytes + GRADIENT_BYTES)
    if degrees.pipeline_parallel > 1 and degrees.sharded_data_parallel > 1:
        stage_elements = stage.layers * whole.block + outside
        return stage_elements * (workload.activation_bytes + GRADIENT_BYTES) + reduced
    return (min(2, stage.layers) * whole.block + outside) * workload.activation_bytes + reduced


def _logits(workload: Workload, layout: Layout, stage: Stage) -> int:
    """Logits in the arithmetic's type, and in fp32 their log-softmax, its gradient and the logits' gradient."""
    if not stage.last:
        return 0
    shape = workload.shape
    tokens = layout.microbatch_sequences * shape.sequence_length
    return tokens * ceil(shape.vocabulary_size / layout.degrees.tensor_parallel) * (workload.activation_bytes + 3 * 4)


def _received(workload: Workload, layout: Layout) -> int:
    """Communication buffers.

    A pipeline stage has a receive buffer for each microbatch of the step in both directions, as
    torch.distributed.pipelining allocates them; a tensor-parallel rank has one partial sum on the wire.
    """
    shape = workload.shape
    sequence_bytes = shape.sequence_length * shape.hidden_size * workload.activation_bytes
    total = 0
    if layout.degrees.pipeline_parallel > 1:
        total += 2 * layout.microbatches * layout.microbatch_sequences * sequence_bytes
    if layout.degrees.tensor_parallel > 1:
        total += layout.microbatch_sequences * sequence_bytes
    return total
