"""How many ranks each node has room for."""

from __future__ import annotations

from collections.abc import Mapping

from kronos.placement.nodes import PODS, why_unusable
from kronos.placement.request import GangRequest
from kronos.placement.topology import Topology
from kronos.placement.usage import Usage

_NOTHING: Mapping[str, int] = {}


def usable_nodes(topology: Topology, request: GangRequest) -> list[bool]:
    """For each node of the topology, whether the gang's pods may go there, however full it is."""
    return [
        node.name not in request.avoid_nodes
        and why_unusable(node, request.node_selector, request.tolerations) is None
        for node in topology.nodes
    ]


def free_slots(
    topology: Topology, usable: list[bool], usage: Usage, request: GangRequest, *, without: str | None = None
) -> list[int]:
    """For each node of the topology, the ranks that it has room for now; 0 on nodes that aren't usable.

    A rank takes one accelerator and its share of the other resources, the member's pod takes one of `pods`. The
    resource named by `without` is taken to be unlimited, to find out whether it is the one that runs short.
    """
    asks = [
        (request.resource, 1),
        *((name, amount) for name, amount in request.per_rank.items() if amount > 0),
    ]
    asks = [(name, amount) for name, amount in asks if name != without]
    slots = []
    for node, may_go in zip(topology.nodes, usable, strict=True):
        room = 0
        if may_go:
            has = node.allocatable
            taken = usage.get(node.name, _NOTHING)
            if without == PODS or has.get(PODS, 0) > taken.get(PODS, 0):
                room = max(0, min((has.get(name, 0) - taken.get(name, 0)) // amount for name, amount in asks))
        slots.append(room)
    return slots
