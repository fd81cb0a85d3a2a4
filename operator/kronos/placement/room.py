"""How many ranks each node and each domain has room for."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from kronos.placement.nodes import PODS, why_unusable
from kronos.placement.request import GangRequest
from kronos.placement.topology import Topology
from kronos.placement.usage import Usage

_NOTHING: Mapping[str, int] = {}


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


class Room:
    """The room on the nodes of a topology at one usage.

    Answers are remembered, because the many ways of running one job, and many jobs, ask the same of a node. They are
    shared lists: read them, never change them.
    """

    def __init__(self, topology: Topology, usage: Usage) -> None:
        self.topology = topology
        self._usage = usage
        self._usable: dict[Hashable, list[bool]] = {}
        self._slots: dict[Hashable, list[int]] = {}
        self._offers: dict[Hashable, list[int]] = {}

    def usable(self, request: GangRequest, assuming: Assuming = NOW) -> list[bool]:
        """For each node, whether the gang's pods may go there, however full it is."""
        avoided = request.avoid_nodes if assuming.avoiding else frozenset()
        key = (tuple(sorted(request.node_selector.items())), request.tolerations, avoided)
        if key not in self._usable:
            self._usable[key] = [
                node.name not in avoided
                and why_unusable(node, request.node_selector, request.tolerations) is None
                for node in self.topology.nodes
            ]
        return self._usable[key]

    def slots(self, request: GangRequest, assuming: Assuming = NOW) -> list[int]:
        """For each node, the ranks that it has room for; 0 on nodes that aren't usable.

        A rank takes one accelerator and its share of the other resources, the member's pod takes one of `pods`.
        """
        key = (request.pod_kind, assuming)
        if key not in self._slots:
            self._slots[key] = self._count_slots(request, assuming)
        return self._slots[key]

    def offers(
        self, request: GangRequest, tensor_depth: int, assuming: Assuming = NOW, *, group: int | None = None
    ) -> list[int]:
        """For each domain, the ranks that it has room for when tensor groups lie inside domains of that depth.

        Down to the tensor depth these are whole groups; below it they are plain sums, as they are everywhere for
        `group=1`.
        """
        group = request.degrees.tensor_parallel if group is None else group
        key = (request.pod_kind, assuming, tensor_depth, group)
        if key not in self._offers:
            self._offers[key] = _sum_up(self.topology, self.slots(request, assuming), group, tensor_depth)
        return self._offers[key]

    def _count_slots(self, request: GangRequest, assuming: Assuming) -> list[int]:
        asks = [
            (request.resource, 1),
            *((name, amount) for name, amount in request.per_rank.items() if amount > 0),
        ]
        asks = [(name, amount) for name, amount in asks if name != assuming.without]
        usage: Usage = {} if assuming.empty else self._usage
        slots = []
        for node, may_go in zip(self.topology.nodes, self.usable(request, assuming), strict=True):
            room = 0
            if may_go:
                has, taken = node.allocatable, usage.get(node.name, _NOTHING)
                if assuming.without == PODS or has.get(PODS, 0) > taken.get(PODS, 0):
                    room = min((has.get(name, 0) - taken.get(name, 0)) // amount for name, amount in asks)
            slots.append(max(0, room))
        return slots


def _sum_up(topology: Topology, slots: Sequence[int], group: int, tensor_depth: int) -> list[int]:
    """Slots per domain, rounded down to whole groups at the tensor depth."""
    offered = [0] * len(topology.domains)
    leaf_depth = len(topology.levels)
    for domain in reversed(topology.domains):
        if domain.depth == leaf_depth:
            total = slots[domain.start]
        else:
            total = sum(offered[child] for child in domain.children)
        offered[domain.index] = total - total % group if domain.depth == tensor_depth else total
    return offered
