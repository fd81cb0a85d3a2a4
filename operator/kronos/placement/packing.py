"""Choosing nodes: as few domains as possible, widest level first, and among those the tightest fit.

Slots are packed in groups that nest: at the depth whose domains hold a kind of group, what a domain offers is rounded down
to whole groups, so every group lies inside one domain of that depth. What is better is a single number per choice, made of

    domains used at each level, widest first       then       free slots of the used domains, nodes first

Such numbers add up over the tree, and adding the same to both sides never turns a comparison round, so the cheapest
ways to get slots out of a domain follow from those of its children. That search is exact. Its work grows with nodes
times ranks; where it would exceed `EXACT_WORK`, domains are filled largest first and the rest goes to the tightest
one that holds it, which still uses the fewest domains at the level where the gang is split.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kronos.placement.request import GangRequest
from kronos.placement.room import Room, Splits

EXACT_WORK = 8_000
"""Steps (nodes times ranks) of exact search that the choice of one place may take, at about a microsecond each."""

_Nodes = Any
"""Positions of nodes in nested pairs: shared between ways, flattened only for the way that is taken."""
_Way = tuple[int, int, _Nodes]
"""A way to get slots out of a domain: (slots, cost, nodes)."""


class Packing:
    """The search for nodes, for one request and the depths of its groups. Used once: it counts its work."""

    def __init__(self, room: Room, request: GangRequest, splits: Splits) -> None:
        self._topology = room.topology
        self._slots = room.slots(request)
        self._tensor_group = request.degrees.tensor_parallel
        self._splits = splits
        self._groups = dict(splits)
        self._leaf_depth = len(room.topology.levels)
        self._capacity = room.offers(request, splits)
        self._free = room.offers(request, ())
        self._work_left = EXACT_WORK
        self._counted, self._wasted = self._units()

    def choose(self, candidates: Sequence[int], need: int) -> list[int] | None:
        """Positions of the best nodes for `need` ranks inside one of the domains, in the order of the tree.

        The candidates are domains of one depth, `need` is whole groups. None when no candidate holds them.
        """
        holders = [index for index in candidates if self._capacity[index] >= need]
        if not holders:
            return None
        _, nodes = self._cheapest(holders, need)
        return sorted(_flatten(nodes))

    def share_out(self, chosen: Sequence[int], need: int) -> list[tuple[int, int]]:
        """Divide `need` ranks over chosen nodes: (position, ranks) in the order in which ranks are numbered.

        Domains and nodes are filled one after the other, large ones first, so that one node per domain that holds
        groups at most is left partly free, and nodes that turn out not to be needed (after a choice without search) are
        left out. Ranks are numbered along the tree; where tensor groups span several nodes, nodes with whole groups come
        first, so that fewer groups are cut.
        """
        paths = self._topology.paths
        ranks = {node: taken for node, taken in self._divide(chosen, need, self._splits) if taken}
        assert sum(ranks.values()) == need, "the chosen nodes hold the gang"
        inside: dict[int, int] = {}
        for node, taken in ranks.items():
            for index in paths[node]:
                inside[index] = inside.get(index, 0) + taken

        def order(node: int) -> list[tuple[bool, int]]:
            return [(inside[index] % self._tensor_group != 0, index) for index in paths[node]]

        return [(node, ranks[node]) for node in sorted(ranks, key=order)]

    def _divide(self, nodes: Sequence[int], need: int, splits: Splits) -> Iterator[tuple[int, int]]:
        """Up to `need` ranks on these nodes in whole groups: (node, ranks), ranks possibly 0."""
        if not splits:
            for node in sorted(nodes, key=lambda node: (-self._slots[node], node)):
                taken = min(need, self._slots[node])
                need -= taken
                yield node, taken
            return
        (depth, _), *inner = splits
        held = [(self._held(members, splits), members) for members in self._by_domain(nodes, depth).values()]
        for room, members in sorted(held, key=lambda item: -item[0]):
            quota = min(need, room)
            need -= quota
            yield from self._divide(members, quota, tuple(inner))

    def _held(self, nodes: Sequence[int], splits: Splits) -> int:
        """Ranks that these nodes, of one domain of the widest depth of the splits, have room for in whole groups."""
        (_, group), *inner = splits
        if inner:
            inside = self._by_domain(nodes, inner[0][0]).values()
            room = sum(self._held(members, tuple(inner)) for members in inside)
        else:
            room = sum(self._slots[node] for node in nodes)
        return room - room % group

    def _by_domain(self, nodes: Sequence[int], depth: int) -> dict[int, list[int]]:
        """Nodes by the domain of a depth that holds them."""
        found: dict[int, list[int]] = {}
        for node in nodes:
            found.setdefault(self._topology.paths[node][depth - 1] if depth else 0, []).append(node)
        return found

    def _units(self) -> tuple[list[int], list[int]]:
        """What one used domain, and one free slot of it, cost at each depth: digits of one large number."""
        digits = [self._free[0] + 1] * self._leaf_depth + [len(self._topology.nodes) + 1] * self._leaf_depth
        units = [1]
        for radix in digits:
            units.append(units[-1] * radix)
        # From the least significant digit: waste of the widest level to waste of nodes, nodes used to widest used.
        wasted = [0, *units[: self._leaf_depth]]
        counted = [0, *reversed(units[self._leaf_depth : -1])]
        return counted, wasted

    def _own_cost(self, index: int) -> int:
        """Cost of using a domain at all, without those inside it."""
        depth = self._topology.domains[index].depth
        return self._counted[depth] + self._free[index] * self._wasted[depth]

    def _cheapest(self, holders: Sequence[int], need: int) -> tuple[int, _Nodes]:
        """The best choice inside a single one of the domains, each of which holds the need."""
        if self._topology.domains[holders[0]].depth == self._leaf_depth:
            best_leaf = min(holders, key=self._own_cost)
            return self._inside(best_leaf, need)
        if len(holders) > 1:
            fewest = [self._fewest_children(index, need) for index in holders]
            holders = [index for index, count in zip(holders, fewest, strict=True) if count == min(fewest)]
        best: tuple[int, _Nodes] | None = None
        for index in holders:
            found = self._inside(index, need)
            if best is None or found[0] < best[0]:
                best = found
        assert best is not None
        return best

    def _fewest_children(self, index: int, need: int) -> int:
        """The least number of its children that hold the need together."""
        sizes = sorted(
            (self._capacity[child] for child in self._topology.domains[index].children), reverse=True
        )
        for count, size in enumerate(sizes, start=1):
            need -= size
            if need <= 0:
                return count
        raise AssertionError("the domain holds the need")

    def _inside(self, index: int, need: int) -> tuple[int, _Nodes]:
        """The best choice inside the domain, which holds the need: its cost and its nodes."""
        domain = self._topology.domains[index]
        if domain.depth == self._leaf_depth:
            return self._own_cost(index), domain.start
        holders = [child for child in domain.children if self._capacity[child] >= need]
        if holders:
            cost, nodes = self._cheapest(holders, need)
            return cost + self._own_cost(index), nodes
        step = self._groups.get(self._leaf_depth, 1)
        work = (domain.stop - domain.start) * (need // step)
        if work > self._work_left:
            return self._fill(index, need)
        self._work_left -= work
        _, cost, nodes = self._ways(index, need)[-1]
        return cost, nodes

    def _ways(self, index: int, need: int) -> list[_Way]:
        """The cheapest way to each number of slots worth having from the domain, ascending in slots and in cost."""
        domain = self._topology.domains[index]
        own = self._own_cost(index)
        if domain.depth == self._leaf_depth:
            room = min(self._capacity[index], need)
            return [(room, own, domain.start)] if room else []
        best: dict[int, _Way] = {0: (0, 0, None)}
        for child in domain.children:
            child_ways = self._ways(child, need)
            # From many slots to few, so that among equals the first nodes in the order of the tree are used up first.
            for slots, cost, nodes in sorted(best.values(), key=lambda way: -way[0]):
                for more, extra, more_nodes in child_ways:
                    total = min(slots + more, need)
                    known = best.get(total)
                    if known is None or cost + extra < known[1]:
                        best[total] = (total, cost + extra, (nodes, more_nodes))
        worth: list[_Way] = []
        cheapest: int | None = None
        for slots, cost, nodes in sorted(best.values(), key=lambda way: (-way[0], way[1])):
            slots -= slots % self._groups.get(domain.depth, 1)
            if slots and (cheapest is None or cost < cheapest):
                cheapest = cost
                if worth and worth[-1][0] == slots:
                    worth.pop()
                worth.append((slots, cost + own, nodes))
        return worth[::-1]

    def _fill(self, index: int, need: int) -> tuple[int, _Nodes]:
        """A good choice inside the domain without search: largest children first, the rest in the tightest one."""
        domain = self._topology.domains[index]
        cost = self._own_cost(index)
        if domain.depth == self._leaf_depth:
            return cost, domain.start
        nodes: _Nodes = None
        by_size = sorted(domain.children, key=lambda child: (-self._capacity[child], child))
        for position, child in enumerate(by_size):
            if self._capacity[child] >= need:
                tight = [other for other in by_size[position:] if self._capacity[other] >= need]
                smallest = self._capacity[tight[-1]]
                extra, more = self._cheapest(
                    [other for other in tight if self._capacity[other] == smallest], need
                )
                return cost + extra, (nodes, more)
            extra, more = self._fill(child, self._capacity[child])
            cost += extra
            nodes = (nodes, more)
            need -= self._capacity[child]
        raise AssertionError("the domain holds the need")


def _flatten(nodes: _Nodes) -> list[int]:
    """Positions in nested pairs, as a list."""
    found: list[int] = []
    stack = [nodes]
    while stack:
        item = stack.pop()
        if isinstance(item, tuple):
            stack.extend(item)
        elif item is not None:
            found.append(item)
    return found
