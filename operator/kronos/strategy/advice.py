"""What to change so that a job which needs more memory than there is would fit: numbers that were tried, not guessed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from kronos.api.fabric import FabricSpec
from kronos.api.job import Strategy, TrainingJobSpec
from kronos.strategy.abilities import TRAINER, Abilities
from kronos.strategy.degrees import Pins
from kronos.strategy.search import Search, search

MOST_ACCELERATORS = 4096
"""Up to so many are tried, or twice what the job allows where that is more."""
_BATCH_CHANGE = 8
"""Times smaller or larger is the batch that is tried where the one given fits nowhere."""
_LEAST_SEQUENCE = 128
"""Tokens; nobody would cut sequences to fewer."""

Ask = Callable[[TrainingJobSpec], Search]


def advised(
    spec: TrainingJobSpec,
    fabric: FabricSpec,
    slots_per_domain: Mapping[str, int] | None = None,
    abilities: Abilities = TRAINER,
) -> Search:
    """The search, whose refusal for want of memory ends in what would help.

    Takes several searches where nothing fits, and one where something does.
    """

    def ask(other: TrainingJobSpec) -> Search:
        return search(other, fabric, slots_per_domain, abilities)

    found = ask(spec)
    if found.nearest is None or found.candidates:
        return found
    return replace(found, refusal=f"{found.refusal}; {_remedy(spec, ask)}")


def _remedy(spec: TrainingJobSpec, ask: Ask) -> str:
    """The changes that work, the one that costs people least first."""
    ways = [_unpinned(spec, ask) or _more_accelerators(spec, ask), _shorter(spec, ask)]
    return ", or ".join((*filter(None, ways), "use accelerators with more memory"))


def _unpinned(spec: TrainingJobSpec, ask: Ask) -> str | None:
    """To drop the pins, with as many accelerators or, where that isn't enough, with more; None without pins that matter."""
    pinned = Pins.fields(spec)
    if not pinned and spec.strategy.mode == "Auto":
        return None
    drop = f"drop {' and '.join(pinned)}" if pinned else ""
    how = " and ".join(
        filter(None, ("set strategy.mode to Auto" if spec.strategy.mode == "Fixed" else "", drop))
    )
    free = without_pins(spec)
    found = ask(free).candidates
    if found:
        return f"{how} ({found[0].degrees.summary} fits)"
    if _more_accelerators(spec, ask):
        return None
    more = _more_accelerators(free, ask)
    return f"{how}, and {more}" if more else None


def without_pins(spec: TrainingJobSpec) -> TrainingJobSpec:
    """The same job with every degree left to Kronos."""
    return spec.model_copy(update={"strategy": Strategy(objective=spec.strategy.objective)})


def _more_accelerators(spec: TrainingJobSpec, ask: Ask) -> str | None:
    """The fewest accelerators on which the job fits, with a smaller or larger batch where this one stands in the way.

    A smaller one has fewer microbatches to keep buffers for, a larger one allows more shards.
    """
    batch = spec.optimization.global_batch_size
    most = max(MOST_ACCELERATORS, 2 * spec.accelerators.max)
    for size in (batch, batch // _BATCH_CHANGE, batch * _BATCH_CHANGE):
        if not size:
            continue
        wider = {
            "accelerators": spec.accelerators.model_copy(update={"max": most}),
            "optimization": spec.optimization.model_copy(update={"global_batch_size": size}),
        }
        found = ask(spec.model_copy(update=wider)).candidates
        if found:
            least = min(found, key=lambda candidate: candidate.degrees.world_size).degrees
            change = f"raise accelerators.max to {least.world_size}"
            if size == batch:
                return f"{change} ({least.summary} fits)"
            return f"{change} with optimization.globalBatchSize {size} ({least.summary} fits)"
    return None


def _shorter(spec: TrainingJobSpec, ask: Ask) -> str | None:
    """The longest sequences, of halves and quarters and so on, with which the job fits."""
    length = spec.model.sequence_length // 2
    if spec.model.custom is not None or spec.model.architecture == "forecaster":
        return None
    while length >= _LEAST_SEQUENCE:
        model = spec.model.model_copy(update={"sequence_length": length})
        if ask(spec.model_copy(update={"model": model})).candidates:
            return f"lower model.sequenceLength to {length}"
        length //= 2
    return None
