"""Bytes on the heaviest rank, itemised.

What a training system does follows from its recipe (`kronos.strategy.recipe`); of Kronos's own trainer, which must keep to it:
- Weights are fp32 masters and AdamW keeps two fp32 moments; FSDP shards all three. Gradients are fp32. That makes 16
  bytes per parameter, as in Rajbhandari et al. 2020 (ZeRO), where they are 2 + 2 + 12.
- bf16 has no second, permanent copy of the weights: FSDP casts what it gathers. Without FSDP autocast makes the casts:
  once per step, or where tensor parallelism splits the weights once per microbatch.
- FSDP reduces gradients in the last microbatch only, so with several microbatches gradients are whole until then. In
  a pipeline it gathers a stage's weights once per step and keeps them, too.
- Tensor parallelism splits attention heads, feed-forward and (where even) vocabulary; norms and residuals are whole on each
  rank unless the sequence is split too.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from kronos.api.plan import Degrees
from kronos.strategy.blocks import FP32_BYTES, Checkpointing
from kronos.strategy.layout import GIB, Layout, Workload
from kronos.strategy.stages import Stage, in_flight, telling_stages

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
    """Masters and moments."""
    activations: int
    unsharded: int
    """Weights that FSDP has gathered, or casts of weights."""
    logits: int
    """Logits, what the loss keeps of them, and their gradients."""
    communication: int
    """Buffers of collectives and of sends between stages."""
    reserve: int
    """For the framework, and lost to fragmentation."""

    @property
    def total(self) -> int:
        """All of them together."""
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True, slots=True)
class _PerSequence:
    """Bytes per sequence of a microbatch, under one kind of checkpointing."""

    kept: int
    """Of one part of the stage (the whole stage without virtual stages), for each microbatch in flight."""
    working: int
    """While a block is worked backward through: gradients, and what is recomputed of it."""
    casts: int
    """Not per sequence, but for each microbatch in flight: casts of weights."""


SharedMemory = dict[object, _PerSequence]
"""What the models of one workload have found out already."""


class MemoryModel:
    """Memory of all layouts that have the same degrees and stages; what they share is counted once."""

    def __init__(
        self,
        workload: Workload,
        degrees: Degrees,
        stage_layers: tuple[int, ...],
        sequence_parallel: bool = False,
        shared: SharedMemory | None = None,
    ) -> None:
        """`shared` remembers what several models of the workload have in common."""
        self._reserve = RESERVE_BYTES + int(RESERVE_FRACTION * workload.memory_bytes)
        shared = {} if shared is None else shared
        self._stages = [
            StageMemory(workload, degrees, stage, sequence_parallel, shared)
            for stage in telling_stages(stage_layers)
        ]

    @property
    def casts_in_flight(self) -> bool:
        """Whether each microbatch in flight keeps casts of weights, so that larger microbatches may need less."""
        return any(stage.casts_in_flight for stage in self._stages)

    def needed(self, layout: Layout) -> int:
        """Bytes that the heaviest rank needs at its peak."""
        return self._reserve + max([stage.peak(layout) for stage in self._stages])

    def heaviest(self, layout: Layout) -> MemoryBreakdown:
        """What the heaviest rank needs at its peak."""
        return max(self._stages, key=lambda stage: stage.peak(layout)).itemised(layout, self._reserve)


class StageMemory:
    """Bytes of one stage: per step, or where said per sequence of a microbatch."""

    def __init__(
        self,
        workload: Workload,
        degrees: Degrees,
        stage: Stage,
        sequence_parallel: bool = False,
        shared: SharedMemory | None = None,
    ) -> None:
        recipe, tensor = workload.recipe, degrees.tensor_parallel
        held = workload.part_elements(tensor, degrees.sharded_data_parallel, degrees.expert_parallel)
        whole = workload.part_elements(tensor, 1, degrees.expert_parallel)
        outside = whole.outside_blocks(stage.first, stage.last)
        held_elements = stage.layers * held.block + held.outside_blocks(stage.first, stage.last)
        whole_elements = stage.layers * whole.block + outside
        self._workload = workload
        self._stage = stage
        self._shared = {} if shared is None else shared
        self._own: dict[tuple[Checkpointing, int], _PerSequence] = {}
        self._stages = degrees.pipeline_parallel
        self._tensor = tensor
        self._context = degrees.context_parallel
        self._sequence_parallel = sequence_parallel
        self._weights = held_elements * recipe.weight_bytes
        self._gradients = held_elements * recipe.gradient_bytes
        self._optimizer = held_elements * recipe.master_bytes + held.state_bytes(
            stage.layers, stage.first, stage.last
        )
        self._whole_gradients = self._gradients
        """Gradients when there are several microbatches."""
        self._unsharded = self._buckets = 0
        if degrees.sharded_data_parallel > 1:
            if recipe.gradients_wait:
                self._whole_gradients = whole_elements * recipe.gradient_bytes
            # Blocks are gathered one ahead of use; embedding, norm and head stay gathered through a pass. While a
            # group is reduced, its gradient exists once more as computed and once in fp32.
            blocks = stage.layers if self._stages > 1 and recipe.gradients_wait else min(2, stage.layers)
            self._unsharded = (blocks * whole.block + outside) * workload.compute_bytes
            self._buckets = max(whole.block, outside) * (workload.compute_bytes + FP32_BYTES)
        elif degrees.data_parallel > 1:
            self._buckets = min(whole_elements, max(recipe.bucket_elements, whole.largest)) * FP32_BYTES
        self._block_casts = self._head_casts = 0
        """Casts of weights per microbatch in flight: of a block, unless it is recomputed, and of the head."""
        if workload.half and recipe.casts_weights and degrees.sharded_data_parallel == 1:
            head = (whole.embedding if workload.shape.tied_embeddings else whole.head) if stage.last else 0
            blocks = stage.layers * whole.block
            if tensor > 1:
                self._block_casts = whole.block * workload.compute_bytes
                self._head_casts = head * workload.compute_bytes
                self._unsharded += whole.block * workload.compute_bytes
            else:
                self._unsharded += (blocks + head) * workload.compute_bytes

        length, residual = workload.shape.sequence_length, workload.residual_bytes
        logits = length * workload.output_size // workload.vocabulary_ways(tensor) if stage.last else 0
        self._logits_kept = self._share(logits * (workload.compute_bytes + FP32_BYTES))
        """Per sequence in flight: logits, and in fp32 the log-softmax, or a forecaster's error, that the loss keeps."""
        gradients = FP32_BYTES + (workload.compute_bytes if workload.shape.patches else FP32_BYTES)
        self._logits_passing = self._share(logits * gradients)
        """Per sequence: the gradients of these two."""
        self._received = (not stage.first) + (not stage.last)
        self._reducing = self._share(residual if tensor > 1 else 0)
        """Per sequence: what a tensor-parallel collective has on the wire."""
        self._boundary = self._share(residual, sequence=recipe.sends_split)
        self._fixed = self._weights + self._optimizer + self._unsharded
        gathers = degrees.sharded_data_parallel > 1
        self._key = (
            stage.layers,
            stage.first,
            stage.last,
            tensor,
            degrees.expert_parallel,
            degrees.context_parallel,
            sequence_parallel,
            gathers,
        )
        self._batch_sequences = workload.global_batch_size // degrees.batch_ranks

    @property
    def casts_in_flight(self) -> bool:
        """Whether each microbatch in flight keeps casts of weights."""
        return self._block_casts > 0

    def peak(self, layout: Layout) -> int:
        """Bytes without the reserve; what `itemised` adds up to, in a fraction of its time."""
        # Written out, because a search asks this more often than anything else.
        sequences, microbatches = layout.microbatch_sequences, layout.microbatches
        per = self._per_sequence(layout.checkpointing, layout.virtual_stages)
        parts = self._in_flight(layout)
        waiting = (microbatches - 1) * self._logits_kept if layout.schedule == "GPipe" else 0
        loss = sequences * (waiting + self._logits_kept + self._logits_passing)
        block = sequences * (waiting + per.working + self._reducing) + self._buckets
        return (
            self._fixed
            + (self._gradients if microbatches == 1 else self._whole_gradients)
            + parts * (sequences * per.kept + per.casts)
            + self._receives(layout)
            + (loss if loss > block else block)
        )

    def itemised(self, layout: Layout, reserve: int) -> MemoryBreakdown:
        """What a rank of this stage needs at its peak.

        That is when the loss goes backward, or when a block does: gradients of logits are gone by the time that the blocks'
        are computed, summed and sent.
        """
        sequences = layout.microbatch_sequences
        per = self._per_sequence(layout.checkpointing, layout.virtual_stages)
        parts = self._in_flight(layout)
        waiting = (layout.microbatches - 1) * self._logits_kept if layout.schedule == "GPipe" else 0
        loss = 0, sequences * (waiting + self._logits_kept + self._logits_passing), 0
        block = sequences * per.working, sequences * waiting, sequences * self._reducing + self._buckets
        working, logits, communication = max(loss, block, key=sum)
        return MemoryBreakdown(
            weights=self._weights,
            gradients=self._gradients if layout.microbatches == 1 else self._whole_gradients,
            optimizer=self._optimizer,
            activations=sequences * parts * per.kept + working,
            unsharded=self._unsharded + parts * per.casts,
            logits=logits,
            communication=communication + self._receives(layout),
            reserve=reserve,
        )

    def _per_sequence(self, checkpointing: Checkpointing, virtual_stages: int) -> _PerSequence:
        found = self._own.get((checkpointing, virtual_stages))
        if found is None:
            key = (*self._key, checkpointing, virtual_stages)
            found = self._shared.get(key)
            if found is None:
                found = self._shared[key] = self._measure(checkpointing, virtual_stages)
            self._own[checkpointing, virtual_stages] = found
        return found

    def _measure(self, checkpointing: Checkpointing, virtual_stages: int) -> _PerSequence:
        workload, block = self._workload, self._workload.block
        shape, narrow = workload.shape, workload.compute_bytes
        length = -(-shape.sequence_length // self._context)

        def kept(kind: Checkpointing) -> int:
            return block.kept_bytes(kind, self._tensor, self._sequence_parallel)

        # The final norm keeps its input, the head its own; so does a forecaster's embedding.
        ends = shape.hidden_size * (workload.recipe.residual_bytes + narrow) if self._stage.last else 0
        ends += workload.input_size * narrow if self._stage.first else 0
        layers = -(-self._stage.layers // virtual_stages)
        # Gradients of the residual stream before and after a block, and of the feed-forward's inner products.
        inner = block.inner_width * (3 if shape.feed_forward == "Gated" else 2)
        flowing = (
            2 * shape.hidden_size * workload.recipe.gradient_stream_bytes + inner * narrow // self._tensor
        )
        again = kept("None") - kept("Selective") if checkpointing == "Selective" else 0
        again = kept("None") if checkpointing == "Full" else max(0, again)
        return _PerSequence(
            kept=length * (layers * kept(checkpointing) + ends),
            working=length * (flowing + again),
            casts=self._head_casts + (0 if checkpointing == "Full" else layers * self._block_casts),
        )

    def _share(self, size: int, *, sequence: bool = False) -> int:
        """What a rank has of bytes per sequence, when the ranks of the context group (and tensor group) share it."""
        ways = self._context * (self._tensor if sequence else 1)
        return -(-size // ways)

    def _in_flight(self, layout: Layout) -> int:
        return in_flight(
            self._stage.index, self._stages, layout.schedule, layout.microbatches, layout.virtual_stages
        )

    def _receives(self, layout: Layout) -> int:
        """Receive buffers: torch.distributed.pipelining has one per microbatch and direction, all at once."""
        if self._stages == 1:
            return 0
        parts = layout.virtual_stages
        if self._workload.recipe.receives_all:
            # Every part of a stage has neighbours on both sides, but for the model's first and last one.
            return (self._received + 2 * (parts - 1)) * self._batch_sequences * self._boundary
        directions = self._received if parts == 1 else 2
        return directions * layout.microbatch_sequences * self._boundary
