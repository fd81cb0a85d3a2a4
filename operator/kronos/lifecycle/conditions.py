"""Conditions, derived from the phase alone, so that they can't contradict it or each other."""

from __future__ import annotations

from typing import Literal

from kronos.api.status import Condition, ConditionType, TrainingJobStatus

Truth = tuple[Literal["True", "False"], str, str]
"""Status, reason, message."""

_ORDER: tuple[ConditionType, ...] = (
    "Ready",
    "Reconciling",
    "Stalled",
    "Admitted",
    "PodsReady",
    "Complete",
    "Failed",
)


def with_conditions(
    status: TrainingJobStatus, previous: TrainingJobStatus, now: str, reason: str, *, stalled: bool
) -> TrainingJobStatus:
    """The status with the conditions that its phase implies.

    `reason` is the CamelCase word for the state, `stalled` says that only a change by a person helps. A condition
    keeps its transition time while its status stays the same.
    """
    before = {condition.type: condition for condition in previous.conditions}
    conditions = []
    for kind, (truth, why, message) in _truths(status, reason, stalled=stalled).items():
        old = before.get(kind)
        since = old.last_transition_time if old is not None and old.status == truth else now
        conditions.append(
            Condition(
                type=kind,
                status=truth,
                reason=why,
                message=message,
                last_transition_time=since,
                observed_generation=status.observed_generation,
            )
        )
    return status.model_copy(update={"conditions": tuple(conditions)})


def gist(status: TrainingJobStatus) -> tuple[object, ...]:
    """What a status says apart from how it words and counts it: two with the same gist differ in nothing that decides."""
    rest = status.model_copy(update={"reason": "", "ready": "", "progress": None, "conditions": ()})
    waits = status.placement is None
    conditions = tuple((item.type, item.status, "" if waits else item.reason) for item in status.conditions)
    return rest, conditions, status.progress is None


def _truths(status: TrainingJobStatus, reason: str, *, stalled: bool) -> dict[ConditionType, Truth]:
    phase, message = status.phase, status.reason
    no: Truth = ("False", reason, "")  # the sentence stands once, in Ready and in whatever is True
    yes: Truth = ("True", reason, message)
    holds_place = status.placement is not None and phase in ("Starting", "Running")
    training = (
        phase == "Running" and status.progress is not None and status.progress.attempt == status.attempt
    )
    settled = phase in ("Running", "Complete", "Failed", "Suspended")
    truths: dict[ConditionType, Truth] = {
        # A completed job is what its owner wanted, so tools that wait for Ready must see it.
        "Ready": yes if phase == "Complete" or training else ("False", reason, message),
        "Reconciling": no if settled or stalled else yes,
        "Stalled": yes if stalled or phase == "Failed" else no,
        "Admitted": ("True", "PlacedTogether", "") if holds_place or phase == "Complete" else no,
        "PodsReady": ("True", "AllMembersRunning", "") if phase == "Running" else no,
        "Complete": yes if phase == "Complete" else no,
        "Failed": yes if phase == "Failed" else no,
    }
    return {kind: truths[kind] for kind in _ORDER}
