"""What the planner predicts of weights, gradients and optimizer state is what ranks really hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kronos.api.plan import Plan
from kronos.strategy.layout import GIB, Layout, Workload
from kronos.strategy.memory import MemoryBreakdown, StageMemory
from kronos.strategy.stages import Stage
from support.plans import tiny_plan
from support.training_ranks import Ranks

pytestmark = pytest.mark.training

# Of the layouts in test_layouts.py those that hold different things; a wider model, so that norms, which aren't split, and
# uneven shards weigh as little as in real ones.
WIDE = {"hidden_size": 64, "feed_forward_size": 192}
LAYOUTS: dict[str, dict[str, Any]] = {
    "one process": {},
    "dp3": {"dp": 3, "batch": 12},
    "fsdp4": {"fsdp": 4, "microbatches": 1},
    "tp2·dp2": {"tp": 2, "dp": 2},
    "pp2·dp2": {"pp": 2, "dp": 2},
    "tp2·pp2·dp2": {"tp": 2, "pp": 2, "dp": 2},
    "dp2·fsdp2": {"dp": 2, "fsdp": 2, "microbatches": 1},
    "fsdp2·tp2": {"fsdp": 2, "tp": 2, "microbatches": 1},
    "fsdp3, which divides no dimension": {"fsdp": 3, "batch": 12, "microbatches": 1},
    "uneven stages": {"pp": 3, "stage_layers": (2, 1, 1), "batch": 12, "microbatches": 3},
    "tied embeddings on fsdp2·tp2": {
        "fsdp": 2,
        "tp": 2,
        "microbatches": 1,
        "model": {"tied_embeddings": True},
    },
    "a vocabulary that tp2 doesn't divide": {"tp": 2, "model": {"vocabulary_size": 257}},
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_tensors_of_ranks_are_as_large_as_predicted_within_2_percent(
    name: str, ranks: Ranks, text: Path
) -> None:
    layout = LAYOUTS[name]
    plan = tiny_plan(text, **{**layout, "model": {**WIDE, **layout.get("model", {})}})
    measured = ranks.each(plan, "held_bytes")
    for stage in range(plan.degrees.pipeline_parallel):
        expected = predicted(plan, stage)
        of_stage = [result for result in measured if result["stage"] == stage]
        for item in ("weights", "gradients", "optimizer"):
            most = max(result[item] for result in of_stage)
            assert getattr(expected, item) == pytest.approx(most, rel=0.02), (name, stage, item)


def predicted(plan: Plan, index: int) -> MemoryBreakdown:
    """The prediction for one stage."""
    load = Workload(
        shape=plan.model,
        global_batch_size=plan.optimization.global_batch_size,
        compute_bytes=4,
        peak_flops=1e12,
        memory_bytes=GIB,
    )
    final = plan.degrees.pipeline_parallel - 1
    stage = Stage(index, plan.stage_layers[index], index == 0, index == final)
    run = Layout(
        degrees=plan.degrees,
        microbatch_sequences=plan.microbatch_sequences,
        microbatches=plan.microbatches,
        checkpointing="None",
        schedule=plan.schedule,
        stage_layers=plan.stage_layers,
    )
    return StageMemory(load, plan.degrees, stage).itemised(run, reserve=0)
