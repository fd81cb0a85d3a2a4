"""Which strategy is chosen, and what is said about those that aren't."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from kronos.api.job import PlacementRules, Strategy
from kronos.strategy import EVERYTHING, advised, search
from kronos.strategy.advice import without_pins
from support.searches import LLAMA_2_7B, LLAMA_3_8B, LLAMA_3_70B, SMALL, fabric, job, jobs, plan

SLOW = fabric(node=1, leaf=1, spine=1)


@pytest.mark.parametrize(
    ("spec", "on", "best", "bottleneck"),
    [
        pytest.param(job(batch=512), fabric(), "dp8", "DataVolume", id="a small model with much data"),
        pytest.param(job(batch=512, precision="fp32"), fabric(), "dp8", "DataVolume", id="the same in fp32"),
        pytest.param(job(high=1), fabric(), "single", "DataVolume", id="one accelerator"),
        pytest.param(
            job(LLAMA_2_7B, batch=8, low=8, tensor_parallel=1, pipeline_parallel=1, data_parallel=1),
            fabric(),
            "fsdp8",
            "ModelSize",
            id="the optimizer state doesn't fit and the layers may not be split",
        ),
        pytest.param(
            job({**LLAMA_2_7B, "sequence_length": 8192}, batch=8, low=8),
            fabric(),
            "fsdp8",
            "ModelSize",
            id="the optimizer state doesn't fit",
        ),
        pytest.param(
            job(LLAMA_3_70B, batch=64, low=64, high=64),
            fabric(),
            "fsdp64",
            "ModelSize",
            id="the same on many accelerators",
        ),
        pytest.param(
            job(LLAMA_3_70B, batch=64, low=64, high=64),
            fabric(memory=64),
            "fsdp2·tp8·pp4",
            "ModelSize",
            id="layers don't fit: a hybrid of all",
        ),
        pytest.param(
            job(LLAMA_2_7B, batch=64, low=8, sharded_data_parallel=1),
            fabric(),
            "dp2·pp4",
            "Both",
            id="a large model with much data, its states not sharded",
        ),
        pytest.param(job(batch=1, low=4, high=4), fabric(), "pp4", "DataVolume", id="one sequence per step"),
        pytest.param(
            job(LLAMA_2_7B, batch=16, low=4, high=4),
            SLOW,
            "pp4",
            "ModelSize",
            id="slow links carry the least traffic",
        ),
        pytest.param(
            job(objective="Efficiency"), fabric(), "single", "DataVolume", id="no speed-up is free of loss"
        ),
    ],
)
def test_choices(spec, on, best, bottleneck):
    found = search(spec, on)
    assert found.candidates[0].degrees.summary == best
    assert found.bottleneck == bottleneck
    assert found.refusal is None


@pytest.mark.parametrize(
    ("pins", "axes"),
    [
        pytest.param({"tensor_parallel": 4}, {"tensor_parallel": 4}, id="tensor"),
        pytest.param({"pipeline_parallel": 2}, {"pipeline_parallel": 2}, id="pipeline"),
        pytest.param(
            {"sharded_data_parallel": 2, "data_parallel": 2},
            {"sharded_data_parallel": 2, "data_parallel": 2},
            id="both data axes",
        ),
        pytest.param(
            {"mode": "Fixed", "tensor_parallel": 2, "pipeline_parallel": 3},
            {
                "tensor_parallel": 2,
                "pipeline_parallel": 3,
                "data_parallel": 1,
                "sharded_data_parallel": 1,
            },
            id="fixed, and the rest 1",
        ),
    ],
)
def test_pinned_degrees_are_kept(pins, axes):
    candidates = search(job(**pins), fabric()).candidates
    assert candidates
    for candidate in candidates:
        assert axes.items() <= candidate.degrees.model_dump().items()


def test_the_memory_objective_takes_the_layout_that_needs_least():
    candidates = search(job(objective="Memory"), fabric()).candidates
    least = min(candidate.memory.total for candidate in candidates)
    assert candidates[0].memory.total <= 1.01 * least
    assert candidates[0].activation_checkpointing


def test_recomputing_only_where_it_is_needed():
    spec = job(LLAMA_2_7B, batch=8, low=8, sharded_data_parallel=8)
    roomy, tight = search(spec, fabric(memory=80)), search(spec, fabric(memory=32))
    assert not roomy.candidates[0].activation_checkpointing
    assert tight.candidates[0].activation_checkpointing


def test_speed_up_is_less_than_linear():
    one = search(job(high=1), fabric()).candidates[0].time.total
    eight = search(job(low=8), fabric()).candidates[0].time.total
    assert one / 8 < eight < one


def test_tensor_groups_wider_than_a_node_are_slower():
    spec = job(LLAMA_3_8B, batch=8, low=8, tensor_parallel=8)
    inside, across = (
        search(spec, fabric(), {"node": slots}).candidates[0].time.tensor_parallel for slots in (8, 4)
    )
    assert across > 2 * inside


def test_traffic_counts_what_a_rank_sends():
    pins = {"data_parallel": 2, "sharded_data_parallel": 2, "tensor_parallel": 2, "pipeline_parallel": 2}
    spec = job(LLAMA_3_8B, batch=64, low=16, high=16, **pins)
    candidate = search(spec, fabric()).candidates[0]
    tokens, hidden = 16 * 8192, 4096
    assert candidate.stage_layers == (17, 15)
    assert not candidate.activation_checkpointing
    assert candidate.traffic.pipeline == 2 * tokens * hidden * 4
    # Two bf16 sums per block forward, two fp32 backward, one for the embedding; all-reduce over 2 sends what it sums.
    assert candidate.traffic.tensor == tokens * hidden * (17 * (2 * 2 + 2 * 4) + 2)
    block, norms = 218_103_808, 2 * 4096
    stage = 17 * ((block + norms) // 2 + norms // 2) + 128256 * 4096 // 2
    # One gather in bf16 and one reduction in fp32, each half; then the replicas sum half of the gradients.
    assert candidate.traffic.sharded_data == stage * (2 + 4) / 2
    assert candidate.traffic.data == stage / 2 * 4


@pytest.mark.parametrize(
    ("spec", "refusal"),
    [
        pytest.param(
            job(resource="example.com/gpu"),
            "the fabric default does not describe example.com/gpu; add it under spec.accelerators",
            id="unknown accelerator",
        ),
        pytest.param(
            job(tensor_parallel=5),
            "the job can't be split over 1 to 8 accelerators: tensorParallel 5 does not divide model.attentionHeads 12; "
            "use 1, 2, 3, 4, 6 or 12, or change model.attentionHeads",
            id="heads",
        ),
        pytest.param(
            job({**SMALL, "key_value_heads": 2}, tensor_parallel=4),
            "the job can't be split over 1 to 8 accelerators: tensorParallel 4 does not divide model.keyValueHeads 2; "
            "use 1 or 2, or change model.keyValueHeads",
            id="key and value heads",
        ),
        pytest.param(
            job({**SMALL, "feed_forward_size": 2050}, tensor_parallel=4),
            "the job can't be split over 1 to 8 accelerators: tensorParallel 4 does not divide model.feedForwardSize 2050; "
            "use 1 or 2 (it must divide attentionHeads 12 and keyValueHeads 12, too), or change model.feedForwardSize",
            id="feed-forward",
        ),
        pytest.param(
            job(high=64, pipeline_parallel=16),
            "the job can't be split over 1 to 64 accelerators: pipelineParallel 16 exceeds model.layers 12; "
            "use at most 12",
            id="layers",
        ),
        pytest.param(
            job({**SMALL, "tied_embeddings": True}, pipeline_parallel=2),
            "the job can't be split over 1 to 8 accelerators: model.tiedEmbeddings keeps the embedding and the head on "
            "one stage; use pipelineParallel 1 instead of 2, or set tiedEmbeddings to false",
            id="tied embeddings",
        ),
        pytest.param(
            job({**SMALL, "tied_embeddings": True}, low=7, high=7),
            "the job can't be split over 7 accelerators: dataParallel x shardedDataParallel 7 does not divide "
            "optimization.globalBatchSize 64; set globalBatchSize to 70, or let accelerators.min to max include 4 or 8",
            id="batch",
        ),
        pytest.param(
            job(batch=2, data_parallel=4),
            "the job can't be split over 1 to 8 accelerators: dataParallel x shardedDataParallel 4 does not divide "
            "optimization.globalBatchSize 2; use 2, or set globalBatchSize to 4",
            id="batch smaller than the replicas",
        ),
        pytest.param(
            job(high=4, tensor_parallel=2, data_parallel=4),
            "the job can't be split over 1 to 4 accelerators: the strategy's degrees multiply to 8 ranks, more than "
            "accelerators.max 4; lower a degree or raise max to 8",
            id="more ranks than accelerators",
        ),
        pytest.param(
            job(low=8, high=8, mode="Fixed", data_parallel=4),
            "the job can't be split over 8 accelerators: the strategy's degrees multiply to 4 ranks, fewer than "
            "accelerators.min 8; raise a degree or lower min to 4",
            id="fewer ranks than accelerators",
        ),
        pytest.param(
            job(low=7, high=8, tensor_parallel=3),
            "the job can't be split over 7 to 8 accelerators: the pinned degrees multiply to 3, and no multiple of 3 lies "
            "from accelerators.min 7 to max 8; set max to 9",
            id="no multiple of the pins",
        ),
        pytest.param(
            job(LLAMA_2_7B, high=1),
            "no split of the model fits: the nearest miss, single with recomputed activations and 1 sequence per "
            "microbatch, needs 121.0 GiB per accelerator, 41.0 GiB more than H100 has; first of all optimizer "
            "state 50.2 GiB, then weights 25.1 GiB; raise accelerators.max to 2 (tp2 fits), or use accelerators with more "
            "memory",
            id="memory, on one accelerator",
        ),
        pytest.param(
            job(LLAMA_2_7B, mode="Fixed", data_parallel=8),
            "no split of the model fits: the nearest miss, dp8 with recomputed activations and 1 sequence per "
            "microbatch, needs 121.0 GiB per accelerator, 41.0 GiB more than H100 has; first of all optimizer "
            "state 50.2 GiB, then weights 25.1 GiB; set strategy.mode to Auto and drop strategy.dataParallel 8 (fsdp4·pp2 "
            "fits), or use accelerators with more memory",
            id="memory, with sharding pinned to none",
        ),
        pytest.param(
            job(LLAMA_3_70B, mode="Fixed", sharded_data_parallel=2, low=2, high=2),
            "no split of the model fits: the nearest miss, fsdp2 with recomputed activations and 1 sequence per "
            "microbatch, needs 705.8 GiB per accelerator, 625.8 GiB more than H100 has; first of all gradients "
            "262.8 GiB, then optimizer state 262.8 GiB; set strategy.mode to Auto and drop strategy.shardedDataParallel 2, "
            "and raise accelerators.max to 40 (fsdp2·tp4·pp5 fits), or use accelerators with more memory",
            id="memory, with all degrees fixed",
        ),
        pytest.param(
            job(LLAMA_3_70B, batch=2, high=2, tensor_parallel=1, pipeline_parallel=1),
            "no split of the model fits: the nearest miss, fsdp2 with recomputed activations and 1 sequence per "
            "microbatch, needs 574.4 GiB per accelerator, 494.4 GiB more than H100 has; first of all optimizer "
            "state 262.8 GiB, then weights 131.4 GiB; drop strategy.tensorParallel 1 and strategy.pipelineParallel 1, and "
            "raise accelerators.max to 20 (tp4·pp5 fits), or use accelerators with more memory",
            id="memory, with a batch that allows no more shards",
        ),
        pytest.param(
            job({**SMALL, "tied_embeddings": True}, batch=1, low=7, high=7),
            "the job can't be split over 7 accelerators: dataParallel x shardedDataParallel 7 does not divide "
            "optimization.globalBatchSize 1; set globalBatchSize to 7, or let accelerators.min to max include 1",
            id="one sequence for a number of accelerators that divides nothing",
        ),
        pytest.param(
            job({**SMALL, "sequence_length": 2**21}, batch=1, high=1),
            "no split of the model fits: the nearest miss, single with recomputed activations and 1 sequence per "
            "microbatch, needs 222.5 GiB per accelerator, 142.5 GiB more than H100 has; first of all "
            "activations 216.1 GiB, then process and fragmentation 4.5 GiB and optimizer state 0.8 GiB; raise "
            "accelerators.max to 144 (tp12·pp12 fits), or lower model.sequenceLength to 524288, or use accelerators with "
            "more memory",
            id="memory, of a long sequence",
        ),
    ],
)
def test_refusals(spec, refusal):
    found = advised(spec, fabric())
    assert found.candidates == ()
    assert found.bottleneck is None
    assert found.refusal == refusal


@pytest.mark.parametrize(
    ("spec", "memory", "refusal"),
    [
        pytest.param(
            job(batch=7, expert_parallel=2),
            80,
            "the job can't be split over 1 to 8 accelerators: strategy.expertParallel needs model.experts; drop it",
            id="experts of a model that has none",
        ),
        pytest.param(
            job({**SMALL, "experts": {"count": 6, "active": 2}}, batch=7, expert_parallel=4),
            80,
            "the job can't be split over 1 to 8 accelerators: expertParallel 4 does not divide model.experts.count 6; use "
            "1, 2, 3 or 6",
            id="experts that can't be dealt out",
        ),
        pytest.param(
            job(
                {**SMALL, "sequence_length": 16},
                low=3,
                high=3,
                data_parallel=1,
                sharded_data_parallel=1,
                tensor_parallel=1,
                pipeline_parallel=1,
            ),
            80,
            "the job can't be split over 3 accelerators: contextParallel 3 needs a model.sequenceLength that is a multiple "
            "of 6, not 16; set it to 18, or change contextParallel",
            id="pins that leave a context degree which doesn't divide",
        ),
        pytest.param(
            job(batch=1, high=1),
            0.25,
            "no split of the model fits: the nearest miss, single with recomputed activations and 1 sequence per "
            "microbatch, needs 2.5 GiB per accelerator, 2.3 GiB more than H100 has; first of all optimizer state "
            "0.8 GiB, then process and fragmentation 0.5 GiB; use accelerators with more memory",
            id="less memory than the process itself takes",
        ),
    ],
)
def test_refusals_of_what_any_trainer_could_do(spec, memory, refusal):
    assert advised(spec, fabric(memory=memory), abilities=EVERYTHING).refusal == refusal


@settings(deadline=None, max_examples=40)
@given(jobs(), st.sampled_from([0.7, 0.8, 1.0, 1.5]))
def test_advice_works(spec, memory):
    """Whatever number is named, the job fits with it, and with no smaller one."""
    on = fabric(memory=memory)
    found = advised(spec, on)
    if found.nearest is None or found.candidates:
        return
    assert found.refusal is not None
    named = re.search(
        r"raise accelerators.max to (\d+)(?: with optimization.globalBatchSize (\d+))?", found.refusal
    )
    if named is not None:
        count, batch = int(named[1]), int(named[2] or spec.optimization.global_batch_size)
        free = spec if "drop" not in found.refusal and "mode to" not in found.refusal else without_pins(spec)
        sized = free.model_copy(
            update={"optimization": spec.optimization.model_copy(update={"global_batch_size": batch})}
        )

        def fits(most: int) -> bool:
            accelerators = spec.accelerators.model_copy(update={"max": most})
            return bool(search(sized.model_copy(update={"accelerators": accelerators}), on).candidates)

        assert fits(count)
        assert count - 1 < spec.accelerators.min or not fits(count - 1)
    if shorter := re.search(r"lower model.sequenceLength to (\d+)", found.refusal):
        model = spec.model.model_copy(update={"sequence_length": int(shorter[1])})
        assert search(spec.model_copy(update={"model": model}), on).candidates


def test_tensor_groups_stay_within_the_level_that_the_job_names():
    spec = job(LLAMA_2_7B, batch=8, low=8, high=8)
    inside = spec.model_copy(update={"placement": PlacementRules(tensor_parallel_within="node")})
    widest = max(
        candidate.degrees.tensor_parallel for candidate in search(inside, fabric(), {"node": 2}).candidates
    )
    assert widest == 2
    pinned = inside.model_copy(update={"strategy": Strategy(tensor_parallel=4)})
    assert search(pinned, fabric(), {"node": 2}).refusal == (
        "the job can't be split over 8 accelerators: tensorParallel 4 is more than the 2 accelerators of a node, which "
        "placement.tensorParallelWithin names; use at most 2, or name a wider level"
    )


def test_pipelines_and_sharded_copies_stay_within_the_levels_that_the_job_names():
    rules = PlacementRules(pipeline_parallel_within="node", sharded_data_parallel_within="leaf")
    spec = job(LLAMA_2_7B, batch=8, low=8, high=8).model_copy(update={"placement": rules})
    sizes = {"node": 2, "leaf": 4}
    found = [candidate.degrees for candidate in search(spec, fabric(), sizes).candidates]
    widest = [
        (
            degrees.tensor_parallel * degrees.pipeline_parallel,
            degrees.tensor_parallel * degrees.pipeline_parallel * degrees.sharded_data_parallel,
        )
        for degrees in found
    ]
    assert max(pipeline for pipeline, _ in widest) == 2
    assert max(copy for _, copy in widest) == 4


@pytest.mark.parametrize(
    ("pins", "refusal"),
    [
        pytest.param(
            {"tensor_parallel": 2, "pipeline_parallel": 4},
            "pipelineParallel 4 around groups of 2 ranks takes 8, more than the 4 accelerators of a node, which "
            "placement.pipelineParallelWithin names; use at most 2, or name a wider level",
            id="pipeline",
        ),
        pytest.param(
            {"sharded_data_parallel": 8},
            "shardedDataParallel 8 is more than the 4 accelerators of a node, which "
            "placement.shardedDataParallelWithin names; use at most 4, or name a wider level",
            id="sharded copy",
        ),
    ],
)
def test_pins_wider_than_the_level_named_for_them_are_refused_with_what_works(pins, refusal):
    rules = PlacementRules(pipeline_parallel_within="node", sharded_data_parallel_within="node")
    spec = job(LLAMA_2_7B, batch=8, low=8, high=8).model_copy(
        update={"placement": rules, "strategy": Strategy(**pins)}
    )
    assert search(spec, fabric(), {"node": 4}).refusal == (
        f"the job can't be split over 8 accelerators: {refusal}"
    )


def test_rejections_beside_candidates_come_most_frequent_first():
    found = search(job(LLAMA_2_7B, batch=64, high=16), fabric())
    counts = [rejection.count for rejection in found.rejections]
    codes = {rejection.code for rejection in found.rejections}
    assert found.candidates
    assert counts == sorted(counts, reverse=True)
    assert codes == {"AttentionHeadsNotDivisible", "GlobalBatchNotDivisible", "MemoryShort"}


def test_every_world_size_is_weighed():
    worlds = {candidate.degrees.world_size for candidate in search(job(batch=60), fabric()).candidates}
    assert worlds == {1, 2, 3, 4, 5, 6, 7, 8}


def test_a_candidate_becomes_a_plan_and_survives_the_wire():
    spec = job(LLAMA_3_8B, batch=64, low=16, high=16)
    document = plan(spec, search(spec, fabric()).candidates[0])
    assert type(document).model_validate_json(document.model_dump_json(by_alias=True)) == document


def test_a_wrong_level_is_an_error():
    with pytest.raises(ValueError, match="no level rack"):
        search(job(), fabric(), {"rack": 4})


def test_results_are_immutable():
    candidate = search(job(), fabric()).candidates[0]
    with pytest.raises(ValidationError):
        candidate.degrees.data_parallel = 2
    with pytest.raises(AttributeError):
        candidate.schedule = "GPipe"
