"""What a strategy costs where it would really run."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kronos.strategy import search, time_in_place
from support.searches import LLAMA_3_8B, fabric, job, jobs, memories

SPEC = job(LLAMA_3_8B, batch=8, low=8, mode="Fixed", tensor_parallel=8)
SLOTS = {"node": 8, "leaf": 64, "spine": 512}


def test_the_best_place_costs_what_the_search_says():
    candidate = search(SPEC, fabric(), SLOTS).candidates[0]
    inside = {"tensor": {"spine": 8, "leaf": 8, "node": 8}}
    assert time_in_place(SPEC, fabric(), SLOTS, candidate, inside) == candidate.time


def test_a_tensor_group_over_two_nodes_pays_the_leaf():
    candidate = search(SPEC, fabric(), SLOTS).candidates[0]
    across = {"tensor": {"spine": 8, "leaf": 8, "node": 4}}
    time = time_in_place(SPEC, fabric(), SLOTS, candidate, across)
    assert time.tensor_parallel > 2 * candidate.time.tensor_parallel
    assert time.compute == candidate.time.compute


def test_a_level_that_nodes_are_not_labelled_with_joins_no_more_than_the_narrower_one():
    candidate = search(SPEC, fabric(), SLOTS).candidates[0]
    known = {"tensor": {"spine": 8, "leaf": 4, "node": 4}}
    unknown = {"tensor": {"spine": 8, "node": 4}}
    times = [time_in_place(SPEC, fabric(), SLOTS, candidate, reach) for reach in (known, unknown)]
    assert times[0] == times[1]


def test_an_accelerator_that_the_fabric_lacks_is_an_error():
    candidate = search(SPEC, fabric(), SLOTS).candidates[0]
    with pytest.raises(ValueError, match="does not describe example"):
        time_in_place(job(resource="example.com/gpu"), fabric(), SLOTS, candidate, {})


@settings(deadline=None)
@given(jobs(), memories(), st.sampled_from([1, 2]))
def test_no_place_over_single_slots_is_better_than_the_best(spec, memory, leaf):
    on = fabric(memory=memory)
    for candidate in search(spec, on).candidates[:5]:
        scattered = {
            axis: {"spine": 99, "leaf": leaf, "node": 1}
            for axis in ("tensor", "pipeline", "sharded_data", "data")
        }
        time = time_in_place(spec, on, None, candidate, scattered)
        assert time.total >= candidate.time.total * (1 - 1e-9)
