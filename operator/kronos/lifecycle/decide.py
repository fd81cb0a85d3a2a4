"""One job's next status and actions, from what is observed.

The states follow from the status alone. A finished job stays finished. A job with a placement holds a place: its gang
is judged, then its missing pods are created. A job without one gets rid of what is left of an earlier attempt, then
waits for admission.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from kronos.api.job import TrainingJobSpec
from kronos.api.status import (
    Phase,
    PlacementStatus,
    ProgressStatus,
    RestartRecord,
    StrategyStatus,
    encode_ranks,
)
from kronos.lifecycle.conditions import with_conditions
from kronos.lifecycle.decision import Create, Decision, Delete, Event
from kronos.lifecycle.gang import (
    BIND_GRACE,
    Finish,
    Gang,
    GiveUp,
    Suspend,
    judge,
    parse_time,
    settles_at,
    why_not_running,
)
from kronos.lifecycle.objects import gang_objects
from kronos.lifecycle.planning import topology_over
from kronos.lifecycle.queueing import Outcome, Preempted, Reservation, Wait
from kronos.lifecycle.report import progress_status, strategy_status
from kronos.lifecycle.snapshot import JobView, PodView, Snapshot
from kronos.placement import GangRequest, arranged

_BACKOFF_FIRST = timedelta(seconds=2)
_BACKOFF_MOST = timedelta(minutes=5)
_LOOK_AGAIN = timedelta(minutes=1)
"""Time alone lifts a job that waits, ends its patience, and brings the predicted ends of others closer."""


def decide(job: JobView, snapshot: Snapshot, outcome: Outcome | None) -> Decision:
    """What to write and do for one job. `outcome` is what admission said, None when the job didn't ask."""
    if job.deleting or job.opaque:
        return Decision(job.status)
    if job.status.phase in ("Complete", "Failed"):
        return Decision(job.status, actions=_clear(snapshot, snapshot.pods_of(job)))
    if job.spec is None:
        return _settle(job, snapshot, "InvalidSpec", phase="Queued", reason=job.invalid, stalled=True)
    if job.status.placement is not None and job.status.strategy is not None:
        gang = _gang(job, job.spec, job.status.strategy, job.status.placement, snapshot)
        return _with_place(gang, outcome if isinstance(outcome, Preempted) else None)
    return _without_place(job, job.spec, snapshot, outcome)


def _settle(
    job: JobView,
    snapshot: Snapshot,
    word: str,
    *,
    phase: Phase,
    reason: str,
    stalled: bool = False,
    actions: tuple[Create | Delete, ...] = (),
    look_again: datetime | None = None,
    tell: Event | None = None,
    **changes: Any,
) -> Decision:
    """A decision whose status has this phase, reason and other changes, with the conditions that follow."""
    now = format_time(snapshot.now)
    status = job.status.model_copy(
        update={"phase": phase, "reason": reason, "observed_generation": job.generation, **changes}
    )
    status = with_conditions(status, job.status, now, word, stalled=stalled)
    events = (tell,) if tell is not None else ()
    return Decision(status, actions, events, look_again)


