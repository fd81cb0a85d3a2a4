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
BLOCK_LAUNCH_SECONDS = 1e-4
"""Least time of a block's forward pass, however small: about 20 kernels that take 5 microseconds each to launch."""


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
    """Time and traffic of all layouts that have the same degrees and stages."""

    def __init__(
        self, workload: Workload, degrees: Degrees, stage_layers: tuple[int, ...], network: Network
    ) -> None:
        self._workload = workload
        self._degrees = degrees
        self._network = network
        self._stages = telling_stages(stage_layers)
        self._routes: AxisRoutes | None = None

    def predict(self, layout: Layout) -> tuple[StepTime, AxisTraffic]:
        """Predict a step, and the bytes it moves, with ranks laid out as `communication.nest` says."""
        traffic = self._traffic(layout)
        # The order of the axes' traffic doesn't depend on the microbatch: FSDP's is always the heavier of the two data
        # axes, and in a pipeline, where it competes with the sends, it gathers once per step.
        if self._routes is None:
            self._routes = nest(self._network, self._degrees, traffic)
        return self.time_on(self._routes, layout), traffic

    def time_on(self, routes: AxisRoutes, layout: Layout) -> StepTime:
        """Predict a step when the groups of each axis pay what `routes` says.

        The slowest stage sets the pace: each microbatch and each slot of the bubble takes as long as it does there.
        """
        compute, tensor = max((self._pace(stage, routes, layout) for stage in self._stages), key=sum)
        data = max(self._data(stage, routes, layout) for stage in self._stages)
        bubble = bubble_slots(self._degrees.pipeline_parallel)
        sends = 0.0
        if bubble:
            boundary = layout.microbatch_sequences * self._workload.residual_bytes
            sends = 2 * (layout.microbatches + bubble) * routes.pipeline.send(boundary)
        return StepTime(
            compute=layout.microbatches * compute,
            tensor_parallel=layout.microbatches * tensor,
            data_parallel=data,
            pipeline=sends,
            pipeline_bubble=bubble * (compute + tensor),
        )

    def _pace(self, stage: Stage, routes: AxisRoutes, layout: Layout) -> tuple[float, float]:
        """Seconds that a stage spends on one microbatch: arithmetic, and tensor-parallel collectives.

        A backward pass costs twice its forward pass, recomputing one more forward pass of the blocks.
        """
        workload, ranks = self._workload, self._degrees.tensor_parallel
        tokens = layout.microbatch_sequences * workload.shape.sequence_length
        rate = workload.peak_flops * EFFICIENCY
        block = max(tokens * workload.block_flops / (rate * ranks), BLOCK_LAUNCH_SECONDS)
        compute = (4 if layout.activation_checkpointing else 3) * stage.layers * block
        if stage.last:
            compute += 3 * tokens * workload.head_flops / (rate * workload.vocabulary_ways(ranks))
        if ranks == 1:
            return compute, 0.0
        forward, backward = _reductions(stage, layout)
        full = layout.microbatch_sequences * workload.residual_bytes
        partial = full * workload.compute_bytes // FP32_BYTES
        tensor = forward * routes.tensor.all_reduce(partial) + backward * routes.tensor.all_reduce(full)
        return compute, tensor

    def _data(self, stage: Stage, routes: AxisRoutes, layout: Layout) -> float:
        """Seconds per step of a stage's collectives among replicas and shards."""
        workload, degrees = self._workload, self._degrees
        whole = workload.part_elements(degrees.tensor_parallel, 1)
        outside = whole.outside_blocks(stage.first, stage.last)
        groups = stage.layers + (outside > 0)
        elements = stage.layers * whole.block + outside
        seconds = 0.0
        if degrees.sharded_data_parallel > 1:
            route = routes.sharded_data
            gathered = elements * workload.compute_bytes
            seconds += self._gathers(layout) * (groups * route.startup + gathered * route.seconds_per_byte)
            seconds += groups * route.startup + elements * FP32_BYTES * route.seconds_per_byte
            held = workload.part_elements(degrees.tensor_parallel, degrees.sharded_data_parallel)
            elements = stage.layers * held.block + held.outside_blocks(stage.first, stage.last)
        else:
            groups = ceil(elements / BUCKET_ELEMENTS)
        if degrees.data_parallel > 1:
            route = routes.data
            seconds += 2 * (groups * route.startup + elements * FP32_BYTES * route.seconds_per_byte)
        return seconds

    def _gathers(self, layout: Layout) -> int:
        """Times per step that FSDP gathers each weight: for each pass, but once in a pipeline (see `memory`)."""
        return 1 if self._degrees.pipeline_parallel > 1 else 2 * layout.microbatches

    def _traffic(self, layout: Layout) -> AxisTraffic:
        """Bytes that a rank sends per step and axis, each the most of any stage.

        A ring all-gather or reduce-scatter over p ranks sends (p - 1) / p of the bytes, an all-reduce twice that.
        """
        workload, degrees = self._workload, self._degrees
        whole = workload.part_elements(degrees.tensor_parallel, 1)
        held = workload.part_elements(degrees.tensor_parallel, degrees.sharded_data_parallel)
        step_bytes = layout.microbatches * layout.microbatch_sequences * workload.residual_bytes
        per_parameter = self._gathers(layout) * workload.compute_bytes + FP32_BYTES
        tensor = sharded = data = 0.0
        for stage in self._stages:
            forward, backward = _reductions(stage, layout)
            tensor = max(tensor, forward * workload.compute_bytes / FP32_BYTES + backward)
            outside = whole.outside_blocks(stage.first, stage.last)
            sharded = max(sharded, (stage.layers * whole.block + outside) * per_parameter)
            held_elements = stage.layers * held.block + held.outside_blocks(stage.first, stage.last)
            data = max(data, held_elements * FP32_BYTES)
        return AxisTraffic(
            tensor=tensor * step_bytes * 2 * (1 - 1 / degrees.tensor_parallel),
            pipeline=2.0 * step_bytes if degrees.pipeline_parallel > 1 else 0.0,
            sharded_data=sharded * (1 - 1 / degrees.sharded_data_parallel),
            data=data * 2 * (1 - 1 / degrees.data_parallel),
        )


def _reductions(stage: Stage, layout: Layout) -> tuple[int, int]:
    """Tensor-parallel all-reduces per microbatch: of partial sums as computed, and of fp32 gradients.

    Two per block and forward pass, again when recomputing, and two per block and backward pass (Shoeybi et al. 2019,
    section 3); one for the embedding's output, and one for the gradient that leaves the head.
    """
    passes = 2 if layout.activation_checkpointing else 1
    return 2 * passes * stage.layers + stage.first, 2 * stage.layers + stage.last
