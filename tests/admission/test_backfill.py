"""What later jobs may use while the head of a queue waits, when a better place is worth waiting for, and whose turn it is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kronos.admission import Admitted, Option, Queue, Quota, RunningJob, Verdict, WaitingJob, admit
from kronos.admission.order import AGING
from kronos.placement import PODS, GangRequest, Topology, Usage, usage_of, why_not
from support.gangs import SLOT, fabric, gang, racks

FABRIC = fabric("block", "rack")
NODES = racks(2, 2)
"""n0 and n1 in rack r0, n2 and n3 in rack r1, with 4 slots each."""
TOPOLOGY = Topology.build(NODES, FABRIC)


def job(
    name: str, *requests: GangRequest, seconds: float | None = None, minute: int = 0, **fields: Any
) -> WaitingJob[str]:
    options = tuple(
        Option(request.degrees.summary, request, cost=float(at), seconds=seconds and seconds * (1 + at))
        for at, request in enumerate(requests)
    )
    return WaitingJob(("forge", name), f"2026-01-01T00:{minute:02}:00Z", name, options, **fields)


def runs(name: str, node: str, slots: int = 4, ends: float | None = 100.0, **fields: Any) -> RunningJob:
    return RunningJob(("forge", name), SLOT, slots, {node: {SLOT: slots, PODS: 1}}, ends=ends, **fields)


def usage(running: list[RunningJob]) -> Usage:
    return usage_of((node, {SLOT: held[SLOT]}) for item in running for node, held in item.holds.items())


def verdicts(
    jobs: list[WaitingJob[str]], running: list[RunningJob], *queues: Queue, now: float = 0.0
) -> dict[str, Verdict[str]]:
    described = {queue.name: queue for queue in queues}
    answers = admit(jobs, {"default": TOPOLOGY}, usage(running), running=running, queues=described, now=now)
    return {name: verdict for (_, name), verdict in answers.items()}


def short(answers: dict[str, Verdict[str]]) -> dict[str, str]:
    return {
        name: verdict.candidate if isinstance(verdict, Admitted) else verdict.reason
        for name, verdict in answers.items()
    }


HALF = [runs("a", "n0", ends=100.0), runs("b", "n1", ends=200.0)]
HEAD = job("head", gang(dp=8, required="rack"), seconds=1000.0)
"""Waits until n0 and n1 are free, or n2 and n3: whatever is free first."""
PART = [runs("a", "n0", ends=100.0), runs("c", "n2", ends=200.0)]
"""The head needs a rack; r0 is free at 100."""


@pytest.mark.parametrize(
    ("later", "running", "expected"),
    [
        pytest.param(job("late", gang(dp=4), minute=1), PART, "dp4", id="on a node that the head won't need"),
        pytest.param(
            job("late", gang(dp=4), minute=1),
            [*PART, runs("d", "n3", ends=300.0)],
            "QueuedBehind",
            id="not on the node that is kept for the head",
        ),
        pytest.param(
            job("late", gang(dp=4), minute=1, seconds=100.0),
            [*PART, runs("d", "n3", ends=300.0)],
            "dp4",
            id="on the head's node, if it is over before the head starts",
        ),
        pytest.param(
            job("late", gang(dp=4), minute=1, seconds=101.0),
            [*PART, runs("d", "n3", ends=300.0)],
            "QueuedBehind",
            id="but not if it is over a moment later",
        ),
        pytest.param(
            job("late", gang(dp=4), minute=1, seconds=1.0),
            [runs("a", "n0", ends=None), runs("c", "n2", ends=None), runs("d", "n3", ends=None)],
            "QueuedBehind",
            id="when nobody knows when the head starts, only what it won't need",
        ),
        pytest.param(
            job("late", gang(dp=4), minute=1),
            [runs("c", "n2", ends=200.0), runs("d", "n3", ends=50.0), runs("e", "n0", slots=1, ends=400.0)],
            "dp4",
            id="in a rack that is free too late for the head",
        ),
    ],
)
def test_backfill(later, running, expected):
    answers = short(verdicts([HEAD, later], running))
    assert answers == {"head": "InsufficientCapacity", "late": expected}


def test_jobs_of_another_queue_leave_the_head_its_place_too():
    later = job("late", gang(dp=4), minute=1, queue="other")
    running = [*PART, runs("d", "n3", ends=300.0)]
    assert short(verdicts([HEAD, later], running)) == {"head": "InsufficientCapacity", "late": "QueuedBehind"}


def test_quota_that_a_head_waits_with_is_kept_for_it():
    lab = Queue("lab", quotas={SLOT: Quota(12)})
    running = [runs("a", "n0", queue="lab"), runs("c", "n2", queue="lab")]
    head = job("head", gang(dp=8), queue="lab")
    later = job("late", gang(dp=4), minute=1, queue="lab")
    assert short(verdicts([head, later], running, lab)) == {"head": "QuotaExceeded", "late": "QueuedBehind"}
    brief = job("late", gang(dp=4), minute=1, queue="lab", seconds=50.0)
    assert short(verdicts([head, brief], running, lab)) == {"head": "QuotaExceeded", "late": "dp4"}


@st.composite
def crowds(draw: st.DrawFn) -> tuple[list[WaitingJob[str]], list[RunningJob]]:
    free = {node.name: 4 for node in NODES}
    running = []
    for at in range(draw(st.integers(0, 6))):
        node, slots = draw(st.sampled_from(sorted(free))), draw(st.integers(1, 4))
        if free[node] >= slots:
            free[node] -= slots
            running.append(runs(f"r{at}", node, slots, draw(st.none() | st.integers(1, 50).map(float))))
    jobs = [
        job(
            f"w{at}",
            gang(dp=draw(st.integers(1, 12)), required=draw(st.sampled_from([None, "rack", "node"]))),
            seconds=draw(st.none() | st.integers(1, 60).map(float)),
            minute=at,
        )
        for at in range(draw(st.integers(1, 6)))
    ]
    return jobs, running


@given(crowds())
@settings(deadline=None, max_examples=300)
def test_backfill_never_delays_the_head_of_a_queue(case):
    """At every moment at which the head could have started alone, it can start with those that overtook it."""
    jobs, running = case
    answers = verdicts(jobs, running)
    head = next(
        (
            item
            for item in jobs
            if not isinstance(answers[item.key[1]], Admitted) and answers[item.key[1]].possible
        ),
        None,
    )
    if head is None:
        return
    request = head.options[0].request
    before, after = list(running), []
    for item in jobs:
        answer = answers[item.key[1]]
        if isinstance(answer, Admitted):
            held = {member.node: {SLOT: member.ranks, PODS: 1} for member in answer.placement.members}
            started = RunningJob(item.key, SLOT, 0, held, ends=item.options[0].seconds)
            (before if item.created < head.created else after).append(started)

    def left(crowd: list[RunningJob], moment: float) -> list[RunningJob]:
        return [item for item in crowd if item.ends is None or item.ends > moment]

    moments = sorted({item.ends for item in before if item.ends is not None})
    first = next((at for at in moments if why_not(TOPOLOGY, usage(left(before, at)), request) is None), None)
    if first is not None:
        crowd = left(before, first) + left(after, first)
        assert why_not(TOPOLOGY, usage(crowd), request) is None


def patient(*requests: GangRequest, seconds: float, patience: float = 3600.0) -> WaitingJob[str]:
    """Each option takes twice as long as the one before it."""
    return WaitingJob(
        ("forge", "job"),
        "2026-01-01T00:00:00Z",
        "job",
        tuple(
            Option(request.degrees.summary, request, cost=seconds * 2**at, seconds=seconds * 2**at)
            for at, request in enumerate(requests)
        ),
        patience=patience,
    )


BUSY = [runs("a", "n0", ends=100.0), runs("b", "n1", ends=100.0)]
"""8 of 16 slots are busy until 100."""


@pytest.mark.parametrize(
    ("waiting", "running", "expected"),
    [
        pytest.param(
            patient(gang(dp=16), gang(dp=8), seconds=1000.0),
            BUSY,
            "WaitsForBetterPlace",
            id="100 + 1000 < 2000",
        ),
        pytest.param(patient(gang(dp=16), gang(dp=8), seconds=90.0), BUSY, "dp8", id="100 + 90 > 180"),
        pytest.param(
            patient(gang(dp=16), gang(dp=8), seconds=104.0),
            BUSY,
            "dp8",
            id="100 + 104 is hardly less than 208",
        ),
        pytest.param(
            patient(gang(dp=16), gang(dp=8), seconds=1000.0, patience=99.0),
            BUSY,
            "dp8",
            id="its patience ends before",
        ),
        pytest.param(
            patient(gang(dp=16), gang(dp=8), seconds=1000.0),
            [runs("a", "n0", ends=None), runs("b", "n1")],
            "dp8",
            id="nobody knows when",
        ),
        pytest.param(patient(gang(dp=8), gang(dp=4), seconds=1000.0), BUSY, "dp8", id="the best is free"),
    ],
)
def test_a_better_place_is_waited_for_if_the_job_then_ends_earlier(waiting, running, expected):
    assert short(verdicts([waiting], running)) == {"job": expected}


def test_a_preferred_domain_is_waited_for_if_the_job_then_ends_earlier():
    request = gang(dp=8, preferred="rack")

    def seconds(placement: Any) -> float:
        return 100.0 * placement.domains["rack"] ** 3

    option = Option("dp8", request, cost=100.0, cost_in=seconds, seconds=100.0, seconds_in=seconds)
    waiting = WaitingJob(("forge", "job"), "2026-01-01T00:00:00Z", "job", (option,), patience=3600.0)
    running = [runs("a", "n0", ends=60.0), runs("b", "n2", ends=600.0)]
    answers = verdicts([waiting], running)
    assert short(answers) == {"job": "WaitsForBetterPlace"}
    assert answers["job"].message == (
        "could start as dp8 on 2 nodes in 2 racks in 1 block, but is predicted to end earlier as dp8 on 2 nodes in 1 rack; "
        "waits for forge/a to end"
    )
    late = [runs("a", "n0", ends=800.0), runs("b", "n2", ends=900.0)]
    assert short(verdicts([waiting], late)) == {"job": "dp8"}


@pytest.mark.parametrize(
    ("jobs", "now", "order"),
    [
        pytest.param(
            [job("a", gang(), priority=1), job("b", gang(), priority=2, minute=1)], 0.0, "ba", id="priority"
        ),
        pytest.param([job("b", gang()), job("a", gang(), minute=1)], 0.0, "ba", id="age"),
        pytest.param(
            [job("a", gang(), priority=1), job("b", gang(), priority=2, minute=1, since=AGING)],
            AGING,
            "ab",
            id="an hour of waiting counts like a class",
        ),
        pytest.param(
            [
                job("a", gang(), priority=1),
                job("b", gang(), priority=2, minute=1, since=AGING),
                job("c", gang(), priority=3, minute=2, since=AGING),
            ],
            AGING,
            "cab",
            id="but not like two",
        ),
        pytest.param(
            [job("a", gang(dp=4), queue="lab"), job("b", gang(dp=4), queue="plant", minute=1)],
            0.0,
            "ba",
            id="who borrows less goes first",
        ),
    ],
)
def test_whose_turn_it_is(jobs, now, order):
    quotas = {SLOT: Quota(4)}
    queues = [
        Queue("lab", "campus", quotas),
        Queue("plant", "campus", quotas),
        Queue("spare", "campus", quotas),
    ]
    running = [runs("x", "n0", queue="lab")]
    assert "".join(verdicts(jobs, running, *queues, now=now)) == order


def test_queues_that_borrow_get_shares_by_weight():
    """12 slots to borrow for two queues without quota of their own, of weights 1 and 2: 4 and 8."""
    free = {SLOT: Quota(0)}
    queues = [
        Queue("one", "c", free),
        Queue("two", "c", free, weight=2.0),
        Queue("owner", "c", {SLOT: Quota(12)}),
    ]
    jobs = [
        job(f"{name}-{at}", gang(dp=1), queue=name, minute=at) for name in ("one", "two") for at in range(12)
    ]
    started = [name for name, verdict in verdicts(jobs, [], *queues).items() if isinstance(verdict, Admitted)]
    assert sum(name.startswith("one") for name in started) == 4
    assert sum(name.startswith("two") for name in started) == 8


def test_a_node_that_just_failed_is_used_only_where_no_other_is_free():
    wanted = gang(dp=4, avoid_nodes=frozenset({"n0"}))
    answers = verdicts([job("a", wanted)], [])
    assert isinstance(answers["a"], Admitted)
    assert {member.node for member in answers["a"].placement.members} == {"n1"}
    full = [runs(f"r{at}", f"n{at}") for at in (1, 2, 3)]
    answers = verdicts([job("a", wanted)], full)
    assert isinstance(answers["a"], Admitted)
    assert {member.node for member in answers["a"].placement.members} == {"n0"}
