"""Queues: how many accelerators the jobs of each may hold, what queues of a cohort lend each other, and whose turn it is.

For one resource in one cohort, with n the quota of a queue, l the part of it that it lends (all, by default), b the most
that it borrows (anything, by default) and u what its jobs hold:

    a queue holds at most            u <= n + b                  (n, outside a cohort)
    the cohort's pool is             sum of l over its queues
    what a queue takes from it is    max(0, u - (n - l)), and the sum of that over the queues is at most the pool
    a queue borrows                  max(0, u - n)
    its share is                     what it borrows / the pool / its weight

The next job is taken from the queue with the least share, counted as if its job had started already.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from kronos.admission.jobs import RunningJob


@dataclass(frozen=True, slots=True)
class Quota:
    """Accelerators of one resource that the jobs of one queue may hold."""

    nominal: int
    borrowing: int | None = None
    """Most that they may hold beyond `nominal` while others of the cohort don't need it; None for no limit."""
    lending: int | None = None
    """Most of `nominal` that others of the cohort may use meanwhile; None for all of it."""

    @property
    def lent(self) -> int:
        """What the queue puts into the cohort's pool."""
        return self.nominal if self.lending is None else min(self.lending, self.nominal)


@dataclass(frozen=True, slots=True)
class Queue:
    """A KronosQueue as admission sees it."""

    name: str
    cohort: str = ""
    """Queues of the same cohort lend each other what they don't use; none for a queue that stands alone."""
    quotas: Mapping[str, Quota] = field(default_factory=dict)
    """By resource. Without any, the queue has no limits; with some, its jobs can't use other resources."""
    weight: float = 1.0
    """How much of the pool it may borrow relative to others before they go first."""
    within_queue: Literal["Never", "LowerPriority"] = "LowerPriority"
    """Whose jobs of the same queue may be stopped for one of its jobs."""
    reclaim: Literal["Never", "LowerPriority", "Any"] = "Any"
    """Whose jobs of borrowing queues may be stopped so that it gets its own quota back."""


@dataclass(frozen=True, slots=True)
class OverQuota:
    """Why a queue's limits keep a job from starting."""

    reason: str
    """Code in CamelCase: NoQuota, ExceedsQuota, QuotaExceeded or CohortExhausted."""
    message: str
    change: str
    """What would let it start, to complete a sentence that begins with "waits for"."""
    possible: bool
    missing: int
    """Accelerators by which it is too much."""


