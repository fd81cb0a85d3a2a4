"""Why a gang has no place: the one dominant reason, and the smallest change that would make it fit.

A gang fits exactly when one allowed domain offers enough slots with its tensor groups inside the widest domains that
are allowed for them. So the answer needs sums over the tree, no search.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kronos.placement.answer import NoFit
from kronos.placement.nodes import PODS, natural_key, why_unusable
from kronos.placement.request import GangRequest
from kronos.placement.room import NOW, Assuming, Room
from kronos.placement.scope import Scope


def explain(room: Room, request: GangRequest, scope: Scope) -> NoFit | None:
    """Say why the gang has no place now, or None when it has one."""
    case = _Case(room, request, scope)
    free = case.offered()
    if case.fits(free):
        return None
    empty = case.offered(Assuming(empty=True, avoiding=False))
    if not case.fits(empty):
        return case.never(empty)
    if request.avoid_nodes and case.fits(case.offered(Assuming(avoiding=False))):
        return case.avoided()
    return case.waits(free, empty)


def has_place(room: Room, request: GangRequest, scope: Scope) -> bool:
    """Whether the gang has a place now."""
    case = _Case(room, request, scope)
    return case.fits(case.offered())


@dataclass(frozen=True, slots=True)
class _Case:
    """One request that has no place."""

    room: Room
    request: GangRequest
    scope: Scope

    @property
    def _need(self) -> int:
        return self.request.degrees.world_size

    @property
    def _where(self) -> str:
        """The required level in words, with a space before it."""
        return f" in one {self.request.required}" if self.request.required else ""

    @property
    def _limited_groups(self) -> list[tuple[str, int, str]]:
        """Groups of which the request says where they must lie, so that only whole ones count: (name, ranks, level)."""
        return [
            (name, ranks, level)
            for name, ranks, level in self.request.nested
            if ranks > 1 and level is not None
        ]

    @property
    def _slots(self) -> str:
        return f"{self.request.resource} {'slot' if self._need == 1 else 'slots'}"

    @property
    def _asks(self) -> str:
        """What the gang needs, in words."""
        groups = [
            f"{name} of {ranks}, each inside one {level}" for name, ranks, level in self._limited_groups
        ]
        inside = f" in {', and '.join(groups)}" if groups else ""
        return f"{self._need} free {self._slots}{self._where}{inside}"

    def offered(self, assuming: Assuming = NOW) -> dict[int, int]:
        """What each domain that may hold the gang has room for."""
        depth = self.scope.tensor_depths(self.scope.required)[-1]
        offers = self.room.offers(self.request, self.scope.splits(depth), assuming)
        return {index: offers[index] for index in self.scope.domains(self.scope.required)}

    def fits(self, offered: dict[int, int]) -> bool:
        """Whether one domain offers enough."""
        return max(offered.values(), default=0) >= self._need

    def never(self, empty: dict[int, int]) -> NoFit:
        """The gang doesn't fit the cluster as it is, however empty."""
        offering = [
            at
            for at, node in enumerate(self.room.topology.nodes)
            if node.allocatable.get(self.request.resource)
        ]
        if not offering:
            return NoFit(
                reason="NoSuchResource",
                message=f"needs {self._asks}; no node offers {self.request.resource}",
                change=f"nodes with {self.request.resource}",
                possible=False,
            )
        usable = self.room.usable(self.request, Assuming(avoiding=False))
        largest = max(empty.values(), default=0)
        in_all = "in whole groups" if self._limited_groups else "in all"
        left_out = self._left_out([at for at in offering if not usable[at]])
        missing = self._need - largest
        if not any(usable[at] for at in offering):
            reason, finding = "NoUsableNode", "no node with them is usable"
        elif self.request.required:
            reason, finding = "ExceedsCapacity", f"the largest {self.request.required} has {largest} {in_all}"
        else:
            reason, finding = "ExceedsCapacity", f"the usable nodes have {largest} {in_all}"
        short = self._short_of(Assuming(empty=True, avoiding=False))
        limit = f" because of {short}" if short else ""
        return NoFit(
            reason=reason,
            message=f"needs {self._asks}; {finding}{limit}{left_out}",
            change=f"nodes with {missing} more {self._slots}{self._where}",
            possible=False,
            missing=missing,
        )

    def _left_out(self, positions: Sequence[int]) -> str:
        """Which nodes with accelerators don't count, in words; empty when there are none."""
        if not positions:
            return ""
        whys = Counter(
            why_unusable(
                self.room.topology.nodes[at],
                self.request.node_selector,
                self.request.tolerations,
                self.request.node_affinity,
            )
            for at in positions
        )
        why, times = min(whys.items(), key=lambda item: (-item[1], str(item[0])))
        if len(positions) == 1:
            return f"; 1 node is left out: {why}"
        others = len(positions) - times
        tail = f", {others} for other reasons" if others else ""
        return f"; {len(positions)} nodes are left out: {times} {why}{tail}"

    def avoided(self) -> NoFit:
        """The gang would fit now if no node were avoided."""
        names = sorted(self.request.avoid_nodes, key=natural_key)
        return NoFit(
            reason="NodesAvoided",
            message=f"needs {self._asks}; they are only there with {', '.join(names)}, avoided after a failure",
            change=f"another node than {', '.join(names)}",
            possible=True,
        )

    def waits(self, free: dict[int, int], empty: dict[int, int]) -> NoFit:
        """The gang fits once others have gone: name the domain that lacks least."""
        able = [index for index, total in empty.items() if total >= self._need]
        best = min(able, key=lambda index: (-free[index], index))
        missing = self._need - free[best]
        more = (
            f"{missing} more free {self.request.resource} {'slot' if missing == 1 else 'slots'}{self._where}"
        )
        whole = " in whole groups" if self._limited_groups else ""
        has = f"has {free[best]} free of {empty[best]}{whole}"
        short = self._short_of(NOW)
        if short:
            has = f"has room for {free[best]} of them"
            more = f"{short} for {missing} more {'rank' if missing == 1 else 'ranks'}{self._where}"
        place = f"the best {self.request.required}" if self.request.required else "the cluster"
        return NoFit(
            reason="InsufficientCapacity",
            message=f"needs {self._asks}; {place} {has}; waits for {more}",
            change=more,
            possible=True,
            missing=missing,
        )

    def _short_of(self, assuming: Assuming) -> str | None:
        """The resource other than accelerators that alone stands in the way, if one does."""
        names = (*sorted(self.request.per_rank), PODS)
        return next(
            (name for name in names if self.fits(self.offered(replace(assuming, without=name)))), None
        )
