"""From what the API server says to the views that decisions are made on."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from kronos.api.job import TrainingJobSpec
from kronos.api.plan import LastWords
from kronos.api.quantity import parse_quantity, pod_requests
from kronos.api.queue import QueueSpec, QueueStatus
from kronos.api.status import TrainingJobStatus
from kronos.lifecycle import JobView, PodView, PriorityClass, QueueView
from kronos.lifecycle.objects import LABEL_ATTEMPT, LABEL_MEMBER
from kronos.placement import Node, Taint

Json = Mapping[str, Any]

logger = logging.getLogger(__name__)

_LONGEST = 1000
"""Characters that a status takes over from what a pod says."""


def job_view(raw: Json) -> JobView:
    """A KronosTrainingJob. A spec that this operator can't read becomes `invalid`, never an exception."""
    metadata = raw["metadata"]
    spec, invalid = None, ""
    try:
        spec = TrainingJobSpec.model_validate(raw.get("spec") or {})
    except ValidationError as error:
        invalid = f"the spec isn't valid: {_first_error(error)}"
    opaque = False
    try:
        status = TrainingJobStatus.model_validate(raw.get("status") or {})
    except ValidationError as error:
        # Written by another version or by somebody else. Whoever wrote a fresh one could start a finished job again.
        status, opaque = TrainingJobStatus(), True
        spec, invalid = None, f"the status isn't one that this operator can read: {_first_error(error)}"
        logger.warning("%s/%s is left as it is: %s", metadata["namespace"], metadata["name"], invalid)
    return JobView(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 0),
        created=metadata["creationTimestamp"],
        spec=spec,
        status=status,
        invalid=invalid,
        opaque=opaque,
        deleting="deletionTimestamp" in metadata,
    )


def _first_error(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else str(first["msg"])


def node_view(raw: Json) -> Node:
    """A node with what it offers."""
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    allocatable = status.get("allocatable") or status.get("capacity") or {}
    return Node(
        name=metadata["name"],
        labels=metadata.get("labels") or {},
        allocatable={name: parse_quantity(text, name, round_up=False) for name, text in allocatable.items()},
        taints=tuple(
            Taint(key=taint["key"], value=taint.get("value", ""), effect=taint["effect"])
            for taint in spec.get("taints") or ()
        ),
        ready=any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for condition in status.get("conditions") or ()
        ),
        schedulable=not spec.get("unschedulable", False),
    )


def queue_view(raw: Json) -> QueueView:
    """A KronosQueue. A status that can't be read counts as none: it is made anew from what jobs hold."""
    metadata = raw["metadata"]
    try:
        status = QueueStatus.model_validate(raw.get("status") or {})
    except ValidationError as error:
        logger.warning("the status of queue %s is written anew: %s", metadata["name"], _first_error(error))
        status = QueueStatus()
    return QueueView(
        name=metadata["name"],
        generation=metadata.get("generation", 0),
        spec=QueueSpec.model_validate(raw["spec"]),
        status=status,
    )


def priority_view(raw: Json) -> PriorityClass:
    """A PriorityClass."""
    return PriorityClass(
        name=raw["metadata"]["name"],
        value=raw["value"],
        is_default=raw.get("globalDefault", False),
        preempts=raw.get("preemptionPolicy") != "Never",
    )


def pod_view(raw: Json) -> PodView:
    """A pod; of members of gangs also how they fare."""
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    labels = metadata.get("labels") or {}
    owner = next((item for item in metadata.get("ownerReferences") or () if item.get("controller")), None)
    ours = owner is not None and owner["kind"] == "KronosTrainingJob"
    message, since = _unschedulable(status)
    view = {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "phase": status.get("phase") or "Pending",
        "node": spec.get("nodeName") or "",
        "requests": pod_requests(spec),
        "owner_uid": owner["uid"] if owner is not None else "",
        "ip": status.get("podIP") or "",
        "deleting": "deletionTimestamp" in metadata,
    }
    if not ours:
        return PodView(**view)
    return PodView(
        **view,
        attempt=_number(labels.get(LABEL_ATTEMPT), 0),
        member=_number(labels.get(LABEL_MEMBER), -1),
        unschedulable=message,
        unschedulable_since=since,
        **_container_facts(status),
    )


def _number(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isdecimal() else default


def _unschedulable(status: Json) -> tuple[str, datetime | None]:
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            since = condition.get("lastTransitionTime")
            return condition.get("message") or "", _time(since)
    return "", None


def _container_facts(status: Json) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "exit_reason": status.get("reason") or "",
        "raw_message": _readable(status.get("message") or ""),
    }
    for container in status.get("containerStatuses") or ():
        state = container.get("state") or {}
        waiting, ended = state.get("waiting"), state.get("terminated")
        if waiting is not None and waiting.get("reason") not in (
            None,
            "ContainerCreating",
            "PodInitializing",
        ):
            facts["waiting"], facts["waiting_message"] = (
                waiting["reason"],
                _readable(waiting.get("message") or ""),
            )
        if ended is not None:
            message = ended.get("message") or ""
            facts["exit_code"] = ended.get("exitCode")
            facts["exit_reason"] = facts["exit_reason"] or ended.get("reason") or ""
            facts["finished"] = _time(ended.get("finishedAt"))
            facts["last_words"] = _last_words(message)
            facts["raw_message"] = facts["raw_message"] or _readable(message)
    return facts


def _last_words(message: str) -> LastWords | None:
    """What a trainer said at its end; None for anything else, since anything may be in a termination message."""
    try:
        words = LastWords.model_validate(json.loads(message))
    except (ValueError, RecursionError):  # the former is also pydantic's ValidationError
        return None
    return words.model_copy(update={"error": _readable(words.error) if words.error else words.error})


def _readable(text: str) -> str:
    """Words of a pod as one line that a status can hold: printable, and not too long."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
