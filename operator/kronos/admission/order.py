"""Whose turn it is: jobs within a queue, and the queues among each other.

Within a queue the higher priority goes first, then the older job. Waiting lifts a job: for each `AGING` that it has waited,
it counts like the next higher priority among those that wait, so that a stream of urgent jobs delays the others but never
for ever. Among queues the one goes first that would borrow the smaller share of its cohort's pool; among those that borrow
nothing, the order is that of their first jobs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any

from kronos.admission.jobs import WaitingJob

AGING = 3600.0
"""Seconds of waiting that lift a job by one class."""

_Rank = tuple[int, str, tuple[str, str], str]


def in_turn(
    waiting: Iterable[WaitingJob[Any]], now: float, share: Callable[[WaitingJob[Any]], float]
) -> Iterator[WaitingJob[Any]]:
    """The jobs, one after the other; what was decided about one counts before the next is chosen.

    `share` tells which share of the pool the job's queue would have if the job started.
    """
    jobs = list(waiting)
    classes = sorted({job.priority for job in jobs})

    def rank(job: WaitingJob[Any]) -> _Rank:
        lifted = bisect_left(classes, job.priority) + int(max(0.0, now - job.since) // AGING)
        return -min(lifted, len(classes) - 1), job.created, job.key, job.uid

    queues: dict[str, list[tuple[_Rank, WaitingJob[Any]]]] = {}
    for job in jobs:
        queues.setdefault(job.queue, []).append((rank(job), job))
    heads: list[tuple[float, _Rank, str]] = []
    for name, members in queues.items():
        # The next one is at the end.
        members.sort(key=lambda item: item[0], reverse=True)
        heads.append((share(members[-1][1]), members[-1][0], name))
    heapify(heads)
    while heads:
        _, _, name = heappop(heads)
        members = queues[name]
        yield members.pop()[1]
        # A queue's share depends on nothing but its own jobs, so the others keep their place in the heap.
        if members:
            heappush(heads, (share(members[-1][1]), members[-1][0], name))
