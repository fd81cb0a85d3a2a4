"""A gang that holds a place, and the chain of questions that may end its attempt.

Each policy looks at the gang and the clock and gives a verdict or nothing; the first verdict counts. Their order is
the order of what people would call the reason: success, then what they asked for, then the earliest failure, then
losses, then time running out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from kronos.api.base import parse_duration
from kronos.api.job import TrainingJobSpec
from kronos.api.status import PlacementStatus, StrategyStatus
from kronos.lifecycle.obstacles import (
    never_begins,
    why_never_began,
    why_not_bound,
    why_not_ready,
    why_waiting,
)
from kronos.lifecycle.recheck import why_place_is_lost
from kronos.lifecycle.snapshot import JobView, PodView, Snapshot

SETTLE = timedelta(seconds=5)
"""After a first failure the other members get this long to end as well, so that the first cause can be told."""
SILENCE = timedelta(seconds=90)
"""When members only echo another's end, and that other says nothing, this long for its node to be found lost: the control
plane takes 50 s by default to tell that a node doesn't answer."""
BIND_GRACE = timedelta(seconds=10)
"""A pinned pod that the scheduler can't bind for this long won't be bound."""

EXIT_BAD_INPUT = 2
"""The trainer's exit code for a plan or data that no restart can mend."""
EXIT_RENDEZVOUS = 4
"""The trainer's exit code when members didn't meet in time."""
_LAST_SIGNAL = 64
EXIT_STOPPED = 143
"""The trainer's exit code after it was asked to stop and did."""

Cause = Literal["TrainingFailed", "PodLost", "NodeLost", "StartTimeout", "PlaceLost", "Stopped", "Evicted"]


@dataclass(frozen=True)
class Gang:
    """The current attempt of a job: members by index, None where a pod doesn't exist."""

    job: JobView
    spec: TrainingJobSpec
    strategy: StrategyStatus
    placement: PlacementStatus
    members: tuple[PodView | None, ...]
    snapshot: Snapshot

    @property
    def now(self) -> datetime:
        """The moment of the snapshot."""
        return self.snapshot.now

    @property
    def pods(self) -> tuple[PodView, ...]:
        """The pods that exist, by member."""
        return tuple(pod for pod in self.members if pod is not None)

    @property
    def started(self) -> bool:
        """All members were running at some time, on record."""
        return self.placement.ready_at is not None

    @property
    def start_deadline(self) -> datetime:
        """When a gang that isn't running yet gives its place back."""
        return parse_time(self.placement.reserved_at) + parse_duration(self.spec.scheduling.start_timeout)

    def name(self, member: int) -> str:
        """A member and its node, for people."""
        node = self.placement.members[member].node
        return f"member {member} on {node}" if node else f"member {member}"


@dataclass(frozen=True, slots=True)
class Suspend:
    """The user asked the job to pause."""


@dataclass(frozen=True, slots=True)
class Finish:
    """All members ended well."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The attempt is over; `retry` False means that no further one can help."""

    cause: Cause
    message: str
    node: str | None = None
    retry: bool = True


Verdict = Suspend | Finish | GiveUp


def parse_time(text: str) -> datetime:
    """An RFC 3339 time as Kubernetes writes it."""
    return datetime.fromisoformat(text)


def suspended(gang: Gang) -> Suspend | None:
    """The spec says suspend."""
    return Suspend() if gang.spec.scheduling.suspend else None


def completed(gang: Gang) -> Finish | None:
    """Every member's pod succeeded."""
    done = all(pod is not None and pod.phase == "Succeeded" for pod in gang.members)
    return Finish() if done else None


