"""Stopping, resuming and repeating: what must be exact is exact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kronos.api.plan import CheckpointPlan, Plan
from kronos_trainer.checkpoint import complete_steps
from support.plans import tiny_plan
from support.training_ranks import Ranks

pytestmark = pytest.mark.training

STEPS = 8


def plan_with_checkpoint(text: Path, folder: Path, every: int = 3, keep: int = 2, **layout: Any) -> Plan:
    where = CheckpointPlan(path=str(folder), every_steps=every, keep=keep)
    return tiny_plan(text, steps=STEPS, mode="Deterministic", checkpoint=where, **layout)


@pytest.mark.parametrize(
    "layout", [{"dp": 3, "batch": 6}, {"fsdp": 2, "tp": 2}, {"pp": 2, "fsdp": 2}], ids=str
)
def test_a_run_stopped_in_the_middle_and_resumed_equals_an_undisturbed_one(
    layout: dict[str, Any], ranks: Ranks, text: Path, tmp_path: Path
) -> None:
    undisturbed = ranks.train(tiny_plan(text, steps=STEPS, mode="Deterministic", **layout))
    plan = plan_with_checkpoint(text, tmp_path, **layout)
    first = ranks.train(plan, stop_after=4)
    assert first.stopped
    assert first.digest is None
    assert complete_steps(tmp_path) == [3, 5]
    second = ranks.train(plan)
    assert second.first_step == 6
    assert first.losses | second.losses == undisturbed.losses
    assert second.digest == undisturbed.digest


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"fsdp": 2, "tp": 2}, {"pp": 2, "dp": 2}),
        ({"pp": 2, "dp": 2}, {"fsdp": 3, "tp": 2, "batch": 12}),
        ({"tp": 2, "rank_map": (1, 0)}, {"dp": 2, "fsdp": 2}),
        ({"fsdp": 4}, {}),
    ],
    ids=str,
)
def test_a_run_goes_on_with_another_layout_as_if_nothing_had_happened(
    before: dict[str, Any], after: dict[str, Any], ranks: Ranks, text: Path, tmp_path: Path
) -> None:
    batch = {"batch": 12}
    undisturbed = ranks.train(tiny_plan(text, steps=STEPS, **batch))
    first = ranks.train(plan_with_checkpoint(text, tmp_path, **{**before, **batch}), stop_after=3)
    second = ranks.train(plan_with_checkpoint(text, tmp_path, **{**after, **batch}))
    assert second.first_step == 5
    losses = first.losses | second.losses
    assert list(losses.values()) == pytest.approx(list(undisturbed.losses.values()), rel=1e-4)


def test_the_digest_of_restored_weights_does_not_depend_on_the_layout(
    ranks: Ranks, text: Path, tmp_path: Path
) -> None:
    finished = ranks.train(plan_with_checkpoint(text, tmp_path, fsdp=2, tp=2))
    for layout in ({}, {"pp": 2, "tp": 2}, {"fsdp": 4}):
        again = ranks.each(plan_with_checkpoint(text, tmp_path, **layout), "restored_digest")
        assert set(again) == {(STEPS, finished.digest)}


def test_the_same_layout_trained_twice_gives_the_same_bits(ranks: Ranks, text: Path) -> None:
    plan = tiny_plan(text, steps=STEPS, mode="Deterministic", dp=3, tp=2, batch=6)
    first, second = ranks.train(plan), ranks.train(plan)
    assert first.digest is not None
    assert first == second


def test_another_seed_gives_other_weights(ranks: Ranks, text: Path) -> None:
    first, second = (ranks.train(tiny_plan(text, steps=1, seed=seed)) for seed in (1, 2))
    assert first.digest != second.digest


def test_initial_weights_are_the_same_on_every_layout(ranks: Ranks, text: Path) -> None:
    layouts: list[dict[str, Any]] = [
        {},
        {"fsdp": 3, "batch": 6},
        {"fsdp": 2, "tp": 2},
        {"pp": 2, "tp": 2, "rank_map": (3, 1, 0, 2)},
    ]
    digests = {
        digest for layout in layouts for digest in ranks.each(tiny_plan(text, **layout), "initial_digest")
    }
    assert len(digests) == 1


def test_only_the_last_checkpoints_are_kept_and_partial_ones_are_ignored(
    ranks: Ranks, text: Path, tmp_path: Path
) -> None:
    (tmp_path / "step-0000000099").mkdir()
    ranks.train(plan_with_checkpoint(text, tmp_path, every=2, keep=2))
    assert complete_steps(tmp_path) == [6, 8]
    assert not list(tmp_path.glob(".*partial"))


def test_a_checkpoint_of_another_run_is_refused_with_the_difference(
    ranks: Ranks, text: Path, tmp_path: Path
) -> None:
    plan = plan_with_checkpoint(text, tmp_path)
    ranks.train(plan)
    manifest = json.loads((tmp_path / f"step-{STEPS:010d}" / "checkpoint.json").read_text())
    assert manifest["step"] == STEPS
    other = plan.model_copy(
        update={"reproducibility": plan.reproducibility.model_copy(update={"seed": 1234})}
    )
    with pytest.raises(AssertionError, match="was written with another seed; give this job its own"):
        ranks.train(other)
