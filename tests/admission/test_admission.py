"""Who starts and who waits, case by case and for all queues."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kronos.admission import Admitted, Option, Waiting, WaitingJob, admit, reserve
from kronos.placement import GangRequest, Node, Topology, Usage, why_not
from support.gangs import (
    SLOT,
    Truth,
    check_placement,
    fabric,
    gang,
    node,
    racks,
    small_clusters,
    small_gangs,
    taken,
)

FABRIC = fabric("block", "rack")
DEMO = racks(2, 2)


def job(name: str, *requests: GangRequest, minute: int = 0, **fields: Any) -> WaitingJob[str]:
    """A job created so many minutes past the hour, with one option per request; candidates are their summaries."""
    return WaitingJob(
        key=("forge", name),
        created=f"2026-01-01T00:{minute:02}:00Z",
        uid=name,
        options=tuple(Option(request.degrees.summary, request) for request in requests),
        **fields,
    )


def decide(jobs: list[WaitingJob[str]], nodes: list[Node], usage: Usage | None = None) -> dict[str, str]:
    """Each job's verdict in short: the candidate that starts, or the reason it waits; in the order of the queue."""
    verdicts = admit(jobs, {"default": Topology.build(nodes, FABRIC)}, usage or {})
    return {
        name: verdict.candidate if isinstance(verdict, Admitted) else verdict.reason
        for (_, name), verdict in verdicts.items()
    }


OTHER = "example.com/other"


def other(ranks: int) -> GangRequest:
    """A gang on another kind of accelerator."""
    return GangRequest(degrees=gang(dp=ranks).degrees, resource=OTHER)


@pytest.mark.parametrize(
    ("jobs", "usage", "expected"),
    [
        pytest.param(
            [job("a", gang(dp=8)), job("b", gang(dp=8))], {}, {"a": "dp8", "b": "dp8"}, id="both fit"
        ),
        pytest.param(
            [job("a", gang(dp=10)), job("b", gang(dp=10))],
            {},
            {"a": "dp10", "b": "InsufficientCapacity"},
            id="each more than half: one runs, one waits",
        ),
        pytest.param(
            [job("a", gang(dp=10), minute=2), job("b", gang(dp=10), minute=1)],
            {},
            {"b": "dp10", "a": "InsufficientCapacity"},
            id="the older one first",
        ),
        pytest.param(
            [
                job("old-10", gang(dp=10)),
                job("big", gang(dp=16), minute=1),
                job("small", gang(dp=1), minute=2),
            ],
            {},
            {"old-10": "dp10", "big": "InsufficientCapacity", "small": "QueuedBehind"},
            id="a small job doesn't overtake a big one",
        ),
        pytest.param(
            [job("huge", gang(dp=32)), job("small", gang(dp=1), minute=1)],
            {},
            {"huge": "ExceedsCapacity", "small": "single"},
            id="a job that can never fit holds nobody back",
        ),
        pytest.param(
            [job("big", gang(dp=16)), job("huge", gang(dp=32), minute=1)],
            taken(n0=1),
            {"big": "InsufficientCapacity", "huge": "ExceedsCapacity"},
            id="a job that can never fit says so, also when it is behind others",
        ),
        pytest.param(
            [job("big", gang(dp=16)), job("elsewhere", other(2), minute=1)],
            taken(n0=1),
            {"big": "InsufficientCapacity", "elsewhere": "dp2"},
            id="another resource is another queue",
        ),
        pytest.param(
            [job("a", gang(dp=16), gang(dp=8), gang(dp=4))],
            taken(n0=4),
            {"a": "dp8"},
            id="the first option that fits",
        ),
        pytest.param(
            [job("a", gang(dp=32), gang(dp=16)), job("b", gang(dp=2), minute=1)],
            taken(n0=4),
            {"a": "InsufficientCapacity", "b": "QueuedBehind"},
            id="one option that could fit is enough to hold others back",
        ),
        pytest.param(
            [job("a", refusal="the model needs 90 GiB per accelerator"), job("b", gang(dp=2), minute=1)],
            {},
            {"a": "NoPlan", "b": "dp2"},
            id="no plan",
        ),
        pytest.param(
            [job("a", gang(dp=2), fabric="mars"), job("b", gang(dp=2), minute=1)],
            {},
            {"a": "NoFabric", "b": "dp2"},
            id="no fabric",
        ),
        pytest.param([], {}, {}, id="nobody waits"),
    ],
)
def test_order(jobs, usage, expected):
    nodes = [*DEMO, node("other", 0, block="b0", rack="r9", **{OTHER: 4})]
    assert list(decide(jobs, nodes, usage).items()) == list(expected.items())


