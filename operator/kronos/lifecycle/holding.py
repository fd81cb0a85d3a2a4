"""What jobs hold: of the nodes, now and by what was promised, and for how long they are predicted to hold it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kronos.admission import RunningJob
from kronos.api.job import TrainingJobSpec
from kronos.lifecycle.gang import parse_time
from kronos.lifecycle.objects import member_amounts
from kronos.lifecycle.snapshot import JobKey, JobView, PodView, Snapshot
from kronos.placement import PODS

Holds = dict[str, dict[str, int]]
"""Node name -> resource -> amount, in base units and with `pods`."""


def held(snapshot: Snapshot) -> Holds:
    """What is taken on each node: by bound pods of anybody, and by reserved places whose pod isn't bound yet."""
    taken: Holds = {}
    _take(taken, ((pod.node, pod.requests) for pod in snapshot.pods if pod.node and not pod.terminal))
    for job in snapshot.jobs.values():
        _take(taken, _awaited(job, snapshot))
    return taken


def holds_of(job: JobView, snapshot: Snapshot) -> Holds:
    """The part of `held` that is the job's: its pods of any attempt, and the rest of its reserved place."""
    taken: Holds = {}
    _take(taken, ((pod.node, pod.requests) for pod in snapshot.pods_of(job) if pod.node and not pod.terminal))
    _take(taken, _awaited(job, snapshot))
    return taken


def _take(taken: Holds, amounts: Iterable[tuple[str, Mapping[str, int]]]) -> None:
    for node, requests in amounts:
        on_node = taken.setdefault(node, {})
        for resource, amount in requests.items():
            on_node[resource] = on_node.get(resource, 0) + amount
        on_node[PODS] = on_node.get(PODS, 0) + 1


def has_place(job: JobView) -> bool:
    """Whether Kronos has reserved a place for the job; what other systems give out is seen in the pods alone."""
    return (
        job.spec is not None
        and job.status.placement is not None
        and job.status.placement.left_to is None
        and job.status.phase not in ("Complete", "Failed")
    )


def is_placed(job: JobView) -> bool:
    """Whether the nodes of its gang are known, whoever chose them."""
    placement = job.status.placement
    return placement is not None and placement.bound and job.status.phase not in ("Complete", "Failed")


def _awaited(job: JobView, snapshot: Snapshot) -> Iterable[tuple[str, Mapping[str, int]]]:
    """Members of a reserved place whose pods aren't bound yet: (node, amounts)."""
    if not has_place(job):
        return
    assert job.spec is not None
    assert job.status.placement is not None
    bound = {pod.member: pod for pod in snapshot.pods_of(job) if pod.attempt == job.status.attempt}
    for index, member in enumerate(job.status.placement.members):
        if _awaits_binding(bound.get(index)):
            yield member.node, member_amounts(job.spec, member)


def _awaits_binding(pod: PodView | None) -> bool:
    return pod is None or (not pod.node and not pod.terminal)


def running_jobs(snapshot: Snapshot) -> list[RunningJob]:
    """The jobs that hold something, as admission sees them."""
    found = []
    for _, job in sorted(snapshot.jobs.items()):
        if job.spec is None or (
            job.status.placement is not None and job.status.placement.left_to is not None
        ):
            continue
        placed = has_place(job) and not job.deleting
        holds = holds_of(job, snapshot)
        if placed or holds:
            found.append(_running(job, job.spec, holds, snapshot, stopping=not placed))
    return found


def _running(
    job: JobView, spec: TrainingJobSpec, holds: Holds, snapshot: Snapshot, *, stopping: bool
) -> RunningJob:
    status, now = job.status, snapshot.now.timestamp()
    resource = spec.accelerators.resource
    began = parse_time(status.placement.reserved_at).timestamp() if status.placement else now
    left, unsaved = _time_left(job, spec, began, now)
    return RunningJob(
        key=job.key,
        resource=resource,
        accelerators=status.strategy.world_size
        if status.strategy
        else sum(amounts.get(resource, 0) for amounts in holds.values()),
        holds=holds,
        queue=spec.scheduling.queue,
        priority=priority_of(job, snapshot),
        started=began,
        ends=None if left is None else now + left,
        unsaved=unsaved,
        stopping=stopping,
    )


def _time_left(job: JobView, spec: TrainingJobSpec, began: float, now: float) -> tuple[float | None, float]:
    """Seconds until its last step, if that can be said, and seconds of its work that no checkpoint has."""
    status, steps = job.status, spec.optimization.steps
    predicted = status.strategy.predicted.step_seconds if status.strategy else None
    progress = status.progress
    if progress is None or progress.attempt != status.attempt:
        done = steps_saved(job)
        left = None if predicted is None else max(0.0, (steps - done) * predicted - (now - began))
        return left, max(0.0, now - began)
    pace = progress.measured_step_seconds or predicted
    if pace is None:
        return None, max(0.0, now - began)
    saved = progress.began_at_step if progress.checkpoint_step is None else progress.checkpoint_step
    return (steps - progress.step) * pace, max(0, progress.step - saved) * pace


def steps_saved(job: JobView) -> int:
    """Steps that the job needn't do again: those of its last complete checkpoint."""
    progress = job.status.progress
    return progress.checkpoint_step or 0 if progress is not None else 0


def priority_of(job: JobView, snapshot: Snapshot) -> int:
    """The value of the job's priority class; of the cluster's default class if it names none, else 0."""
    name = job.spec.scheduling.priority_class_name if job.spec else None
    if name is not None:
        found = snapshot.priorities.get(name)
    else:
        found = next((item for _, item in sorted(snapshot.priorities.items()) if item.is_default), None)
    return found.value if found else 0


def may_preempt(job: JobView, snapshot: Snapshot) -> bool:
    """Whether the job's priority class lets it stop others."""
    name = job.spec.scheduling.priority_class_name if job.spec else None
    found = snapshot.priorities.get(name) if name else None
    return found is None or found.preempts


def by_queue(snapshot: Snapshot) -> dict[str, list[JobKey]]:
    """The jobs that aren't over, by the queue that they name."""
    found: dict[str, list[JobKey]] = {}
    for key, job in sorted(snapshot.jobs.items()):
        if job.spec is not None and job.status.phase not in ("Complete", "Failed"):
            found.setdefault(job.spec.scheduling.queue, []).append(key)
    return found
