"""Pipeline stages: how many layers each gets, which schedule runs, how many microbatches are in flight."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from kronos.api.plan import Schedule


@dataclass(frozen=True, slots=True)
class Stage:
    """One pipeline stage: where it is and what it holds."""

    index: int
    layers: int
    first: bool
    last: bool


def balance(layers: int, stages: int, head_cost: float) -> tuple[int, ...]:
    """Layers per stage so that the slowest stage is as fast as it can be; every stage gets at least one.

    `head_cost` is the cost of the output head in units of one block. Looking tokens up in the embedding costs no
    FLOPs, but its stage keeps the most microbatches in flight and the embedding's optimizer state: among equally
    fast balances the first stage gets the fewest layers, and stages get more the later they are. ValueError when
    there are fewer layers than stages.
    """
    if stages > layers:
        raise ValueError(f"{stages} pipeline stages need at least as many layers, not {layers}")
    if stages == 1:
        return (layers,)

    def others(last: int) -> int:
        return ceil((layers - last) / (stages - 1))

    # Giving the last stage more slows it and relieves the others: the best count is where the two cross, or one below.
    counts = range(1, layers - stages + 2)
    found = bisect_left(counts, True, key=lambda count: count + head_cost >= others(count))
    crossing = last = counts[min(found, len(counts) - 1)]
    if crossing > 1 and others(crossing - 1) < max(crossing + head_cost, others(crossing)):
        last = crossing - 1
    each, extra = divmod(layers - last, stages - 1)
    return (*(each + (stage >= stages - 1 - extra) for stage in range(stages - 1)), last)


def schedule_for(stages: int, microbatches: int) -> Schedule:
    """1F1B, which keeps the fewest activations; GPipe when there are too few microbatches for 1F1B to begin."""
    if stages == 1:
        return "None"
    return "1F1B" if microbatches >= stages else "GPipe"


def in_flight(stage: int, stages: int, schedule: Schedule, microbatches: int) -> int:
    """Microbatches whose activations stage `stage` (from 0) keeps at once.

    Under 1F1B min(stages - stage, microbatches), under GPipe all of them: Narayanan et al., SC21, section 2.2.
    """
    if schedule == "None":
        return 1
    return min(stages - stage, microbatches) if schedule == "1F1B" else microbatches


@lru_cache(maxsize=4096)
def telling_stages(stage_layers: tuple[int, ...]) -> tuple[Stage, ...]:
    """The stages among which the heaviest and the slowest one are always found.

    A middle stage is never heavier than an earlier middle stage with as many layers, which keeps at least as many
    microbatches in flight; so the first of each count is enough.
    """
    final = len(stage_layers) - 1
    middle = {stage_layers[index]: index for index in range(final - 1, 0, -1)}
    indices = sorted({0, *middle.values(), final})
    return tuple(Stage(index, stage_layers[index], index == 0, index == final) for index in indices)


def bubble_slots(stages: int) -> int:
    """Microbatch slots that a stage idles per step while the pipeline fills and drains, under GPipe and 1F1B alike.

    Of the (microbatches + stages - 1) slots of a step that is the fraction (stages - 1) / (microbatches + stages - 1):
    Huang et al. 2019 (GPipe), Narayanan et al., SC21, section 2.2.
    """
    return stages - 1
