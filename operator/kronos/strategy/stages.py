"""Pipeline stages: how many layers each gets, which schedule runs, how many microbatches are in flight."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from math import ceil

from kronos.api.plan import Schedule


@dataclass(frozen=True, slots=True)
class Stage:
    """One pipeline stage: what it holds, and for how many microbatches it keeps activations at once."""

    layers: int
    first: bool
    last: bool
    in_flight: int


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
    crossing = counts[min(bisect_left(counts, True, key=lambda last: last + head_cost >= others(last)), len(counts) - 1)]
    last = crossing
    if crossing > 1 and others(crossing - 1) < max(crossing + head_cost, others(crossing)):
        last = crossing - 1
    each, extra = divmod(layers - last, stages - 1)
    return (*(each + (stage >= stages - 1 - extra) for stage in range(stages - 1)), last)


def schedule_for(stages: int, microbatches: int) -> Schedule:
    """1F1B, which keeps the fewest activations; GPipe when there are too few microbatches for 1F1B to begin."""
    if stages == 1:
        return "None"
    return "1F1B" if microbatches >= stages else "GPipe"


def telling_stages(stage_layers: tuple[int, ...], schedule: Schedule, microbatches: int) -> tuple[Stage, ...]:
    """The stages among which the heaviest and the slowest one are always found.

    Under 1F1B stage i keeps min(stages - i, microbatches) microbatches (Narayanan et al., SC21, section 2.2), under
    GPipe all of them. A middle stage is never heavier than an earlier middle stage with as many layers, so one of each
    count is enough.
    """
    count = len(stage_layers)

    def stage(index: int) -> Stage:
        in_flight = min(count - index, microbatches) if schedule == "1F1B" else microbatches
        if schedule == "None":
            in_flight = 1
        return Stage(stage_layers[index], index == 0, index == count - 1, in_flight)

    if count == 1:
        return (stage(0),)
    middle = {stage_layers[index]: index for index in range(count - 2, 0, -1)}
    return (stage(0), *(stage(index) for index in middle.values()), stage(count - 1))


def bubble_slots(stages: int) -> int:
    """Microbatch slots that a stage idles per step while the pipeline fills and drains, under GPipe and 1F1B alike.

    Of the (microbatches + stages - 1) slots of a step that is the fraction (stages - 1) / (microbatches + stages - 1):
    Huang et al. 2019 (GPipe), Narayanan et al., SC21, section 2.2.
    """
    return stages - 1
