"""Certified jobs see only plans that keep their canonical structure."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from kronos.strategy import EVERYTHING, search
from support.searches import LLAMA_2_7B, SMALL, fabric, job


def certified(lanes: int = 1, leaf: int = 1) -> dict[str, Any]:
    return {"mode": "Certified", "canonical": {"tensor_lanes": lanes, "leaf_sequences": leaf}}


def find(spec):
    return search(spec, fabric(), abilities=EVERYTHING)


@settings(deadline=None, max_examples=50)
@given(st.sampled_from([1, 2, 4, 6]), st.sampled_from([1, 2, 3, 8]), st.integers(1, 16))
def test_every_candidate_keeps_lanes_and_leaves(lanes, leaf, high):
    found = find(job(batch=48, high=high, reproducibility=certified(lanes, leaf)))
    assert found.candidates
    for candidate in found.candidates:
        degrees = candidate.degrees
        assert lanes % degrees.tensor_parallel == 0
        assert degrees.context_parallel == degrees.expert_parallel == 1
        assert candidate.microbatch_sequences % leaf == 0
        share = degrees.batch_ranks * candidate.microbatches * candidate.microbatch_sequences
        assert share == 48


def test_odd_numbers_of_replicas_are_allowed():
    worlds = {
        candidate.degrees.batch_ranks
        for candidate in find(job(batch=60, high=6, reproducibility=certified())).candidates
    }
    assert {1, 2, 3, 5, 6} <= worlds


def test_wider_lanes_allow_more():
    one, eight = (find(job(LLAMA_2_7B, high=8, reproducibility=certified(lanes))) for lanes in (1, 8))
    degrees = [
        {c.degrees for c in found.candidates if c.degrees.tensor_parallel > 1} for found in (one, eight)
    ]
    assert not degrees[0]
    assert degrees[1]


def test_the_canonical_structure_has_defaults():
    found = find(job(reproducibility={"mode": "Certified"}))
    assert all(candidate.degrees.tensor_parallel == 1 for candidate in found.candidates)


MOE = {**SMALL, "experts": {"count": 4, "active": 2}}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        pytest.param(
            job(reproducibility=certified(2), tensor_parallel=4),
            "tensorParallel 4 does not divide reproducibility.canonical.tensorLanes 2; use 1 or 2",
            id="lanes",
        ),
        pytest.param(
            job(batch=10, reproducibility=certified(1, 4)),
            "reproducibility.canonical.leafSequences 4 does not divide optimization.globalBatchSize 10; "
            "set globalBatchSize to 12",
            id="leaves in the batch",
        ),
        pytest.param(
            job(batch=16, reproducibility=certified(1, 4), data_parallel=3),
            "dataParallel x shardedDataParallel 3 does not divide optimization.globalBatchSize 16 in leaves of 4; "
            "use 2 or 4, or set globalBatchSize to 24",
            id="leaves over replicas",
        ),
        pytest.param(
            job(reproducibility=certified(), context_parallel=2),
            "contextParallel and expertParallel can't keep a certified run's bits; drop them from strategy",
            id="ring attention",
        ),
        pytest.param(
            job(MOE, reproducibility=certified(), expert_parallel=2),
            "contextParallel and expertParallel can't keep a certified run's bits; drop them from strategy",
            id="experts on different ranks",
        ),
    ],
)
def test_what_cannot_be_kept_is_refused_with_the_reason(spec, said):
    found = find(spec)
    assert found.candidates == ()
    assert said in (found.refusal or "")


def test_the_trainer_cannot_run_it_yet():
    refusal = search(job(reproducibility={"mode": "Certified"}), fabric()).refusal
    assert refusal == (
        "this version's trainer can't run reproducibility.mode Certified; use Deterministic, which gives the same bits "
        "on the same layout"
    )


def test_a_structure_without_the_mode_is_refused():
    with pytest.raises(ValidationError, match="canonical belongs to mode Certified"):
        job(reproducibility={"mode": "Deterministic", "canonical": {}})
