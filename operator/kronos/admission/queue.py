"""Who starts: all waiting jobs, oldest first, each whole or not at all.

A place that is given to a job counts as taken before the next one is looked at. A job that has to wait for room holds
back the younger ones that want the same resource: otherwise small jobs would take every slot that becomes free, and a
big gang would never see enough of them at once. A job that can't start on this cluster at all holds nobody back.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from kronos.admission.jobs import Admitted, Candidate, JobKey, Verdict, Waiting, WaitingJob
from kronos.placement import (
    GangRequest,
    NoFit,
    Placement,
    Room,
    Topology,
    Usage,
    place_in,
    reserve,
    why_not_in,
)
from kronos.strategy import NEAR_TIE


def admit(
    waiting: Iterable[WaitingJob[Candidate]], topology_of: Mapping[str, Topology], usage: Usage
) -> dict[JobKey, Verdict[Candidate]]:
    """Decide for every waiting job whether it starts now, and where, or why it waits.

    Args:
        waiting: The jobs, in any order; each key once.
        topology_of: The fabrics' trees over the same nodes, by name.
        usage: What bound pods and the places of admitted jobs take, in base units; every accelerator counts once.

    Returns:
        A verdict per job, oldest job first.
    """
    round_ = _Round(topology_of, usage)
    verdicts: dict[JobKey, Verdict[Candidate]] = {}
    for job in sorted(waiting, key=lambda job: (job.created, job.key, job.uid)):
        assert job.key not in verdicts, f"{job.key} waits twice"
        verdicts[job.key] = round_.decide(job)
    return verdicts


MOST_PLACES = 16
"""Options of one job for which places are looked for; by then the best of the rest is no surprise."""


@dataclass(frozen=True, slots=True)
class _Head:
    """The oldest job that waits for a resource."""

    key: JobKey
    change: str


@dataclass(frozen=True, slots=True)
class _Place:
    """Where one of a job's options could run, and what it would cost there."""

    index: int
    placement: Placement
    cost: float


class _Round:
    """One pass over the jobs."""

    def __init__(self, topology_of: Mapping[str, Topology], usage: Usage) -> None:
        self._topology_of = topology_of
        self._usage = usage
        self._rooms: dict[str, Room] = {}
        self._heads: dict[str, _Head] = {}
        # What stands against each shape of request at the present usage: many options and jobs share one shape.
        self._refusals: dict[Hashable, NoFit | None] = {}

    def decide(self, job: WaitingJob[Candidate]) -> Verdict[Candidate]:
        """The verdict on one job; an admitted one takes its place, a waiting one may become the head of a queue."""
        if not job.options:
            message = (
                job.refusal or "there is no way to split the model over the accelerators that it may use"
            )
            return Waiting(reason="NoPlan", message=message, possible=False)
        if job.fabric not in self._topology_of:
            message = (
                f"the cluster has no KronosFabric {job.fabric}; create it or name another in placement.fabric"
            )
            return Waiting(reason="NoFabric", message=message, possible=False)
        head = self._heads.get(job.options[0].request.resource)
        if head is not None:
            return self._behind(job, head)
        refusals: list[NoFit] = []
        places = self._places(job, refusals)
        if places:
            best = min(places, key=lambda place: (place.cost, place.index))
            # Options come with the best first, and what costs as much within the predictions' error keeps its rank.
            best = next(place for place in places if place.cost <= best.cost * (1 + NEAR_TIE))
            option = job.options[best.index]
            self._usage = reserve(self._usage, best.placement, option.request)
            self._rooms.clear()
            self._refusals.clear()
            return Admitted(
                option_index=best.index,
                candidate=option.candidate,
                request=option.request,
                placement=best.placement,
                runner_up=_runner_up(job, best, places, refusals),
            )
        nearest = _nearest(refusals)
        if nearest.possible:
            self._heads[job.options[0].request.resource] = _Head(job.key, nearest.change)
        return Waiting(reason=nearest.reason, message=nearest.message, possible=nearest.possible)

    def _places(self, job: WaitingJob[Candidate], refusals: list[NoFit]) -> list[_Place]:
        """Places of options that may turn out to be the best, in the order of the options.

        An option whose best conceivable place costs as much as a place that is already found needs no look.
        """
        found: list[_Place] = []
        least = inf
        for index, option in enumerate(job.options):
            if found and (option.cost >= least or len(found) == MOST_PLACES or option.cost_in is None):
                continue
            outcome = self._place(job.fabric, option.request)
            if isinstance(outcome, NoFit):
                refusals.append(outcome)
                continue
            cost = option.cost_in(outcome) if option.cost_in else option.cost
            found.append(_Place(index, outcome, cost))
            least = min(least, cost)
        return found

    def _behind(self, job: WaitingJob[Candidate], head: _Head) -> Waiting:
        """The verdict on a job that an older one holds back, unless it couldn't start anyway."""
        refusals: list[NoFit] = []
        for option in job.options:
            refusal = self._why_not(job.fabric, option.request)
            if refusal is None or refusal.possible:
                namespace, name = head.key
                message = f"waits behind {namespace}/{name}, which waits for {head.change}"
                return Waiting(reason="QueuedBehind", message=message, possible=True)
            refusals.append(refusal)
        nearest = _nearest(refusals)
        return Waiting(reason=nearest.reason, message=nearest.message, possible=False)

    def _room(self, fabric: str) -> Room:
        """What is left on the nodes, by a fabric's tree."""
        if fabric not in self._rooms:
            self._rooms[fabric] = Room(self._topology_of[fabric], self._usage)
        return self._rooms[fabric]

    def _place(self, fabric: str, request: GangRequest) -> Placement | NoFit:
        """Place a gang on what is left."""
        shape = (fabric, request.shape)
        refusal = self._refusals.get(shape)
        if refusal is not None:
            return refusal
        outcome = place_in(self._room(fabric), request)
        if isinstance(outcome, NoFit):
            self._refusals[shape] = outcome
        return outcome

    def _why_not(self, fabric: str, request: GangRequest) -> NoFit | None:
        """What stands against a gang on what is left, were it its turn."""
        shape = (fabric, request.shape)
        if shape not in self._refusals:
            self._refusals[shape] = why_not_in(self._room(fabric), request)
        return self._refusals[shape]


def _nearest(refusals: Sequence[NoFit]) -> NoFit:
    """The refusal that the smallest change would lift: of a request that can fit, with the least room missing."""
    return min(refusals, key=lambda refusal: (not refusal.possible, refusal.missing))


def _runner_up(
    job: WaitingJob[Candidate], chosen: _Place, places: Sequence[_Place], refusals: Sequence[NoFit]
) -> str | None:
    """The way that was preferred and why it wasn't taken, else the one that comes next."""
    preferred = job.options[0].request.degrees.summary
    if refusals and places[0].index != 0:
        return f"{preferred}: {refusals[0].message}"
    others = [place for place in places if place is not chosen]
    if others:
        other = min(others, key=lambda place: (place.cost, place.index))
        name = job.options[other.index].request.degrees.summary
        change = other.cost / chosen.cost - 1
        return (
            f"{name}: {change:+.0%} in the places that are free now"
            if change >= 0.005
            else f"{name}: as good"
        )
    if chosen.index + 1 < len(job.options):
        following = job.options[chosen.index + 1]
        name = following.request.degrees.summary
        return f"{name}: {following.cost / chosen.cost - 1:+.0%} at best" if chosen.cost > 0 else name
    return None
