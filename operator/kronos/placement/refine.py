"""Improving a rank map by exchanges: where nodes have unequal slots, no nesting of the axes fits their borders.

Tensor groups move as wholes, since the choice of nodes made room for them that way. Two of them change places, or three go
round, as long as that makes the map cheaper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

MOST_GROUPS = 32
"""Tensor groups up to which exchanges are tried: work grows with their square, for three at once with their cube."""
MOST_THREES = 12
"""Tensor groups up to which three are tried at once."""
_LESS = 1 - 1e-9

Messages = Sequence[tuple[int, int, float]]
"""What is sent between places of the mesh: (place, place, bytes). Each pair in one direction or both, as it comes."""
Distance = Sequence[Sequence[float]]
"""Seconds for a byte between two groups, symmetric."""


def cost(order: Sequence[int], messages: Messages, distance: Distance) -> float:
    """What the messages cost when `order[place]` is the group at each place."""
    return sum(size * distance[order[one]][order[other]] for one, other, size in messages)


def refined(order: Sequence[int], messages: Messages, distance: Distance) -> list[int]:
    """An order that no exchange of two groups, or of three where they are few, makes cheaper."""
    best = list(order)
    beside: list[list[tuple[int, float]]] = [[] for _ in best]
    for one, other, size in messages:
        beside[one].append((other, size))
        beside[other].append((one, size))

    def around(places: Sequence[int]) -> float:
        """Cost of all messages that begin or end at these places."""
        total = 0.0
        for place in places:
            here = distance[best[place]]
            for other, size in beside[place]:
                # Those between two of the places are met from both sides.
                total += size * here[best[other]] * (0.5 if other in places else 1.0)
        return total

    while _improve(best, around):
        pass
    return best


def _improve(order: list[int], around: Callable[[Sequence[int]], float]) -> bool:
    """Make each exchange that helps, in a fixed order; says whether there was one."""
    found = False
    for places, moved in _exchanges(len(order)):
        before = around(places)
        kept = [order[place] for place in places]
        for place, source in zip(places, moved, strict=True):
            order[place] = kept[source]
        if around(places) < before * _LESS:
            found = True
        else:
            for place, group in zip(places, kept, strict=True):
                order[place] = group
    return found


def _exchanges(count: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Places, and for each of them which of these places its new group comes from."""
    for pair in combinations(range(count), 2):
        yield pair, (1, 0)
    if count <= MOST_THREES:
        for three in combinations(range(count), 3):
            yield three, (1, 2, 0)
            yield three, (2, 0, 1)
