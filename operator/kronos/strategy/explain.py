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
from kronos.strategy.widths import PIPELINE_CODE, SHARDED_CODE, TENSOR_CODE
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
    """What a layout needs and lacks, without its name: its two largest items, and the optimizer's state in any case."""
    available = int(accelerator.memory * GIB)
    largest = sorted(MEMORY_ITEMS, key=lambda name: getattr(needed, name), reverse=True)
    told = [*largest[:2], *(name for name in largest[2:] if name == "optimizer")]
    items = [f"{MEMORY_ITEMS[name]} {gib(getattr(needed, name))}" for name in told]
    return (
        f"needs {gib(needed.total)} per accelerator, {gib(needed.total - available)} more than {accelerator.model} has; "
        f"first of all {items[0]}, then {' and '.join(items[1:])}"
    )


def refusal(spec: TrainingJobSpec, rejections: tuple[Rejection, ...]) -> str:
    """One sentence for a job without any layout that fits; `advice` adds what would help where memory is short.

    Memory is the reason wherever a split got as far as being weighed. Else it is what stands against a pinned degree, then
    the batch, which is the easiest to change, then the most frequent reason.
    """
    assert rejections, "a search without candidates has rejected something"
    short = next((rejection for rejection in rejections if rejection.code == MEMORY), None)
    if short is not None:
        return f"no split of the model fits: {short.message}"
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
            (pins.tensor, (*TENSOR_CODES, LANES_CODE, CUSTOM_CODE, TENSOR_CODE)),
            (pins.pipeline, (*PIPELINE_CODES, PIPELINE_CODE)),
            (pins.sharded, (SHARDED_CODE,)),
            (pins.context, (SEQUENCE_CODE,)),
            (pins.expert, EXPERT_CODES),
        )
        if (pin or 1) > 1
        for code in codes
    )


def gib(size: int) -> str:
    """For people; a size that isn't zero is never shown as zero."""
    # A miss by less than a tenth is still a miss.
    return f"{size / GIB:.1f} GiB" if size == 0 or size >= GIB // 20 else f"{size / GIB:.2g} GiB"
