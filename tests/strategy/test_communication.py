"""Costs of collectives on a network of levels."""

from __future__ import annotations

import pytest

from kronos.api.plan import Degrees
from kronos.strategy.communication import AxisTraffic, Network, nest
from support.searches import fabric

NETWORK = Network.of(fabric(node=400, leaf=50, spine=10), {"node": 8, "leaf": 32, "spine": 128})
NODE, LEAF, SPINE = (wire for _, wire in NETWORK.domains)


def test_a_group_in_a_node_pays_a_ring():
    route = NETWORK.route(1, 8)
    assert route.gather(8e9) == pytest.approx(7 * 2e-6 + 7e9 / 400e9)
    assert route.all_reduce(8e9) == pytest.approx(2 * route.gather(8e9))


def test_small_sums_of_many_ranks_go_through_trees():
    route = NETWORK.route(1, 128)
    depth = 3 * 2e-6 + 2 * 5e-6 + 2 * 10e-6
    per_byte = 1 / 400e9 + 1 / 8 / 50e9 + 1 / 32 / 10e9
    assert route.all_reduce(1000) == pytest.approx(2 * (depth + 1000 * per_byte))
    assert route.all_reduce(1000) < 2 * route.gather(1000)
    assert route.all_reduce(8e9) == pytest.approx(2 * route.gather(8e9)), "large ones go round rings"


def test_an_exchange_sends_each_rank_its_part():
    route = NETWORK.route(1, 16)
    inside, beyond = 7 / 16 * 8e9 / 400e9, 8 / 16 * 8e9 / 50e9
    assert route.exchange(8e9) == pytest.approx(7 * 2e-6 + 5e-6 + inside + beyond)


@pytest.mark.parametrize(
    ("inner", "degree", "level"),
    [
        pytest.param(1, 8, None, id="a node holds it"),
        pytest.param(1, 16, "node", id="two nodes of a leaf"),
        pytest.param(8, 8, "leaf", id="neighbours in different nodes, over two leaves"),
    ],
)
def test_the_widest_level_that_a_group_crosses(inner, degree, level):
    assert NETWORK.crossed(inner, degree) == level


def test_a_wide_group_sends_little_over_the_wide_level():
    route = NETWORK.route(1, 32)
    inside, between = 7 * 2e-6 + 7e9 / 400e9, 3 * 5e-6 + (1e9 * 3 / 4) / 50e9
    assert route.gather(8e9) == pytest.approx(inside + between)


def test_neighbours_in_different_nodes_pay_the_leaf_for_all():
    route = NETWORK.route(8, 4)
    assert route.gather(8e9) == pytest.approx(3 * 5e-6 + 6e9 / 50e9)
    assert route.hop == LEAF


def test_a_group_that_starts_in_a_leaf_and_crosses_it():
    route = NETWORK.route(16, 4)
    assert route.gather(8e9) == pytest.approx(5e-6 + 4e9 / 50e9 + 10e-6 + 2e9 / 10e9)
    assert route.hop == SPINE


def test_a_group_of_one_pays_nothing():
    assert NETWORK.route(64, 1).gather(8e9) == 0


def test_a_group_wider_than_the_network_pays_its_widest_level():
    assert NETWORK.route(128, 2).hop == SPINE


def test_domains_have_eight_slots_and_eight_domains_when_nobody_says():
    assert [slots for slots, _ in Network.of(fabric()).domains] == [8, 64, 512]
    assert [slots for slots, _ in Network.of(fabric(), {"node": 4}).domains] == [4, 32, 256]


def test_a_wide_level_is_never_faster_than_the_levels_inside_it():
    network = Network.of(fabric(node=10, leaf=50, spine=25))
    assert {wire.seconds_per_byte for _, wire in network.domains} == {1e-10}


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        pytest.param(
            {"rack": 8}, "the fabric has no level rack; its levels are spine, leaf, node", id="unknown"
        ),
        pytest.param({"leaf": 0}, "a domain of level leaf can't have 0 accelerators", id="empty"),
    ],
)
def test_sizes_that_make_no_sense(slots, message):
    with pytest.raises(ValueError, match=message):
        Network.of(fabric(), slots)


def test_the_heaviest_axis_is_innermost_after_tensor_parallelism():
    split = Degrees(data_parallel=2, sharded_data_parallel=2, tensor_parallel=4, pipeline_parallel=2)
    light_pipeline = nest(NETWORK, split, AxisTraffic(tensor=1, pipeline=1, sharded_data=3, data=2))
    assert light_pipeline.tensor.hop == light_pipeline.sharded_data.hop == NODE
    assert light_pipeline.data.hop == LEAF
    heavy_pipeline = nest(NETWORK, split, AxisTraffic(tensor=1, pipeline=9, sharded_data=3, data=2))
    assert heavy_pipeline.pipeline.hop == NODE
    assert heavy_pipeline.sharded_data.hop == LEAF


def test_a_group_is_dealt_out_evenly_to_the_nodes_that_it_needs():
    """As placement deals it out, so that a prediction is no more hopeful than the best place."""
    odd = Network.of(fabric(node=400, leaf=50, spine=10), {"node": 7, "leaf": 28, "spine": 112})
    assert odd.route(1, 8) == odd.route_over(8, [4, 8, 8])
    assert odd.route(1, 12) == odd.route_over(12, [6, 12, 12])
