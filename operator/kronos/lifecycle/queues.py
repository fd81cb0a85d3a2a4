"""Queues between the resource and admission: their limits, who may use them, and what their status says."""

from __future__ import annotations

from collections.abc import Mapping

from kronos.admission import Queue, Quota
from kronos.api.queue import DEFAULT_QUEUE, QueueSpec, QueueStatus, ResourceUse
from kronos.lifecycle.holding import by_queue, is_placed
from kronos.lifecycle.snapshot import JobView, QueueView, Snapshot


def limits(snapshot: Snapshot) -> dict[str, Queue]:
    """The queues as admission sees them, by name."""
    return {name: limit(name, view.spec) for name, view in snapshot.queues.items()}


def limit(name: str, spec: QueueSpec) -> Queue:
    """A queue as admission sees it."""
    return Queue(
        name=name,
        cohort=spec.cohort or "",
        quotas={
            quota.resource: Quota(quota.nominal, quota.borrowing_limit, quota.lending_limit)
            for quota in spec.quotas
        },
        weight=spec.weight,
        within_queue=spec.preemption.within_queue,
        reclaim=spec.preemption.reclaim,
    )


def why_not_queued(job: JobView, snapshot: Snapshot) -> tuple[str, str] | None:
    """Why the job can't be in its queue, or be of its priority: (code, sentence); None when it can."""
    assert job.spec is not None
    rules = job.spec.scheduling
    view = snapshot.queues.get(rules.queue)
    if view is None and rules.queue != DEFAULT_QUEUE:
        return "NoQueue", (
            f"the KronosQueue {rules.queue} doesn't exist ({_names(snapshot.queues)}); "
            "apply one, or name another in scheduling.queue"
        )
    if view is not None and view.spec.namespaces and job.namespace not in view.spec.namespaces:
        return "QueueNotAllowed", (
            f"the queue {rules.queue} isn't for the namespace {job.namespace} (it is for "
            f"{', '.join(sorted(view.spec.namespaces))}); name another in scheduling.queue"
        )
    wanted = rules.priority_class_name
    if wanted is not None and wanted not in snapshot.priorities:
        return "NoPriorityClass", (
            f"the PriorityClass {wanted} doesn't exist ({_names(snapshot.priorities)}); "
            "create it, or name another in scheduling.priorityClassName"
        )
    return None


def _names(known: Mapping[str, object]) -> str:
    return ", ".join(sorted(known)) or "there is none yet"


def queue_statuses(snapshot: Snapshot) -> dict[str, QueueStatus]:
    """What the status of each queue should say, for those where it says something else."""
    members = by_queue(snapshot)
    found = {}
    for name, view in snapshot.queues.items():
        status = _status(view, [snapshot.jobs[key] for key in members.get(name, ())])
        status = status.model_copy(update=view.status.model_extra or {})
        if status != view.status:
            found[name] = status
    return found


def _status(view: QueueView, jobs: list[JobView]) -> QueueStatus:
    running = [job for job in jobs if is_placed(job)]
    nominal = {quota.resource: quota.nominal for quota in view.spec.quotas}
    used = dict.fromkeys(nominal, 0)
    for job in running:
        assert job.spec is not None
        resource = job.spec.accelerators.resource
        used[resource] = used.get(resource, 0) + (
            job.status.strategy.world_size if job.status.strategy else 0
        )
    return QueueStatus(
        observed_generation=view.generation,
        running=len(running),
        waiting=sum(1 for job in jobs if not is_placed(job) and job.spec and not job.spec.scheduling.suspend),
        use=tuple(
            ResourceUse(
                resource=resource,
                used=amount,
                borrowed=max(0, amount - nominal[resource]) if resource in nominal else 0,
            )
            for resource, amount in sorted(used.items())
        ),
    )
