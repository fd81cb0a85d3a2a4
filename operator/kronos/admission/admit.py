"""Who starts: all waiting jobs in turn, each whole or not at all.

A place that is given to a job counts as taken before the next one is looked at. For each job, in turn:

1. It starts where one of its options is within its queue's limits and has a place, in the best of those places; unless,
   by what is predicted, waiting for a better place ends it earlier.
2. Else, if running jobs may be stopped for it and that would be enough, those with the least loss are.
3. Else it becomes the *head* of its queue. When and where it will start is predicted, and that place is kept for it:
   later jobs may use what is left over (*backfill*), or what it needs if they end before it starts.

So small jobs fill gaps and never take every slot that becomes free before a big gang has seen enough of them at once. A job
that can't start on this cluster at all holds nobody back.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Generic

from kronos.admission.cluster import Cluster, Future
from kronos.admission.jobs import (
    Admitted,
    Candidate,
    Holds,
    JobKey,
    Option,
    RunningJob,
    Verdict,
    Waiting,
    WaitingJob,
)
from kronos.admission.order import in_turn
from kronos.admission.outlook import Start, ending, order_of_ends, still_needed
from kronos.admission.preemption import choose_victims, least_loss, may_stop
from kronos.admission.quotas import Ledger, OverQuota, Queue
from kronos.placement import PODS, GangRequest, NoFit, Placement, Topology, Usage, member_requests
from kronos.strategy import NEAR_TIE

MOST_PLACES = 16
"""Options of one job for which places are looked for; by then the best of the rest is no surprise."""
MOST_FORECASTS = 4
"""Options of one job whose future is looked into."""
MOST_DOMAINS = 8
"""Domains in which victims are looked for."""
MOST_NAMES = 4
"""Jobs that a sentence names."""
WORTH_WAITING = 0.05
"""A better place is waited for where the job then ends earlier by this share of its time: predictions err by as much."""


def admit(
    waiting: Iterable[WaitingJob[Candidate]],
    topology_of: Mapping[str, Topology],
    usage: Usage,
    *,
    running: Iterable[RunningJob] = (),
    queues: Mapping[str, Queue] | None = None,
    now: float = 0.0,
) -> dict[JobKey, Verdict[Candidate]]:
    """Decide for every waiting job whether it starts now, and where, or why it waits.

    Args:
        waiting: The jobs, in any order; each key once.
        topology_of: The fabrics' trees over the same nodes, by name.
        usage: What bound pods and the places of admitted jobs take, in base units; every accelerator counts once.
        running: The jobs that hold places, and those whose pods still end; what they hold is in `usage`.
        queues: The queues with limits, by name.
        now: The moment, in seconds.

    Returns:
        A verdict per job, in the order in which they had their turn.
    """
    round_ = _Round[Candidate](topology_of, usage, running, queues or {}, now)
    verdicts: dict[JobKey, Verdict[Candidate]] = {}
    for job in in_turn(waiting, now, round_.share):
        assert job.key not in verdicts, f"{job.key} waits twice"
        verdicts[job.key] = round_.decide(job)
    return verdicts


@dataclass(frozen=True, slots=True)
class _Head:
    """The first job of a queue that waits for a resource, and what is kept for it."""

    key: JobKey
    resource: str
    change: str
    starts: float
    """When it is predicted to start; others may use what is kept for it until then."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where one of a job's options could run, and what it would cost there."""

    index: int
    placement: Placement
    cost: float


