"""Which jobs wait for a place, and what admission says about each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from kronos.admission import Admitted, Option, Waiting, WaitingJob, admit
from kronos.api.fabric import NODE_LEVEL, FabricSpec, FabricStatus
from kronos.api.job import TrainingJobSpec
from kronos.api.plan import GangMember
from kronos.lifecycle.gang import parse_time
from kronos.lifecycle.objects import per_rank_amounts
from kronos.lifecycle.snapshot import JobKey, JobView, PodView, Snapshot
from kronos.placement import GangRequest, Node, Placement, Topology, reaches
from kronos.strategy import Alternative, Candidate, Search, StepTime, alternatives, search, time_in_place


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
    runner_up: str | None
    memory_limit_gib: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a job has no place; `possible` False when only a change by a person helps."""

    reason: str
    message: str
    possible: bool


Outcome = Reservation | Wait


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
    """Place the jobs that wait, in their order, on what is free in the snapshot."""
    jobs = {key: job for key, job in sorted(snapshot.jobs.items()) if wants_place(job, snapshot)}
    if not jobs:
        return {}
    topologies = {name: Topology.build(snapshot.nodes, fabric) for name, fabric in snapshot.fabrics.items()}
    waiting: list[WaitingJob[Candidate]] = []
    searches: dict[JobKey, Search] = {}
    costings: dict[JobKey, _Costing] = {}
    for key, job in jobs.items():
        assert job.spec is not None
        fabric = snapshot.fabrics.get(job.spec.placement.fabric)
        if fabric is None:
            waiting.append(_refused(job, _no_fabric(job.spec, snapshot)))
            continue
        slots = domain_slots(snapshot.nodes, fabric, job.spec.accelerators.resource)
        try:
            found = _search(
                job.spec.model_dump_json(by_alias=True), fabric.model_dump_json(by_alias=True), slots
            )
        except Exception as error:
            # A mistake of Kronos about one job must not stop the others; their places don't depend on it.
            waiting.append(_refused(job, _broken(error)))
            continue
        searches[key] = found
        refusal = _unknown_level(job.spec, fabric) or found.refusal
        if refusal:
            waiting.append(_refused(job, refusal))
            continue
        costing = _Costing(
            job.spec, fabric, dict(slots) or None, topologies[job.spec.placement.fabric].levels
        )
        costings[key] = costing
        options = tuple(costing.option(candidate) for candidate in found.candidates)
        waiting.append(
            WaitingJob(
                key=key,
                created=job.created,
                uid=job.uid,
                fabric=job.spec.placement.fabric,
                options=options,
                refusal=None,
            )
        )
    answers = admit(waiting, topologies, held(snapshot))
    outcomes: dict[JobKey, Outcome] = {}
    for key, answer in answers.items():
        if isinstance(answer, Waiting):
            outcomes[key] = Wait(answer.reason, answer.message, answer.possible)
            continue
        outcomes[key] = _reservation(snapshot, jobs[key], searches[key], costings[key], answer)
    return outcomes


@dataclass(frozen=True)
class _Costing:
    """What the strategies of a job cost, at best and in certain places."""

    spec: TrainingJobSpec
    fabric: FabricSpec
    slots: Mapping[str, int] | None
    levels: tuple[str, ...]

    def time(self, candidate: Candidate, placement: Placement) -> StepTime:
        """A step of a strategy in a certain place."""
        lie = reaches(candidate.degrees, placement, self.levels)
        return time_in_place(self.spec, self.fabric, self.slots, candidate, lie)

    def option(self, candidate: Candidate) -> Option[Candidate]:
        """A strategy as admission looks at it."""
        objective = self.spec.strategy.objective

        def cost_in(placement: Placement) -> float:
            return candidate.cost_of(objective, self.time(candidate, placement))

        return Option(
            candidate, _request(self.spec, candidate), cost=candidate.cost(objective), cost_in=cost_in
        )