def failed(gang: Gang) -> GiveUp | None:
    """A member failed: name the one that failed first, once the others had time to end or to admit a part in it."""
    failures = [pod for pod in gang.pods if pod.phase == "Failed"]
    if not failures:
        return None
    primary = [pod for pod in failures if _explains(pod)]
    if not primary and gang.now < settles_at(gang, failures):
        return None
    silent = _silent(gang)
    if silent is not None and all(map(_echoes, failures)):
        return GiveUp(
            "NodeLost",
            f"{gang.name(silent)} fell silent: the others lost contact with it, and nothing tells how it ended",
            gang.placement.members[silent].node,
        )
    first = min(primary or failures, key=lambda pod: (pod.finished or gang.now, pod.member))
    return _verdict_on(gang, first)


def settles_at(gang: Gang, failures: list[PodView]) -> datetime:
    """When the members have had their time to say why they ended; the past when all have ended."""
    first = min((pod.finished or gang.now) for pod in failures)
    if all(pod.terminal for pod in gang.pods):
        return first
    return first + (SILENCE if all(map(_echoes, failures)) else SETTLE)


def _silent(gang: Gang) -> int | None:
    """The first member whose pod exists and hasn't ended, if any."""
    return next((pod.member for pod in gang.pods if not pod.terminal), None)


def _echoes(pod: PodView) -> bool:
    """The pod says itself that it ended since another did."""
    words = pod.last_words
    return words is not None and words.outcome == "Failed" and words.secondary


def _explains(pod: PodView) -> bool:
    """The pod's end is a cause by itself, not the echo of another's."""
    words = pod.last_words
    return words is not None and words.outcome == "Failed" and not words.secondary


def _verdict_on(gang: Gang, pod: PodView) -> GiveUp:
    node = gang.placement.members[pod.member].node
    who = gang.name(pod.member)
    words = pod.last_words
    if pod.exit_reason in ("Evicted", "Preempting", "Terminated", "NodeShutdown", "DeletionByTaintManager"):
        return GiveUp("Evicted", f"{who} was evicted: {pod.raw_message or pod.exit_reason}", node)
    if pod.exit_reason == "NodeLost":
        return GiveUp("NodeLost", f"{who} was lost with its node", node)
    if pod.exit_reason == "OOMKilled":
        return GiveUp(
            "TrainingFailed", f"{who} was killed since it ran out of memory{_limit(gang, pod)}", node
        )
    if unbegun := why_never_began(pod.exit_reason, pod.raw_message):
        again = not never_begins(pod.exit_reason, pod.raw_message)
        return GiveUp("TrainingFailed", f"{who} failed: {unbegun}", node, retry=again)
    if words is not None and words.outcome == "Failed":
        where = f"rank {words.rank} ({who})" if words.rank is not None else who
        when = f" at step {words.step}" if words.step is not None else ""
        message = f"{where} failed{when}: {words.error or 'no error was given'}"
        if pod.exit_code == EXIT_RENDEZVOUS:
            return GiveUp("StartTimeout", message, node)
        return GiveUp("TrainingFailed", message, node, retry=pod.exit_code != EXIT_BAD_INPUT)
    if pod.exit_code == EXIT_STOPPED:
        return GiveUp("Stopped", f"{who} was asked to stop by something other than Kronos", node)
    if pod.exit_code is not None and 128 < pod.exit_code <= 128 + _LAST_SIGNAL:
        return GiveUp("TrainingFailed", f"{who} was killed by signal {pod.exit_code - 128}", node)
    said = f": {last_line(pod.raw_message)}" if pod.raw_message.strip() else ""
    code = f"exit code {pod.exit_code}" if pod.exit_code is not None else pod.exit_reason or "no exit code"
    return GiveUp("TrainingFailed", f"{who} ended with {code}{said}", node)


def _limit(gang: Gang, pod: PodView) -> str:
    """The memory that a pod was allowed, and what would raise it."""
    allowed = pod.requests.get("memory")
    if not allowed or gang.spec.template.per_accelerator is None:
        return ""
    return f" (it may use {allowed / 2**30:.4g} GiB; raise template.perAccelerator.memory)"