def format_time(moment: datetime) -> str:
    """RFC 3339 in UTC with whole seconds, as Kubernetes writes times."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _clear(snapshot: Snapshot, pods: tuple[PodView, ...]) -> tuple[Delete, ...]:
    """Deletions for the pods that still hold something. Ended pods stay, for their logs."""
    deletions = []
    for pod in pods:
        if pod.terminal:
            continue
        node = snapshot.node(pod.node) if pod.node else None
        unreachable = bool(pod.node) and (node is None or not node.ready)
        if not pod.deleting or unreachable:
            deletions.append(Delete(pod.namespace, pod.name, pod.uid, force=unreachable))
    return tuple(deletions)


# --- a job that holds a place -----------------------------------------------------------------------------------


def _gang(
    job: JobView,
    spec: TrainingJobSpec,
    strategy: StrategyStatus,
    placement: PlacementStatus,
    snapshot: Snapshot,
) -> Gang:
    pods = {pod.member: pod for pod in snapshot.pods_of(job) if pod.attempt == job.status.attempt}
    members = tuple(pods.get(index) for index in range(len(placement.members)))
    return Gang(job, spec, strategy, placement, members, snapshot)


def _with_place(gang: Gang, preempted: Preempted | None) -> Decision:
    match judge(gang):
        case Suspend():
            return _suspend(gang)
        case Finish():
            return _finish(gang)
        case GiveUp() as verdict:
            return _give_up(gang, verdict)
        case None:
            return _make_room(gang, preempted) if preempted is not None else _go_on(gang)


def _suspend(gang: Gang) -> Decision:
    message = "suspended by scheduling.suspend; set it to false to go on"
    return _settle(
        gang.job,
        gang.snapshot,
        "Suspended",
        phase="Suspended",
        reason=message,
        tell=Event("Normal", "Suspended", message),
        actions=_clear(gang.snapshot, gang.pods),
        placement=None,
        ready="",
        progress=_progress(gang),
    )


def _make_room(gang: Gang, preempted: Preempted) -> Decision:
    """Give the place up for another job. The trainer saves a checkpoint when its pods are asked to stop."""
    status = gang.job.status
    record = RestartRecord(
        at=format_time(gang.now), attempt=status.attempt, cause="Preempted", message=preempted.message
    )
    return _settle(
        gang.job,
        gang.snapshot,
        "Preempted",
        phase="Restarting",
        reason=f"{preempted.message}; goes on when there is room",
        tell=Event("Normal", "Preempted", preempted.message),
        actions=_clear(gang.snapshot, gang.pods),
        restarts=(*status.restarts, record)[-20:],
        placement=None,
        ready="",
        progress=_progress(gang),
    )


def _finish(gang: Gang) -> Decision:
    progress = _progress(gang)
    said = f" with a loss of {progress.loss:.4g}" if progress and progress.loss is not None else ""
    return _settle(
        gang.job,
        gang.snapshot,
        "AllMembersSucceeded",
        phase="Complete",
        reason="",
        tell=Event("Normal", "Complete", f"trained {gang.spec.optimization.steps} steps{said}"),
        ready=f"0/{len(gang.members)}",
        progress=progress,
        finished_at=format_time(gang.now),
    )


def _give_up(gang: Gang, verdict: GiveUp) -> Decision:
    """End the attempt: on record first, then its pods go; then, if anything can still be won, queue again."""
    job, status = gang.job, gang.job.status
    counts = verdict.cause == "TrainingFailed"
    failures = status.failures + (1 if counts else 0)
    record = RestartRecord(
        at=format_time(gang.now),
        attempt=status.attempt,
        cause=verdict.cause,
        message=verdict.message,
        node=verdict.node,
    )
    changes: dict[str, Any] = {
        "failures": failures,
        "restarts": (*status.restarts, record)[-20:],
        "progress": _progress(gang),
        "ready": "",
    }
    actions = _clear(gang.snapshot, gang.pods)
    if not verdict.retry or failures > gang.spec.restart.backoff_limit:
        tried = (
            "" if not verdict.retry or failures == 1 else f" ({failures} failures, the limit allows no more)"
        )
        return _settle(
            job,
            gang.snapshot,
            verdict.cause,
            phase="Failed",
            reason=verdict.message + tried,
            tell=Event("Warning", verdict.cause, verdict.message + tried),
            actions=actions,
            finished_at=format_time(gang.now),
            **changes,
        )
    # Nothing ran, and nobody is to blame, so there is no reason to wait longer each time than it takes to look again.
    most = _BACKOFF_FIRST if verdict.cause == "PlaceLost" else _BACKOFF_MOST
    pause = min(_BACKOFF_FIRST * 2 ** min(len(status.restarts), 16), most)
    return _settle(
        job,
        gang.snapshot,
        verdict.cause,
        phase="Restarting",
        reason=f"starts again: {verdict.message}",
        tell=Event("Warning", verdict.cause, f"attempt {status.attempt} ended: {verdict.message}"),
        actions=actions,
        look_again=gang.now + pause,
        placement=None,
        not_before=format_time(gang.now + pause + timedelta(milliseconds=999)),
        **changes,
    )


def _await_binding(gang: Gang) -> Decision:
    """Until another system has bound every member; then the gang's nodes and the map of its ranks go on record."""
    assert gang.placement.left_to is not None
    nodes = [pod.node if pod is not None else "" for pod in gang.members]
    fabric = gang.snapshot.fabrics.get(gang.spec.placement.fabric)
    count = len(gang.members)
    if not all(nodes) or fabric is None:
        bound = sum(map(bool, nodes))
        return _settle(
            gang.job,
            gang.snapshot,
            "LeftToAnother",
            phase="Queued",
            reason=f"waits for {gang.placement.left_to.name}: {bound} of {count} pods are bound",
            actions=_missing(gang),
            ready=f"0/{count}",
        )
    request = GangRequest(degrees=gang.strategy.degrees, resource=gang.spec.accelerators.resource)
    ranks = [member.ranks for member in gang.placement.members]
    found = arranged(topology_over(gang.snapshot.nodes, fabric), request, nodes, ranks)
    if found is None:
        return _give_up(gang, GiveUp("NodeLost", "a node of the gang was gone when all its pods were bound"))
    placement = gang.placement.model_copy(
        update={
            "members": found.members,
            "rank_map": encode_ranks(found.rank_map),
            "domains": dict(found.domains),
            "summary": found.summary,
            "reserved_at": format_time(gang.now),
        }
    )
    return _settle(
        gang.job,
        gang.snapshot,
        "PlacedTogether",
        phase="Starting",
        reason=f"0 of {count} members are running",
        tell=Event("Normal", "Admitted", f"{gang.strategy.summary} on {found.summary}"),
        # The plan is created in the next round, from the status that was really stored.
        look_again=gang.now,
        placement=placement,
    )


