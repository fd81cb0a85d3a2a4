"""Seconds per optimizer step, itemised.

A prediction to compare plans by, with one set of constants for all accelerators. What it leaves out: the optimizer's own
arithmetic (memory-bound, same on all plans that shard alike), reading data, and saving checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass

from kronos.strategy.communication import AxisTraffic, AxisWires, Network, nest
from kronos.strategy.layout import Layout, Workload
from kronos.strategy.memory import GRADIENT_BYTES
from kronos.strategy.stages import Stage, bubble_slots, telling_stages

EFFICIENCY = 0.5
"""Share of the peak that matrix products reach; Narayanan et al., SC21, table 1, measured 0.44 to 0.52 over whole runs."""
BLOCK_LAUNCH_SECONDS = 1e-4
"""Least time of a block's forward pass, however small: about 20 kernels that take 5 microseconds each to launch."""
OVERLAP = 0.5
"""Share of the arithmetic behind which sharded and replicated gradients' and weights' collectives hide.

Less than 1 because collectives take memory bandwidth and processors from the arithmetic. Tensor-parallel collectives
and pipeline sends never hide: what follows needs their result.
"""


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one optimizer step, by what they go to."""

    compute: float
    tensor_parallel: float
    data_parallel: float
    """Collectives of replicas and of FSDP, the part that doesn't hide behind arithmetic."""
    pipeline: float
    """Sends between stages."""
    pipeline_bubble: float

    @property
    def total(self) -> float:
        """The whole step."""
        return self.compute + self.tensor_parallel + self.data_parallel + self.pipeline + self.pipeline_bubble


def step_time(workload: Workload, layout: Layout, network: Network) -> tuple[StepTime, AxisTraffic]:
    """Predict a step, and the bytes it moves, with ranks laid out as `communication.nest` says."""
    stages = telling_stages(layout.stage_layers, layout.schedule, layout.microbatches)
    traffic = _traffic(workload, layout, stages)
    return time_on(workload, layout, nest(network, layout.degrees, traffic)), traffic


def time_on(workload: Workload, layout: Layout, wires: AxisWires) -> StepTime:
    """Predict a step when each axis crosses the wire given for it.

    The slowest stage sets the pace: each of the microbatches and each slot of the bubble takes its time.
    """
    stages = telling_stages(layout.stage_layers, layout.schedule, layout.microbatches)
    paces = [(_compute(workload, layout, stage), _tensor(workload, layout, stage, wires)) for stage in stages]
    compute, tensor = max(paces, key=sum)
    exposed = max(
        _data(workload, layout, stage, wires, pace[0]) for stage, pace in zip(stages, paces, strict=True)
    )
    count = layout.degrees.pipeline_parallel
    bubble = bubble_slots(count)
    slots = layout.microbatches + bubble
    boundary = _hidden_bytes(workload, layout)
    return StepTime(
        compute=layout.microbatches * compute,
        tensor_parallel=layout.microbatches * tensor,
        data_parallel=exposed,
        pipeline=2 * slots * wires.pipeline.send(boundary) if count > 1 else 0.0,
        pipeline_bubble=bubble * (compute + tensor),
    )


def _passes(layout: Layout) -> int:
    """Forward passes' worth of arithmetic per microbatch: one, two for the backward, one more to recompute."""
    return 4 if layout.activation_checkpointing else 3


def _hidden_bytes(workload: Workload, layout: Layout) -> int:
    """Bytes of a microbatch's residual stream."""
    shape = workload.shape
    tokens = layout.microbatch_sequences * shape.sequence_length
    return tokens * shape.hidden_size * workload.activation_bytes


def _compute(workload: Workload, layout: Layout, stage: Stage) -> float:
    """Seconds of arithmetic that a stage spends on one microbatch."""
    tokens = layout.microbatch_sequences * workload.shape.sequence_length
    rate = workload.peak_flops * EFFICIENCY * layout.degrees.tensor_parallel
    block = max(tokens * workload.block_flops / rate, BLOCK_LAUNCH_SECONDS)
    seconds = _passes(layout) * stage.layers * block
    if stage.last:
        seconds += 3 * tokens * workload.head_flops / rate
    return seconds


def _tensor_reductions(layout: Layout, stage: Stage) -> int:
    """All-reduces of the residual stream that a stage does per microbatch.

    Two per block and pass, forward, backward and when recomputing (Shoeybi et al. 2019, section 3), one for the
    embedding's output and one for the gradient that leaves the head.
    """
    per_block = 6 if layout.activation_checkpointing else 4
    return per_block * stage.layers + stage.first + stage.last


