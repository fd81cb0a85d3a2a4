"""Every layout computes what one process computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.plans import tiny_plan
from support.training_ranks import Ranks, Run

pytestmark = pytest.mark.training

LAYOUTS: dict[str, dict[str, Any]] = {
    "dp4": {"dp": 4},
    "dp3 with one sequence per microbatch": {"dp": 3, "batch": 12, "microbatches": 4},
    "fsdp4": {"fsdp": 4},
    "tp2·dp2": {"tp": 2, "dp": 2},
    "pp2·dp2": {"pp": 2, "dp": 2},
    "pp2·dp2 with GPipe": {"pp": 2, "dp": 2, "schedule": "GPipe"},
    "tp2·pp2·dp2": {"tp": 2, "pp": 2, "dp": 2},
    "dp2·fsdp2": {"dp": 2, "fsdp": 2},
    "fsdp2·tp2": {"fsdp": 2, "tp": 2},
    "fsdp2·pp2": {"fsdp": 2, "pp": 2},
    "fsdp3, which divides no dimension": {"fsdp": 3, "batch": 12},
    "fsdp2·dp2·tp2": {"fsdp": 2, "dp": 2, "tp": 2},
    "fsdp2·pp2·tp2": {"fsdp": 2, "pp": 2, "tp": 2},
    "uneven stages": {"pp": 3, "stage_layers": (2, 1, 1), "batch": 12, "microbatches": 3},
    "a rank map that moves every rank": {"tp": 2, "pp": 2, "rank_map": (2, 3, 1, 0)},
    "recomputed activations on fsdp2·tp2": {"fsdp": 2, "tp": 2, "activation_checkpointing": True},
    "recomputed activations on pp2·dp2": {"pp": 2, "dp": 2, "activation_checkpointing": True},
    "tied embeddings on fsdp2·tp2": {"fsdp": 2, "tp": 2, "model": {"tied_embeddings": True}},
    "a vocabulary that tp2 doesn't divide": {"tp": 2, "model": {"vocabulary_size": 257}},
}
TRAINED = ("dp4", "fsdp4", "tp2·dp2", "pp2·dp2", "tp2·pp2·dp2", "dp2·fsdp2", "fsdp2·tp2", "fsdp2·pp2")


def single(layout: dict[str, Any]) -> dict[str, Any]:
    """The same training as a layout's, for one process."""
    return {key: value for key, value in layout.items() if key in ("model", "batch", "optimization")}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_of_each_parameter_equal_those_of_one_process(
    layout: str, ranks: Ranks, text: Path
) -> None:
    reference = ranks.each(tiny_plan(text, **single(LAYOUTS[layout])), "gradients")[0]
    results = ranks.each(tiny_plan(text, **LAYOUTS[layout]), "gradients")
    found = {name: value for result in results for name, value in result["gradients"].items()}
    assert found.keys() == reference["gradients"].keys()
    for name, value in reference["gradients"].items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
    for result in results:
        assert result["norm"] == pytest.approx(reference["norm"], rel=1e-5)
        assert result["loss"] == pytest.approx(reference["loss"], rel=1e-6)


@pytest.mark.parametrize("layout", ["dp4", "fsdp2·tp2", "tp2·pp2·dp2", "fsdp2·pp2"])
def test_bf16_gradients_are_close_to_those_of_one_process(layout: str, ranks: Ranks, text: Path) -> None:
    half = {"optimization": {"precision": "bf16"}}
    reference = ranks.each(tiny_plan(text, **half), "gradients")[0]
    results = ranks.each(tiny_plan(text, **LAYOUTS[layout], **half), "gradients")
    found = {name: value for result in results for name, value in result["gradients"].items()}
    assert all(value.dtype == np.float32 for value in found.values())
    for name, value in reference["gradients"].items():
        error = np.linalg.norm(found[name] - value) / np.linalg.norm(value)
        assert error < 0.03, name
    assert results[0]["loss"] == pytest.approx(reference["loss"], rel=1e-3)


@pytest.fixture(scope="module")
def reference(ranks: Ranks, text: Path) -> Run:
    return ranks.train(tiny_plan(text))


@pytest.mark.parametrize("layout", TRAINED)
def test_losses_of_twenty_steps_equal_those_of_one_process(
    layout: str, ranks: Ranks, text: Path, reference: Run
) -> None:
    run = ranks.train(tiny_plan(text, **LAYOUTS[layout]))
    assert list(run.losses) == list(range(1, 21))
    assert list(run.losses.values()) == pytest.approx(list(reference.losses.values()), rel=1e-4)


def test_training_learns(reference: Run) -> None:
    assert reference.losses[20] < reference.losses[1] - 1.5
