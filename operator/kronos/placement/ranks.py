"""Which rank sits where in the mesh: heavy traffic on near links.

Ranks are numbered along the tree of the fabric, so ranks with close numbers are close. A rank map nests the axes of the
mesh: the innermost axis gets neighbouring ranks. The tensor axis is always innermost (choosing nodes already made room
for it that way); of all orders of the others, the cheapest is taken, and the mesh's own order where that is as cheap. Where
pipelines or sharded copies must lie inside domains, only maps count that keep them there.

The cost of a map is bytes times seconds per byte over all messages: along the data, sharded data and tensor axes each
rank sends to the next one of a ring, along the pipeline to the next stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from math import ceil, prod

from kronos.api.plan import Degrees
from kronos.placement.refine import MOST_GROUPS, refined
from kronos.placement.refine import cost as order_cost
from kronos.placement.request import Traffic
from kronos.placement.room import Splits

AXES = ("pipeline", "data", "sharded_data", "tensor")
"""Axes of the mesh, outermost first."""
_CHAIN = "pipeline"
"""The axis whose last rank sends nothing back to the first."""
_USUAL_WEIGHTS: Mapping[str, float] = {"tensor": 1000.0, "pipeline": 100.0, "sharded_data": 10.0, "data": 1.0}
"""Stands in where traffic isn't known: each axis closer than the next by an order of magnitude."""

_Path = tuple[int, ...]


def map_ranks(
    degrees: Degrees,
    paths: Sequence[_Path],
    link_costs: Sequence[float],
    traffic: Traffic | None,
    outer: Splits = (),
) -> tuple[tuple[int, ...], float | None]:
    """Choose the rank map: `map[position in the flattened (pp, dp, fsdp, tp) mesh]` is a global rank.

    Args:
        degrees: The sizes of the axes; their product is the number of ranks.
        paths: For each rank the domains that hold it, widest level first.
        link_costs: Seconds per byte between ranks, by the number of levels whose domains they share.
        traffic: Bytes per rank, step and axis; None when not known.
        outer: Depths whose domains must hold whole pipelines, or whole sharded copies: (depth, ranks of one). Ranks are
            numbered so that neighbours can make such groups up.

    Returns:
        The map, and its cost relative to a lower bound (1.0 is the best there can be); None without traffic.
    """
    sizes = {axis: int(getattr(degrees, f"{axis}_parallel")) for axis in AXES}
    weights = {
        axis: _USUAL_WEIGHTS[axis] if traffic is None else float(getattr(traffic, axis))
        for axis in AXES
        if sizes[axis] > 1
    }
    nestings = []
    for order in permutations([axis for axis in AXES[:-1] if sizes[axis] > 1]):
        strides = _strides((*order, AXES[-1]), sizes)
        cost = sum(
            weight * _axis_cost(axis, sizes[axis], strides[axis], paths, link_costs)
            for axis, weight in weights.items()
            if weight > 0
        )
        rank_map = _flattened(sizes, strides)
        if _keeps_together(rank_map, sizes, paths, outer):
            nestings.append((cost, rank_map))
    # As cheap as another within rounding, the earlier one counts: the mesh's own order comes first.
    least = min(cost for cost, _ in nestings)
    best_cost, best = next(item for item in nestings if item[0] <= least * (1 + 1e-9))
    bound = 0.0
    for axis, weight in weights.items():
        lanes = 1 if axis == "tensor" else sizes["tensor"]
        bound += weight * _axis_bound(axis, sizes[axis], lanes, paths, link_costs)
    if best_cost > bound * (1 + 1e-9):
        best_cost, best = _refined(best_cost, best, nestings, sizes, weights, paths, link_costs, outer)
    if traffic is None:
        return best, None
    return best, round(best_cost / bound, 6) if bound > 0 else 1.0


def _refined(
    best_cost: float,
    best: tuple[int, ...],
    nestings: Sequence[tuple[float, tuple[int, ...]]],
    sizes: Mapping[str, int],
    weights: Mapping[str, float],
    paths: Sequence[_Path],
    link_costs: Sequence[float],
    outer: Splits,
) -> tuple[float, tuple[int, ...]]:
    """The cheapest map that exchanges of tensor groups lead to from any of the nestings, and what it costs."""
    lanes = sizes["tensor"]
    count = len(paths) // lanes
    if not 2 < count <= MOST_GROUPS:
        return best_cost, best
    homes = [tuple(paths[group * lanes : (group + 1) * lanes]) for group in range(count)]
    known: dict[tuple[object, object], float] = {}
    for one in dict.fromkeys(homes):
        for other in dict.fromkeys(homes):
            known[one, other] = sum(link_costs[_shared(*pair)] for pair in zip(one, other, strict=True))
    if len(set(known.values())) == 1:
        return best_cost, best
    distance = [[known[one, other] for other in homes] for one in homes]
    messages = list(_messages(sizes, weights))
    inside = (
        weights.get("tensor", 0.0) * _axis_cost("tensor", lanes, 1, paths, link_costs) if lanes > 1 else 0.0
    )
    for _, nesting in nestings:
        order = refined([rank // lanes for rank in nesting[::lanes]], messages, distance)
        cost = inside + order_cost(order, messages, distance)
        rank_map = tuple(group * lanes + lane for group in order for lane in range(lanes))
        if cost < best_cost * (1 - 1e-9) and _keeps_together(rank_map, sizes, paths, outer):
            best_cost, best = cost, rank_map
    return best_cost, best


def _keeps_together(
    rank_map: Sequence[int], sizes: Mapping[str, int], paths: Sequence[_Path], outer: Splits
) -> bool:
    """Whether each pipeline, or sharded copy, lies inside one domain of the depth that must hold it."""
    lanes, shards = sizes["tensor"], sizes["sharded_data"]
    pipeline = lanes * sizes["pipeline"]
    for depth, ranks in outer:
        if depth == 0:
            continue
        homes: dict[int, int] = {}
        for place, rank in enumerate(rank_map):
            # The mesh is (pp, dp, fsdp, tp): what is left without its outermost axis tells the pipeline.
            replica, shard = divmod(place // lanes % (len(rank_map) // pipeline), shards)
            group = replica if ranks > pipeline else replica * shards + shard
            if homes.setdefault(group, paths[rank][depth - 1]) != paths[rank][depth - 1]:
                return False
    return True


def _messages(sizes: Mapping[str, int], weights: Mapping[str, float]) -> Iterator[tuple[int, int, float]]:
    """What tensor groups send each other, by their places in the flattened (pp, dp, fsdp) mesh."""
    stride = prod(sizes[axis] for axis in AXES[:-1])
    count = stride
    for axis in AXES[:-1]:
        stride //= sizes[axis]
        if weights.get(axis, 0.0) <= 0 or sizes[axis] == 1:
            continue
        for place in range(count):
            step = (place // stride) % sizes[axis]
            if step < sizes[axis] - 1:
                yield place, place + stride, weights[axis]
            elif axis != _CHAIN:
                yield place, place - step * stride, weights[axis]


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