def _go_on(gang: Gang) -> Decision:
    if not gang.placement.bound:
        return _await_binding(gang)
    count = len(gang.members)
    running = sum(1 for pod in gang.pods if pod.phase == "Running")
    changes: dict[str, Any] = {"ready": f"{running}/{count}", "progress": _progress(gang)}
    begun = all(pod is not None and pod.phase != "Pending" for pod in gang.members)
    if begun or gang.started:
        now = format_time(gang.now)
        first = not gang.started
        placement = gang.placement.model_copy(update={"ready_at": now}) if first else gang.placement
        failures = [pod for pod in gang.pods if pod.phase == "Failed"]
        trains = "progress" in changes and changes["progress"] is not None
        return _settle(
            gang.job,
            gang.snapshot,
            "Training" if trains else "AllMembersRunning",
            phase="Running",
            reason=f"{gang.name(failures[0].member)} ended; finding out why" if failures else "",
            look_again=settles_at(gang, failures) if failures else None,
            placement=placement,
            started_at=gang.job.status.started_at or now,
            **changes,
        )
    deadlines = [gang.start_deadline]
    deadlines += [
        pod.unschedulable_since + BIND_GRACE for pod in gang.pods if pod.unschedulable_since is not None
    ]
    return _settle(
        gang.job,
        gang.snapshot,
        "PlacedTogether",
        phase="Starting",
        reason=why_not_running(gang),
        actions=_missing(gang),
        look_again=min(deadlines),
        **changes,
    )


def _missing(gang: Gang) -> tuple[Create, ...]:
    """What the gang needs and doesn't have. The pods come last, so that none waits for the rest."""
    # Whether the plan of a gang that another system placed is there can't be seen, only whether its pods have begun.
    plan_due = gang.placement.left_to is not None and gang.placement.bound
    if all(pod is not None for pod in gang.members) and not plan_due:
        return ()
    needed, pods = gang_objects(gang.job, gang.spec, gang.strategy, gang.placement)
    wanted = [pod for pod, present in zip(pods, gang.members, strict=True) if present is None]
    return tuple(Create(manifest) for manifest in (*needed, *wanted))


