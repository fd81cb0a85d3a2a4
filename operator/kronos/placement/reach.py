"""How far the groups of each axis reach in a placement: what their collectives really cross."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kronos.api.plan import Degrees
from kronos.placement.answer import Placement
from kronos.placement.ranks import AXES


def reaches(degrees: Degrees, placement: Placement, levels: Sequence[str]) -> Mapping[str, Mapping[str, int]]:
    """For each axis and level, how many ranks of a group are inside one domain, in the group that is spread the widest.

    Args:
        degrees: The sizes of the axes.
        placement: Where the ranks are; its `paths` have a domain for each of `levels`.
        levels: Names of the levels of the tree, widest first, the node last.

    Returns:
        Ranks by level name by axis: a group's size over the number of domains that it needs, rounded down.
    """
    homes = [
        path
        for member, path in zip(placement.members, placement.paths, strict=True)
        for _ in range(member.ranks)
    ]
    sizes = {axis: int(getattr(degrees, f"{axis}_parallel")) for axis in AXES}
    found: dict[str, Mapping[str, int]] = {}
    stride = 1
    for axis in reversed(AXES):
        size = sizes[axis]
        spread = [1] * len(levels)
        if size > 1:
            for start in range(len(homes)):
                if (start // stride) % size:
                    continue
                group = [homes[placement.rank_map[start + step * stride]] for step in range(size)]
                for depth in range(len(levels)):
                    spread[depth] = max(spread[depth], len({path[depth] for path in group}))
        found[axis] = {level: size // used for level, used in zip(levels, spread, strict=True)}
        stride *= size
    return found