def _reservation(
    snapshot: Snapshot, job: JobView, found: Search, costing: _Costing, answer: Admitted[Candidate]
) -> Reservation:
    assert job.spec is not None
    name, resource = job.spec.placement.fabric, job.spec.accelerators.resource
    fabric = snapshot.fabrics[name]
    accelerator = fabric.accelerator(resource)
    lessons = snapshot.lessons.get(name, FabricStatus())
    assert accelerator is not None, "the search refuses resources that the fabric doesn't describe"
    return Reservation(
        candidate=answer.candidate,
        search=found,
        placement=answer.placement,
        time=costing.time(answer.candidate, answer.placement),
        correction=lessons.factor(resource),
        alternatives=alternatives(job.spec, fabric, answer.candidate, costing.slots),
        runner_up=answer.runner_up,
        memory_limit_gib=accelerator.memory,
    )


def held(snapshot: Snapshot) -> dict[str, dict[str, int]]:
    """What is taken on each node: by bound pods of anybody, and by reserved places whose pod isn't bound yet."""
    taken: dict[str, dict[str, int]] = {}

    def take(node: str, amounts: Mapping[str, int]) -> None:
        on_node = taken.setdefault(node, {})
        for resource, amount in amounts.items():
            on_node[resource] = on_node.get(resource, 0) + amount
        on_node["pods"] = on_node.get("pods", 0) + 1

    for pod in snapshot.pods:
        if pod.node and not pod.terminal:
            take(pod.node, pod.requests)
    for job in snapshot.jobs.values():
        if job.spec is None or job.status.placement is None or job.status.phase in ("Complete", "Failed"):
            continue
        bound = {pod.member: pod for pod in snapshot.pods_of(job) if pod.attempt == job.status.attempt}
        for index, member in enumerate(job.status.placement.members):
            if _awaits_binding(bound.get(index)):
                take(member.node, member_amounts(job.spec, member))
    return taken


def _awaits_binding(pod: PodView | None) -> bool:
    return pod is None or (not pod.node and not pod.terminal)


def member_amounts(spec: TrainingJobSpec, member: GangMember) -> dict[str, int]:
    """What a member's pod requests, in base units."""
    amounts = {name: amount * member.ranks for name, amount in per_rank_amounts(spec).items()}
    return {spec.accelerators.resource: member.ranks, **amounts}


def _request(spec: TrainingJobSpec, candidate: Candidate) -> GangRequest:
    return GangRequest(
        degrees=candidate.degrees,
        resource=spec.accelerators.resource,
        per_rank=per_rank_amounts(spec),
        required=spec.placement.required,
        preferred=spec.placement.preferred,
        tensor_parallel_within=spec.placement.tensor_parallel_within,
        node_selector=spec.template.node_selector,
        tolerations=spec.template.tolerations,
        traffic=candidate.traffic,
    )


def domain_slots(nodes: Iterable[Node], fabric: FabricSpec, resource: str) -> tuple[tuple[str, int], ...]:
    """Accelerators in the largest domain of each level, by level name: what an axis may span on that level's links.

    Empty where no node offers the resource. Counts what nodes offer, not what is free now, so that a strategy doesn't
    change with every pod that comes and goes.
    """
    sizes: dict[str, dict[tuple[str, ...], int]] = {}
    for node in nodes:
        slots = node.allocatable.get(resource, 0)
        if not slots:
            continue
        sizes.setdefault(NODE_LEVEL, {})[node.name,] = slots
        path: tuple[str, ...] = ()
        for level in fabric.levels:
            if level.node_label not in node.labels:
                break
            path = (*path, node.labels[level.node_label])
            domains = sizes.setdefault(level.name, {})
            domains[path] = domains.get(path, 0) + slots
    return tuple((name, max(sizes[name].values())) for name in fabric.level_names if name in sizes)


@lru_cache(maxsize=4096)
def _search(spec: str, fabric: str, slots: tuple[tuple[str, int], ...]) -> Search:
    """The strategies of a spec on a fabric; asked again each round for each waiting job, so remembered."""
    return search(
        TrainingJobSpec.model_validate_json(spec), FabricSpec.model_validate_json(fabric), dict(slots) or None
    )


def _broken(error: Exception) -> str:
    return (
        f"planning it ended in an error of Kronos itself ({type(error).__name__}: {error}); please report it with the job and "
        "its fabric, and try other degrees or other figures in the fabric meanwhile"
    )


def _refused(job: JobView, refusal: str) -> WaitingJob[Candidate]:
    assert job.spec is not None
    return WaitingJob(
        key=job.key,
        created=job.created,
        uid=job.uid,
        fabric=job.spec.placement.fabric,
        options=(),
        refusal=refusal,
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
