"""Ranks for a gang whose nodes somebody else chose."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from kronos.api.plan import GangMember
from kronos.placement.answer import Placement
from kronos.placement.gang import described
from kronos.placement.request import GangRequest
from kronos.placement.topology import Topology


def arranged(
    topology: Topology, request: GangRequest, nodes: Sequence[str], ranks: Sequence[int]
) -> Placement | None:
    """The gang on these nodes, one name and number of ranks for each member; None when one of the nodes isn't there.

    Members keep their order, which their pods have already, so the rank map alone brings heavy traffic onto near links:
    it is found for members in the order of the tree, and then told in their own numbers.
    """
    if any(name not in topology.position for name in nodes):
        return None
    in_tree = sorted(range(len(nodes)), key=lambda member: (topology.position[nodes[member]], member))
    shares = [(topology.position[nodes[member]], ranks[member]) for member in in_tree]
    placement = described(topology, request, shares)
    firsts = [0, *accumulate(ranks)]
    # By rank in the order of the tree: the same accelerator's rank in the members' own order.
    own = [rank for member in in_tree for rank in range(firsts[member], firsts[member + 1])]
    back = {member: at for at, member in enumerate(in_tree)}
    return Placement(
        members=tuple(GangMember(node=name, ranks=count) for name, count in zip(nodes, ranks, strict=True)),
        rank_map=tuple(own[rank] for rank in placement.rank_map),
        domains=placement.domains,
        tensor_level=placement.tensor_level,
        summary=placement.summary,
        cost=placement.cost,
        node_domains=tuple(placement.node_domains[back[member]] for member in range(len(nodes))),
        paths=tuple(placement.paths[back[member]] for member in range(len(nodes))),
    )
