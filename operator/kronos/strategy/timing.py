"""Seconds per optimizer step, itemised.

Operations cost what `arithmetic` says, collectives what their routes say. What hides behind arithmetic is in the recipe; of
the rest nothing is taken to. Left out: reading data and saving checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

from kronos.api.plan import Degrees
from kronos.strategy.arithmetic import LAUNCH_SECONDS, Arithmetic
from kronos.strategy.blocks import FP32_BYTES, Checkpointing
from kronos.strategy.communication import AxisRoutes, AxisTraffic, Network, nest
from kronos.strategy.layout import Layout, Workload
from kronos.strategy.stages import Passes, Stage, bubble, telling_stages

FSDP_KERNELS = 10
"""Kernels around one of FSDP's collectives, which copy and cast each tensor of a group."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one optimizer step, by what they go to."""

    compute: float
    tensor_parallel: float
    context_parallel: float
    expert_parallel: float
    data_parallel: float
    """Collectives of replicas and of FSDP."""
    pipeline: float
    """Sends between stages."""
    pipeline_bubble: float
    optimizer: float
    """The update of the weights."""

    @property
    def total(self) -> float:
        """The whole step."""
        return (
            self.compute
            + self.tensor_parallel
            + self.context_parallel
            + self.expert_parallel
            + self.data_parallel
            + self.pipeline
            + self.pipeline_bubble
            + self.optimizer
        )


