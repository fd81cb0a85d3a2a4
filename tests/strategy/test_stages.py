"""Pipeline stages: balance, schedule, microbatches in flight."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kronos.strategy.stages import (
    Passes,
    balance,
    bubble,
    in_flight,
    telling_stages,
    virtual_stage_options,
)


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


@pytest.mark.parametrize(
    ("layers", "stages", "head", "embedding", "expected"),
    [
        pytest.param(8, 4, 0.01, 2.0, (1, 2, 3, 2), id="the embedding's stage has fewer layers"),
        pytest.param(8, 2, 1.0, 3.0, (3, 5), id="two stages"),
        pytest.param(8, 4, 2.0, 2.0, (1, 3, 3, 1), id="both ends"),
    ],
)
def test_balance_with_a_dear_embedding(layers, stages, head, embedding, expected):
    assert balance(layers, stages, head, embedding) == expected


def test_more_stages_than_layers_are_refused():
    with pytest.raises(ValueError, match="4 pipeline stages need at least as many layers, not 3"):
        balance(3, 4, 1.0)


@given(st.integers(1, 9), st.integers(1, 4), st.floats(0, 6), st.floats(0, 6))
def test_no_split_has_a_faster_slowest_stage(layers, stages, head, embedding):
    if stages > layers:
        return
    chosen = balance(layers, stages, head, embedding)
    splits = (split for split in product(range(1, layers + 1), repeat=stages) if sum(split) == layers)
    assert sum(chosen) == layers
    assert len(chosen) == stages
    assert slowest(chosen, head, embedding) == min(slowest(split, head, embedding) for split in splits)


def slowest(split, head, embedding):
    costs = list(split)
    costs[0] += embedding
    costs[-1] += head
    return max(costs)


@pytest.mark.parametrize(
    ("stages", "microbatches", "schedule", "parts", "kept"),
    [
        pytest.param(1, 8, "None", 1, [1], id="no pipeline"),
        pytest.param(4, 8, "1F1B", 1, [4, 3, 2, 1], id="the first stage keeps the most"),
        pytest.param(4, 4, "1F1B", 1, [4, 3, 2, 1], id="as many microbatches as stages"),
        pytest.param(4, 2, "GPipe", 1, [2, 2, 2, 2], id="too few microbatches for 1F1B"),
        pytest.param(4, 8, "ZeroBubble", 1, [4, 3, 2, 1], id="no more without a bubble"),
        pytest.param(4, 8, "Interleaved1F1B", 2, [11, 9, 7, 5], id="in parts of half a stage"),
        pytest.param(4, 4, "Interleaved1F1B", 2, [8, 8, 7, 5], id="no more parts than there are"),
    ],
)
def test_microbatches_in_flight(stages, microbatches, schedule, parts, kept):
    assert [in_flight(stage, stages, schedule, microbatches, parts) for stage in range(stages)] == kept


@pytest.mark.parametrize(
    ("layers", "stages", "microbatches", "options"),
    [
        pytest.param(24, 4, 8, (2, 3, 6), id="divisors of a stage's layers"),
        pytest.param(24, 1, 8, (), id="no pipeline"),
        pytest.param(25, 4, 8, (), id="unequal stages"),
        pytest.param(24, 4, 6, (), id="microbatches don't come in rounds"),
    ],
)
def test_virtual_stages(layers, stages, microbatches, options):
    assert virtual_stage_options(layers, stages, microbatches) == options


STAGE, FOUR = Passes(1.0, 2.0, 1.0), Passes(4.0, 8.0, 4.0)


@pytest.mark.parametrize(
    ("schedule", "parts", "seconds"),
    [
        pytest.param("None", 1, 0.0, id="no pipeline"),
        pytest.param("GPipe", 1, 9.0, id="three stages there and back"),
        pytest.param("1F1B", 1, 9.0, id="the same"),
        pytest.param("Interleaved1F1B", 3, 3.0, id="a third"),
        pytest.param("ZeroBubble", 1, 3.0, id="filled with gradients of weights"),
    ],
)
def test_bubbles(schedule, parts, seconds):
    assert bubble(STAGE, FOUR, schedule, parts) == pytest.approx(seconds)


def test_one_stage_of_each_kind_is_told():
    told = telling_stages((2, 3, 3, 2, 4, 3, 1))
    assert [(stage.index, stage.layers) for stage in told] == [(0, 2), (1, 3), (3, 2), (4, 4), (6, 1)]
