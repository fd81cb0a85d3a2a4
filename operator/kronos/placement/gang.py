"""Placing a gang: which nodes, how many ranks on each, which rank where in the mesh, or why not."""

from __future__ import annotations

from collections.abc import Sequence

from kronos.api.plan import GangMember
from kronos.placement.answer import NoFit, Placement, count
from kronos.placement.packing import Packing
from kronos.placement.ranks import map_ranks
from kronos.placement.request import GangRequest
from kronos.placement.room import Room, Splits
from kronos.placement.scope import Scope
from kronos.placement.shortfall import explain, has_place
from kronos.placement.topology import WHOLE, Topology
from kronos.placement.usage import Usage


def place(topology: Topology, usage: Usage, request: GangRequest) -> Placement | NoFit:
    """Find the best place for the gang among what is free, or say what would make it fit.

    In order of importance: inside the required domain; inside a preferred one; tensor groups inside domains as narrow
    as possible; as few domains as possible at each level, widest first; the tightest fit. Equal input in any order
    gives an equal answer.
    """
    return place_in(Room(topology, usage), request)


def place_in(room: Room, request: GangRequest) -> Placement | NoFit:
    """`place`, for callers with several requests at the same usage."""
    refusal = why_not_in(room, request)
    if refusal is not None:
        return refusal
    scope = Scope.of(room.topology, request)
    assert isinstance(scope, Scope)
    need = request.degrees.world_size
    for within in scope.anchors:
        candidates = scope.domains(within)
        for tensor_depth in scope.tensor_depths(within):
            packing = Packing(room, request, scope.splits(tensor_depth))
            chosen = packing.choose(candidates, need)
            if chosen is not None:
                shares = packing.share_out(chosen, need)
                return described(room.topology, request, shares, tensor_depth, scope.outer)
    raise AssertionError("a gang that nothing stands against has a place")


def why_not(topology: Topology, usage: Usage, request: GangRequest) -> NoFit | None:
    """What stands against placing the gang now; None exactly when `place` finds a place. Cheaper than placing."""
    return why_not_in(Room(topology, usage), request)


def why_not_in(room: Room, request: GangRequest) -> NoFit | None:
    """`why_not`, for callers with several requests at the same usage."""
    scope = Scope.of(room.topology, request)
    return scope if isinstance(scope, NoFit) else explain(room, request, scope)


def fits_in(room: Room, request: GangRequest) -> bool:
    """Whether `place_in` finds a place; much cheaper than saying why not."""
    scope = Scope.of(room.topology, request)
    return not isinstance(scope, NoFit) and has_place(room, request, scope)


def described(
    topology: Topology,
    request: GangRequest,
    shares: Sequence[tuple[int, int]],
    tensor_depth: int | None = None,
    outer: Splits = (),
) -> Placement:
    """Chosen nodes as a placement, each (position, ranks) in the order in which ranks are numbered.

    `tensor_depth` is where tensor groups were placed, None where nobody saw to that: then it is found. `outer` are the
    groups that were promised to share a domain.
    """
    paths = [topology.paths[position] for position, ranks in shares for _ in range(ranks)]
    rank_map, cost = map_ranks(request.degrees, paths, topology.link_costs, request.traffic, outer)
    if tensor_depth is None:
        tensor_depth = _tensor_depth(paths, request.degrees.tensor_parallel)
    domains = {
        level: len({topology.paths[position][depth] for position, _ in shares})
        for depth, level in enumerate(topology.levels)
    }
    tensor_level = topology.level_name(tensor_depth)
    return Placement(
        members=tuple(
            GangMember(node=topology.nodes[position].name, ranks=ranks) for position, ranks in shares
        ),
        rank_map=rank_map,
        domains=domains,
        tensor_level=tensor_level,
        summary=_summary(domains, tensor_level, request.degrees.tensor_parallel),
        cost=cost,
        node_domains=tuple(_labels(topology, position) for position, _ in shares),
        paths=tuple(topology.paths[position] for position, _ in shares),
    )


def _tensor_depth(paths: Sequence[tuple[int, ...]], group: int) -> int:
    """Depth of the narrowest domains that hold each tensor group; ranks of one are neighbours."""
    starts = range(0, len(paths), group)
    return next(
        (
            depth
            for depth in range(len(paths[0]), 0, -1)
            if all(len({path[depth - 1] for path in paths[at : at + group]}) == 1 for at in starts)
        ),
        0,
    )


def _summary(domains: dict[str, int], tensor_level: str, group: int) -> str:
    """For people: nodes, then wider levels up to the first that is a single domain."""
    parts = []
    for level, used in reversed(domains.items()):
        parts.append(count(used, level))
        if used == 1 and len(parts) > 1:
            break
    text = " in ".join(parts)
    if group == 1:
        return text
    if tensor_level == WHOLE:
        return f"{text}; tensor groups cross every level"
    return f"{text}; each tensor group inside one {tensor_level}"


def _labels(topology: Topology, position: int) -> dict[str, str]:
    """The known domains of a node, by level."""
    return {
        topology.level_name(domain.depth): domain.name
        for domain in (topology.domains[index] for index in topology.paths[position])
        if domain.known
    }