@dataclass(frozen=True, slots=True)
class BlockTime:
    """Seconds of one block, forward and backward, for one microbatch."""

    forward: float
    """Arithmetic."""
    backward: float
    """Arithmetic, with what is recomputed."""
    weights: float
    """Part of it that computes gradients of weights."""
    tensor: tuple[float, float]
    """Collectives of the tensor group, forward and backward."""
    context: tuple[float, float]
    expert: tuple[float, float]

    def passes(self, layers: int) -> Passes:
        """So many blocks as a stage."""
        forward = self.forward + self.tensor[0] + self.context[0] + self.expert[0]
        backward = self.backward + self.tensor[1] + self.context[1] + self.expert[1]
        return Passes(layers * forward, layers * backward, layers * self.weights)


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds that one microbatch takes on the slowest stage, which sets the pace of all."""

    compute: float
    tensor: float
    context: float
    expert: float
    send: float
    """To pass it on to the next stage."""
    own: Passes
    """All of it, but for the sends."""
    everything: Passes
    """On all stages together."""


class StepModel:
    """Time and traffic of all layouts that have the same degrees and stages; what they share is worked out once."""

    def __init__(
        self,
        arithmetic: Arithmetic,
        degrees: Degrees,
        stage_layers: tuple[int, ...],
        network: Network,
        sequence_parallel: bool = False,
        shared: dict[object, Pace] | None = None,
    ) -> None:
        """`shared` remembers what doesn't depend on replicas and shards, for models that differ in nothing else."""
        self._shared = {} if shared is None else shared
        self._arithmetic = arithmetic
        self._workload = arithmetic.workload
        self._degrees = degrees
        self._layers = sum(stage_layers)
        self._sequence_parallel = sequence_parallel
        self._stages = [_StageLoad(self._workload, degrees, stage) for stage in telling_stages(stage_layers)]
        self._network = network

    @cached_property
    def routes(self) -> AxisRoutes:
        """What the groups of each axis pay, laid out as `communication.nest` says.

        The order of the axes' traffic is taken to be the same for every microbatch: without a pipeline FSDP's is the heavier
        of the two data axes always, and in a pipeline it hardly depends on the microbatches.
        """
        return nest(self._network, self._degrees, self._traffic(microbatches=1, recompute=False))

    def time(self, layout: Layout, routes: AxisRoutes | None = None) -> StepTime:
        """Predict a step. `routes` are those of the place where it runs; without them the best that the network has.

        The slowest stage sets the pace: each microbatch takes as long as it does there.
        """
        routes = routes or self.routes
        common = self._common(layout, routes)
        pace = common.compute / layout.microbatches
        return replace(
            common, data_parallel=self._data_seconds(layout, routes, pace), optimizer=self._update_seconds
        )

    def seconds(self, layout: Layout) -> float:
        """The total of `time`, sooner."""
        common = self._common(layout, self.routes)
        pace = common.compute / layout.microbatches
        return common.total + self._data_seconds(layout, self.routes, pace) + self._update_seconds

    @cached_property
    def _update_seconds(self) -> float:
        return max(self._arithmetic.update(stage.held_elements) for stage in self._stages)

    def _common(self, layout: Layout, routes: AxisRoutes) -> StepTime:
        """All but the collectives of data and the update."""
        key = (layout.microbatch_sequences, layout.checkpointing, layout.stage_layers, *routes.of_the_model)
        pace = self._shared.get(key)
        if pace is None:
            pace = self._shared[key] = self._pace(layout, routes)
        microbatches = layout.microbatches
        return StepTime(
            compute=microbatches * pace.compute,
            tensor_parallel=microbatches * pace.tensor,
            context_parallel=microbatches * pace.context,
            expert_parallel=microbatches * pace.expert,
            data_parallel=0.0,
            pipeline=2
            * (microbatches * layout.virtual_stages + self._degrees.pipeline_parallel - 1)
            * pace.send,
            pipeline_bubble=bubble(pace.own, pace.everything, layout.schedule, layout.virtual_stages),
            optimizer=0.0,
        )

    def _pace(self, layout: Layout, routes: AxisRoutes) -> Pace:
        tokens = self._tokens(layout)
        block = self._block_time(tokens, layout.checkpointing, routes)
        head = self._arithmetic.head(tokens, self._degrees.tensor_parallel)
        embedding = self._arithmetic.embedding(tokens)
        embedding_sum, head_sum = self._stream_sums(tokens, routes)

        def passes(layers: int, first: bool, last: bool) -> Passes:
            whole = block.passes(layers)
            forward = whole.forward + (embedding + embedding_sum if first else 0.0) + (head if last else 0.0)
            return Passes(forward, whole.backward + (head_sum if last else 0.0), whole.weights)

        slowest = max(self._stages, key=lambda stage: passes(stage.layers, stage.first, stage.last).total)
        layers = slowest.layers
        tensor = layers * sum(block.tensor)
        tensor += (embedding_sum if slowest.first else 0.0) + (head_sum if slowest.last else 0.0)
        return Pace(
            compute=layers * (block.forward + block.backward)
            + (embedding if slowest.first else 0.0)
            + (head if slowest.last else 0.0),
            tensor=tensor,
            context=layers * sum(block.context),
            expert=layers * sum(block.expert),
            send=self._send_seconds(layout, routes),
            own=passes(layers, slowest.first, slowest.last),
            everything=passes(self._layers, True, True),
        )

    def traffic(self, layout: Layout) -> AxisTraffic:
        """Bytes that a rank of the busiest stage sends per step on each axis."""
        return self._traffic(layout.microbatches, layout.activation_checkpointing)

    def _tokens(self, layout: Layout) -> float:
        """Tokens of a microbatch on one rank."""
        return (
            layout.microbatch_sequences
            * self._workload.shape.sequence_length
            / self._degrees.context_parallel
        )

    def _block_time(self, tokens: float, kind: Checkpointing, routes: AxisRoutes) -> BlockTime:
        degrees = self._degrees
        forward, backward, weights, selective = self._arithmetic.block(
            tokens, degrees.tensor_parallel, degrees.expert_parallel, self._sequence_parallel
        )
        again = {"None": 0.0, "Selective": selective, "Full": forward}[kind]
        tensor = self._tensor_seconds(tokens, kind, routes)
        context = self._context_seconds(tokens, kind, routes)
        expert = self._expert_seconds(tokens, kind, routes)
        return BlockTime(forward, backward + again, weights, tensor, context, expert)

    def _tensor_seconds(self, tokens: float, kind: Checkpointing, routes: AxisRoutes) -> tuple[float, float]:
        """Two sums in each pass through a block (Shoeybi et al. 2019, section 3), once more when it is recomputed.

        With sequence parallelism they are as many bytes in all-gathers and reduce-scatters (Korthikanti et al. 2022, 4.2.2).
        """
        if self._degrees.tensor_parallel == 1:
            return 0.0, 0.0
        workload = self._workload
        width = tokens * workload.shape.hidden_size
        forward = 2 * routes.tensor.all_reduce(width * workload.compute_bytes)
        backward = 2 * routes.tensor.all_reduce(width * workload.recipe.gradient_stream_bytes)
        return forward, backward + (forward if kind == "Full" else 0.0)

    def _stream_sums(self, tokens: float, routes: AxisRoutes) -> tuple[float, float]:
        """What tensor ranks sum of the embedding's output, and of the gradient that leaves the head."""
        recipe = self._workload.recipe
        if self._degrees.tensor_parallel == 1 or not recipe.embedding_stream:
            return 0.0, 0.0
        width = tokens * self._workload.shape.hidden_size
        return (
            routes.tensor.all_reduce(width * self._workload.compute_bytes),
            routes.tensor.all_reduce(width * recipe.gradient_stream_bytes),
        )

    def _context_seconds(self, tokens: float, kind: Checkpointing, routes: AxisRoutes) -> tuple[float, float]:
        """Keys and values go round the ring in each pass, and their gradients in the backward pass.

        Attention over what has arrived hides as much as it takes: Liu et al. 2023 (ring attention), section 3.
        """
        ranks, shape = self._degrees.context_parallel, self._workload.shape
        block = self._workload.block
        if ranks == 1 or block.attention is None:
            return 0.0, 0.0
        key_value = 2 * tokens * ranks * shape.kv_heads * shape.head_size / self._degrees.tensor_parallel
        ring = routes.context.gather(key_value * self._workload.compute_bytes)
        flops = tokens * block.attention.flops / self._degrees.tensor_parallel
        hidden = flops / (self._workload.peak_flops * self._workload.matmul_efficiency)
        step = ring / (ranks - 1)
        # The first step waits for nothing but also hides nothing.
        forward = max(step, ring - hidden)
        backward = max(step, 2 * ring - 2.5 * hidden)
        return forward, backward + (forward if kind == "Full" else 0.0)

    def _expert_seconds(self, tokens: float, kind: Checkpointing, routes: AxisRoutes) -> tuple[float, float]:
        """Tokens are dealt out to their experts and collected again, in each pass."""
        experts, ranks = self._workload.shape.experts, self._degrees.expert_parallel
        if ranks == 1 or experts is None:
            return 0.0, 0.0
        width = tokens * experts.active * self._workload.shape.hidden_size * self._workload.compute_bytes
        forward = 2 * routes.expert.exchange(width)
        return forward, forward * (2 if kind == "Full" else 1)

    def _send_seconds(self, layout: Layout, routes: AxisRoutes) -> float:
        """Seconds to pass a microbatch on to the next stage."""
        if self._degrees.pipeline_parallel == 1:
            return 0.0
        recipe, tensor = self._workload.recipe, self._degrees.tensor_parallel
        size = layout.microbatch_sequences * self._workload.residual_bytes / self._degrees.context_parallel
        if recipe.sends_split and tensor > 1:
            return routes.pipeline.send(size / tensor) + routes.tensor.gather(size)
        return routes.pipeline.send(size)

    def _data_seconds(self, layout: Layout, routes: AxisRoutes, compute: float) -> float:
        """Collectives of replicas and of FSDP; `compute` are the seconds of a microbatch behind which FSDP's may hide."""
        reduce = max(self._reduce_seconds(stage, routes) for stage in self._stages)
        gather = max(self._gather_seconds(stage, routes) for stage in self._stages)
        times = self._gathers(layout.microbatches)
        if not self._workload.recipe.hides_gathers or self._degrees.sharded_data_parallel == 1:
            return reduce + times * gather
        groups = min(stage.groups for stage in self._stages)
        # What comes first, and goes last, has nothing to hide behind.
        exposed = max(times * gather + reduce - layout.microbatches * compute, 0.0)
        return max(exposed, (gather + reduce) / groups)

    def _gathers(self, microbatches: int) -> int:
        """Times per step that FSDP gathers each weight: for each pass, but once in a pipeline that keeps them."""
        keeps = self._degrees.pipeline_parallel > 1 and self._workload.recipe.gradients_wait
        return 1 if keeps else 2 * microbatches

    def _gather_seconds(self, stage: _StageLoad, routes: AxisRoutes) -> float:
        """Seconds to gather all weights of a stage once."""
        if self._degrees.sharded_data_parallel == 1:
            return 0.0
        route = routes.sharded_data
        startup = stage.groups * (route.startup + FSDP_KERNELS * LAUNCH_SECONDS)
        return startup + stage.gathered_bytes * route.seconds_per_byte

    def _reduce_seconds(self, stage: _StageLoad, routes: AxisRoutes) -> float:
        """Seconds per step to reduce a stage's gradients among shards and replicas.

        FSDP reduces its groups one by one, and its replicas with them; without FSDP replicas sum buckets.
        """
        degrees, bucket = self._degrees, self._workload.recipe.bucket_elements
        seconds = 0.0
        messages = ceil(stage.reduced_bytes / (bucket * FP32_BYTES)) if bucket else 1
        if degrees.sharded_data_parallel > 1:
            route, messages = routes.sharded_data, stage.groups
            startup = messages * (route.startup + FSDP_KERNELS * LAUNCH_SECONDS)
            seconds += startup + stage.reduced_bytes * route.seconds_per_byte
        if degrees.data_parallel > 1:
            seconds += messages * routes.data.all_reduce(stage.replicated_bytes / messages)
        return seconds

    def _traffic(self, microbatches: int, recompute: bool) -> AxisTraffic:
        """See `traffic`. A ring all-gather or reduce-scatter sends (p - 1) / p of the bytes, an all-reduce twice that."""
        workload, degrees = self._workload, self._degrees
        shape, narrow = workload.shape, workload.compute_bytes
        sequences = workload.global_batch_size // degrees.batch_ranks
        width = sequences * shape.sequence_length * shape.hidden_size / degrees.context_parallel
        passes = 2 if recompute else 1
        tensor = max(
            (2 * passes * stage.layers + stage.first) * narrow
            + (2 * stage.layers + stage.last) * workload.recipe.gradient_stream_bytes
            for stage in self._stages
        )
        gathers = self._gathers(microbatches)
        sharded = max(stage.gathered_bytes * gathers + stage.reduced_bytes for stage in self._stages)
        layers = max(stage.layers for stage in self._stages)
        dealt = 0.0
        if shape.experts is not None and degrees.expert_parallel > 1:
            share = 1 - 1 / degrees.expert_parallel
            dealt = 2 * (passes + 1) * layers * width * shape.experts.active * narrow * share
        return AxisTraffic(
            tensor=tensor * width * 2 * (1 - 1 / degrees.tensor_parallel),
            pipeline=2.0 * width * workload.recipe.residual_bytes if degrees.pipeline_parallel > 1 else 0.0,
            sharded_data=sharded * (1 - 1 / degrees.sharded_data_parallel) + dealt,
            data=max(stage.replicated_bytes for stage in self._stages) * 2 * (1 - 1 / degrees.data_parallel),
        )


class _StageLoad:
    """What one stage computes and moves."""

    def __init__(self, workload: Workload, degrees: Degrees, stage: Stage) -> None:
        whole = workload.part_elements(degrees.tensor_parallel, 1, degrees.expert_parallel)
        held = workload.part_elements(
            degrees.tensor_parallel, degrees.sharded_data_parallel, degrees.expert_parallel
        )
        outside = whole.outside_blocks(stage.first, stage.last)
        # Experts that are dealt out over all shards are left with none to gather from.
        alone = degrees.expert_parallel >= degrees.sharded_data_parallel
        elements = stage.layers * (whole.block - (whole.experts if alone else 0)) + outside
        self.layers = stage.layers
        self.first = stage.first
        self.last = stage.last
        self.groups = stage.layers + (outside > 0)
        """FSDP's groups: each block, and the rest."""
        self.gathered_bytes = elements * workload.compute_bytes
        self.reduced_bytes = elements * workload.recipe.gradient_bytes
        self.held_elements = stage.layers * held.block + held.outside_blocks(stage.first, stage.last)
        self.replicated_bytes = self.held_elements * workload.recipe.gradient_bytes
        """Gradients that replicas sum."""
