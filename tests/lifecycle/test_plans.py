"""Whatever the operator decides, the trainer accepts: the two may not disagree on what a plan may say."""

from __future__ import annotations

from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kronos.api.plan import Plan
from kronos.lifecycle.objects import plan_of
from kronos_trainer.inputs import check_supported
from support.worlds import SLOT, World, job


@st.composite
def sections(draw: st.DrawFn) -> dict[str, Any]:
    """Parts of a spec that the API server would accept, odd ones too."""
    key_value_heads = draw(st.integers(1, 6))
    heads = key_value_heads * draw(st.integers(1, 3))
    model: dict[str, Any] = {
        "layers": draw(st.integers(1, 9)),
        "hiddenSize": 2 * heads * draw(st.integers(1, 8)),
        "attentionHeads": heads,
        "keyValueHeads": key_value_heads,
        "sequenceLength": draw(st.integers(2, 200)),
        "vocabularySize": draw(st.integers(256, 2000)),
        "tiedEmbeddings": draw(st.booleans()),
    }
    if draw(st.booleans()):
        model["feedForwardSize"] = draw(st.integers(1, 300))
    low = draw(st.integers(1, 16))
    pinned = {
        name: degree
        for name in ("dataParallel", "shardedDataParallel", "tensorParallel", "pipelineParallel")
        if (degree := draw(st.sampled_from([None, None, 1, 2, 3, 4]))) is not None
    }
    return {
        "model": model,
        "optimization": {
            "globalBatchSize": draw(st.integers(1, 96)),
            "steps": 10,
            "precision": draw(st.sampled_from(["fp32", "bf16"])),
        },
        "accelerators": {"resource": SLOT, "min": low, "max": draw(st.integers(low, 16))},
        "strategy": {**pinned, "objective": draw(st.sampled_from(["Time", "Efficiency", "Memory"]))},
    }


@given(sections=sections())
@settings(max_examples=150, deadline=None)
def test_every_plan_that_is_written_is_one_that_the_trainer_runs(sections):
    world = World(job("burner", **sections))
    world.round()
    item = world.jobs["forge", "burner"]
    status = item.status
    if status.placement is None:
        assert status.reason, "a job without a place says why"
    assume(status.placement is not None)
    assert item.spec is not None
    assert status.strategy is not None
    plan = plan_of(item, item.spec, status.strategy, status.placement)
    check_supported(Plan.model_validate_json(plan.model_dump_json(by_alias=True)))
    for name, degree in sections["strategy"].items():
        if name != "objective":
            assert plan.degrees.wire()[name] == degree


def test_pods_carry_the_labels_and_annotations_of_the_template_beside_the_operators():
    template = {"labels": {"team": "forge"}, "annotations": {"example.com/owner": "forge@example.com"}}
    world = World(job("burner", template=template))
    world.settle()
    pods = [item["metadata"] for item in world.manifests if item["kind"] == "Pod"]
    assert {pod["labels"]["team"] for pod in pods} == {"forge"}
    assert {pod["labels"]["training.kronos.dev/job"] for pod in pods} == {"burner"}
    assert {pod["annotations"]["example.com/owner"] for pod in pods} == {"forge@example.com"}
    others = [item["metadata"] for item in world.manifests if item["kind"] != "Pod"]
    assert all("team" not in other["labels"] for other in others)
