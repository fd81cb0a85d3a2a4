"""What comes out of deciding: a new status, and actions for the controller to apply in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from kronos.api.status import TrainingJobStatus


@dataclass(frozen=True)
class Create:
    """Create an object unless one of that name, owned by the job, is there already."""

    manifest: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a pod of the job; `force` skips the grace period since its node can't confirm the end."""

    namespace: str
    pod: str
    uid: str
    force: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    """Tell people, once."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True)
class Decision:
    """The status is written first; only if that succeeds the actions follow.

    So a place is on record before a pod of it exists, and it is given up on record before its pods go: an operator
    that dies in between finds in the status what it was about to do.
    """

    status: TrainingJobStatus
    actions: tuple[Create | Delete, ...] = ()
    events: tuple[Event, ...] = ()
    look_again: datetime | None = None
    """When time alone may change the decision."""
