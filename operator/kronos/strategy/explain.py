"""Sentences for people about jobs that don't fit: by how much, what dominates, what to change."""

from __future__ import annotations

from collections.abc import Sequence

from kronos.api.fabric import Accelerator
from kronos.api.job import TrainingJobSpec
from kronos.strategy.candidate import Candidate
from kronos.strategy.degrees import (
    BATCH_CODE,
    CUSTOM_CODE,
    EXPERT_CODES,
    LANES_CODE,
    PIPELINE_CODES,
    SEQUENCE_CODE,
    TENSOR_CODES,
    Family,
    Pins,
    Rejection,
    Rejections,
)
from kronos.strategy.layout import GIB, Layout
from kronos.strategy.memory import MemoryBreakdown
from kronos.strategy.words import MEMORY_ITEMS

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
    recomputing = " with recomputed activations" if layout.checkpointing != "None" else ""
    size = layout.microbatch_sequences
    microbatch = f"{size} sequence{'s' if size > 1 else ''} per microbatch"
    return f"the nearest miss, {layout.degrees.summary}{recomputing} and {microbatch}, {shortage(accelerator, needed)}"


def shortage(accelerator: Accelerator, needed: MemoryBreakdown) -> str:
    """What a layout needs and lacks, without its name."""
    available = int(accelerator.memory * GIB)
    largest = max(MEMORY_ITEMS, key=lambda name: getattr(needed, name))
    dominant = (
        "" if largest == "optimizer" else f", {MEMORY_ITEMS[largest]} take {gib(getattr(needed, largest))}"
    )
    return (
        f"needs {gib(needed.total)} per accelerator, {gib(needed.total - available)} more than {accelerator.model} has; "
        f"the {MEMORY_ITEMS['optimizer']} alone takes {gib(needed.optimizer)}{dominant}"
    )


def refusal(
    spec: TrainingJobSpec,
    rejections: tuple[Rejection, ...],
    nearest: tuple[Layout, MemoryBreakdown] | None,
    available: int,
) -> str:
    """One sentence for a job without any layout that fits `available` bytes.

    Memory is the reason wherever a split got as far as being weighed. Else it is what stands against a pinned degree, then
    the batch, which is the easiest to change, then the most frequent reason.
    """
    assert rejections, "a search without candidates has rejected something"
    if nearest is not None:
        short = next(rejection for rejection in rejections if rejection.code == MEMORY)
        return f"no split of the model fits: {short.message}; {_remedy(spec, *nearest, available)}"
    low, high = spec.accelerators.min, spec.accelerators.max
    count = str(high) if low == high else f"{low} to {high}"
    pinned = _pinned_codes(Pins.of(spec))
    decisive = min(
        rejections,
        key=lambda rejection: (
            rejection.code not in pinned,
            rejection.code != BATCH_CODE,
            # Nobody who didn't ask for context groups wants to hear of them first.
            rejection.code == SEQUENCE_CODE,
        ),
    )
    return f"the job can't be split over {count} accelerators: {decisive.message}"


def _pinned_codes(pins: Pins) -> frozenset[str]:
    """What may stand against the degrees that are pinned."""
    return frozenset(
        code
        for pin, codes in (
            (pins.tensor, (*TENSOR_CODES, LANES_CODE, CUSTOM_CODE)),
            (pins.pipeline, PIPELINE_CODES),
            (pins.context, (SEQUENCE_CODE,)),
            (pins.expert, EXPERT_CODES),
        )
        if (pin or 1) > 1
        for code in codes
    )


def _remedy(spec: TrainingJobSpec, layout: Layout, needed: MemoryBreakdown, available: int) -> str:
    """What to change first: more ranks where they can shard what dominates, else less work per rank."""
    more_memory = "use accelerators with more memory"
    if needed.reserve >= available:
        return more_memory
    strategy, most = spec.strategy, spec.accelerators.max
    degrees = layout.degrees
    if needed.weights + needed.gradients + needed.optimizer <= needed.activations + needed.logits:
        return f"lower model.sequenceLength below {spec.model.sequence_length}, or {more_memory}"
    automatic = (
        "set strategy.mode to Auto" if strategy.mode == "Fixed" else "leave it out so that it is chosen"
    )
    chosen = strategy.mode == "Auto" and strategy.sharded_data_parallel is None
    if not chosen and degrees.sharded_data_parallel == 1:
        return f"raise strategy.shardedDataParallel, or {automatic}"
    if Pins.of(spec).all_given:
        return (
            f"raise strategy.shardedDataParallel and accelerators.max with it, {automatic}, or {more_memory}"
        )
    if degrees.batch_ranks >= spec.optimization.global_batch_size:
        return (
            f"raise accelerators.max above {most} and with it optimization.globalBatchSize, of which each shard needs a "
            f"sequence of its own, or {more_memory}"
        )
    return f"raise accelerators.max above {most}, or {more_memory}"


def gib(size: int) -> str:
    """For people; a size that isn't zero is never shown as zero."""
    # A miss by less than a tenth is still a miss.
    return f"{size / GIB:.1f} GiB" if size == 0 or size >= GIB // 20 else f"{size / GIB:.2g} GiB"
