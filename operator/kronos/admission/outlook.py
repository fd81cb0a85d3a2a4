"""What will be free, and when: the cluster as it will be once some of the running jobs have ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf

from kronos.admission.jobs import Holds, RunningJob
from kronos.placement import Placement, Usage


@dataclass(frozen=True, slots=True)
class Start:
    """When and where a job that waits is predicted to start."""

    at: float
    """In seconds; infinite when what it waits for can't be predicted."""
    placement: Placement
    ended: tuple[RunningJob, ...]
    """The jobs that have ended by then."""


def without(usage: Usage, jobs: Iterable[RunningJob]) -> Usage:
    """The usage once some jobs have ended; the given one stays as it is."""
    return _added(usage, (job.holds for job in jobs), -1)


def along_with(usage: Usage, holds: Iterable[Holds]) -> Usage:
    """The usage once some gangs have taken their places; the given one stays as it is."""
    return _added(usage, holds, 1)


def _added(usage: Usage, holds: Iterable[Holds], sign: int) -> Usage:
    total = dict(usage)
    changed: dict[str, dict[str, int]] = {}
    for gang in holds:
        for node, amounts in gang.items():
            if node not in changed:
                changed[node] = dict(total.get(node, {}))
                total[node] = changed[node]
            for resource, amount in amounts.items():
                changed[node][resource] = changed[node].get(resource, 0) + sign * amount
    return total


def still_needed(place: Holds, ended: Iterable[RunningJob]) -> Holds:
    """What of a future place must be kept free now: all of it but what the ending jobs will leave there."""
    left: dict[str, dict[str, int]] = {node: dict(amounts) for node, amounts in place.items()}
    for job in ended:
        for node, amounts in job.holds.items():
            for resource, amount in amounts.items():
                if node in left and resource in left[node]:
                    left[node][resource] -= amount
    return {
        node: kept
        for node, amounts in left.items()
        if (kept := {resource: amount for resource, amount in amounts.items() if amount > 0})
    }


def first_to_end(running: Iterable[RunningJob], now: float) -> list[RunningJob]:
    """The jobs in the order in which they are predicted to end, those that stop already first, those unknown last."""
    return sorted(running, key=lambda job: (ending(job, now), job.key))


def ending(job: RunningJob, now: float) -> float:
    """When a job is predicted to be gone; one that is past its time is taken to end any moment."""
    if job.stopping:
        return now
    return inf if job.ends is None else max(now, job.ends)


def fewest_that_must_end(
    running: Sequence[RunningJob], fits: Callable[[Sequence[RunningJob]], bool]
) -> Sequence[RunningJob] | None:
    """The shortest beginning of the list after whose end the job fits, or None when it never does.

    That more have ended never makes it fit less.
    """
    if not fits(running):
        return None
    low, high = 0, len(running)
    while low < high:
        middle = (low + high) // 2
        if fits(running[:middle]):
            high = middle
        else:
            low = middle + 1
    return running[:low]