class _Round(Generic[Candidate]):
    """One pass over the jobs."""

    def __init__(
        self,
        topology_of: Mapping[str, Topology],
        usage: Usage,
        running: Iterable[RunningJob],
        queues: Mapping[str, Queue],
        now: float,
    ) -> None:
        self._topology_of = topology_of
        self._queues = queues
        self._now = now
        # In the order in which they are predicted to end.
        self._running = sorted(running, key=self._ending)
        # What is free, and what is free besides what is kept for heads.
        self._free = Cluster(topology_of, usage)
        self._spare = Cluster(topology_of, usage)
        # What jobs hold, and that together with what heads will hold.
        self._ledger = Ledger(queues, self._running)
        self._promised = self._ledger.copy()
        self._heads: dict[tuple[str, str], _Head] = {}
        # The places that heads will have, for what comes after them.
        self._reserved: list[Holds] = []
        # All that as it will be once the heads have their places and what stops has stopped; made when first needed.
        self._later: Future | None = None

    def share(self, job: WaitingJob[Candidate]) -> float:
        """The share of the pool that the job's queue would have with it."""
        if not job.options:
            return 0.0
        request = job.options[0].request
        return self._promised.share(job.queue, request.resource, request.degrees.world_size)

    def decide(self, job: WaitingJob[Candidate]) -> Verdict[Candidate]:
        """The verdict on one job; an admitted one takes its place, a waiting one may become the head of its queue."""
        if not job.options:
            message = (
                job.refusal or "there is no way to split the model over the accelerators that it may use"
            )
            return Waiting(reason=job.refused_as, message=message, possible=False)
        if job.fabric not in self._topology_of:
            message = (
                f"the cluster has no KronosFabric {job.fabric}; create it or name another in placement.fabric"
            )
            return Waiting(reason="NoFabric", message=message, possible=False)
        refusals: list[NoFit | OverQuota] = []
        places = self._places(job, refusals)
        if places:
            best = min(places, key=lambda place: (place.cost, place.index))
            # Options come with the best first, and what costs as much within the predictions' error keeps its rank.
            best = next(place for place in places if place.cost <= best.cost * (1 + NEAR_TIE))
            patience = self._waits_for_better(job, best)
            return patience or self._start(job, best, _runner_up(job, best, places, refusals))
        return self._before_heads(job) or self._keep_waiting(job)

    # --- starting now

    def _places(self, job: WaitingJob[Candidate], refusals: list[NoFit | OverQuota]) -> list[_Place]:
        """Places of options that may turn out to be the best, in the order of the options.

        An option whose best conceivable place costs as much as a place that is already found needs no look.
        """
        found: list[_Place] = []
        least = inf
        for index, option in enumerate(job.options):
            if found and (option.cost >= least or len(found) == MOST_PLACES or option.cost_in is None):
                continue
            over = self._over(self._promised, job, option)
            outcome = over or self._spare.place(job.fabric, option.request)
            if not isinstance(outcome, Placement):
                refusals.append(outcome)
                continue
            cost = option.cost_in(outcome) if option.cost_in else option.cost
            found.append(_Place(index, outcome, cost))
            least = min(least, cost)
        return found

    def _over(
        self, ledger: Ledger, job: WaitingJob[Candidate], option: Option[Candidate]
    ) -> OverQuota | None:
        return ledger.over(job.queue, option.request.resource, option.request.degrees.world_size)

    def _start(self, job: WaitingJob[Candidate], place: _Place, runner_up: str | None) -> Admitted[Candidate]:
        option = job.options[place.index]
        holds = _holds(place.placement, option.request)
        amount = option.request.degrees.world_size
        later = self._later
        for cluster in (self._free, self._spare, *([later.cluster] if later else [])):
            cluster.take(holds)
        for ledger in (self._ledger, self._promised, *([later.ledger] if later else [])):
            ledger.take(job.queue, option.request.resource, amount)
        seconds = option.runs_for(place.placement)
        started = RunningJob(
            key=job.key,
            resource=option.request.resource,
            accelerators=amount,
            holds=holds,
            queue=job.queue,
            priority=job.priority,
            started=self._now,
            ends=None if seconds is None else self._now + seconds,
        )
        insort(self._running, started, key=self._ending)
        return Admitted(
            option_index=place.index,
            candidate=option.candidate,
            request=option.request,
            placement=place.placement,
            runner_up=runner_up,
        )

    def _before_heads(self, job: WaitingJob[Candidate]) -> Admitted[Candidate] | None:
        """Start it on what is kept for heads, if it ends before they start."""
        heads = self._heads_for(job.options[0].request.resource)
        latest = min((head.starts for head in heads), default=-inf)
        if latest == inf:
            return None  # nobody knows when, so it could be any moment
        for index, option in enumerate(job.options):
            if option.seconds is None or self._now + option.seconds > latest:
                continue
            if self._over(self._ledger, job, option) or not self._free.fits(job.fabric, option.request):
                continue
            outcome = self._free.place(job.fabric, option.request)
            assert isinstance(outcome, Placement)
            seconds = option.runs_for(outcome)
            if seconds is not None and self._now + seconds <= latest:
                return self._start(job, _Place(index, outcome, option.cost), None)
        return None

    # --- waiting for a better place

    def _waits_for_better(self, job: WaitingJob[Candidate], best: _Place) -> Waiting | None:
        """Wait although there is a place, where a better one is predicted to be free so soon that the job ends earlier."""
        now_for = job.options[best.index].runs_for(best.placement)
        latest = job.since + job.patience
        if now_for is None or latest <= self._now or self._heads_for(job.options[0].request.resource):
            return None
        tried = 0
        for option in job.options:
            wish = option.request
            if wish.preferred is not None and not _in_preferred(wish, best):
                wish = replace(wish, required=wish.preferred, preferred=None)
            elif option is job.options[best.index]:
                continue
            worth = now_for * (1 - WORTH_WAITING)
            if option.seconds is None or option.seconds >= worth or self._over(self._ledger, job, option):
                continue
            if tried == MOST_FORECASTS:
                return None
            tried += 1
            start = self._forecast(job, replace(option, request=wish))
            later_for = option.runs_for(start.placement) if start else None
            if (
                start is None
                or not start.ended
                or start.at > latest
                or later_for is None
                or start.at - self._now + later_for > worth
            ):
                continue
            change = f"{_names(start.ended)} to end"
            self._become_head(job, wish, start, change)
            message = (
                f"could start as {job.options[best.index].request.degrees.summary} on {best.placement.summary}, but is "
                f"predicted to end earlier as {wish.degrees.summary} on {start.placement.summary}; waits for {change}"
            )
            return Waiting(reason="WaitsForBetterPlace", message=message, possible=True)
        return None

    # --- waiting

    def _keep_waiting(self, job: WaitingJob[Candidate]) -> Waiting:
        """Why it waits; the first of its queue stops others, or has its future place kept."""
        resource = job.options[0].request.resource
        head = self._heads.get((job.queue, resource))
        refusals = []
        for option in job.options:
            # What is said about the first of a queue must be exact; of the others, only whether they could ever start counts.
            ask = self._free.why_not if head is None else self._free.turned_away
            refusal = self._over(self._ledger, job, option) or ask(job.fabric, option.request)
            if head is not None and (refusal is None or refusal.possible):
                return _behind(head)
            refusals.append(refusal)
        nearest = _nearest([refusal for refusal in refusals if refusal is not None])
        if nearest is not None and None not in refusals:
            if not nearest.possible:
                return Waiting(reason=nearest.reason, message=nearest.message, possible=False)
            return self._as_head(job, nearest)
        # It could start but for what is kept for another queue's head.
        first = (self._heads_for(resource) or list(self._heads.values()))[0]
        self._keep_its_place(job, f"{'/'.join(first.key)} to start")
        return _behind(first)

    def _heads_for(self, resource: str) -> list[_Head]:
        return [head for head in self._heads.values() if head.resource == resource]

    def _as_head(self, job: WaitingJob[Candidate], nearest: NoFit | OverQuota) -> Waiting:
        stopped = self._preempt(job) if job.preempts else None
        if stopped is not None:
            return stopped
        self._keep_its_place(job, nearest.change)
        return Waiting(reason=nearest.reason, message=nearest.message, possible=True)

    def _keep_its_place(self, job: WaitingJob[Candidate], change: str) -> None:
        """Make it the head of its queue: from now on, the place that it is predicted to get first is kept for it.

        Without a prediction, since others than running jobs stand in its way, that is the best place in an empty cluster.
        """
        starts = [
            (start, option)
            for option in job.options[:MOST_FORECASTS]
            if (start := self._forecast(job, option)) is not None
        ]
        if starts:
            start, option = min(starts, key=lambda pair: pair[0].at)
            self._become_head(job, option.request, start, change)
            return
        empty = Cluster(self._topology_of, {})
        for holds in self._reserved:
            empty.take(holds)
        for option in job.options:
            place = empty.place(job.fabric, option.request)
            if isinstance(place, Placement):
                self._become_head(job, option.request, Start(inf, place, ()), change)
                return

    def _become_head(
        self, job: WaitingJob[Candidate], request: GangRequest, start: Start, change: str
    ) -> None:
        place = _holds(start.placement, request)
        self._reserved.append(place)
        self._spare.take(still_needed(place, start.ended))
        self._promised.take(job.queue, request.resource, request.degrees.world_size)
        if self._later is not None:
            self._later.cluster.take(place)
            self._later.ledger.take(job.queue, request.resource, request.degrees.world_size)
        self._heads[job.queue, request.resource] = _Head(job.key, request.resource, change, start.at)

    def _future(self) -> Future:
        """The cluster as it is, once the heads have their places and what stops has stopped."""
        if self._later is None:
            self._later = Future(self._free, self._promised)
            for holds in self._reserved:
                self._later.cluster.take(holds)
            for other in self._running:
                if other.stopping:
                    self._later.end(other)
        return self._later.copy()

    def _forecast(self, job: WaitingJob[Candidate], option: Option[Candidate]) -> Start | None:
        """When and where it starts if running jobs end as predicted and nobody else comes."""
        future = self._future()
        ended = [other for other in self._running if other.stopping]
        for other in self._running:
            if future.has_room(job.queue, job.fabric, option.request):
                break
            if not other.stopping:
                future.end(other)
                ended.append(other)
        return self._start_in(future, job, option.request, ended)

    def _start_in(
        self, future: Future, job: WaitingJob[Candidate], request: GangRequest, ended: Sequence[RunningJob]
    ) -> Start | None:
        if not future.has_room(job.queue, job.fabric, request):
            return None
        placement = future.cluster.place(job.fabric, request)
        assert isinstance(placement, Placement), "what fits has a place"
        at = max((ending(other, self._now) for other in ended), default=self._now)
        return Start(at, placement, tuple(ended))

    def _preempt(self, job: WaitingJob[Candidate]) -> Waiting | None:
        """Stop running jobs for it, if there are any that may be and that is enough."""
        for option in job.options[:MOST_FORECASTS]:
            request = option.request
            candidates = may_stop(
                job,
                request.resource,
                request.degrees.world_size,
                self._running,
                self._queues.get(job.queue),
                self._promised,
                self._cohort_of,
            )
            if not candidates or self._future().has_room(job.queue, job.fabric, request):
                continue
            victims = least_loss(
                chosen
                for group in self._groups(job, option, candidates)
                if (chosen := self._victims_among(job, request, group))
            )
            if victims:
                return self._stop(job, request, victims)
        return None

    def _victims_among(
        self, job: WaitingJob[Candidate], request: GangRequest, group: Sequence[RunningJob]
    ) -> tuple[RunningJob, ...] | None:
        future = self._future()
        return choose_victims(
            group, job.queue, future, lambda: future.has_room(job.queue, job.fabric, request)
        )

    def _groups(
        self, job: WaitingJob[Candidate], option: Option[Candidate], candidates: Sequence[RunningJob]
    ) -> Iterable[Sequence[RunningJob]]:
        """Sets to choose victims from: all, and those of each domain that could hold the whole job."""
        yield candidates
        topology = self._topology_of[job.fabric]
        depth = topology.depth_of(option.request.required) if option.request.required else None
        if depth is None:
            return
        domain_of = {
            node.name: path[depth - 1] for node, path in zip(topology.nodes, topology.paths, strict=True)
        }
        inside: dict[int, list[RunningJob]] = {}
        for other in candidates:
            for domain in sorted({domain_of[node] for node in other.holds if node in domain_of}):
                inside.setdefault(domain, []).append(other)
        largest = sorted(
            inside.items(), key=lambda item: (-sum(other.accelerators for other in item[1]), item[0])
        )
        for _, group in largest[:MOST_DOMAINS]:
            yield group

    def _stop(
        self, job: WaitingJob[Candidate], request: GangRequest, victims: Sequence[RunningJob]
    ) -> Waiting:
        """Have the victims stopped, and keep what they leave for the job."""
        self._future()
        assert self._later is not None
        for victim in victims:
            self._later.end(victim)
            for ledger in (self._ledger, self._promised):
                ledger.take(victim.queue, victim.resource, -victim.accelerators)
        chosen = {victim.key for victim in victims}
        self._running = sorted(
            (replace(other, stopping=True) if other.key in chosen else other for other in self._running),
            key=self._ending,
        )
        start = self._start_in(
            self._later, job, request, [other for other in self._running if other.stopping]
        )
        assert start is not None, "the victims were found to be enough"
        change = f"{_names(victims)} to stop"
        self._become_head(job, request, start, change)
        borrowed = any(victim.queue != job.queue for victim in victims)
        why = "using what their queues have borrowed" if borrowed else "of lower priority"
        message = f"waits for {change}, {why}"
        return Waiting("Preempting", message, possible=True, victims=tuple(victim.key for victim in victims))

    def _ending(self, job: RunningJob) -> tuple[float, JobKey]:
        return order_of_ends(job, self._now)

    def _cohort_of(self, name: str) -> str:
        queue = self._queues.get(name)
        return queue.cohort if queue else ""


