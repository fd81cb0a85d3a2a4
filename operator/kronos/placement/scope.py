"""Which domains a request allows: for the whole gang, and for the groups of ranks in it."""

from __future__ import annotations

from dataclasses import dataclass

from kronos.placement.answer import NoFit
from kronos.placement.request import GangRequest
from kronos.placement.room import Splits
from kronos.placement.topology import Topology


@dataclass(frozen=True, slots=True)
class Scope:
    """The levels of a request as depths in the tree."""

    topology: Topology
    required: int
    """Depth of the domain that must hold the whole gang; 0 for the whole cluster."""
    preferred: int | None
    """Depth of the domain that should hold the whole gang, where it asks for more than `required` does."""
    tensor_limit: int
    """Depth of the widest domains that may hold a tensor group."""
    tensor_group: int
    """Ranks of a tensor group."""
    outer: Splits
    """Of the groups around tensor groups, those that a domain must hold: its depth, and their ranks."""

    @staticmethod
    def of(topology: Topology, request: GangRequest) -> Scope | NoFit:
        """Look the request's levels up; a NoFit when one that must hold something isn't there."""
        for level in (request.required, request.preferred, *(level for _, _, level in request.nested)):
            if level is not None and level not in topology.fabric_levels:
                return NoFit(
                    reason="UnknownLevel",
                    message=f"the fabric has no level {level}; its levels are {', '.join(topology.fabric_levels)}",
                    change=f"a fabric with a level {level}",
                    possible=False,
                )
        required = topology.depth_of(request.required) if request.required else 0
        if required is None:
            return NoFit(
                reason="UnlabelledLevel",
                message=f"needs one {request.required}, but no node carries the label of that level",
                change=f"nodes labelled with their {request.required}",
                possible=False,
            )
        preferred = topology.depth_of(request.preferred) if request.preferred else None
        if preferred is not None and preferred <= required:
            preferred = None
        # A group lies wherever the one around it lies, so it can't be spread wider.
        limit = 0
        outer = []
        (_, tensor_group, tensor_level), *others = request.nested
        for _, ranks, level in reversed(others):
            limit = max(limit, _widest(topology, level))
            if level is not None and ranks > 1:
                outer.append((limit, ranks))
        return Scope(
            topology=topology,
            required=required,
            preferred=preferred,
            tensor_limit=max(limit, _widest(topology, tensor_level)),
            tensor_group=tensor_group,
            outer=tuple(outer),
        )

    @property
    def anchors(self) -> tuple[int, ...]:
        """Depths at which a single domain may hold the whole gang, in order of preference."""
        return (self.required,) if self.preferred is None else (self.preferred, self.required)

    def domains(self, depth: int) -> list[int]:
        """The domains of an anchor's depth that count: known there, and inside a known domain of the required level."""
        domains = self.topology.domains
        found = [domains[index] for index in self.topology.at_depth[depth]]
        if self.required:
            found = [
                item for item in found if domains[self.topology.paths[item.start][self.required - 1]].known
            ]
        return [item.index for item in found if item.known]

    def tensor_depths(self, anchor: int) -> range:
        """Depths of domains that may hold the tensor groups of a gang inside one domain of depth `anchor`."""
        leaf_depth = len(self.topology.levels)
        widest = max(self.tensor_limit, anchor) if self.tensor_group > 1 else leaf_depth
        return range(leaf_depth, widest - 1, -1)

    def splits(self, tensor_depth: int) -> Splits:
        """Into how many ranks at a time the domains of a depth are used when tensor groups lie at this one."""
        at: dict[int, int] = {}
        for depth, ranks in ((tensor_depth, self.tensor_group), *self.outer):
            # Each group is so many of the one inside it, so whole groups of the larger are whole ones of the smaller.
            at[depth] = max(ranks, at.get(depth, 1))
        return tuple(sorted((depth, ranks) for depth, ranks in at.items() if ranks > 1))


def _widest(topology: Topology, level: str | None) -> int:
    """Depth of the widest level of the tree that is no wider than the given one; 0 without a level."""
    if level is None:
        return 0
    allowed = topology.fabric_levels[topology.fabric_levels.index(level) :]
    return next(depth for depth, name in enumerate(topology.levels, start=1) if name in allowed)
