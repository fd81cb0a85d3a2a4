"""What would happen: a trace of jobs on a fabric, decided by the same code that decides on a cluster.

Time jumps from event to event: a job arrives, ends, or has stopped for another. Jobs run for exactly as long as the trace
says, and that is what admission predicts. A job that is stopped saves a checkpoint, and later does what was left, after
`restart_s` to load it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from kronos.admission.admit import admit
from kronos.admission.jobs import Admitted, Holds, Option, RunningJob, Waiting, WaitingJob
from kronos.admission.quotas import Queue
from kronos.api.plan import Degrees
from kronos.placement import PODS, GangRequest, Topology, member_requests, why_not

FABRIC = "simulated"
NAMESPACE = "trace"


class TraceJob(BaseModel):
    """A line of a trace."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str = Field(min_length=1)
    arrival_s: float = Field(ge=0, allow_inf_nan=False)
    """When it is submitted, in seconds since the trace began."""
    pods: int = Field(ge=1, le=100_000)
    """Members of the gang, one per node where nodes have no more than `gpus_per_pod` accelerators."""
    gpus_per_pod: int = Field(ge=1, le=1024)
    """Accelerators that must be in one node."""
    topology_mode: Literal["required", "preferred", "none"] = "none"
    """What the level is to the job."""
    topology_level: str | None = None
    """Level whose domain must, or should, hold the whole gang."""
    duration_s: float = Field(gt=0, allow_inf_nan=False)
    """How long it runs."""
    priority: int = 0
    queue: str = ""
    """Name of its queue, where queues are given."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a simulation assumes."""

    resource: str
    queues: Mapping[str, Queue] = field(default_factory=dict)
    restart_s: float = 60.0
    """Seconds of work that a stopped job does again when it goes on."""


