"""When things will be free: the running jobs in the order of their ends, and what that leaves to others meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from kronos.admission.jobs import Holds, RunningJob
from kronos.placement import Placement


@dataclass(frozen=True, slots=True)
class Start:
    """When and where a job that waits is predicted to start."""

    at: float
    """In seconds; infinite when what it waits for can't be predicted."""
    placement: Placement
    ended: tuple[RunningJob, ...]
    """The jobs that have ended by then."""


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


def order_of_ends(job: RunningJob, now: float) -> tuple[float, tuple[str, str]]:
    """Sorts running jobs: those that stop already come first, then as they are predicted to end, those unknown last."""
    return ending(job, now), job.key


def ending(job: RunningJob, now: float) -> float:
    """When a job is predicted to be gone; one that is past its time is taken to end any moment."""
    if job.stopping:
        return now
    return inf if job.ends is None else max(now, job.ends)
