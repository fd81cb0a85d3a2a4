"""How many ranks each node and each domain has room for.

What is free is kept per resource in lists indexed like the topology's nodes, what ranks of some kind find room for in lists
indexed like its nodes and its domains. They are made when first asked for, and follow each pod that comes or goes along the
one path of the tree that it changes.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from kronos.placement.nodes import PODS
from kronos.placement.request import GangRequest
from kronos.placement.topology import Topology
from kronos.placement.usage import Place, Usage, member_requests


@dataclass(frozen=True, slots=True)
class Assuming:
    """What a question about room takes for granted; by default nothing, so the answer is what is free now."""

    empty: bool = False
    """Nothing runs on the cluster."""
    avoiding: bool = True
    """The nodes that the request avoids are avoided."""
    without: str | None = None
    """This resource never runs short."""


NOW = Assuming()

Splits = tuple[tuple[int, int], ...]
"""Depths, ascending, each with the ranks of the groups that lie inside domains of that depth. Narrower ones are smaller."""


@dataclass(slots=True)
class _Kind:
    """Room for the ranks of one kind of pod."""

    assuming: Assuming
    asks: tuple[tuple[str, int], ...]
    """What a rank takes: (resource, amount)."""
    takes_pod: bool
    """Whether the member's pod takes one of `pods`."""
    usable: list[bool]
    slots: list[int]
    """By node."""
    offers: dict[Splits, list[int]] = field(default_factory=dict)
    """By domain."""


