"""A pod's status, worked out from what its containers are doing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Object = Mapping[str, Any]
MESSAGE_LIMIT = 4096
LOST_MESSAGE = "The node was restarted, and the container's process is gone."


@dataclass
class ContainerRecord:
    """What is known of one container."""

    name: str
    image: str
    state: dict[str, Any] = field(default_factory=lambda: {"waiting": {"reason": "ContainerCreating"}})
    last_state: dict[str, Any] = field(default_factory=dict)
    restarts: int = 0
    ready: bool = False
    container_id: str = ""

    @classmethod
    def restored(cls, container: Object, known: Object | None, now: str) -> ContainerRecord:
        """A record for a container that an earlier life of this node may have started."""
        record = cls(container["name"], container.get("image", ""))
        if known is None:
            return record
        record.restarts = known.get("restartCount", 0)
        record.last_state = dict(known.get("lastState") or {})
        record.container_id = known.get("containerID", "")
        state = known.get("state") or {}
        if "terminated" in state:
            record.state = {"terminated": state["terminated"]}
        elif "running" in state:
            record.terminated(
                137, 0, "ContainerStatusUnknown", LOST_MESSAGE, state["running"]["startedAt"], now
            )
        elif record.container_id:
            record.restarts += 1
        return record

    @property
    def running(self) -> bool:
        """Whether it runs now."""
        return "running" in self.state

    @property
    def exit_code(self) -> int | None:
        """How its last run ended, when it has ended and is not waiting to run again."""
        ended = self.state.get("terminated")
        return None if ended is None else int(ended["exitCode"])

    @property
    def ended_once(self) -> bool:
        """Whether any run of it has ended."""
        return "terminated" in self.state or bool(self.last_state)

    def waiting(self, reason: str, message: str = "") -> None:
        """It is not running yet, or not at present."""
        if "terminated" in self.state:
            self.last_state = self.state
        self.state = {"waiting": {"reason": reason} | ({"message": message} if message else {})}
        self.ready = False

    def started(self, now: str, container_id: str) -> None:
        """It runs."""
        if "terminated" in self.state:
            self.last_state = self.state
        self.state = {"running": {"startedAt": now}}
        self.container_id = container_id

    def terminated(
        self, code: int, signal: int, reason: str, message: str, started_at: str | None, now: str
    ) -> None:
        """A run has ended."""
        ended: dict[str, Any] = {"exitCode": code, "reason": reason, "finishedAt": now}
        ended |= {"startedAt": started_at} if started_at else {}
        ended |= {"signal": signal} if signal else {}
        ended |= {"message": message[:MESSAGE_LIMIT]} if message else {}
        ended |= {"containerID": self.container_id} if self.container_id else {}
        self.state = {"terminated": ended}
        self.ready = False

    def as_status(self) -> dict[str, Any]:
        """The entry in the pod's ``containerStatuses``."""
        return {
            "name": self.name,
            "image": self.image,
            "imageID": "",
            "state": self.state,
            "lastState": self.last_state,
            "ready": self.ready,
            "started": self.running,
            "restartCount": self.restarts,
        } | ({"containerID": self.container_id} if self.container_id else {})


@dataclass(frozen=True)
class Verdict:
    """Why a pod failed as a whole, whatever its containers say."""

    reason: str
    message: str


def restarts(policy: str, code: int) -> bool:
    """Whether a container that ended with the code is started again."""
    return policy == "Always" or (policy == "OnFailure" and code != 0)


def phase(
    policy: str, init: Sequence[ContainerRecord], main: Sequence[ContainerRecord], stopped: bool
) -> str:
    """The phase of a pod; ``stopped`` means that nothing will be started any more."""
    if stopped and not any(record.running for record in (*init, *main)):
        codes = [record.exit_code for record in main]
        return "Succeeded" if codes and all(code == 0 for code in codes) else "Failed"
    for record in init:
        if record.exit_code is None or restarts(
            "OnFailure" if policy == "Always" else policy, record.exit_code
        ):
            return "Pending"
        if record.exit_code != 0:
            return "Failed"
    if any(not record.running and not record.ended_once for record in main):
        return "Pending"
    if any(record.exit_code is None or restarts(policy, record.exit_code) for record in main):
        return "Running"
    return "Succeeded" if all(record.exit_code == 0 for record in main) else "Failed"


def conditions(
    current: str,
    init: Sequence[ContainerRecord],
    main: Sequence[ContainerRecord],
    has_address: bool,
    previous: Iterable[Object],
    now: str,
) -> list[dict[str, Any]]:
    """The conditions that a node is responsible for; times change only together with the status."""
    initialized = all(record.exit_code == 0 for record in init)
    ready = bool(main) and all(record.ready for record in main)
    done = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(current)
    not_ready = sorted(record.name for record in main if not record.ready)
    explanation = {
        "reason": done or "ContainersNotReady",
        "message": "" if done else f"containers with unready status: [{' '.join(not_ready)}]",
    }
    wanted = [
        ("PodReadyToStartContainers", has_address and done is None, {}),
        ("Initialized", initialized, {"reason": "ContainersNotInitialized", "message": ""}),
        ("Ready", ready, explanation),
        ("ContainersReady", ready, explanation),
    ]
    before = {condition["type"]: condition for condition in previous}
    result = []
    for name, holds, why in wanted:
        status = "True" if holds else "False"
        known = before.get(name)
        changed = known is None or known["status"] != status
        since = now if changed or known is None else known.get("lastTransitionTime", now)
        shown = {} if holds else why
        # Explicit nulls, since the patch merges conditions and would keep an old reason.
        text = {key: shown.get(key) or None for key in ("reason", "message")}
        result.append({"type": name, "status": status, "lastTransitionTime": since, **text})
    return result
