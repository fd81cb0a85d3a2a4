"""Which jobs wait for a place, and what admission says about each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

from kronos.admission import Admitted, Option, Waiting, WaitingJob, admit
from kronos.api.base import parse_duration
from kronos.api.fabric import NODE_LEVEL, FabricSpec, FabricStatus
from kronos.api.job import TrainingJobSpec
from kronos.api.status import LeftTo
from kronos.lifecycle.delegation import left_to, members_of, most_ranks
from kronos.lifecycle.gang import parse_time
from kronos.lifecycle.holding import held, may_preempt, priority_of, running_jobs, steps_saved
from kronos.lifecycle.objects import per_rank_amounts
from kronos.lifecycle.planning import (
    Question,
    answer_to,
    beside,
    domain_slots,
    pays_up_to,
    planned,
    topology_over,
)
from kronos.lifecycle.queues import limits, why_not_queued
from kronos.lifecycle.snapshot import JobKey, JobView, Snapshot
from kronos.placement import GangRequest, Placement, reaches
from kronos.strategy import Alternative, Candidate, Search, StepTime, time_in_place

SUSPECTED_FOR = timedelta(minutes=10)
"""So long a node that failed a job is used only where no other is free."""


@dataclass(frozen=True)
class Reservation:
    """A place for the whole gang and the strategy that it was chosen for."""

    candidate: Candidate
    search: Search
    placement: Placement
    time: StepTime
    """Predicted in this place, uncorrected."""
    correction: float
    """By what jobs' measurements say that predicted times must be multiplied."""
    alternatives: tuple[Alternative, ...]
    pays_up_to: int | None
    """Accelerators beyond which more would bring less than half of their share; None where that can't be said."""
    runner_up: str | None
    memory_limit_gib: float
    left_to: LeftTo | None = None
    """Who decides about the place; the one here has members without nodes then."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a job has no place; `possible` False when only a change by a person helps."""

    reason: str
    message: str
    possible: bool


@dataclass(frozen=True, slots=True)
class Preempted:
    """A job that holds a place must give it up for another."""

    message: str


Outcome = Reservation | Wait | Preempted


def wants_place(job: JobView, snapshot: Snapshot) -> bool:
    """The job could start now if it had a place: nothing of an earlier attempt is left and no back-off runs."""
    status = job.status
    return (
        job.spec is not None
        and not job.deleting
        and not job.spec.scheduling.suspend
        and status.phase not in ("Complete", "Failed")
        and status.placement is None
        and all(pod.terminal for pod in snapshot.pods_of(job))
        and (status.not_before is None or parse_time(status.not_before) <= snapshot.now)
    )


def run_admission(snapshot: Snapshot) -> Mapping[JobKey, Outcome]:
    """Place the jobs that wait, in their order, on what is free in the snapshot, and say who must make room for them."""
    jobs = {key: job for key, job in sorted(snapshot.jobs.items()) if wants_place(job, snapshot)}
    if not jobs:
        return {}
    topologies = {name: topology_over(snapshot.nodes, fabric) for name, fabric in snapshot.fabrics.items()}
    suspects = _suspects(snapshot)
    waiting: list[WaitingJob[Candidate]] = []
    searches: dict[JobKey, Search] = {}
    costings: dict[JobKey, _Costing] = {}
    sizes: dict[tuple[str, str], tuple[tuple[str, int], ...]] = {}
    outcomes: dict[JobKey, Outcome] = {}
    for key, job in jobs.items():
        assert job.spec is not None
        if unqueued := why_not_queued(job, snapshot):
            code, sentence = unqueued
            waiting.append(_refused(job, sentence, code))
            continue
        fabric = snapshot.fabrics.get(job.spec.placement.fabric)
        if fabric is None:
            waiting.append(_refused(job, _no_fabric(job.spec, snapshot), "NoFabric"))
            continue
        name, resource = job.spec.placement.fabric, job.spec.accelerators.resource
        if (name, resource) not in sizes:
            sizes[name, resource] = domain_slots(snapshot.nodes, fabric, resource)
        slots = sizes[name, resource]
        question = Question(planned(job.spec), fabric.model_dump_json(by_alias=True), slots)
        try:
            found = answer_to(question)
        except Exception as error:
            # A mistake of Kronos about one job must not stop the others; their places don't depend on it.
            waiting.append(_refused(job, _broken(error)))
            continue
        searches[key] = found
        refusal = _unknown_level(job.spec, fabric) or found.refusal
        if refusal:
            waiting.append(_refused(job, refusal))
            continue
        lessons = snapshot.lessons.get(job.spec.placement.fabric, FabricStatus())
        costing = _Costing(
            question,
            job.spec,
            fabric,
            dict(slots) or None,
            topologies[job.spec.placement.fabric].levels,
            steps_left=job.spec.optimization.steps - steps_saved(job),
            correction=lessons.factor(job.spec.accelerators.resource),
            avoid=suspects | _own_suspects(job, snapshot),
        )
        other = left_to(job, snapshot)
        if other is not None:
            outcomes[key] = _left_to_another(snapshot, job, found, costing, other)
            continue
        costings[key] = costing
        options = tuple(costing.option(candidate) for candidate in found.candidates)
        waiting.append(
            WaitingJob(
                key=key,
                created=job.created,
                uid=job.uid,
                fabric=job.spec.placement.fabric,
                options=options,
                queue=job.spec.scheduling.queue,
                priority=priority_of(job, snapshot),
                since=_waits_since(job),
                preempts=may_preempt(job, snapshot),
                patience=_patience(job.spec),
            )
        )
    answers = admit(
        waiting,
        topologies,
        held(snapshot),
        running=running_jobs(snapshot),
        queues=limits(snapshot),
        now=snapshot.now.timestamp(),
    )
    for key, answer in answers.items():
        if isinstance(answer, Waiting):
            outcomes[key] = Wait(answer.reason, answer.message, answer.possible)
            for victim in answer.victims:
                outcomes[victim] = _stopped_for(key, jobs[key], snapshot.jobs[victim])
            continue
        outcomes[key] = _reservation(snapshot, jobs[key], searches[key], costings[key], answer)
    return outcomes


