"""Pipeline stages: how many layers each gets, which schedule runs, how many microbatches are in flight."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache

from kronos.api.plan import Schedule


@dataclass(frozen=True, slots=True)
class Stage:
    """One pipeline stage: where it is and what it holds."""

    index: int
    layers: int
    first: bool
    last: bool


def balance(layers: int, stages: int, head_cost: float, embedding_cost: float = 0.0) -> tuple[int, ...]:
    """Layers per stage so that the slowest stage is as fast as it can be; every stage gets at least one.

    The costs of the output head and of the embedding are in units of one block. The first stage keeps the most microbatches
    in flight and the embedding's optimizer state: among equally fast balances the last stage gets the most layers, the
    first one the fewest, and stages between get more the later they are. ValueError when there are fewer layers than
    stages.
    """
    if stages > layers:
        raise ValueError(f"{stages} pipeline stages need at least as many layers, not {layers}")
    if stages == 1:
        return (layers,)

    def most(pace: float, beside: float) -> int:
        """Layers of a stage that, with something beside them, takes no longer than the pace; at least one."""
        count = max(1, int(pace - beside))
        # What is subtracted in floating point may be off by a bit.
        if count + 1 + beside <= pace:
            return count + 1
        return count - 1 if count > 1 and count + beside > pace else count

    def enough(pace: float) -> bool:
        if pace < 1 + max(head_cost, embedding_cost):
            return False
        held = (stages - 2) * most(pace, 0.0) + most(pace, head_cost) + most(pace, embedding_cost)
        return held >= layers

    # Some stage is as slow as the pace: one between with so many layers, or one with the head or the embedding beside them.
    counts = range(1, layers + 1)
    pace = min(
        counts[bisect_left(counts, True, hi=layers - 1, key=lambda count: enough(count + beside))] + beside
        for beside in (0.0, head_cost, embedding_cost)
        if enough(layers + beside)
    )
    last = min(most(pace, head_cost), layers - stages + 1)
    rest = layers - last
    first = min(most(pace, embedding_cost), rest // (stages - 1))
    if stages == 2:
        return first, last
    each, extra = divmod(rest - first, stages - 2)
    return (first, *(each + (stage >= stages - 2 - extra) for stage in range(stages - 2)), last)


def virtual_stage_options(layers: int, stages: int, microbatches: int) -> tuple[int, ...]:
    """Parts per stage, two or more, in which interleaving can run.

    The parts must be equal, and microbatches come in rounds of as many as there are stages: Narayanan et al., SC21,
    section 2.2.
    """
    if stages == 1 or layers % stages or microbatches % stages:
        return ()
    per_stage = layers // stages
    return tuple(parts for parts in range(2, per_stage + 1) if per_stage % parts == 0)


def in_flight(stage: int, stages: int, schedule: Schedule, microbatches: int, virtual_stages: int = 1) -> int:
    """Parts of a stage (whole ones without virtual stages) whose activations stage `stage` (from 0) keeps at once.

    Under 1F1B, and under the zero-bubble schedule with as much memory (Qi et al. 2023, ZB-H1), min(stages - stage,
    microbatches); under GPipe one for each microbatch: Narayanan et al., SC21, section 2.2. Interleaved,
    2 (stages - stage - 1) + (virtual stages - 1) stages + 1 parts, which on the first stage are
    1 + (stages - 1) / (stages x virtual stages) times its layers: Korthikanti et al. 2022, section 4.2.3.
    """
    if schedule == "None":
        return 1
    if schedule == "GPipe":
        return microbatches
    if schedule == "Interleaved1F1B":
        warming = 2 * (stages - stage - 1) + (virtual_stages - 1) * stages
        return min(warming + 1, microbatches * virtual_stages)
    return min(stages - stage, microbatches)


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


@dataclass(frozen=True, slots=True)
class Passes:
    """Seconds of one microbatch's way through a stage, or through all of them."""

    forward: float
    backward: float
    weights: float
    """Part of the backward pass that computes gradients of weights, which nothing waits for."""

    @property
    def total(self) -> float:
        """There and back."""
        return self.forward + self.backward


def bubble(slowest: Passes, everything: Passes, schedule: Schedule, virtual_stages: int = 1) -> float:
    """Seconds per step that the slowest stage waits while the pipeline fills and drains.

    A microbatch must pass the other stages once before the slowest one is busy and once after: with equal stages
    (stages - 1) x (forward + backward), the same under GPipe and 1F1B (Narayanan et al., SC21, section 2.2), a share of
    1 / virtual stages when interleaved (ibid.). The zero-bubble schedule ZB-H1 fills it with gradients of weights, which
    leaves (stages - 1) x (forward + backward of inputs - backward of weights): Qi et al. 2023, table 2.
    """
    if schedule == "None":
        return 0.0
    waiting = everything.total - slowest.total
    if schedule == "Interleaved1F1B":
        return waiting / virtual_stages
    if schedule == "ZeroBubble":
        return max(0.0, waiting - 2 * (everything.weights - slowest.weights))
    return waiting
