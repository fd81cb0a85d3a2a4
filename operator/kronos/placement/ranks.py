"""Which rank sits where in the mesh: heavy traffic on near links.

Ranks are numbered along the tree of the fabric, so ranks with close numbers are close. A rank map nests the axes of the
mesh: the innermost axis gets neighbouring ranks. The tensor axis is always innermost (choosing nodes already made room
for it that way); of all orders of the others, the cheapest is taken, and the mesh's own order where that is as cheap.

The cost of a map is bytes times seconds per byte over all messages: along the data, sharded data and tensor axes each
rank sends to the next one of a ring, along the pipeline to the next stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import permutations
from math import ceil, prod

from kronos.api.plan import Degrees
from kronos.placement.request import Traffic

AXES = ("pipeline", "data", "sharded_data", "tensor")
"""Axes of the mesh, outermost first."""
_CHAIN = "pipeline"
"""The axis whose last rank sends nothing back to the first."""
_USUAL_WEIGHTS: Mapping[str, float] = {"tensor": 1000.0, "pipeline": 100.0, "sharded_data": 10.0, "data": 1.0}
"""Stands in where traffic isn't known: each axis closer than the next by an order of magnitude."""

_Path = tuple[int, ...]


def map_ranks(
    degrees: Degrees, paths: Sequence[_Path], link_costs: Sequence[float], traffic: Traffic | None
) -> tuple[tuple[int, ...], float | None]:
    """Choose the rank map: `map[position in the flattened (pp, dp, fsdp, tp) mesh]` is a global rank.

    Args:
        degrees: The sizes of the axes; their product is the number of ranks.
        paths: For each rank the domains that hold it, widest level first.
        link_costs: Seconds per byte between ranks, by the number of levels whose domains they share.
        traffic: Bytes per rank, step and axis; None when not known.

    Returns:
        The map, and its cost relative to a lower bound (1.0 is the best there can be); None without traffic.
    """
    sizes = {axis: int(getattr(degrees, f"{axis}_parallel")) for axis in AXES}
    weights = {
        axis: _USUAL_WEIGHTS[axis] if traffic is None else float(getattr(traffic, axis))
        for axis in AXES
        if sizes[axis] > 1
    }
    outer = [axis for axis in AXES[:-1] if sizes[axis] > 1]
    best_cost, best_strides = float("inf"), dict.fromkeys(AXES, 1)
    for order in permutations(outer):
        strides = _strides((*order, AXES[-1]), sizes)
        cost = sum(
            weight * _axis_cost(axis, sizes[axis], strides[axis], paths, link_costs)
            for axis, weight in weights.items()
            if weight > 0
        )
        if cost < best_cost * (1 - 1e-9):
            best_cost, best_strides = cost, strides
    if traffic is None:
        return _flattened(sizes, best_strides), None
    bound = 0.0
    for axis, weight in weights.items():
        lanes = 1 if axis == "tensor" else sizes["tensor"]
        bound += weight * _axis_bound(axis, sizes[axis], lanes, paths, link_costs)
    return _flattened(sizes, best_strides), round(best_cost / bound, 6) if bound > 0 else 1.0


def _strides(order: Sequence[str], sizes: Mapping[str, int]) -> dict[str, int]:
    """Distance in rank numbers between neighbours on each axis, for a nesting from outermost to innermost."""
    return {axis: prod(sizes[inner] for inner in order[at + 1 :]) for at, axis in enumerate(order)}


def _flattened(sizes: Mapping[str, int], strides: Mapping[str, int]) -> tuple[int, ...]:
    """The rank at each position of the mesh."""
    ranks = [0]
    for axis in AXES:
        if sizes[axis] > 1:
            ranks = [rank + step * strides[axis] for rank in ranks for step in range(sizes[axis])]
    return tuple(ranks)


def _axis_cost(
    axis: str, size: int, stride: int, paths: Sequence[_Path], link_costs: Sequence[float]
) -> float:
    """Cost per byte of all messages along one axis."""
    known: dict[tuple[_Path, _Path], float] = {}
    total = 0.0
    for rank, here in enumerate(paths):
        step = (rank // stride) % size
        if step == size - 1 and axis == _CHAIN:
            continue
        there = paths[rank + stride if step < size - 1 else rank - step * stride]
        if (here, there) not in known:
            known[here, there] = link_costs[_shared(here, there)]
        total += known[here, there]
    return total


def _shared(one: _Path, other: _Path) -> int:
    """Number of levels, from the widest, whose domains hold both."""
    return next((depth for depth, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))


def _axis_bound(
    axis: str, size: int, lanes: int, paths: Sequence[_Path], link_costs: Sequence[float]
) -> float:
    """No map costs less per byte on this axis, among those that leave each tensor group (`lanes` ranks) together.

    At each level, only so many groups can lie inside one domain; every other one must cross at least as often as it
    takes to go round (or, in a chain, along) the domains that it needs. Each axis is bounded as if it were the only
    one, so where several must share the near links, the bound is below what can be reached.
    """
    chain = axis == _CHAIN
    bound = len(paths) // size * (size - chain) * link_costs[-1]
    for depth in range(len(paths[0])):
        inside = Counter(path[depth] for path in paths).values()
        # Where tensor groups are whole, they move as one, and so do the groups of this axis along their lanes.
        together = lanes if all(ranks % lanes == 0 for ranks in inside) else 1
        groups = len(paths) // (size * together)
        cut = groups - sum(ranks // (size * together) for ranks in inside)
        if cut > 0:
            crossings = max(2, ceil(size * together / max(inside))) - chain
            bound += cut * together * crossings * (link_costs[depth] - link_costs[depth + 1])
    return bound