@dataclass(frozen=True)
class _Costing:
    """What the strategies of a job cost, at best and in certain places."""

    question: Question
    spec: TrainingJobSpec
    fabric: FabricSpec
    slots: Mapping[str, int] | None
    levels: tuple[str, ...]
    steps_left: int
    correction: float
    """By what jobs' measurements say that predicted times must be multiplied."""
    avoid: frozenset[str]
    """Nodes that just failed this or another job."""

    def time(self, candidate: Candidate, placement: Placement) -> StepTime:
        """A step of a strategy in a certain place."""
        lie = reaches(candidate.degrees, placement, self.levels)
        return time_in_place(self.spec, self.fabric, self.slots, candidate, lie)

    def option(self, candidate: Candidate) -> Option[Candidate]:
        """A strategy as admission looks at it."""
        objective = self.spec.strategy.objective

        def cost_in(placement: Placement) -> float:
            return candidate.cost_of(objective, self.time(candidate, placement))

        def seconds_in(placement: Placement) -> float:
            return self.steps_left * self.correction * self.time(candidate, placement).total

        return Option(
            candidate,
            _request(self.spec, candidate, self.avoid),
            cost=candidate.cost(objective),
            cost_in=cost_in,
            seconds=self.steps_left * self.correction * candidate.time.total,
            seconds_in=seconds_in,
        )


def _reservation(
    snapshot: Snapshot, job: JobView, found: Search, costing: _Costing, answer: Admitted[Candidate]
) -> Reservation:
    return Reservation(
        candidate=answer.candidate,
        search=found,
        placement=answer.placement,
        time=costing.time(answer.candidate, answer.placement),
        correction=costing.correction,
        alternatives=beside(costing.question, answer.option_index),
        pays_up_to=pays_up_to(costing.question),
        runner_up=answer.runner_up,
        memory_limit_gib=_memory(job, snapshot),
    )


def _left_to_another(
    snapshot: Snapshot, job: JobView, found: Search, costing: _Costing, other: LeftTo
) -> Reservation:
    """The best strategy, and a place that another system is to find."""
    best = found.candidates[0]
    node_slots = dict(costing.slots or {}).get(NODE_LEVEL, 1)
    members = members_of(best.degrees, most_ranks(job, snapshot) or node_slots)
    placement = Placement(
        members=members,
        rank_map=tuple(range(best.degrees.world_size)),
        domains={},
        tensor_level="",
        summary=f"left to {other.name}",
        cost=None,
        node_domains=(),
    )
    return Reservation(
        candidate=best,
        search=found,
        placement=placement,
        time=best.time,
        correction=costing.correction,
        alternatives=beside(costing.question, 0),
        pays_up_to=pays_up_to(costing.question),
        runner_up=None,
        memory_limit_gib=_memory(job, snapshot),
        left_to=other,
    )


