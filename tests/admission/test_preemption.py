"""Who is stopped for whom, and that it is never more than needed and always enough."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kronos.admission import Admitted, Option, Queue, Quota, RunningJob, Waiting, WaitingJob, admit
from kronos.placement import PODS, GangRequest, Topology, Usage, usage_of, why_not
from support.gangs import SLOT, fabric, gang, racks

FABRIC = fabric("block", "rack")
NODES = racks(2, 2)
"""n0 and n1 in rack r0, n2 and n3 in rack r1, with 4 slots each."""


def waiting(name: str, request: GangRequest, **fields: Any) -> WaitingJob[str]:
    return WaitingJob(("forge", name), "2026-01-01T00:00:00Z", name, (Option(name, request),), **fields)


def runs(name: str, slots: int = 4, node: str = "n0", **fields: Any) -> RunningJob:
    """A job with all its slots on one node."""
    return RunningJob(("forge", name), SLOT, slots, {node: {SLOT: slots, PODS: 1}}, **fields)


def usage(running: list[RunningJob]) -> Usage:
    return usage_of((node, {SLOT: amounts[SLOT]}) for job in running for node, amounts in job.holds.items())


def victims(job: WaitingJob[str], running: list[RunningJob], *queues: Queue) -> list[str] | str:
    """Who is stopped for it, or why it waits otherwise; `starts` where it needs nobody to stop."""
    verdict = admit(
        [job],
        {"default": Topology.build(NODES, FABRIC)},
        usage(running),
        running=running,
        queues={queue.name: queue for queue in queues},
    )[job.key]
    if isinstance(verdict, Admitted):
        return "starts"
    return sorted(name for _, name in verdict.victims) or verdict.reason


FULL = [runs("a", node="n0"), runs("b", node="n1"), runs("c", node="n2"), runs("d", node="n3")]


def with_changes(**changes: dict[str, Any]) -> list[RunningJob]:
    return [runs(job.key[1], node=next(iter(job.holds)), **changes.get(job.key[1], {})) for job in FULL]


OWN = Queue("lab", "campus", {SLOT: Quota(8)})
OTHER = Queue("plant", "campus", {SLOT: Quota(8)})
LENT = with_changes(a={"queue": "plant"}, b={"queue": "plant"}, c={"queue": "plant"}, d={"queue": "lab"})
"""The queue plant holds 12 of its 8, lab 4 of its 8."""


@pytest.mark.parametrize(
    ("job", "running", "queues", "expected"),
    [
        pytest.param(
            waiting("new", gang(dp=4)), FULL, [], "InsufficientCapacity", id="nobody is less important"
        ),
        pytest.param(
            waiting("new", gang(dp=4), priority=5), FULL, [], ["a"], id="among equals the first by name"
        ),
        pytest.param(
            waiting("new", gang(dp=4), priority=5),
            with_changes(a={"priority": 5}, b={"priority": 3}, c={"priority": 4}, d={"priority": 6}),
            [],
            ["b"],
            id="the lowest priority",
        ),
        pytest.param(
            waiting("new", gang(dp=4), priority=5),
            with_changes(a={"unsaved": 90.0}, b={"unsaved": 10.0}, c={"unsaved": 60.0}, d={"unsaved": 600.0}),
            [],
            ["b"],
            id="the least work since the last checkpoint",
        ),
        pytest.param(
            waiting("new", gang(dp=8, required="rack"), priority=5),
            with_changes(a={"unsaved": 1.0}, b={"unsaved": 90.0}, c={"unsaved": 2.0}, d={"unsaved": 3.0}),
            [],
            ["c", "d"],
            id="those that free one rack, not those that lose least",
        ),
        pytest.param(
            waiting("new", gang(dp=8, required="rack"), priority=5),
            with_changes(c={"priority": 5}, b={"unsaved": 999.0}),
            [],
            ["a", "b"],
            id="a rack that can't be freed doesn't help",
        ),
        pytest.param(
            waiting("new", gang(dp=12), priority=5),
            with_changes(a={"priority": 5}, b={"priority": 5}),
            [],
            "InsufficientCapacity",
            id="nobody is stopped in vain",
        ),
        pytest.param(
            waiting("new", gang(dp=4), priority=5),
            [*FULL[:3], runs("d", node="n3", stopping=True)],
            [],
            "InsufficientCapacity",
            id="it waits for who stops already",
        ),
        pytest.param(
            waiting("new", gang(dp=8), priority=5),
            [*with_changes(a={"priority": 9}, b={"priority": 9})[:3], runs("d", node="n3", stopping=True)],
            [],
            ["c"],
            id="and stops only who is needed besides",
        ),
        pytest.param(
            waiting("new", gang(dp=4), priority=5, preempts=False),
            FULL,
            [],
            "InsufficientCapacity",
            id="its class doesn't let it",
        ),
        pytest.param(
            waiting("new", gang(dp=4), priority=5, queue="lab"),
            with_changes(a={"queue": "lab"}),
            [Queue("lab", within_queue="Never")],
            "InsufficientCapacity",
            id="its queue doesn't let it",
        ),
        pytest.param(
            waiting("new", gang(dp=4), priority=5, queue="lab"),
            with_changes(a={"queue": "lab"}),
            [Queue("lab")],
            ["a"],
            id="others' queues are not its own",
        ),
        pytest.param(
            waiting("new", gang(dp=4), priority=5, queue="lab"),
            [runs("a", queue="lab")],
            [Queue("lab", quotas={SLOT: Quota(4)})],
            ["a"],
            id="for quota, although nodes are free",
        ),
        pytest.param(
            waiting("new", gang(dp=4), queue="lab"),
            LENT,
            [OWN, OTHER],
            ["a"],
            id="a lender gets its own back",
        ),
        pytest.param(
            waiting("new", gang(dp=8), queue="lab"),
            LENT,
            [OWN, OTHER],
            "CohortExhausted",
            id="but no more than its own: 4 + 8 > 8",
        ),
        pytest.param(
            waiting("new", gang(dp=4), queue="lab"),
            LENT,
            [Queue("lab", "campus", OWN.quotas, reclaim="Never"), OTHER],
            "CohortExhausted",
            id="a lender that doesn't reclaim",
        ),
        pytest.param(
            waiting("new", gang(dp=4), queue="lab"),
            LENT,
            [Queue("lab", "campus", OWN.quotas, reclaim="LowerPriority"), OTHER],
            "CohortExhausted",
            id="a lender that reclaims from lower priorities only",
        ),
        pytest.param(
            waiting("new", gang(dp=4), queue="lab"),
            with_changes(a={"queue": "plant"}, b={"queue": "plant"}, c={"queue": "lab"}, d={"queue": "far"}),
            [OWN, OTHER, Queue("far")],
            "InsufficientCapacity",
            id="who has borrowed nothing isn't stopped",
        ),
        pytest.param(
            waiting("new", gang(dp=4), priority=5), FULL[:3], [], "starts", id="nobody needs to stop"
        ),
    ],
)
def test_who_is_stopped(job, running, queues, expected):
    assert victims(job, running, *queues) == expected


def test_what_is_said():
    verdict = admit(
        [waiting("new", gang(dp=8), priority=5)],
        {"default": Topology.build(NODES, FABRIC)},
        usage(FULL),
        running=FULL,
    )["forge", "new"]
    assert verdict == Waiting(
        "Preempting",
        "waits for forge/a and forge/b to stop, of lower priority",
        possible=True,
        victims=(("forge", "a"), ("forge", "b")),
    )


def test_what_victims_leave_is_kept_for_whom_they_stop():
    jobs = [
        waiting("urgent", gang(dp=8), priority=5),
        WaitingJob(
            ("forge", "small"), "2026-01-01T00:00:00Z", "small", (Option("small", gang(dp=1), seconds=1.0),)
        ),
    ]
    running = FULL[:3]
    verdicts = admit(jobs, {"default": Topology.build(NODES, FABRIC)}, usage(running), running=running)
    assert isinstance(verdicts["forge", "urgent"], Waiting)
    assert verdicts["forge", "small"].reason == "QueuedBehind"


def test_two_that_preempt_stop_different_jobs():
    jobs = [waiting("one", gang(dp=4), priority=5), waiting("two", gang(dp=4), priority=5, queue="lab")]
    running = with_changes(a={"queue": "lab"}, b={"queue": "lab"})
    verdicts = admit(jobs, {"default": Topology.build(NODES, FABRIC)}, usage(running), running=running)
    assert [verdict.victims for verdict in verdicts.values()] == [(("forge", "c"),), (("forge", "a"),)]


@st.composite
def clusters(draw: st.DrawFn) -> tuple[WaitingJob[str], list[RunningJob]]:
    free = {node.name: 4 for node in NODES}
    running = []
    for at in range(draw(st.integers(0, 8))):
        node = draw(st.sampled_from(sorted(free)))
        slots = draw(st.integers(1, 4))
        if free[node] >= slots:
            free[node] -= slots
            running.append(
                runs(
                    f"job-{at}",
                    slots,
                    node,
                    priority=draw(st.integers(0, 3)),
                    unsaved=draw(st.floats(0, 100)),
                    stopping=draw(st.booleans()),
                )
            )
    level = draw(st.sampled_from([None, "block", "rack", "node"]))
    request = gang(dp=draw(st.integers(1, 8)), required=level)
    return waiting("new", request, priority=draw(st.integers(0, 4))), running


@given(clusters())
@settings(deadline=None, max_examples=300)
def test_victims_are_enough_none_could_be_spared_and_none_are_more_important(case):
    job, running = case
    topology = Topology.build(NODES, FABRIC)
    verdict = admit([job], {"default": topology}, usage(running), running=running)[job.key]
    if not isinstance(verdict, Waiting) or not verdict.victims:
        return
    by_key = {item.key: item for item in running}
    assert all(by_key[key].priority < job.priority for key in verdict.victims)
    stopping = {item.key for item in running if item.stopping}
    request = job.options[0].request

    def fits_without(gone: set[tuple[str, str]]) -> bool:
        left = usage([item for item in running if item.key not in gone])
        return why_not(topology, left, request) is None

    assert fits_without(stopping | set(verdict.victims))
    for spared in verdict.victims:
        assert not fits_without(stopping | set(verdict.victims) - {spared})


@given(clusters())
@settings(deadline=None, max_examples=200)
def test_someone_is_stopped_whenever_that_would_be_enough(case):
    job, running = case
    topology = Topology.build(NODES, FABRIC)
    verdict = admit([job], {"default": topology}, usage(running), running=running)[job.key]
    stays = [item for item in running if not item.stopping]
    could = why_not(
        topology, usage([item for item in stays if item.priority >= job.priority]), job.options[0].request
    )
    now = why_not(topology, usage(running), job.options[0].request)
    soon = why_not(topology, usage(stays), job.options[0].request)
    if isinstance(verdict, Admitted):
        assert now is None
    else:
        assert bool(verdict.victims) == (could is None and soon is not None)