class Ledger:
    """What the jobs of each queue hold."""

    def __init__(self, queues: Mapping[str, Queue], running: Iterable[RunningJob] = ()) -> None:
        self._queues = queues
        self._used: dict[tuple[str, str], int] = {}
        # By cohort and resource: what its queues lend, and what they have taken of it.
        self._lent: dict[tuple[str, str], int] = {}
        self._drawn: dict[tuple[str, str], int] = {}
        for queue in queues.values():
            for resource, quota in queue.quotas.items():
                if queue.cohort:
                    pool = (queue.cohort, resource)
                    self._lent[pool] = self._lent.get(pool, 0) + quota.lent
        for job in running:
            # The pods of one that stops still hold nodes, but its quota is somebody else's already.
            if not job.stopping:
                self.take(job.queue, job.resource, job.accelerators)

    def copy(self) -> Ledger:
        """Another ledger that starts with the same entries."""
        other = Ledger({})
        other._queues, other._lent = self._queues, self._lent
        other._used, other._drawn = dict(self._used), dict(self._drawn)
        return other

    def used(self, queue: str, resource: str) -> int:
        """What the queue's jobs hold of a resource."""
        return self._used.get((queue, resource), 0)

    def take(self, queue: str, resource: str, amount: int) -> None:
        """Enter a job that starts; a negative amount for one that ends."""
        used = self.used(queue, resource)
        self._used[queue, resource] = used + amount
        described = self._queues.get(queue)
        if described is not None and described.cohort:
            pool = (described.cohort, resource)
            more = _drawn(described, resource, used + amount) - _drawn(described, resource, used)
            self._drawn[pool] = self._drawn.get(pool, 0) + more

    def borrows(self, queue: str, resource: str) -> int:
        """What the queue's jobs hold beyond its own quota."""
        quota = self._quota(queue, resource)
        return max(0, self.used(queue, resource) - quota.nominal) if quota else 0

    def within_nominal(self, queue: str, resource: str, amount: int) -> bool:
        """Whether a job of that many accelerators would have room in what is the queue's own."""
        quota = self._quota(queue, resource)
        return quota is not None and self.used(queue, resource) + amount <= quota.nominal

    def share(self, queue: str, resource: str, amount: int) -> float:
        """The queue's share of its cohort's pool once a job of that many accelerators has started; 0 while it borrows nothing."""
        quota, described = self._quota(queue, resource), self._queues.get(queue)
        if quota is None or described is None:
            return 0.0
        borrowed = max(0, self.used(queue, resource) + amount - quota.nominal)
        if not borrowed:
            return 0.0
        pool = self._pool(described.cohort, resource)
        return borrowed / pool / described.weight if pool else inf

    def over(self, queue: str, resource: str, amount: int) -> OverQuota | None:
        """What the limits have against a job of that many accelerators, or None."""
        described = self._queues.get(queue)
        if described is None or not described.quotas:
            return None
        quota = described.quotas.get(resource)
        if quota is None:
            return OverQuota(
                "NoQuota",
                f"the queue {queue} has no quota for {resource}; it has some for {', '.join(sorted(described.quotas))}",
                f"a quota for {resource} in the queue {queue}",
                possible=False,
                missing=amount,
            )
        most = self._most(described, quota, resource)
        if amount > most:
            return OverQuota(
                "ExceedsQuota",
                f"needs {amount} {resource}, and the queue {queue} may never use more than {most}",
                f"{amount - most} more {resource} in the quota of the queue {queue}",
                possible=False,
                missing=amount - most,
            )
        used = self.used(queue, resource)
        limit = quota.nominal + (
            0 if not described.cohort else inf if quota.borrowing is None else quota.borrowing
        )
        if used + amount > limit:
            missing = int(used + amount - limit)
            of = f"{int(limit)}" if limit == quota.nominal else f"{int(limit)} (borrowed ones included)"
            return OverQuota(
                "QuotaExceeded",
                f"needs {amount} {resource}; the queue {queue} would be {missing} over its quota, since it uses {used} of {of}",
                f"the queue {queue} to use {missing} {resource} less",
                possible=True,
                missing=missing,
            )
        return self._over_pool(described, quota, resource, amount)

    def _over_pool(self, queue: Queue, quota: Quota, resource: str, amount: int) -> OverQuota | None:
        if not queue.cohort:
            return None
        left = self._pool(queue.cohort, resource) - self._drawn.get((queue.cohort, resource), 0)
        used = self.used(queue.name, resource)
        more = _drawn(queue, resource, used + amount) - _drawn(queue, resource, used)
        if more <= left:
            return None
        own = max(0, quota.nominal - used)
        what = (
            f"{own} of its own quota, but others of the cohort {queue.cohort} have borrowed them"
            if amount <= own
            else f"{own} of its own quota and {max(0, left - min(own, quota.lent))} to borrow in the cohort {queue.cohort}"
        )
        return OverQuota(
            "CohortExhausted",
            f"needs {amount} {resource}; the queue {queue.name} has left {what}",
            f"the cohort {queue.cohort} to use {more - left} {resource} less",
            possible=True,
            missing=more - left,
        )

    def _quota(self, queue: str, resource: str) -> Quota | None:
        described = self._queues.get(queue)
        return described.quotas.get(resource) if described else None

    def _pool(self, cohort: str, resource: str) -> int:
        return self._lent.get((cohort, resource), 0)

    def _most(self, queue: Queue, quota: Quota, resource: str) -> int:
        """What the queue's jobs may hold when nobody else holds anything."""
        if not queue.cohort:
            return quota.nominal
        most = quota.nominal - quota.lent + self._pool(queue.cohort, resource)
        return most if quota.borrowing is None else min(most, quota.nominal + quota.borrowing)


def _drawn(queue: Queue, resource: str, used: int) -> int:
    """What a queue that uses so much takes from the pool."""
    quota = queue.quotas.get(resource)
    return max(0, used - (quota.nominal - quota.lent)) if quota else 0
