"""Seconds per optimizer step, itemised.

A prediction to compare layouts by, with one set of constants for all accelerators. No collective is taken to hide behind
arithmetic: replicas sum their gradients after the last backward pass, and how far FSDP's collectives hide differs between
accelerators. Left out: the optimizer's own arithmetic, reading data, and saving checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from kronos.api.plan import Degrees
from kronos.strategy.communication import AxisRoutes, AxisTraffic, Network, nest
from kronos.strategy.layout import FP32_BYTES, Layout, Workload
from kronos.strategy.memory import BUCKET_ELEMENTS
from kronos.strategy.stages import Stage, bubble_slots, telling_stages

EFFICIENCY = 0.5
"""Share of the peak that matrix products reach; Narayanan et al., SC21, table 1, measured 0.44 to 0.52 over whole runs."""
LAUNCH_SECONDS = 5e-6
"""Time that the host takes to launch one kernel, however small its work."""
BLOCK_KERNELS = 20
"""Kernels in a block's forward pass."""
FSDP_KERNELS = 10
"""Kernels around one of FSDP's collectives, which copy and cast each tensor of a group."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one optimizer step, by what they go to."""

    compute: float
    tensor_parallel: float
    data_parallel: float
    """Collectives of replicas and of FSDP."""
    pipeline: float
    """Sends between stages."""
    pipeline_bubble: float

    @property
    def total(self) -> float:
        """The whole step."""
        return self.compute + self.tensor_parallel + self.data_parallel + self.pipeline + self.pipeline_bubble