class Room:
    """The room on the nodes of a topology at one usage.

    Answers are remembered, because the many ways of running one job, and many jobs, ask the same of a node. They are
    shared lists: read them, never change them.
    """

    def __init__(self, topology: Topology, usage: Usage) -> None:
        self.topology = topology
        self._usage = usage
        # What came and went since, for resources that nobody has asked for yet: (position, amounts, sign).
        self._changes: list[tuple[int, Mapping[str, int], int]] = []
        self._free: dict[str, list[int]] = {}
        self._kinds: dict[Hashable, _Kind] = {}

    def copy(self) -> Room:
        """Another room in the same state, which then goes its own way."""
        other = Room(self.topology, self._usage)
        other._changes = list(self._changes)
        other._free = {resource: list(free) for resource, free in self._free.items()}
        for key, kind in self._kinds.items():
            # Sums over domains are made anew where they are asked for: most copies are asked one thing, and change much.
            if kind.assuming == NOW:
                other._kinds[key] = _Kind(NOW, kind.asks, kind.takes_pod, kind.usable, list(kind.slots))
        return other

    def take(self, node: str, amounts: Mapping[str, int]) -> None:
        """A pod comes: it takes so much of a node, in base units and with `pods`."""
        self._change(node, amounts, 1)

    def give_back(self, node: str, amounts: Mapping[str, int]) -> None:
        """A pod goes: it leaves so much of a node."""
        self._change(node, amounts, -1)

    def reserve(self, place: Place, request: GangRequest) -> None:
        """A gang takes its place."""
        for member in place.members:
            self.take(member.node, {**member_requests(request, member.ranks), PODS: 1})

    def usable(self, request: GangRequest, assuming: Assuming = NOW) -> list[bool]:
        """For each node, whether the gang's pods may go there, however full it is."""
        usable = self.topology.usable(request.node_selector, request.tolerations, request.node_affinity)
        avoided = request.avoid_nodes if assuming.avoiding else frozenset()
        if not avoided:
            return usable
        usable = list(usable)
        for name in avoided:
            if (position := self.topology.position.get(name)) is not None:
                usable[position] = False
        return usable

    def slots(self, request: GangRequest, assuming: Assuming = NOW) -> list[int]:
        """For each node, the ranks that it has room for; 0 on nodes that aren't usable.

        A rank takes one accelerator and its share of the other resources, the member's pod takes one of `pods`.
        """
        return self._kind(request, assuming).slots

    def offers(self, request: GangRequest, splits: Splits, assuming: Assuming = NOW) -> list[int]:
        """For each domain, the ranks that it has room for in whole groups that lie inside domains of those depths.

        Below the narrowest of the depths these are plain sums, as they are everywhere without groups.
        """
        kind = self._kind(request, assuming)
        if splits not in kind.offers:
            kind.offers[splits] = _sum_up(self.topology, kind.slots, splits)
        return kind.offers[splits]

    def _kind(self, request: GangRequest, assuming: Assuming) -> _Kind:
        key = (request.pod_kind, assuming)
        # What there would be in an empty cluster is the same whatever runs, so the topology remembers it.
        kind: _Kind | None = (self.topology.memory if assuming.empty else self._kinds).get(key)
        if kind is None:
            kind = self._new_kind(request, assuming)
            if assuming.empty:
                self.topology.remember(key, kind)
            else:
                self._kinds[key] = kind
        return kind

    def _new_kind(self, request: GangRequest, assuming: Assuming) -> _Kind:
        asks = [
            (request.resource, 1),
            *((name, amount) for name, amount in request.per_rank.items() if amount > 0),
        ]
        asks = [(name, amount) for name, amount in asks if name != assuming.without]
        takes_pod = assuming.without != PODS
        usable = self.usable(request, assuming)

        def free(resource: str) -> Sequence[int]:
            return self.topology.allocatable(resource) if assuming.empty else self._free_of(resource)

        slots = [max(0, room) if may_go else 0 for room, may_go in zip(free(asks[0][0]), usable, strict=True)]
        for name, amount in asks[1:]:
            slots = [
                room if (fit := left // amount) >= room else max(0, fit)
                for room, left in zip(slots, free(name), strict=True)
            ]
        if takes_pod:
            slots = [room if left > 0 else 0 for room, left in zip(slots, free(PODS), strict=True)]
        return _Kind(assuming, tuple(asks), takes_pod, usable, slots)

    def _free_of(self, resource: str) -> list[int]:
        """By node, what is left of a resource."""
        if resource not in self._free:
            free = list(self.topology.allocatable(resource))
            for name, taken in self._usage.items():
                if resource in taken and (position := self.topology.position.get(name)) is not None:
                    free[position] -= taken[resource]
            for position, amounts, sign in self._changes:
                free[position] -= sign * amounts.get(resource, 0)
            self._free[resource] = free
        return self._free[resource]

    def _change(self, node: str, amounts: Mapping[str, int], sign: int) -> None:
        position = self.topology.position.get(node)
        if position is None:
            return  # pods on nodes that aren't there take nothing of those that are
        self._changes.append((position, amounts, sign))
        for resource, free in self._free.items():
            if resource in amounts:
                free[position] -= sign * amounts[resource]
        for kind in self._kinds.values():
            room = self._count(kind, position)
            if room != kind.slots[position]:
                kind.slots[position] = room
                for splits, offered in kind.offers.items():
                    _follow(self.topology, offered, position, room, splits)

    def _count(self, kind: _Kind, position: int) -> int:
        """Ranks of the kind that one node has room for."""
        if not kind.usable[position] or (kind.takes_pod and self._free_of(PODS)[position] <= 0):
            return 0
        return max(0, min(self._free_of(name)[position] // amount for name, amount in kind.asks))


def _sum_up(topology: Topology, slots: Sequence[int], splits: Splits) -> list[int]:
    """Slots per domain, rounded down to whole groups at each depth that has them."""
    offered = [0] * len(topology.domains)
    before = [0, *accumulate(slots)]
    groups = dict(splits)
    for depth in range(len(topology.levels), -1, -1):
        group = groups.get(depth, 1)
        # By position of each domain's first node: what the domains of this depth offer, for those that are wider.
        whole = [0] * len(slots) if group > 1 else None
        for index in topology.at_depth[depth]:
            domain = topology.domains[index]
            total = before[domain.stop] - before[domain.start]
            if whole is not None:
                total -= total % group
                whole[domain.start] = total
            offered[index] = total
        if whole is not None:
            before = [0, *accumulate(whole)]
    return offered


def _follow(topology: Topology, offered: list[int], position: int, room: int, splits: Splits) -> None:
    """Bring what domains offer up to date after one node's slots have changed."""
    path = (0, *topology.paths[position])
    groups = dict(splits)
    change = 0
    for depth in range(len(path) - 1, -1, -1):
        index = path[depth]
        if depth == len(path) - 1:
            total = room
        elif depth in groups:
            total = sum(offered[child] for child in topology.domains[index].children)
        else:
            total = offered[index] + change
        total -= total % groups.get(depth, 1)
        change = total - offered[index]
        if not change:
            return
        offered[index] = total
