"""Ranks for nodes that somebody else chose: as good as if we had chosen the same ones."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from kronos.placement import Placement, Topology, arranged, place
from support.gangs import fabric, gang, node, racks, small_clusters, small_gangs
from support.messages import Bytes, cost_of

FABRIC = fabric("block", "rack")
TRAFFIC = Bytes(tensor=500.0, pipeline=20.0, sharded_data=20.0, data=1.0)


@given(small_clusters(labelled=True), small_gangs(), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=100)
def test_in_any_order_of_the_members_messages_cost_what_they_cost_in_our_own(nodes, request, shuffler):
    topology = Topology.build(nodes, FABRIC)
    free = replace(request, traffic=TRAFFIC, pipeline_parallel_within=None, sharded_data_parallel_within=None)
    ours = place(topology, {}, free)
    if not isinstance(ours, Placement):
        return
    members = list(ours.members)
    shuffler.shuffle(members)
    theirs = arranged(topology, free, [item.node for item in members], [item.ranks for item in members])
    assert theirs is not None
    assert list(theirs.members) == members
    assert sorted(theirs.rank_map) == list(range(free.degrees.world_size))
    assert theirs.domains == ours.domains
    # Ours numbers nodes with whole tensor groups first, which the order of the tree may not.
    if ours.tensor_level == "node":
        mine = cost_of(ours.rank_map, free.degrees, TRAFFIC, ours)
        assert cost_of(theirs.rank_map, free.degrees, TRAFFIC, theirs) <= mine * (1 + 1e-9)


def test_members_on_one_node_are_neighbours():
    topology = Topology.build(racks(2, 1), FABRIC)
    found = arranged(topology, gang(tp=4, dp=2), ["n1", "n0", "n1", "n0"], [2, 2, 2, 2])
    assert found is not None
    assert sorted(map(sorted, (found.rank_map[:4], found.rank_map[4:]))) == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert (found.tensor_level, found.domains["node"]) == ("node", 2)


def test_tensor_groups_over_racks_are_said_to_be():
    topology = Topology.build([node("a", 2, block="b", rack="r"), node("b", 2, block="b", rack="s")], FABRIC)
    found = arranged(topology, gang(tp=4), ["a", "b"], [2, 2])
    assert found is not None
    assert found.summary == "2 nodes in 2 racks in 1 block; each tensor group inside one block"


def test_a_node_that_is_not_there_is_no_place():
    assert arranged(Topology.build(racks(1, 1), FABRIC), gang(dp=2), ["n0", "gone"], [1, 1]) is None