@pytest.mark.parametrize(
    ("jobs", "usage", "message"),
    [
        pytest.param(
            [job("last", gang(dp=16))],
            taken(n0=1),
            f"needs 16 free {SLOT} slots; the cluster has 15 free of 16; waits for 1 more free {SLOT} slot",
            id="what is missing",
        ),
        pytest.param(
            [
                job("breeder", gang(dp=12)),
                job("burner", gang(dp=10), minute=1),
                job("last", gang(dp=4), minute=2),
            ],
            taken(n0=1),
            f"waits behind forge/burner, which waits for 7 more free {SLOT} slots",
            id="behind whom, and what that one waits for",
        ),
        pytest.param(
            [job("last", gang(dp=16), gang(dp=12), gang(dp=40))],
            taken(n0=4, n1=4),
            f"needs 12 free {SLOT} slots; the cluster has 8 free of 16; waits for 4 more free {SLOT} slots",
            id="of several options the one that lacks least",
        ),
        pytest.param(
            [job("first", gang(dp=4)), job("last", gang(dp=16), minute=1)],
            {},
            f"needs 16 free {SLOT} slots; the cluster has 12 free of 16; waits for 4 more free {SLOT} slots",
            id="what jobs took in the same pass counts",
        ),
        pytest.param(
            [job("last", gang(dp=12, required="rack"), gang(dp=9, required="rack"))],
            {},
            f"needs 9 free {SLOT} slots in one rack; the largest rack has 8 in all",
            id="never, by the least",
        ),
        pytest.param(
            [job("last", refusal="the model is too large")], {}, "the model is too large", id="no plan"
        ),
        pytest.param(
            [job("last")],
            {},
            "there is no way to split the model over the accelerators that it may use",
            id="no plan and no words",
        ),
        pytest.param(
            [job("last", gang(dp=1), fabric="mars")],
            {},
            "the cluster has no KronosFabric mars; create it or name another in placement.fabric",
            id="no fabric",
        ),
    ],
)
def test_messages(jobs, usage, message):
    verdict = admit(jobs, {"default": Topology.build(DEMO, FABRIC)}, usage)["forge", "last"]
    assert isinstance(verdict, Waiting)
    assert verdict.message == message


@pytest.mark.parametrize(
    ("requests", "runner_up"),
    [
        pytest.param([gang(dp=4)], None, id="there was no other"),
        pytest.param([gang(dp=4), gang(dp=2, tp=2), gang(dp=2)], "dp2·tp2", id="the second"),
        pytest.param(
            [gang(dp=16), gang(dp=4), gang(dp=2)],
            f"dp16: needs 16 free {SLOT} slots; the cluster has 15 free of 16; waits for 1 more free {SLOT} slot",
            id="preferred, but without a place",
        ),
    ],
)
def test_runner_up(requests, runner_up):
    verdict = admit([job("a", *requests)], {"default": Topology.build(DEMO, FABRIC)}, taken(n0=1))[
        "forge", "a"
    ]
    assert isinstance(verdict, Admitted)
    assert verdict.runner_up == runner_up
    assert verdict.request == requests[verdict.option_index]


def test_fabrics_share_the_nodes():
    topologies = {"one": Topology.build(DEMO, FABRIC), "two": Topology.build(DEMO, fabric("rack"))}
    jobs = [job("a", gang(dp=16), fabric="one"), job("b", gang(dp=1), fabric="two", minute=1)]
    verdicts = admit(jobs, topologies, {})
    assert isinstance(verdicts["forge", "a"], Admitted)
    assert verdicts["forge", "b"] == Waiting(
        "InsufficientCapacity",
        f"needs 1 free {SLOT} slot; the cluster has 0 free of 16; waits for 1 more free {SLOT} slot",
        possible=True,
    )


@st.composite
def queues(draw: st.DrawFn) -> tuple[list[Node], list[WaitingJob[str]]]:
    """Up to six jobs with up to three options each, some created in the same minute."""
    nodes = draw(small_clusters(most_nodes=6))
    jobs = [
        job(f"job-{at}", *options, minute=minute)
        for at, (options, minute) in enumerate(
            draw(
                st.lists(
                    st.tuples(st.lists(small_gangs(), min_size=1, max_size=3), st.integers(0, 3)),
                    min_size=1,
                    max_size=6,
                )
            )
        )
    ]
    return nodes, jobs