def _memory(job: JobView, snapshot: Snapshot) -> float:
    """GiB of one of the job's accelerators."""
    assert job.spec is not None
    accelerator = snapshot.fabrics[job.spec.placement.fabric].accelerator(job.spec.accelerators.resource)
    assert accelerator is not None, "the search refuses resources that the fabric doesn't describe"
    return accelerator.memory


def _request(spec: TrainingJobSpec, candidate: Candidate, avoid: frozenset[str]) -> GangRequest:
    return GangRequest(
        degrees=candidate.degrees,
        resource=spec.accelerators.resource,
        per_rank=per_rank_amounts(spec),
        required=spec.placement.required,
        preferred=spec.placement.preferred,
        tensor_parallel_within=spec.placement.tensor_parallel_within,
        pipeline_parallel_within=spec.placement.pipeline_parallel_within,
        sharded_data_parallel_within=spec.placement.sharded_data_parallel_within,
        node_selector=spec.template.node_selector,
        node_affinity=spec.template.node_affinity,
        tolerations=spec.template.tolerations,
        avoid_nodes=avoid,
        traffic=candidate.traffic,
    )


def _broken(error: Exception) -> str:
    return (
        f"planning it ended in an error of Kronos itself ({type(error).__name__}: {error}); please report it with the job and "
        "its fabric, and try other degrees or other figures in the fabric meanwhile"
    )


def _suspects(snapshot: Snapshot) -> frozenset[str]:
    """Nodes that were lost, or couldn't be started on, a short while ago: whatever that was may come again."""
    return frozenset(
        node
        for job in snapshot.jobs.values()
        for node in _failed_on(job, snapshot, ("NodeLost", "StartTimeout"))
    )


def _own_suspects(job: JobView, snapshot: Snapshot) -> frozenset[str]:
    """Nodes on which this job failed a short while ago, for whatever reason."""
    return frozenset(_failed_on(job, snapshot, ("NodeLost", "StartTimeout", "Evicted", "TrainingFailed")))


def _failed_on(job: JobView, snapshot: Snapshot, causes: tuple[str, ...]) -> Iterator[str]:
    for record in job.status.restarts:
        if record.node and record.cause in causes and parse_time(record.at) + SUSPECTED_FOR > snapshot.now:
            yield record.node


def _waits_since(job: JobView) -> float:
    """When it began to wait: when it was created, or last stopped."""
    restarts = job.status.restarts
    return parse_time(restarts[-1].at if restarts else job.created).timestamp()


def _patience(spec: TrainingJobSpec) -> float:
    """How long it waits for a better place, in seconds; only who wants to end early waits to end earlier."""
    if spec.strategy.objective != "Time":
        return 0.0
    return parse_duration(spec.scheduling.patience).total_seconds()


def _stopped_for(key: JobKey, job: JobView, victim: JobView) -> Preempted:
    assert job.spec is not None
    assert victim.spec is not None
    queue, other = job.spec.scheduling.queue, victim.spec.scheduling.queue
    why = "whose priority is higher" if queue == other else f"whose queue {queue} needs its quota back"
    return Preempted(f"stopped for {'/'.join(key)}, {why}")


def _refused(job: JobView, refusal: str, code: str = "NoPlan") -> WaitingJob[Candidate]:
    assert job.spec is not None
    return WaitingJob(
        key=job.key,
        created=job.created,
        uid=job.uid,
        fabric=job.spec.placement.fabric,
        options=(),
        refusal=refusal,
        refused_as=code,
        queue=job.spec.scheduling.queue,
    )


def _no_fabric(spec: TrainingJobSpec, snapshot: Snapshot) -> str:
    known = ", ".join(sorted(snapshot.fabrics)) or "there is none yet"
    return (
        f"the KronosFabric {spec.placement.fabric} doesn't exist ({known}); "
        "apply one, or name another in placement.fabric"
    )


def _unknown_level(spec: TrainingJobSpec, fabric: FabricSpec) -> str | None:
    rules = spec.placement
    for field, level in rules.named_levels:
        if level not in fabric.level_names:
            return (
                f"placement.{field} names the level {level}, but the fabric {rules.fabric} has "
                f"{', '.join(fabric.level_names)}; name one of those"
            )
    return None