def last_line(text: str) -> str:
    """The last line with something in it, at most 300 characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def node_lost(gang: Gang) -> GiveUp | None:
    """The node of a member that hasn't ended is gone or doesn't answer."""
    for index, member in enumerate(gang.placement.members):
        pod = gang.members[index]
        if pod is not None and pod.terminal:
            continue
        node = gang.snapshot.node(member.node)
        if node is None:
            return GiveUp("NodeLost", f"node {member.node} is gone", member.node)
        if not node.ready:
            return GiveUp("NodeLost", f"node {member.node} doesn't answer", member.node)
    return None


def member_lost(gang: Gang) -> GiveUp | None:
    """A member's pod was deleted by somebody else: it is gone after the gang had started, or on its way out."""
    for index, pod in enumerate(gang.members):
        # A member that another system has bound isn't created again alone: that system admits whole gangs.
        gone = pod is None and (gang.started or (gang.placement.left_to is not None and gang.placement.bound))
        if gone or (pod is not None and pod.deleting and not pod.terminal):
            return GiveUp(
                "PodLost", f"the pod of {gang.name(index)} was deleted", gang.placement.members[index].node
            )
    return None


def place_lost(gang: Gang) -> GiveUp | None:
    """Before a member was bound, others filled its node, or it was closed. The node itself is not to blame."""
    if gang.started:
        return None
    for index, pod in enumerate(gang.members):
        if pod is not None and (pod.node or pod.terminal):
            continue
        why = why_place_is_lost(gang.snapshot, gang.spec, gang.placement.members[index])
        if why is not None:
            return GiveUp("PlaceLost", f"{gang.name(index)} wasn't bound yet when its place went: {why}")
    return None


def cannot_bind(gang: Gang) -> GiveUp | None:
    """The scheduler refuses a member's node for a reason that the snapshot doesn't show."""
    for pod in gang.pods:
        since = pod.unschedulable_since
        if not pod.node and since is not None and gang.now >= since + BIND_GRACE:
            return GiveUp(
                "StartTimeout",
                f"{gang.name(pod.member)} {why_not_bound(pod.unschedulable)}",
                gang.placement.members[pod.member].node,
            )
    return None


def start_timed_out(gang: Gang) -> GiveUp | None:
    """Not all members were running in time."""
    if gang.started or gang.now < gang.start_deadline:
        return None
    return GiveUp(
        "StartTimeout",
        f"the gang wasn't running {gang.spec.scheduling.start_timeout} after its place was reserved: "
        f"{why_not_running(gang)}",
    )


def why_not_running(gang: Gang) -> str:
    """One clause on what a starting gang waits for."""
    problem = gang.snapshot.problems.get(gang.job.uid)
    if problem:
        return problem
    for pod in gang.pods:
        if pod.waiting:
            return f"{gang.name(pod.member)} waits: {why_waiting(pod.waiting, pod.waiting_message)}"
        warning = gang.snapshot.warnings.get(pod.uid)
        if warning is not None and pod.phase == "Pending":
            return f"{gang.name(pod.member)} waits: {why_not_ready(warning.reason, warning.message)}"
        if pod.unschedulable:
            return f"{gang.name(pod.member)} isn't bound: {pod.unschedulable}"
    running = sum(1 for pod in gang.pods if pod.phase == "Running")
    return f"{running} of {len(gang.members)} members are running"


_BEFORE_BOUND: tuple[Callable[[Gang], Verdict | None], ...] = (suspended, failed, member_lost)
"""What can be said of a gang that waits for another system: it may wait for long, and pods that can't be bound are normal."""
POLICIES: tuple[Callable[[Gang], Verdict | None], ...] = (
    completed,
    suspended,
    failed,
    node_lost,
    member_lost,
    place_lost,
    cannot_bind,
    start_timed_out,
)


def judge(gang: Gang) -> Verdict | None:
    """The first verdict of the chain, or None when the attempt goes on."""
    policies = POLICIES if gang.placement.bound else _BEFORE_BOUND
    return next((verdict for policy in policies if (verdict := policy(gang)) is not None), None)
