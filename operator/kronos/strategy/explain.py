"""Sentences for people: why a job can't run, and what to change."""

from __future__ import annotations

from math import ceil

from kronos.api.fabric import Accelerator
from kronos.api.job import TrainingJobSpec
from kronos.strategy.degrees import Rejection
from kronos.strategy.layout import GIB, Layout, Workload
from kronos.strategy.memory import MemoryBreakdown

MEMORY = "MemoryShort"


def unknown_accelerator(resource: str, fabric: str) -> Rejection:
    """The fabric has no such accelerator."""
    message = f"the fabric {fabric} does not describe {resource}; add it under spec.accelerators"
    return Rejection("UnknownAccelerator", message, 1)


def with_memory(
    rejections: tuple[Rejection, ...],
    workload: Workload,
    accelerator: Accelerator,
    layout: Layout,
    needed: MemoryBreakdown,
    count: int,
) -> tuple[Rejection, ...]:
    """Add the splits that need too much memory; `layout` and what it needs are the nearest miss."""
    memory = Rejection(MEMORY, _memory_short(workload, accelerator, layout, needed), count)
    return tuple(sorted((*rejections, memory), key=lambda rejection: (-rejection.count, rejection.code)))


def refusal(spec: TrainingJobSpec, rejections: tuple[Rejection, ...]) -> str:
    """One sentence for a job without any layout that fits.

    Memory is the reason wherever a split got as far as being weighed; else the most frequent reason is.
    """
    assert rejections, "a search without candidates has rejected something"
    decisive = next((rejection for rejection in rejections if rejection.code == MEMORY), rejections[0])
    if decisive.code == MEMORY:
        return f"no split of the model fits: {decisive.message}"
    low, high = spec.accelerators.min, spec.accelerators.max
    count = str(high) if low == high else f"{low} to {high}"
    return f"the job can't be split over {count} accelerators: {decisive.message}"


def _memory_short(
    workload: Workload, accelerator: Accelerator, layout: Layout, needed: MemoryBreakdown
) -> str:
    short = needed.total - workload.memory_bytes
    shares = {
        "weights": needed.weights,
        "gradients": needed.gradients,
        "optimizer state": needed.optimizer,
        "activations": needed.activations,
        "unsharded blocks, logits and buffers": needed.buffers,
        "reserve": needed.reserve,
    }
    largest = max(shares, key=lambda name: shares[name])
    optimizer = f"the optimizer state alone takes {_gib(needed.optimizer)}"
    dominant = "" if largest == "optimizer state" else f" and {largest} take {_gib(shares[largest])}"
    return (
        f"{layout.degrees.summary}, the nearest miss even with recomputed activations and one sequence per microbatch, "
        f"needs {_gib(needed.total)} per accelerator, {_gib(short)} more than {accelerator.model} has; "
        f"{optimizer}{dominant}; {_remedy(workload, layout, needed)}"
    )


def _remedy(workload: Workload, layout: Layout, needed: MemoryBreakdown) -> str:
    """What would make the nearest miss fit, to first order: states shrink with more ranks, the rest doesn't."""
    states = needed.weights + needed.gradients + needed.optimizer
    room = workload.memory_bytes - (needed.total - states)
    if room > 0:
        world = ceil(layout.degrees.world_size * states / room)
        return f"raise accelerators.max to about {world}, or use accelerators with more memory"
    return "lower model.sequenceLength, or use accelerators with more memory"


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
