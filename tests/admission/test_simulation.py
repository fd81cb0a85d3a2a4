"""Traces whose outcome can be worked out by hand, and what must hold for all."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kronos.admission import Queue, Quota
from kronos.admission.order import AGING
from kronos.admission.simulation import Rules, TraceJob, simulate
from kronos.placement import Node, Topology
from support.gangs import SLOT, fabric, racks

FABRIC = fabric("block", "rack")
TOPOLOGY = Topology.build(racks(2, 2), FABRIC)
"""Two racks of two nodes with 4 slots each."""


def line(name: str, pods: int, duration: float, arrival: float = 0.0, **fields: Any) -> TraceJob:
    return TraceJob(name=name, arrival_s=arrival, pods=pods, gpus_per_pod=4, duration_s=duration, **fields)


def in_rack(name: str, pods: int, duration: float, arrival: float = 0.0, **fields: Any) -> TraceJob:
    return line(name, pods, duration, arrival, topology_mode="required", topology_level="rack", **fields)


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        pytest.param(
            [line("a", 4, 10.0), line("b", 4, 10.0)],
            {"makespan_seconds": 20.0, "utilization": 1.0, "waited.most": 10.0, "waited.mean": 5.0},
            id="one after the other",
        ),
        pytest.param(
            [line("a", 3, 10.0), line("b", 3, 10.0)],
            {"makespan_seconds": 20.0, "utilization": 0.75, "waited.most": 10.0},
            id="each more than half",
        ),
        pytest.param(
            [line("a", 3, 10.0), line("b", 4, 10.0, 1.0), line("c", 1, 8.0, 2.0)],
            {"makespan_seconds": 20.0, "overtaken": 1, "waited.most": 9.0},
            id="c ends at 10, when b starts, so it goes first: (3 x 10 + 4 x 10 + 8) / 80 of the time",
        ),
        pytest.param(
            [line("a", 3, 10.0), line("b", 4, 10.0, 1.0), line("c", 1, 9.0, 2.0)],
            {"makespan_seconds": 29.0, "overtaken": 0, "waited.most": 18.0},
            id="c would end at 11, so it goes last",
        ),
        pytest.param(
            [line("a", 1, 10.0), line("b", 1, 10.0), in_rack("c", 2, 10.0)],
            {"makespan_seconds": 10.0, "waited.most": 0.0, "domains.rack.used": 3, "violations": 0},
            id="small jobs share a rack, so that a whole one is left",
        ),
        pytest.param(
            [line("low", 4, 100.0), line("high", 4, 10.0, 50.0, priority=1)],
            {"makespan_seconds": 115.0, "preemptions": 1, "waited.most": 0.0},
            id="50 of 100 done, 10 for the urgent one, then 50 + 5 to restart",
        ),
        pytest.param(
            [line("a", 4, 10.0), line("never", 5, 10.0), in_rack("nor", 3, 1.0)],
            {"finished": 1, "makespan_seconds": 10.0},
            id="what can never start holds nobody up",
        ),
        pytest.param([], {"jobs": 0, "makespan_seconds": 0.0, "utilization": 0.0}, id="nothing"),
    ],
)
def test_outcome(trace, expected):
    report = simulate(trace, TOPOLOGY, Rules(SLOT, restart_s=5.0))
    for path, value in expected.items():
        found: Any = report
        for name in path.split("."):
            found = found[name] if isinstance(found, dict) else getattr(found, name)
        assert found == pytest.approx(value), path


def test_a_queue_gets_back_what_it_lent():
    queues = {name: Queue(name, "campus", {SLOT: Quota(8)}) for name in ("lab", "plant")}
    trace = [
        line("one", 2, 100.0, queue="plant"),
        line("two", 2, 100.0, 1.0, queue="plant"),
        line("own", 2, 10.0, 20.0, queue="lab"),
    ]
    report = simulate(trace, TOPOLOGY, Rules(SLOT, queues, restart_s=0.0))
    # `two` began at 1 and is stopped at 20: 81 are left, from 30 on.
    assert (report.preemptions, report.makespan_seconds, report.waited.most) == (1, 111.0, 0.0)


def test_a_stream_of_urgent_jobs_delays_a_large_one_but_not_for_ever():
    """Urgent jobs arrive so fast that the cluster is never empty; after an hour the large one counts like them, and is older."""
    urgent = [line(f"urgent-{at}", 2, 60.0, 30.0 * at, priority=1) for at in range(300)]
    report = simulate(
        [line("large", 4, 60.0, 1.0), *urgent], TOPOLOGY, Rules(SLOT, {"": Queue("", within_queue="Never")})
    )
    assert report.finished == 301
    assert AGING - 60.0 <= report.waited_by_priority[0].most <= AGING + 200.0


traces = st.lists(
    st.builds(
        lambda pods, gpus, duration, arrival, priority, level: (
            pods,
            gpus,
            duration,
            arrival,
            priority,
            level,
        ),
        st.integers(1, 5),
        st.integers(1, 5),
        st.integers(1, 50),
        st.integers(0, 40),
        st.integers(0, 2),
        st.sampled_from([("none", None), ("required", "rack"), ("preferred", "rack"), ("required", "node")]),
    ),
    max_size=14,
)


@given(traces)
@settings(deadline=None, max_examples=100)
def test_every_job_that_could_start_ends_inside_its_level_and_the_same_trace_gives_the_same_report(shapes):
    trace = [
        TraceJob(
            name=f"job-{at}",
            pods=pods,
            gpus_per_pod=gpus,
            duration_s=duration,
            arrival_s=arrival,
            priority=priority,
            topology_mode=mode,
            topology_level=level,
        )
        for at, (pods, gpus, duration, arrival, priority, (mode, level)) in enumerate(shapes)
    ]
    report = simulate(trace, TOPOLOGY, Rules(SLOT))
    assert report.finished + len(report.never) == len(trace)
    assert report.violations == 0
    assert 0.0 <= report.utilization <= 1.0
    assert simulate(reversed(trace), TOPOLOGY, Rules(SLOT)) == report


def test_a_hundred_thousand_accelerators():
    """12,500 nodes: 40 gangs of 300 nodes each fill 96% of them, and the rest follows as they end."""
    nodes = [
        Node(
            f"node-{at}",
            {"net/block": f"b{at // 500}", "net/rack": f"r{at // 20}"},
            {SLOT: 8, "pods": 110},
        )
        for at in range(12_500)
    ]
    topology = Topology.build(nodes, FABRIC)
    trace = [
        TraceJob(
            name=f"job-{at}",
            arrival_s=float(at),
            pods=300,
            gpus_per_pod=8,
            duration_s=1000.0,
            topology_mode="required",
            topology_level="block",
        )
        for at in range(40)
    ]
    report = simulate(trace, topology, Rules(SLOT))
    # One gang fits into a block of 500 nodes; there are 25 blocks.
    assert report.accelerators == 100_000
    assert (report.finished, report.violations) == (40, 0)
    assert report.domains["block"].used == report.domains["block"].least == 40
    assert report.domains["rack"].used == report.domains["rack"].least == 40 * 15
    assert report.makespan_seconds == 2014.0
