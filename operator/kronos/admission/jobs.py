"""What admission is asked and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from kronos.placement import GangRequest, Placement

JobKey = tuple[str, str]
"""Namespace and name of a job."""

Candidate = TypeVar("Candidate")
"""The strategy that an option stands for. Admission hands it through and never looks inside."""


@dataclass(frozen=True, slots=True)
class Option(Generic[Candidate]):
    """One way of running a job."""

    candidate: Candidate
    request: GangRequest
    cost: float = 0.0
    """What it costs in the best place that there could be, to compare the options of one job by."""
    cost_in: Callable[[Placement], float] | None = None
    """What it costs in a certain place, never less than `cost`; the same in every place where this isn't given."""


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
    fabric: str = "default"
    """Name of the KronosFabric that describes its network."""


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
    """Code in CamelCase: those of `kronos.placement.NoFit`, or NoPlan, NoFabric, QueuedBehind."""
    message: str
    """The one dominant reason, and what would admit the job; a sentence without a full stop."""
    possible: bool
    """False when it can't start on this cluster as it is, however long it waits."""


Verdict = Admitted[Candidate] | Waiting
"""What becomes of one job."""
