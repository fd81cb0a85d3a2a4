"""How long a pass of admission takes with 20,000 waiting and a thousand running jobs on 5,000 nodes."""

from __future__ import annotations

import random
from time import process_time

from bench.placement import GPU, NODES, SEED, SLOTS, gang, nodes
from kronos.admission import Admitted, Option, Queue, Quota, RunningJob, WaitingJob, admit
from kronos.placement import PODS, Topology, Usage, usage_of
from support.gangs import fabric

WAITING, QUEUES = 20_000, 50


def cluster(rng: random.Random) -> tuple[list[RunningJob], Usage]:
    """Running jobs of 1 to 16 whole nodes on about 90% of the nodes."""
    running, at, number = [], 0, 0
    while at < NODES:
        size = rng.choice((1, 1, 2, 4, 8, 16))
        if rng.random() < 0.9:
            holds = {f"node-{node}": {GPU: SLOTS, PODS: 1} for node in range(at, min(NODES, at + size))}
            running.append(
                RunningJob(
                    ("forge", f"running-{number}"),
                    GPU,
                    SLOTS * len(holds),
                    holds,
                    queue=f"queue-{number % QUEUES}",
                    started=0.0,
                    ends=rng.uniform(0, 86_400),
                    unsaved=rng.uniform(0, 3_600),
                )
            )
            number += 1
        at += size
    usage = usage_of((node, {GPU: held[GPU]}) for job in running for node, held in job.holds.items())
    return running, usage


def waiting(rng: random.Random, *, priorities: bool) -> list[WaitingJob[int]]:
    """Jobs of 1 to 512 nodes, with one option and, half of them, a level that they require."""
    jobs = []
    for number in range(WAITING):
        pods = rng.choice((1, 2, 4, 8, 16, 64, 512))
        required = rng.choice((None, "rack" if pods <= 8 else "block" if pods <= 64 else None))
        option = Option(number, gang(pods, whole=True, required=required), seconds=rng.uniform(60, 86_400))
        minute, second = divmod(number, 60)
        hour, minute = divmod(minute, 60)
        jobs.append(
            WaitingJob(
                ("forge", f"waiting-{number}"),
                f"2026-01-01T{hour:02}:{minute:02}:{second:02}Z",
                f"uid-{number}",
                (option,),
                queue=f"queue-{rng.randrange(QUEUES)}",
                priority=rng.choice((0, 0, 0, 100)) if priorities else 0,
            )
        )
    return jobs


def admission() -> dict[str, dict[str, float]]:
    """Figures by case."""
    topology = Topology.build(nodes(), fabric("block", "rack"))
    quota = {GPU: Quota(NODES * SLOTS // QUEUES)}
    described = {f"queue-{at}": Queue(f"queue-{at}", "all", quota) for at in range(QUEUES)}
    figures = {}
    for name, queues, priorities in (
        ("one queue", {}, False),
        (f"{QUEUES} queues in a cohort", described, False),
        (f"{QUEUES} queues in a cohort, two priorities", described, True),
    ):
        rng = random.Random(SEED)
        running, usage = cluster(rng)
        jobs = waiting(rng, priorities=priorities)
        if not queues:
            jobs = [
                WaitingJob(job.key, job.created, job.uid, job.options, priority=job.priority) for job in jobs
            ]
        began = process_time()
        verdicts = admit(jobs, {"default": topology}, usage, running=running, queues=queues, now=0.0)
        figures[f"{WAITING} waiting jobs, {name}"] = {
            "seconds": round(process_time() - began, 3),
            "started": sum(isinstance(verdict, Admitted) for verdict in verdicts.values()),
            "stopped": sum(
                len(verdict.victims) for verdict in verdicts.values() if not isinstance(verdict, Admitted)
            ),
        }
    return figures
