"""The cluster while a pass goes on: what is free on its nodes, what stands against whom, and what would be if jobs ended."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace

from kronos.admission.jobs import Holds, RunningJob
from kronos.admission.quotas import Ledger
from kronos.placement import (
    GangRequest,
    NoFit,
    Placement,
    Room,
    Topology,
    Usage,
    fits_in,
    place_in,
    why_not_in,
)


class Cluster:
    """What is free, by the tree of each fabric, with the answers that were given about it."""

    def __init__(self, topology_of: Mapping[str, Topology], usage: Usage) -> None:
        self._topology_of = topology_of
        self._usage = usage
        self._changes: list[tuple[Holds, bool]] = []
        self._rooms: dict[str, Room] = {}
        self._answers: dict[Hashable, NoFit | None] = {}
        # Who had no place has none while gangs only come. Numbers in the sentences may be too good by then.
        self._turned_away: dict[Hashable, NoFit] = {}
        self._fits: dict[Hashable, bool] = {}

    def copy(self) -> Cluster:
        """Another one in the same state, which then goes its own way."""
        other = Cluster(self._topology_of, self._usage)
        other._changes = list(self._changes)
        other._rooms = {fabric: room.copy() for fabric, room in self._rooms.items()}
        return other

    def take(self, holds: Holds) -> None:
        """A gang takes its place."""
        self._change(holds, comes=True)

    def give_back(self, holds: Holds) -> None:
        """A gang leaves its place."""
        self._change(holds, comes=False)
        self._turned_away.clear()

    def why_not(self, fabric: str, request: GangRequest) -> NoFit | None:
        """What stands against a gang; that nodes should be avoided doesn't, where nothing else is free."""
        if request.avoid_nodes:
            if self.fits(fabric, request):
                return None
            request = _anywhere(request)
        shape = (fabric, request.shape)
        if shape not in self._answers:
            self._answers[shape] = why_not_in(self._room(fabric), request)
        return self._answers[shape]

    def turned_away(self, fabric: str, request: GangRequest) -> NoFit | None:
        """`why_not` with a sentence whose numbers may be too good by what gangs took meanwhile; quick for many jobs alike."""
        found = self._turned_away.get((fabric, _anywhere(request).shape))
        if found is None and (found := self.why_not(fabric, request)) is not None:
            self._turned_away[fabric, _anywhere(request).shape] = found
        return found

    def fits(self, fabric: str, request: GangRequest) -> bool:
        """Whether a gang has a place."""
        shape = (fabric, request.shape)
        if shape not in self._fits:
            self._fits[shape] = fits_in(self._room(fabric), request)
        if not self._fits[shape] and request.avoid_nodes:
            return self.fits(fabric, _anywhere(request))
        return self._fits[shape]

    def place(self, fabric: str, request: GangRequest) -> Placement | NoFit:
        """A place for a gang, away from the nodes that it should avoid if possible, or what stands against it."""
        refusal = self.turned_away(fabric, request)
        if refusal is not None:
            return refusal
        room = self._room(fabric)
        if request.avoid_nodes and not fits_in(room, request):
            request = _anywhere(request)
        return place_in(room, request)

    def _room(self, fabric: str) -> Room:
        if fabric not in self._rooms:
            room = self._rooms[fabric] = Room(self._topology_of[fabric], self._usage)
            for holds, comes in self._changes:
                _apply(room, holds, comes=comes)
        return self._rooms[fabric]

    def _change(self, holds: Holds, *, comes: bool) -> None:
        self._changes.append((holds, comes))
        for room in self._rooms.values():
            _apply(room, holds, comes=comes)
        self._answers.clear()
        self._fits.clear()


def _apply(room: Room, holds: Holds, *, comes: bool) -> None:
    for node, amounts in holds.items():
        (room.take if comes else room.give_back)(node, amounts)


def _anywhere(request: GangRequest) -> GangRequest:
    """The request without nodes to avoid."""
    return replace(request, avoid_nodes=frozenset()) if request.avoid_nodes else request


class Future:
    """The cluster and the queues as they would be if some running jobs ended. What is tried here changes nothing there."""

    def __init__(self, cluster: Cluster, ledger: Ledger) -> None:
        self.cluster = cluster.copy()
        self.ledger = ledger.copy()

    def copy(self) -> Future:
        """Another one in the same state, which then goes its own way."""
        return Future(self.cluster, self.ledger)

    def end(self, job: RunningJob) -> None:
        """A job ends."""
        self.cluster.give_back(job.holds)
        if not job.stopping:
            self.ledger.take(job.queue, job.resource, -job.accelerators)

    def go_on(self, job: RunningJob) -> None:
        """A job that ended goes on after all."""
        self.cluster.take(job.holds)
        if not job.stopping:
            self.ledger.take(job.queue, job.resource, job.accelerators)

    def has_room(self, queue: str, fabric: str, request: GangRequest) -> bool:
        """Whether a gang has a place, and its queue may use it."""
        over = self.ledger.over(queue, request.resource, request.degrees.world_size)
        return over is None and self.cluster.fits(fabric, request)
