"""Who stops so that another can start: the running jobs whose loss is least, and no more of them than needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kronos.admission.cluster import Future
from kronos.admission.jobs import RunningJob, WaitingJob
from kronos.admission.quotas import Ledger, Queue


def may_stop(
    job: WaitingJob[Any],
    resource: str,
    amount: int,
    running: Iterable[RunningJob],
    queue: Queue | None,
    ledger: Ledger,
    cohort_of: Callable[[str], str],
) -> list[RunningJob]:
    """The running jobs that may be stopped for a job of that many accelerators, the ones that are missed least first.

    Jobs of the same queue with a lower priority; and, where the job fits what is the queue's own, jobs of queues of the
    cohort that have borrowed, as many as they have borrowed.
    """
    within = queue.within_queue if queue else "LowerPriority"
    reclaims = (
        queue is not None
        and queue.cohort != ""
        and queue.reclaim != "Never"
        and ledger.within_nominal(queue.name, resource, amount)
    )
    found = []
    for other in running:
        if other.stopping or other.resource != resource:
            continue
        lower = other.priority < job.priority
        if other.queue == job.queue:
            allowed = within == "LowerPriority" and lower
        else:
            allowed = (
                reclaims
                and queue is not None
                and cohort_of(other.queue) == queue.cohort
                and ledger.borrows(other.queue, resource) > 0
                and (queue.reclaim == "Any" or lower)
            )
        if allowed:
            found.append(other)
    return sorted(found, key=_loss)


def _loss(job: RunningJob) -> tuple[int, float, float, tuple[str, str]]:
    """Lower priorities go first, then what loses least work, then what began last."""
    return job.priority, job.lost_work, -job.started, job.key


def choose_victims(
    candidates: Sequence[RunningJob], own_queue: str, future: Future, enough: Callable[[], bool]
) -> tuple[RunningJob, ...] | None:
    """A set of candidates that is enough, and of which none could be spared; None when all together aren't enough.

    The candidates come with the one that is missed least first. Of another queue, no more stop than it has borrowed.
    `enough` says whether the job could start in the future as it stands, in which the candidates still run.
    """
    chosen: list[RunningJob] = []
    for job in _as_borrowed(candidates, own_queue, future.ledger.copy()):
        if enough():
            break
        future.end(job)
        chosen.append(job)
    if not enough():
        return None
    for job in reversed(tuple(chosen)):
        future.go_on(job)
        if enough():
            chosen.remove(job)
        else:
            future.end(job)
    return tuple(chosen)


def _as_borrowed(candidates: Sequence[RunningJob], own_queue: str, ledger: Ledger) -> list[RunningJob]:
    """Without those of other queues that would stop after their queue has given back what it borrowed."""
    left: dict[str, int] = {}
    allowed = []
    for job in candidates:
        if job.queue != own_queue:
            borrowed = left.setdefault(job.queue, ledger.borrows(job.queue, job.resource))
            if borrowed <= 0:
                continue
            left[job.queue] = borrowed - job.accelerators
        allowed.append(job)
    return allowed


def least_loss(sets: Iterable[tuple[RunningJob, ...]]) -> tuple[RunningJob, ...] | None:
    """The set whose stop costs least: of the lowest priorities, then the least lost work, then the fewest jobs."""
    return min(
        sets,
        key=lambda jobs: (
            max((job.priority for job in jobs), default=0),
            sum(job.lost_work for job in jobs),
            len(jobs),
            sorted(job.key for job in jobs),
        ),
        default=None,
    )