def _tensor(workload: Workload, layout: Layout, stage: Stage, wires: AxisWires) -> float:
    """Seconds of tensor-parallel collectives that a stage spends on one microbatch."""
    ranks = layout.degrees.tensor_parallel
    if ranks == 1:
        return 0.0
    reduction = wires.tensor.all_reduce(_hidden_bytes(workload, layout), ranks)
    return _tensor_reductions(layout, stage) * reduction


def _data(workload: Workload, layout: Layout, stage: Stage, wires: AxisWires, compute: float) -> float:
    """Seconds of FSDP's and replicas' collectives in a step that don't hide behind arithmetic.

    `compute` is the stage's arithmetic per microbatch. Replicas all-reduce fp32 gradients once per step, behind the
    last microbatch's backward pass; FSDP has the rest to hide behind. The first gather and the last reductions have
    nothing to hide behind.
    """
    degrees = layout.degrees
    last_backward = compute * 2 / _passes(layout) if degrees.data_parallel > 1 else 0.0
    seconds = 0.0
    if degrees.sharded_data_parallel > 1:
        ranks, wire = degrees.sharded_data_parallel, wires.sharded_data
        whole = workload.part_elements(degrees.tensor_parallel, 1)
        outside = whole.outside_blocks(stage.first, stage.last)
        gather = wire.all_gather(whole.block * workload.activation_bytes, ranks)
        reduce = wire.all_gather(whole.block * GRADIENT_BYTES, ranks)
        gather_outside = wire.all_gather(outside * workload.activation_bytes, ranks) if outside else 0.0
        reduce_outside = wire.all_gather(outside * GRADIENT_BYTES, ranks) if outside else 0.0
        busy = layout.microbatches * (2 * stage.layers * gather + gather_outside)
        busy += _reductions(layout) * (stage.layers * reduce + reduce_outside)
        hidden = OVERLAP * (layout.microbatches * compute - last_backward)
        seconds += max(busy - hidden, max(gather, gather_outside) + max(reduce, reduce_outside))
    if degrees.data_parallel > 1:
        ranks, wire = degrees.data_parallel, wires.data
        held = workload.part_elements(degrees.tensor_parallel, degrees.sharded_data_parallel)
        outside = held.outside_blocks(stage.first, stage.last)
        block = wire.all_reduce(held.block * GRADIENT_BYTES, ranks)
        ends = wire.all_reduce(outside * GRADIENT_BYTES, ranks) if outside else 0.0
        seconds += max(stage.layers * block + ends - OVERLAP * last_backward, max(block, ends))
    return seconds


def _reductions(layout: Layout) -> int:
    """Times per step that FSDP reduces gradients: per microbatch, but once in a pipeline (see `memory`)."""
    return 1 if layout.degrees.pipeline_parallel > 1 else layout.microbatches


def _traffic(workload: Workload, layout: Layout, stages: tuple[Stage, ...]) -> AxisTraffic:
    """Bytes that a rank sends per step and axis, each the most of any stage.

    A ring all-gather or reduce-scatter sends (p - 1) / p of the bytes, an all-reduce twice that.
    """
    degrees = layout.degrees
    hidden = _hidden_bytes(workload, layout)
    whole = workload.part_elements(degrees.tensor_parallel, 1)
    held = workload.part_elements(degrees.tensor_parallel, degrees.sharded_data_parallel)
    tensor_share = 1 - 1 / degrees.tensor_parallel
    sharded_share = 1 - 1 / degrees.sharded_data_parallel
    data_share = 1 - 1 / degrees.data_parallel
    reductions = sharded = data = 0
    for stage in stages:
        outside = whole.outside_blocks(stage.first, stage.last)
        gathered = layout.microbatches * (2 * stage.layers * whole.block + outside) * workload.activation_bytes
        reduced = _reductions(layout) * (stage.layers * whole.block + outside) * GRADIENT_BYTES
        replicated = stage.layers * held.block + held.outside_blocks(stage.first, stage.last)
        reductions = max(reductions, _tensor_reductions(layout, stage))
        sharded = max(sharded, gathered + reduced)
        data = max(data, replicated * GRADIENT_BYTES)
    return AxisTraffic(
        tensor=layout.microbatches * reductions * hidden * 2 * tensor_share,
        pipeline=float(2 * layout.microbatches * hidden) if degrees.pipeline_parallel > 1 else 0.0,
        sharded_data=sharded * sharded_share,
        data=data * 2 * data_share,
    )
