"""Sentences for people about jobs that don't fit: by how much, what dominates, what to change."""

from __future__ import annotations

from collections.abc import Sequence

from kronos.api.fabric import Accelerator
from kronos.api.job import TrainingJobSpec
from kronos.strategy.candidate import Candidate
from kronos.strategy.degrees import (
    BATCH_CODE,
    PIPELINE_CODES,
    TENSOR_CODES,
    Family,
    Pins,
    Rejection,
    Rejections,
)
from kronos.strategy.layout import GIB, Layout
from kronos.strategy.memory import MemoryBreakdown

MEMORY = "MemoryShort"
SLOW = "Slower"


def unknown_accelerator(resource: str, fabric: str) -> Rejection:
    """The fabric has no such accelerator."""
    message = f"the fabric {fabric} does not describe {resource}; add it under spec.accelerators"
    return Rejection("UnknownAccelerator", message, 1)


def note_slow(
    rejections: Rejections, slow: Sequence[tuple[Family, float]], found: Sequence[Candidate]
) -> None:
    """Count the families that were left out since they can't be fast enough; the nearest of them is told about."""
    if not slow or not found:
        return
    best = min(candidate.time.total for candidate in found)
    family, seconds = min(slow, key=lambda item: (item[1], item[0].world_size))
    message = (
        f"{family.degrees(family.sharded[0]).summary} would take at least {seconds / best:.1f} times as long as the "
        "fastest strategy"
    )
    rejections.add(SLOW, lambda: message, sum(len(item[0].sharded) for item in slow))


def memory_short(accelerator: Accelerator, layout: Layout, needed: MemoryBreakdown) -> str:
    """How far the nearest miss is from fitting, and what takes its memory."""
    available = int(accelerator.memory * GIB)
    optimizer = f"the optimizer state alone takes {_gib(needed.optimizer)}"
    shares = {
        "weights": needed.weights,
        "gradients": needed.gradients,
        "optimizer": needed.optimizer,
        "activations": needed.activations,
        "gathered weights": needed.unsharded,
        "logits": needed.logits,
        "communication buffers": needed.communication,
        "the process and fragmentation": needed.reserve,
    }
    largest = max(shares, key=lambda name: shares[name])
    dominant = "" if largest == "optimizer" else f", {largest} take {_gib(shares[largest])}"
    recomputing = " with recomputed activations" if layout.checkpointing != "None" else ""
    size = layout.microbatch_sequences
    microbatch = f"{size} sequence{'s' if size > 1 else ''} per microbatch"
    return (
        f"the nearest miss, {layout.degrees.summary}{recomputing} and {microbatch}, "
        f"needs {_gib(needed.total)} per accelerator, {_gib(needed.total - available)} more than {accelerator.model} "
        f"has; {optimizer}{dominant}"
    )


def refusal(
    spec: TrainingJobSpec, rejections: tuple[Rejection, ...], nearest: tuple[Layout, MemoryBreakdown] | None
) -> str:
    """One sentence for a job without any layout that fits.

    Memory is the reason wherever a split got as far as being weighed. Else it is what stands against a pinned degree, then
    the batch, which is the easiest to change, then the most frequent reason.
    """
    assert rejections, "a search without candidates has rejected something"
    if nearest is not None:
        short = next(rejection for rejection in rejections if rejection.code == MEMORY)
        return f"no split of the model fits: {short.message}; {_remedy(spec, *nearest)}"
    low, high = spec.accelerators.min, spec.accelerators.max
    count = str(high) if low == high else f"{low} to {high}"
    pins = Pins.of(spec)
    pinned = {*(TENSOR_CODES if pins.tensor else ()), *(PIPELINE_CODES if pins.pipeline else ())}
    decisive = min(
        rejections, key=lambda rejection: (rejection.code not in pinned, rejection.code != BATCH_CODE)
    )
    return f"the job can't be split over {count} accelerators: {decisive.message}"


def _remedy(spec: TrainingJobSpec, layout: Layout, needed: MemoryBreakdown) -> str:
    """What to change first: more ranks where they can shard what dominates, else less work per rank."""
    sharded = needed.weights + needed.gradients + needed.optimizer
    strategy = spec.strategy
    free = strategy.mode == "Auto" and strategy.sharded_data_parallel is None
    if not free and layout.degrees.sharded_data_parallel == 1:
        return "raise strategy.shardedDataParallel, or leave it out so that it is chosen"
    if sharded > needed.activations + needed.logits:
        return f"raise accelerators.max above {spec.accelerators.max}, or use accelerators with more memory"
    return (
        f"lower model.sequenceLength below {spec.model.sequence_length}, or use accelerators with more memory"
    )


def _gib(size: int) -> str:
    # A miss by less than a tenth is still a miss.
    return f"{size / GIB:.1f} GiB" if size == 0 or size >= GIB // 20 else f"{size / GIB:.2g} GiB"