def _progress(gang: Gang) -> ProgressStatus | None:
    """The furthest word on this attempt: what its first member said at its end, else what it last reported."""
    first = gang.members[0]
    spoken = first.last_words.progress if first is not None and first.last_words is not None else None
    latest = spoken or gang.snapshot.progress.get((gang.job.uid, gang.job.status.attempt))
    if latest is None:
        return gang.job.status.progress
    status = gang.job.status
    return progress_status(latest, gang.spec.optimization.steps, status.attempt, status.strategy)


# --- a job that holds none --------------------------------------------------------------------------------------


def _without_place(
    job: JobView, spec: TrainingJobSpec, snapshot: Snapshot, outcome: Outcome | None
) -> Decision:
    status = job.status
    left = [pod for pod in snapshot.pods_of(job) if not pod.terminal]
    actions = _clear(snapshot, tuple(left))
    waiting: Phase = "Restarting" if status.attempt and status.phase != "Suspended" else "Queued"
    if spec.scheduling.suspend:
        ending = f"; {len(left)} pods are still ending" if left else ""
        return _settle(
            job,
            snapshot,
            "Suspended",
            phase="Suspended",
            reason=f"suspended by scheduling.suspend; set it to false to go on{ending}",
            actions=actions,
            ready="",
        )
    if left:
        # The reason of the restart stays: that pods take a moment to end is no news.
        reason = status.reason or f"waits for {len(left)} pods of the last attempt to end"
        return _settle(job, snapshot, _last_cause(job), phase=waiting, reason=reason, actions=actions)
    if status.not_before is not None and parse_time(status.not_before) > snapshot.now:
        again = parse_time(status.not_before)
        return _settle(job, snapshot, _last_cause(job), phase=waiting, reason=status.reason, look_again=again)
    if isinstance(outcome, Reservation):
        return _reserve(job, snapshot, outcome)
    if isinstance(outcome, Wait):
        return _settle(
            job,
            snapshot,
            outcome.reason,
            phase=waiting,
            reason=outcome.message,
            stalled=not outcome.possible,
            look_again=snapshot.now + _LOOK_AGAIN,
            tell=_hopeless(outcome, status.reason),
        )
    return Decision(status)


def _hopeless(wait: Wait, told: str) -> Event | None:
    """Waiting is what most jobs do, and the status says for what; that it is in vain is an event."""
    return None if wait.possible or wait.message == told else Event("Warning", wait.reason, wait.message)


def _last_cause(job: JobView) -> str:
    """The word for why the last attempt ended."""
    return job.status.restarts[-1].cause if job.status.restarts else "Stopped"


def _reserve(job: JobView, snapshot: Snapshot, reservation: Reservation) -> Decision:
    """Put the whole gang's place on record. Its pods follow when the record is seen."""
    placement = reservation.placement
    now = format_time(snapshot.now)
    record = PlacementStatus(
        summary=placement.summary,
        members=placement.members,
        rank_map=encode_ranks(placement.rank_map),
        domains=dict(placement.domains),
        reserved_at=now,
        left_to=reservation.left_to,
    )
    strategy = strategy_status(reservation)
    word: str
    phase: Phase
    if reservation.left_to is None:
        word, phase = "PlacedTogether", "Starting"
        reason = f"0 of {len(placement.members)} members are running"
        tell = Event("Normal", "Admitted", f"{strategy.summary} on {placement.summary}")
    else:
        word, phase, reason = "LeftToAnother", "Queued", f"waits for {reservation.left_to.name}"
        tell = Event("Normal", "LeftToAnother", f"{strategy.summary}, {placement.summary}")
    return _settle(
        job,
        snapshot,
        word,
        phase=phase,
        reason=reason,
        tell=tell,
        # The last attempt's ended pods are kept for their logs; those of earlier ones would pile up.
        actions=tuple(
            Delete(pod.namespace, pod.name, pod.uid)
            for pod in snapshot.pods_of(job)
            if pod.attempt < job.status.attempt
        ),
        # The pods are created in the next round, from the status that was really stored.
        look_again=snapshot.now,
        attempt=job.status.attempt + 1,
        not_before=None,
        strategy=strategy,
        placement=record,
        ready=f"0/{len(placement.members)}",
    )
