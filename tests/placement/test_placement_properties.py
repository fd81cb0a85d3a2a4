"""What must hold for every cluster and every gang."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kronos.placement import (
    GangRequest,
    Node,
    NoFit,
    Placement,
    Topology,
    Usage,
    packing,
    place,
    reserve,
    why_not,
)
from support.gangs import (
    SLOT,
    Truth,
    check_placement,
    fabric,
    gang,
    node,
    small_clusters,
    small_gangs,
    usages,
)

LEVELS = ("block", "rack")
FABRIC = fabric(*LEVELS)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Node], Usage, GangRequest]:
    nodes = draw(small_clusters())
    return nodes, draw(usages(nodes)), draw(small_gangs())


def truth_of(nodes: list[Node], usage: Usage) -> Truth:
    free = {item.name: item.allocatable[SLOT] - usage.get(item.name, {}).get(SLOT, 0) for item in nodes}
    return Truth(LEVELS, nodes, free)


@given(cases())
@settings(max_examples=200, deadline=None)
def test_agrees_with_exhaustive_search(case):
    nodes, usage, request = case
    outcome = place(Topology.build(nodes, FABRIC), usage, request)
    truth = truth_of(nodes, usage)
    best = truth.best(request)
    if isinstance(outcome, NoFit):
        assert best is None
        return
    assert best is not None
    check_placement(truth, request, outcome)
    level, counts = best
    assert outcome.tensor_level == ("node" if request.degrees.tensor_parallel == 1 else level or "cluster")
    assert tuple(outcome.domains.values()) == counts


@given(cases(), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_the_order_of_the_nodes_is_irrelevant(case, shuffler):
    nodes, usage, request = case
    first = place(Topology.build(nodes, FABRIC), usage, request)
    shuffler.shuffle(nodes)
    again = place(Topology.build(nodes, FABRIC), dict(reversed(usage.items())), request)
    assert first == again


@given(cases(), small_clusters(most_nodes=3), st.data())
@settings(deadline=None)
def test_more_capacity_never_makes_a_feasible_gang_infeasible(case, more, data):
    nodes, usage, request = case
    if isinstance(place(Topology.build(nodes, FABRIC), usage, request), NoFit):
        return
    less_taken = {
        name: {SLOT: data.draw(st.integers(0, amounts[SLOT]), label=name)} for name, amounts in usage.items()
    }
    grown = [
        replace(
            item,
            allocatable={**item.allocatable, SLOT: item.allocatable[SLOT] + data.draw(st.integers(0, 2))},
        )
        for item in nodes
    ]
    extra = [replace(item, name=f"extra-{item.name}") for item in more]
    assert isinstance(place(Topology.build(grown + extra, FABRIC), less_taken, request), Placement)


@given(cases())
@settings(deadline=None)
def test_why_not_speaks_exactly_when_there_is_no_place(case):
    nodes, usage, request = case
    topology = Topology.build(nodes, FABRIC)
    outcome = place(topology, usage, request)
    expected = outcome if isinstance(outcome, NoFit) else None
    assert why_not(topology, usage, request) == expected


@given(cases())
@settings(deadline=None)
def test_possible_means_that_the_empty_cluster_would_do(case):
    nodes, usage, request = case
    topology = Topology.build(nodes, FABRIC)
    outcome = place(topology, usage, request)
    if isinstance(outcome, NoFit):
        assert outcome.possible == isinstance(place(topology, {}, request), Placement)
        assert not outcome.possible or outcome.missing > 0


@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 9000), st.integers(0, 3)), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 2500)), min_size=1, max_size=8),
)
@settings(deadline=None)
def test_nothing_is_promised_twice(shapes, gangs):
    nodes = [
        node(f"n{at}", slots, rack=f"r{at % 2}", cpu=cpu, pods=pods)
        for at, (slots, cpu, pods) in enumerate(shapes)
    ]
    topology = Topology.build(nodes, FABRIC)
    usage: Usage = {}
    for ranks, cpu in gangs:
        request = gang(dp=ranks, per_rank={"cpu": cpu})
        outcome = place(topology, usage, request)
        if isinstance(outcome, Placement):
            usage = reserve(usage, outcome, request)
    for item in nodes:
        for resource, amount in usage.get(item.name, {}).items():
            assert amount <= item.allocatable[resource]


@given(cases())
@settings(deadline=None)
def test_choices_without_search_are_valid_too(case):
    nodes, usage, request = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "EXACT_WORK", 0)
        outcome = place(Topology.build(nodes, FABRIC), usage, request)
    truth = truth_of(nodes, usage)
    assert isinstance(outcome, Placement) == (truth.best(request) is not None)
    if isinstance(outcome, Placement):
        check_placement(truth, request, outcome)


@given(small_clusters(most_nodes=7, labelled=True), st.integers(1, 12))
@settings(deadline=None)
def test_the_tightest_of_the_smallest_sets(nodes, ranks):
    outcome = place(Topology.build(nodes, FABRIC), {}, gang(dp=ranks))
    if isinstance(outcome, Placement):
        truth = truth_of(nodes, {})
        chosen = {member.node for member in outcome.members}
        free = sum(truth.free[name] for name in chosen)
        for others in combinations(nodes, len(chosen)):
            room = sum(truth.free[item.name] for item in others)
            if room >= ranks and truth.counts(others) == tuple(outcome.domains.values()):
                assert free <= room
