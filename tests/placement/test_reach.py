"""How far the groups of each axis reach in a placement."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kronos.placement import Placement, Topology, place, reaches
from support.gangs import fabric, gang, node, racks, small_clusters, small_gangs, taken

FABRIC = fabric("block", "rack")


def reach_of(nodes, request, usage=None):
    topology = Topology.build(nodes, FABRIC)
    outcome = place(topology, usage or {}, request)
    assert isinstance(outcome, Placement), outcome
    return reaches(request.degrees, outcome, topology.levels)


@pytest.mark.parametrize(
    ("request_", "usage", "expected"),
    [
        pytest.param(
            gang(dp=4, tp=4),
            {},
            {"tensor": (4, 4, 4), "data": (4, 2, 1)},
            id="tensor groups fill nodes, replicas go across racks",
        ),
        pytest.param(gang(tp=4), {}, {"tensor": (4, 4, 4)}, id="a group in one node"),
        pytest.param(
            gang(tp=4),
            taken(n0=2, n1=2, n2=2, n3=2),
            {"tensor": (4, 4, 2)},
            id="no node has room for a group, so that it needs two",
        ),
        pytest.param(
            gang(tp=2, pp=2),
            taken(n0=3, n1=3, n2=3, n3=3),
            {"tensor": (2, 2, 1), "pipeline": (2, 1, 1)},
            id="a single slot on each node",
        ),
    ],
)
def test_reaches_by_level(request_, usage, expected):
    found = reach_of(racks(2, 2), request_, usage)
    for axis, counts in expected.items():
        assert tuple(found[axis].values()) == counts, axis
        assert list(found[axis]) == ["block", "rack", "node"]
    for axis in found.keys() - expected.keys():
        assert set(found[axis].values()) == {1}


@given(small_clusters(), small_gangs(), st.data())
def test_wider_domains_hold_at_least_as_many_and_never_more_than_the_group(nodes, request, data):
    topology = Topology.build(nodes, FABRIC)
    outcome = place(topology, {}, request)
    if not isinstance(outcome, Placement):
        return
    for axis, counts in reaches(request.degrees, outcome, topology.levels).items():
        inside = list(counts.values())
        assert inside == sorted(inside, reverse=True), axis
        assert all(1 <= count <= getattr(request.degrees, f"{axis}_parallel") for count in inside)


def test_one_node_holds_all_groups():
    found = reach_of([node("n", 8, block="b", rack="r")], gang(dp=2, tp=2, pp=2))
    assert all(set(counts.values()) <= {1, 2} for counts in found.values())
    assert found["tensor"]["node"] == found["pipeline"]["node"] == found["data"]["node"] == 2
