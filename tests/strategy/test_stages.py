"""Pipeline stages: balance, schedule, microbatches in flight."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kronos.strategy.stages import balance, in_flight, schedule_for, telling_stages


@pytest.mark.parametrize(
    ("layers", "stages", "head", "expected"),
    [
        pytest.param(8, 1, 5.0, (8,), id="one stage"),
        pytest.param(8, 4, 0.01, (2, 2, 2, 2), id="even, the head costs next to nothing"),
        pytest.param(9, 4, 0.01, (2, 2, 3, 2), id="what is left goes to late stages, not to the head's"),
        pytest.param(8, 4, 2.0, (2, 2, 3, 1), id="the head's stage has fewer layers"),
        pytest.param(32, 4, 2.4, (8, 9, 9, 6), id="a large vocabulary"),
        pytest.param(3, 3, 9.0, (1, 1, 1), id="every stage has a layer"),
    ],
)
def test_balance(layers, stages, head, expected):
    assert balance(layers, stages, head) == expected


def test_more_stages_than_layers_are_refused():
    with pytest.raises(ValueError, match="4 pipeline stages need at least as many layers, not 3"):
        balance(3, 4, 1.0)


@given(st.integers(1, 9), st.integers(1, 4), st.floats(0, 6))
def test_no_split_has_a_faster_slowest_stage(layers, stages, head):
    if stages > layers:
        return
    chosen = balance(layers, stages, head)
    splits = (split for split in product(range(1, layers + 1), repeat=stages) if sum(split) == layers)
    assert sum(chosen) == layers
    assert len(chosen) == stages
    assert slowest(chosen, head) == min(slowest(split, head) for split in splits)


def slowest(split, head):
    return max((*split[:-1], split[-1] + head))


@pytest.mark.parametrize(
    ("stages", "microbatches", "schedule", "kept"),
    [
        pytest.param(1, 8, "None", [1], id="no pipeline"),
        pytest.param(4, 8, "1F1B", [4, 3, 2, 1], id="the first stage keeps the most"),
        pytest.param(4, 4, "1F1B", [4, 3, 2, 1], id="as many microbatches as stages"),
        pytest.param(4, 2, "GPipe", [2, 2, 2, 2], id="too few microbatches for 1F1B"),
    ],
)
def test_schedule_and_microbatches_in_flight(stages, microbatches, schedule, kept):
    assert schedule_for(stages, microbatches) == schedule
    assert [in_flight(stage, stages, schedule, microbatches) for stage in range(stages)] == kept


def test_one_stage_of_each_kind_is_told():
    told = telling_stages((2, 3, 3, 2, 4, 3, 1))
    assert [(stage.index, stage.layers) for stage in told] == [(0, 2), (1, 3), (3, 2), (4, 4), (6, 1)]
