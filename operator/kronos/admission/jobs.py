"""What admission is asked and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from kronos.placement import GangRequest, Placement

JobKey = tuple[str, str]
"""Namespace and name of a job."""

Candidate = TypeVar("Candidate")
"""The strategy that an option stands for. Admission hands it through and never looks inside."""

Holds = Mapping[str, Mapping[str, int]]
"""What a gang takes: node name -> resource -> amount, in base units and with `pods`."""


@dataclass(frozen=True, slots=True)
class Option(Generic[Candidate]):
    """One way of running a job."""

    candidate: Candidate
    request: GangRequest
    cost: float = 0.0
    """What it costs in the best place that there could be, to compare the options of one job by."""
    cost_in: Callable[[Placement], float] | None = None
    """What it costs in a certain place, never less than `cost`; the same in every place where this isn't given."""
    seconds: float | None = None
    """How long the rest of the job takes in the best place that there could be, if that can be predicted."""
    seconds_in: Callable[[Placement], float] | None = None
    """How long it takes in a certain place; the same in every place where this isn't given."""

    def runs_for(self, placement: Placement) -> float | None:
        """How long the rest of the job takes in a place, in seconds, if that can be predicted."""
        return self.seconds_in(placement) if self.seconds_in is not None else self.seconds


@dataclass(frozen=True, slots=True)
class WaitingJob(Generic[Candidate]):
    """A job that wants to start."""

    key: JobKey
    created: str
    """When it was created, in RFC 3339 with seconds and Z, as the API server writes it; sorts by time."""
    uid: str
    options: tuple[Option[Candidate], ...]
    """Ways of running it, the best first; all ask for the same resource."""
    refusal: str | None = None
    """Why there are no options, in one sentence, when there are none."""
    refused_as: str = "NoPlan"
    """The code for that."""
    fabric: str = "default"
    """Name of the KronosFabric that describes its network."""
    queue: str = ""
    """Name of its queue; one that isn't described has no limits."""
    priority: int = 0
    """Of its priority class; greater goes first, and may stop those that are less where the queue allows it."""
    since: float = 0.0
    """When it began to wait, in seconds on the clock that `now` is read from."""
    preempts: bool = True
    """Whether running jobs may be stopped for it at all."""
    patience: float = 0.0
    """For how many seconds since `since` it waits for a better place where that is predicted to end it earlier."""


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that holds a place. What it holds is part of the usage."""

    key: JobKey
    resource: str
    accelerators: int
    holds: Holds = field(default_factory=dict)
    queue: str = ""
    priority: int = 0
    started: float = 0.0
    """When it got its place, in seconds."""
    ends: float | None = None
    """When it is predicted to end, in seconds; None when nothing can be said."""
    unsaved: float = 0.0
    """Seconds of work that would be lost if it were stopped without a checkpoint: what it did since the last one."""
    stopping: bool = False
    """It has given its place up already; only its pods still end."""

    @property
    def lost_work(self) -> float:
        """Accelerator-seconds that stopping it would waste at worst."""
        return 0.0 if self.stopping else self.unsaved * self.accelerators


@dataclass(frozen=True, slots=True)
class Admitted(Generic[Candidate]):
    """The job may start in this place, which nobody else was promised."""

    option_index: int
    candidate: Candidate
    request: GangRequest
    placement: Placement
    runner_up: str | None
    """The next best way: one that was preferred and why it had no place, else the one that was second; None when
    there was no other."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The job has to wait."""

    reason: str
    """Code in CamelCase: those of `kronos.placement.NoFit` and of `kronos.admission.quotas.OverQuota`, or NoPlan, NoFabric,
    QueuedBehind, Preempting, WaitsForBetterPlace."""
    message: str
    """The one dominant reason, and what would admit the job; a sentence without a full stop."""
    possible: bool
    """False when it can't start on this cluster as it is, however long it waits."""
    victims: tuple[JobKey, ...] = ()
    """Running jobs that must stop to let this one start."""


Verdict = Admitted[Candidate] | Waiting
"""What becomes of one job."""