class StepModel:
    """Time and traffic of all layouts that have the same degrees and stages; what they share is worked out once."""

    def __init__(
        self, workload: Workload, degrees: Degrees, stage_layers: tuple[int, ...], network: Network
    ) -> None:
        self._workload = workload
        self._degrees = degrees
        self._stages = [_StageLoad(workload, degrees, stage) for stage in telling_stages(stage_layers)]
        # The order of the axes' traffic is the same for every microbatch: without a pipeline FSDP's is the heavier of
        # the two data axes always, and in a pipeline it doesn't depend on the microbatches.
        self._routes = nest(network, degrees, self._traffic(microbatches=1, recompute=False))
        self._reduce = max(_reduce_seconds(stage, degrees, self._routes) for stage in self._stages)
        self._gather = max(_gather_seconds(stage, degrees, self._routes) for stage in self._stages)

    def time(self, layout: Layout) -> StepTime:
        """Predict a step with ranks laid out as `communication.nest` says.

        The slowest stage sets the pace: each microbatch and each slot of the bubble takes as long as it does there.
        """
        microbatches = layout.microbatches
        compute, tensor = self._pace(layout)
        bubble = bubble_slots(self._degrees.pipeline_parallel)
        sends = 0.0
        if bubble:
            boundary = layout.microbatch_sequences * self._workload.residual_bytes
            sends = 2 * (microbatches + bubble) * self._routes.pipeline.send(boundary)
        return StepTime(
            compute=microbatches * compute,
            tensor_parallel=microbatches * tensor,
            data_parallel=self._reduce + _gathers(self._degrees, microbatches) * self._gather,
            pipeline=sends,
            pipeline_bubble=bubble * (compute + tensor),
        )

    def traffic(self, layout: Layout) -> AxisTraffic:
        """Bytes that a rank of the busiest stage sends per step on each axis."""
        return self._traffic(layout.microbatches, layout.activation_checkpointing)

    def _pace(self, layout: Layout) -> tuple[float, float]:
        """Seconds that the slowest stage spends on one microbatch: arithmetic, and tensor-parallel collectives.

        A backward pass costs twice its forward pass, recomputing one more forward pass of the blocks.
        """
        workload, ranks = self._workload, self._degrees.tensor_parallel
        recompute = layout.activation_checkpointing
        tokens = layout.microbatch_sequences * workload.shape.sequence_length
        rate = workload.peak_flops * EFFICIENCY
        block = max(tokens * workload.block_flops / (rate * ranks), BLOCK_KERNELS * LAUNCH_SECONDS)
        blocks = (4 if recompute else 3) * block
        head = 3 * tokens * workload.head_flops / (rate * workload.vocabulary_ways(ranks))
        partial_sum = full_sum = 0.0
        if ranks > 1:
            size = layout.microbatch_sequences * workload.residual_bytes
            partial_sum = self._routes.tensor.all_reduce(size * workload.compute_bytes // FP32_BYTES)
            full_sum = self._routes.tensor.all_reduce(size)
        paces = []
        for stage in self._stages:
            forward, backward = stage.tensor_reductions(recompute)
            compute = stage.layers * blocks + (head if stage.last else 0.0)
            paces.append((compute, forward * partial_sum + backward * full_sum))
        return max(paces, key=sum)

    def _traffic(self, microbatches: int, recompute: bool) -> AxisTraffic:
        """See `traffic`. A ring all-gather or reduce-scatter sends (p - 1) / p of the bytes, an all-reduce twice that."""
        workload, degrees = self._workload, self._degrees
        step_bytes = workload.global_batch_size // degrees.batch_ranks * workload.residual_bytes
        ratio = workload.compute_bytes / FP32_BYTES
        reductions = max(
            forward * ratio + backward
            for forward, backward in (stage.tensor_reductions(recompute) for stage in self._stages)
        )
        gathers = _gathers(degrees, microbatches)
        sharded = max(stage.gathered_bytes * gathers + stage.reduced_bytes for stage in self._stages)
        data = max(stage.replicated_bytes for stage in self._stages)
        return AxisTraffic(
            tensor=reductions * step_bytes * 2 * (1 - 1 / degrees.tensor_parallel),
            pipeline=2.0 * step_bytes if degrees.pipeline_parallel > 1 else 0.0,
            sharded_data=sharded * (1 - 1 / degrees.sharded_data_parallel),
            data=data * 2 * (1 - 1 / degrees.data_parallel),
        )


class _StageLoad:
    """What one stage computes and moves."""

    def __init__(self, workload: Workload, degrees: Degrees, stage: Stage) -> None:
        whole = workload.part_elements(degrees.tensor_parallel, 1)
        held = workload.part_elements(degrees.tensor_parallel, degrees.sharded_data_parallel)
        outside = whole.outside_blocks(stage.first, stage.last)
        elements = stage.layers * whole.block + outside
        self.layers = stage.layers
        self.first = stage.first
        self.last = stage.last
        self.groups = stage.layers + (outside > 0)
        """FSDP's groups: each block, and the rest."""
        self.gathered_bytes = elements * workload.compute_bytes
        self.reduced_bytes = elements * FP32_BYTES
        held_elements = stage.layers * held.block + held.outside_blocks(stage.first, stage.last)
        self.replicated_bytes = held_elements * FP32_BYTES
        """Gradients that replicas sum."""

    def tensor_reductions(self, recompute: bool) -> tuple[int, int]:
        """Tensor-parallel all-reduces per microbatch: of partial sums as computed, and of fp32 gradients.

        Two per block and forward pass, again when recomputing, and two per block and backward pass (Shoeybi et al.
        2019, section 3); one for the embedding's output, and one for the gradient that leaves the head.
        """
        passes = 2 if recompute else 1
        return 2 * passes * self.layers + self.first, 2 * self.layers + self.last


def _gathers(degrees: Degrees, microbatches: int) -> int:
    """Times per step that FSDP gathers each weight: for each pass, but once in a pipeline (see `memory`)."""
    return 1 if degrees.pipeline_parallel > 1 else 2 * microbatches


def _gather_seconds(stage: _StageLoad, degrees: Degrees, routes: AxisRoutes) -> float:
    """Seconds to gather all weights of a stage once."""
    if degrees.sharded_data_parallel == 1:
        return 0.0
    route = routes.sharded_data
    startup = stage.groups * (route.startup + FSDP_KERNELS * LAUNCH_SECONDS)
    return startup + stage.gathered_bytes * route.seconds_per_byte


def _reduce_seconds(stage: _StageLoad, degrees: Degrees, routes: AxisRoutes) -> float:
    """Seconds per step to reduce a stage's gradients among shards and replicas.

    FSDP reduces its groups one by one, and its replicas with them; without FSDP replicas sum buckets.
    """
    seconds = 0.0
    messages = ceil(stage.reduced_bytes / (BUCKET_ELEMENTS * FP32_BYTES))
    if degrees.sharded_data_parallel > 1:
        route, messages = routes.sharded_data, stage.groups
        startup = messages * (route.startup + FSDP_KERNELS * LAUNCH_SECONDS)
        seconds += startup + stage.reduced_bytes * route.seconds_per_byte
    if degrees.data_parallel > 1:
        route = routes.data
        seconds += 2 * (messages * route.startup + stage.replicated_bytes * route.seconds_per_byte)
    return seconds