@dataclass(frozen=True, slots=True)
class Times:
    """A distribution of times, in seconds."""

    mean: float
    p50: float
    p95: float
    most: float

    @staticmethod
    def of(values: Sequence[float]) -> Times:
        """The figures of some times; zeros where there are none."""
        if not values:
            return Times(0.0, 0.0, 0.0, 0.0)
        ordered = sorted(values)
        last = len(ordered) - 1
        return Times(
            mean=sum(ordered) / len(ordered),
            p50=ordered[last // 2],
            p95=ordered[ceil(0.95 * last)],
            most=ordered[-1],
        )


@dataclass(frozen=True, slots=True)
class Domains:
    """Domains of a level that gangs used, over all starts."""

    used: int
    least: int
    """What they would have used at least, had the cluster been empty: by the size of the largest domain."""


@dataclass(frozen=True, slots=True)
class Report:
    """What happened."""

    jobs: int
    finished: int
    never: Mapping[str, str]
    """Jobs that could never start, by name, with the reason."""
    accelerators: int
    makespan_seconds: float
    """From the first arrival to the last end."""
    utilization: float
    """Share of the accelerators' time in which jobs ran, over the makespan."""
    waited: Times
    """From arrival to the first start."""
    waited_by_priority: Mapping[int, Times]
    preemptions: int
    overtaken: int
    """Starts while an older job of the same or a higher priority waited."""
    stranded: float
    """Share of the free accelerators that were on partly used nodes, over the makespan: of no use to whole-node gangs."""
    domains: Mapping[str, Domains]
    """By level."""
    violations: int
    """Starts outside of the required level; not zero only by a mistake of Kronos."""


@dataclass(slots=True)
class _Run:
    """A job of the trace on its way."""

    job: TraceJob
    waiting: WaitingJob[int]
    left: float
    arrived: float
    first_start: float | None = None
    running: RunningJob | None = None


def simulate(trace: Iterable[TraceJob], topology: Topology, rules: Rules) -> Report:
    """Replay a trace; names must be unique. Deterministic: the same trace gives the same report."""
    world = _World(topology, rules, sorted(trace, key=lambda job: (job.arrival_s, job.name)))
    while world.step():
        pass
    return world.report()


class _World:
    def __init__(self, topology: Topology, rules: Rules, trace: Sequence[TraceJob]) -> None:
        self._topology = topology
        self._rules = rules
        self._runs = {
            job.name: _Run(job, _waiting(job, rules.resource), job.duration_s, job.arrival_s) for job in trace
        }
        assert len(self._runs) == len(trace), "names are unique"
        self._arrivals = list(reversed(trace))
        self._ends: list[tuple[float, str, float]] = []
        self._waiting: dict[str, _Run] = {}
        self._usage: dict[str, dict[str, int]] = {}
        self._now = self._began = trace[0].arrival_s if trace else 0.0
        self._busy = self._stranded = 0
        self._busy_time = self._stranded_time = self._free_time = 0.0
        self._total = sum(topology.allocatable(rules.resource))
        self._never: dict[str, str] = {}
        self._finished = self._preemptions = self._overtaken = self._violations = 0
        self._domains = dict.fromkeys(topology.levels, (0, 0))
        self._largest = {
            level: max((self._size(index) for index in topology.at_depth[depth]), default=0)
            for depth, level in enumerate(topology.levels, start=1)
        }

    def _size(self, index: int) -> int:
        domain = self._topology.domains[index]
        return sum(self._topology.allocatable(self._rules.resource)[domain.start : domain.stop])

    def step(self) -> bool:
        """Go to the next moment at which something happens, and decide; False when nothing is left."""
        moments = [self._arrivals[-1].arrival_s] if self._arrivals else []
        while self._ends and not self._is_due(self._ends[0]):
            heappop(self._ends)
        moments += [self._ends[0][0]] if self._ends else []
        if not moments:
            self._never |= dict.fromkeys(self._waiting, "still waits when all others have ended")
            return False
        self._pass_time(min(moments))
        while self._ends and self._ends[0][0] <= self._now:
            entry = heappop(self._ends)
            if self._is_due(entry):
                self._finish(self._runs[entry[1]])
        while self._arrivals and self._arrivals[-1].arrival_s <= self._now:
            self._arrive(self._runs[self._arrivals.pop().name])
        while self._waiting and self._decide():
            pass
        return True

    def _is_due(self, entry: tuple[float, str, float]) -> bool:
        """Whether an end still stands: the job wasn't stopped since."""
        running = self._runs[entry[1]].running
        return running is not None and running.started == entry[2]

    def _pass_time(self, moment: float) -> None:
        passed = moment - self._now
        self._busy_time += passed * self._busy
        self._free_time += passed * (self._total - self._busy)
        self._stranded_time += passed * self._stranded
        self._now = moment

    def _arrive(self, run: _Run) -> None:
        refusal = why_not(self._topology, {}, run.waiting.options[0].request)
        if refusal is not None:
            self._never[run.job.name] = refusal.message
        else:
            self._waiting[run.job.name] = run

    def _decide(self) -> bool:
        """One pass of admission; True when jobs have stopped, so that another can follow at once."""
        verdicts = admit(
            [run.waiting for run in self._waiting.values()],
            {FABRIC: self._topology},
            self._usage,
            running=[run.running for run in self._runs.values() if run.running is not None],
            queues=self._rules.queues,
            now=self._now,
        )
        stopped = False
        for (_, name), verdict in verdicts.items():
            if isinstance(verdict, Admitted):
                self._start(self._waiting.pop(name), verdict)
            elif not verdict.possible:
                self._never[name] = verdict.message
                del self._waiting[name]
            else:
                stopped = self._stop(verdict) or stopped
        return stopped

    def _start(self, run: _Run, verdict: Admitted[int]) -> None:
        job, placement = run.job, verdict.placement
        holds = {
            member.node: {**member_requests(verdict.request, member.ranks), PODS: 1}
            for member in placement.members
        }
        run.running = RunningJob(
            key=run.waiting.key,
            resource=self._rules.resource,
            accelerators=job.pods * job.gpus_per_pod,
            holds=holds,
            queue=job.queue,
            priority=job.priority,
            started=self._now,
            ends=self._now + run.left,
        )
        if run.first_start is None:
            run.first_start = self._now
        self._take(holds, 1)
        heappush(self._ends, (self._now + run.left, job.name, self._now))
        self._overtaken += any(
            other.arrived < run.arrived and other.job.priority >= job.priority
            for other in self._waiting.values()
        )
        for level, used in placement.domains.items():
            total, least = self._domains[level]
            least += ceil(job.pods * job.gpus_per_pod / self._largest[level])
            self._domains[level] = (total + used, least)
        if job.topology_mode == "required" and placement.domains.get(str(job.topology_level), 1) != 1:
            self._violations += 1

    def _stop(self, verdict: Waiting) -> bool:
        for _, name in verdict.victims:
            run = self._runs[name]
            assert run.running is not None
            done = self._now - run.running.started
            run.left = max(run.left - done, 0.0) + self._rules.restart_s
            self._take(run.running.holds, -1)
            run.running = None
            self._waiting[name] = run
            self._preemptions += 1
        return bool(verdict.victims)

    def _finish(self, run: _Run) -> None:
        assert run.running is not None
        self._take(run.running.holds, -1)
        run.running = None
        self._finished += 1

    def _take(self, holds: Holds, sign: int) -> None:
        resource = self._rules.resource
        for node, amounts in holds.items():
            here = self._usage.setdefault(node, {})
            has = self._topology.nodes[self._topology.position[node]].allocatable.get(resource, 0)
            before = here.get(resource, 0)
            for name, amount in amounts.items():
                here[name] = here.get(name, 0) + sign * amount
            after = here.get(resource, 0)
            self._busy += after - before
            self._stranded += (has - after if after else 0) - (has - before if before else 0)

    def report(self) -> Report:
        """What happened until now."""
        started = [run for run in self._runs.values() if run.first_start is not None]
        waits = {run.job.name: (run.first_start or 0.0) - run.arrived for run in started}
        priorities = sorted({run.job.priority for run in started})
        span = self._now - self._began
        return Report(
            jobs=len(self._runs),
            finished=self._finished,
            never=dict(self._never),
            accelerators=self._total,
            makespan_seconds=span,
            utilization=self._busy_time / (span * self._total) if span and self._total else 0.0,
            waited=Times.of(list(waits.values())),
            waited_by_priority={
                priority: Times.of([waits[run.job.name] for run in started if run.job.priority == priority])
                for priority in priorities
            },
            preemptions=self._preemptions,
            overtaken=self._overtaken,
            stranded=self._stranded_time / self._free_time if self._free_time else 0.0,
            domains={level: Domains(used, least) for level, (used, least) in self._domains.items()},
            violations=self._violations,
        )


def _waiting(job: TraceJob, resource: str) -> WaitingJob[int]:
    level = job.topology_level if job.topology_mode != "none" else None
    request = GangRequest(
        degrees=Degrees(data_parallel=job.pods, tensor_parallel=job.gpus_per_pod),
        resource=resource,
        required=level if job.topology_mode == "required" else None,
        preferred=level if job.topology_mode == "preferred" else None,
        tensor_parallel_within="node",
    )
    return WaitingJob(
        key=(NAMESPACE, job.name),
        # Sorts as the arrivals do.
        created=f"{job.arrival_s:020.6f}",
        uid=job.name,
        options=(Option(0, request, seconds=job.duration_s),),
        fabric=FABRIC,
        queue=job.queue,
        priority=job.priority,
        since=job.arrival_s,
    )