@given(queues())
@settings(deadline=None, max_examples=60)
def test_each_gang_whole_and_no_slot_promised_twice(queue):
    nodes, jobs = queue
    verdicts = admit(jobs, {"default": Topology.build(nodes, FABRIC)}, {})
    assert verdicts.keys() == {job.key for job in jobs}
    usage: Usage = {}
    for verdict in verdicts.values():
        if isinstance(verdict, Waiting):
            assert verdict.message
            continue
        free = {item.name: item.allocatable[SLOT] - usage.get(item.name, {}).get(SLOT, 0) for item in nodes}
        check_placement(Truth(("block", "rack"), nodes, free), verdict.request, verdict.placement)
        usage = reserve(usage, verdict.placement, verdict.request)
    for item in nodes:
        assert all(amount <= item.allocatable[name] for name, amount in usage.get(item.name, {}).items())


@given(queues(), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=60)
def test_the_order_of_the_lists_is_irrelevant(queue, shuffler):
    nodes, jobs = queue
    first = admit(jobs, {"default": Topology.build(nodes, FABRIC)}, {})
    shuffler.shuffle(nodes)
    shuffler.shuffle(jobs)
    assert list(admit(jobs, {"default": Topology.build(nodes, FABRIC)}, {}).items()) == list(first.items())


@given(queues())
@settings(deadline=None, max_examples=100)
def test_who_overtakes_leaves_the_first_that_waits_its_place(queue):
    nodes, jobs = queue
    topology = Topology.build(nodes, FABRIC)
    head: WaitingJob[str] | None = None
    overtaking: Usage = {}
    for key, verdict in admit(jobs, {"default": topology}, {}).items():
        if isinstance(verdict, Waiting) and verdict.possible and head is None:
            head = next(item for item in jobs if item.key == key)
            assert verdict.reason != "QueuedBehind"
        elif isinstance(verdict, Admitted) and head is not None:
            overtaking = reserve(overtaking, verdict.placement, verdict.request)
    if head is not None:
        # Once all have ended that were there before it, it starts, although those that overtook it go on for ever.
        assert any(why_not(topology, overtaking, option.request) is None for option in head.options)


@given(queues())
@settings(deadline=None, max_examples=60)
def test_the_oldest_job_starts_if_any_of_its_options_has_a_place(queue):
    nodes, jobs = queue
    first, verdict = next(iter(admit(jobs, {"default": Topology.build(nodes, FABRIC)}, {}).items()))
    oldest = min(jobs, key=lambda item: (item.created, item.key))
    assert first == oldest.key
    truth = Truth(("block", "rack"), nodes, {item.name: item.allocatable[SLOT] for item in nodes})
    fitting = [at for at, option in enumerate(oldest.options) if truth.best(option.request)]
    assert isinstance(verdict, Admitted) == bool(fitting)
    if isinstance(verdict, Admitted):
        assert verdict.option_index == fitting[0]


def priced(name: str, *options: tuple[GangRequest, float, float]) -> WaitingJob[str]:
    """A job whose options cost so much at best, and so much in any place that there is."""
    return WaitingJob(
        key=("forge", name),
        created="2026-01-01T00:00:00Z",
        uid=name,
        options=tuple(
            Option(request.degrees.summary, request, cost=cost, cost_in=lambda _, real=real: real)
            for request, cost, real in options
        ),
    )


@pytest.mark.parametrize(
    ("options", "chosen", "runner_up"),
    [
        pytest.param(
            [(gang(tp=4), 1.0, 1.0), (gang(dp=4), 1.2, 1.2)],
            "tp4",
            "dp4: +20% at best",
            id="the best place is free",
        ),
        pytest.param(
            [(gang(tp=4), 1.0, 3.0), (gang(dp=4), 1.2, 1.5)],
            "dp4",
            "tp4: +100% in the places that are free now",
            id="another strategy suits what is free",
        ),
        pytest.param(
            [(gang(tp=4), 1.0, 1.1), (gang(dp=4), 1.2, 1.2)],
            "tp4",
            "dp4: +9% at best",
            id="a worse place than the best, but still better than all others could be",
        ),
        pytest.param(
            [(gang(tp=4), 1.0, 1.4), (gang(dp=4), 1.0, 1.395)],
            "tp4",
            "dp4: as good",
            id="within the error of predictions the preferred one",
        ),
        pytest.param(
            [(gang(tp=40), 1.0, 1.0), (gang(dp=4), 1.2, 1.2)],
            "dp4",
            "tp40: needs 40 free kronos.dev/accelerator slots",
            id="the preferred one has no place",
        ),
    ],
)
def test_strategies_are_compared_in_the_places_that_are_free(options, chosen, runner_up):
    verdict = admit([priced("job", *options)], {"default": Topology.build(DEMO, FABRIC)}, {})["forge", "job"]
    assert isinstance(verdict, Admitted)
    assert verdict.candidate == chosen
    assert verdict.runner_up is not None
    assert verdict.runner_up.startswith(runner_up)
