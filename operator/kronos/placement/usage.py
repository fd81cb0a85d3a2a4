"""What is taken on each node, by bound pods and by places already promised."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from kronos.api.plan import GangMember
from kronos.placement.nodes import PODS
from kronos.placement.request import GangRequest

Usage = Mapping[str, Mapping[str, int]]
"""Node name -> resource -> amount taken, in the base units of `Node.allocatable`."""


class Place(Protocol):
    """Anything that tells the members of a gang: a new placement, or one read back from a job's status."""

    @property
    def members(self) -> tuple[GangMember, ...]:
        """The pods, in order."""


def usage_of(pods: Iterable[tuple[str, Mapping[str, int]]]) -> Usage:
    """Add up pods, each given as (node name, requests in base units); every pod also takes one of `pods`."""
    taken: dict[str, dict[str, int]] = {}
    for node, requests in pods:
        on_node = taken.setdefault(node, {})
        for resource, amount in requests.items():
            if resource != PODS:
                on_node[resource] = on_node.get(resource, 0) + amount
        on_node[PODS] = on_node.get(PODS, 0) + 1
    return taken


def member_requests(request: GangRequest, ranks: int) -> dict[str, int]:
    """What the pod of one member with this many ranks asks its node for, in base units, without `pods`."""
    asks = {resource: amount * ranks for resource, amount in request.per_rank.items()}
    asks[request.resource] = ranks
    return asks


def reserve(usage: Usage, placement: Place, request: GangRequest) -> Usage:
    """The usage after a gang took its place; the given one stays as it is."""
    taken = usage_of((member.node, member_requests(request, member.ranks)) for member in placement.members)
    total = dict(usage)
    for node, more in taken.items():
        on_node = dict(total.get(node, {}))
        for resource, amount in more.items():
            on_node[resource] = on_node.get(resource, 0) + amount
        total[node] = on_node
    return total