def _holds(placement: Placement, request: GangRequest) -> Holds:
    """What a gang takes in its place."""
    return {member.node: {**member_requests(request, member.ranks), PODS: 1} for member in placement.members}


def _in_preferred(request: GangRequest, place: _Place) -> bool:
    """Whether a place lies inside one domain of the preferred level."""
    return request.preferred is None or place.placement.domains.get(request.preferred, 1) == 1


def _names(jobs: Sequence[RunningJob]) -> str:
    """Jobs in words."""
    names = ["/".join(job.key) for job in sorted(jobs, key=lambda job: job.key)]
    if len(names) <= MOST_NAMES:
        return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    return f"{', '.join(names[: MOST_NAMES - 1])} and {len(names) - MOST_NAMES + 1} others"


def _behind(head: _Head) -> Waiting:
    """The verdict on a job that could start but for another."""
    message = f"waits behind {'/'.join(head.key)}, which waits for {head.change}"
    return Waiting(reason="QueuedBehind", message=message, possible=True)


def _nearest(refusals: Sequence[NoFit | OverQuota]) -> NoFit | OverQuota | None:
    """The refusal that the smallest change would lift: of a request that can fit, with the least room missing."""
    return min(refusals, key=lambda refusal: (not refusal.possible, refusal.missing), default=None)


def _runner_up(
    job: WaitingJob[Candidate],
    chosen: _Place,
    places: Sequence[_Place],
    refusals: Sequence[NoFit | OverQuota],
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
