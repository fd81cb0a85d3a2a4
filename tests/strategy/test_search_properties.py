"""What holds for every job on every fabric."""

from __future__ import annotations

from itertools import product
from math import inf, log10

from hypothesis import example, given, settings
from hypothesis import strategies as st

from kronos.api.fabric import LEAST, Accelerator, FabricSpec, Level, Link, PeakTflops
from kronos.api.plan import Degrees
from kronos.strategy import EVERYTHING, TRAINER, Search, alternatives, search
from kronos.strategy.arithmetic import Arithmetic
from kronos.strategy.communication import Network
from kronos.strategy.layout import GIB, Layout, Workload
from kronos.strategy.memory import MemoryModel
from kronos.strategy.timing import StepModel
from support.searches import GPU, bandwidths, deep_job, deep_jobs, fabric, jobs, memories, plan


def by_degrees(found: Search):
    return {candidate.degrees.summary: candidate for candidate in found.candidates}


@settings(deadline=None)
@given(jobs(), memories())
def test_candidates_are_plans_that_fit(spec, memory):
    found = search(spec, fabric(memory=memory))
    for candidate in found.candidates:
        assert spec.accelerators.min <= candidate.degrees.world_size <= spec.accelerators.max
        assert candidate.memory.total <= memory * GIB
        assert plan(spec, candidate).degrees == candidate.degrees
        assert min(candidate.stage_layers) >= 1
        pinned = spec.strategy.model_dump(exclude={"mode", "objective"}, exclude_none=True)
        assert pinned.items() <= candidate.degrees.model_dump().items()
    summaries = [candidate.degrees.summary for candidate in found.candidates]
    assert len(summaries) == len(set(summaries))


@settings(deadline=None)
@given(jobs(), memories())
def test_exactly_jobs_without_candidates_are_refused(spec, memory):
    found = search(spec, fabric(memory=memory))
    assert (found.refusal is None) == (found.bottleneck is not None) == bool(found.candidates)
    assert found.candidates or found.rejections


@settings(deadline=None)
@given(jobs(), memories())
def test_the_same_question_has_the_same_answer(spec, memory):
    again = type(spec).model_validate_json(spec.model_dump_json(by_alias=True))
    assert search(spec, fabric(memory=memory)) == search(again, fabric(memory=memory))


@settings(deadline=None)
@given(jobs(), memories(), st.floats(1, 2))
def test_more_memory_never_makes_a_fitting_job_unfit(spec, memory, factor):
    little, more = (search(spec, fabric(memory=size)) for size in (memory, memory * factor))
    assert bool(little.candidates) <= bool(more.candidates)
    if spec.strategy.objective != "Memory":
        for candidate in little.candidates:
            # With more memory others may be so much faster that this one isn't mentioned any more.
            at_least = [
                other for other in more.candidates if other.degrees.world_size <= candidate.degrees.world_size
            ]
            assert min(other.time.total for other in at_least) <= candidate.time.total


@settings(deadline=None)
@given(
    jobs(), st.tuples(bandwidths(), bandwidths(), bandwidths()), st.sampled_from(["node", "leaf", "spine"])
)
def test_a_faster_link_never_makes_a_prediction_slower(spec, links, faster):
    speeds = dict(zip(("node", "leaf", "spine"), links, strict=True))
    slots = {"node": 2, "leaf": 4, "spine": 16}
    before = by_degrees(search(spec, fabric(memory=8, **speeds), slots))
    after = by_degrees(search(spec, fabric(memory=8, **{**speeds, faster: 2 * speeds[faster]}), slots))
    assert bool(before) == bool(after)
    for summary in before.keys() & after.keys():
        assert after[summary].time.total <= before[summary].time.total * (1 + 1e-9)
    if before:
        quickest = [min(candidate.time.total for candidate in found.values()) for found in (before, after)]
        assert spec.strategy.objective == "Memory" or quickest[1] <= quickest[0] * (1 + 1e-9)


def figures(least: float, most: float) -> st.SearchStrategy[float]:
    """Numbers of every magnitude that a fabric may give, and its bounds."""
    powers = st.integers(round(log10(least)), round(log10(most)))
    return powers.map(lambda power: min(most, max(1.001 * least, 10.0**power)))


LINKS = st.builds(
    Link,
    bandwidth_gigabytes_per_second=figures(LEAST, 1e6),
    latency_microseconds=st.just(0.0) | figures(1e-6, 1e9),
    efficiency=figures(LEAST, 1),
)


@settings(deadline=None)
@given(
    jobs(experts=True),
    st.sampled_from([TRAINER, EVERYTHING]),
    LINKS,
    LINKS,
    figures(1e-3, 1e6),
    figures(LEAST, 1e9),
    figures(LEAST, 1e9),
    figures(LEAST, 1e9),
    figures(LEAST, 1),
)
def test_every_fabric_that_the_api_allows_has_an_answer(
    spec, abilities, node, leaf, memory, fp32, bf16, bandwidth, efficiency
):
    on = FabricSpec(
        levels=(Level(name="leaf", node_label="net/leaf", **leaf.model_dump()),),
        node=node,
        accelerators=(
            Accelerator(
                resource=GPU,
                model="odd",
                memory_gib=memory,
                peak_tflops=PeakTflops(fp32=fp32, bf16=bf16),
                memory_bandwidth_gigabytes_per_second=bandwidth,
                matmul_efficiency=efficiency,
            ),
        ),
    )
    found = search(spec, on, abilities=abilities)
    assert found.candidates or found.refusal
    for candidate in found.candidates[:3]:
        assert 0 < candidate.time.total < inf
        assert 0 <= candidate.utilization <= 1
    if found.candidates:
        assert all(other.reason for other in alternatives(spec, on, found.candidates[0], abilities=abilities))


@settings(max_examples=500, deadline=None)
@given(
    st.one_of(
        st.tuples(jobs(), st.just(TRAINER)),
        st.tuples(jobs(experts=True), st.just(EVERYTHING)),
        st.tuples(deep_jobs(), st.sampled_from([TRAINER, EVERYTHING])),
    ),
    memories(),
)
@example((deep_job(16), TRAINER), 2.43)
@example((deep_job(16), EVERYTHING), 2.43)
def test_the_choice_is_within_1_percent_of_an_exhaustive_search(asked, memory):
    """Weighs every layout one by one; the search may only be as good, and picks simpler ones within one percent."""
    spec, abilities = asked
    on = fabric(memory=memory)
    costs = [cost for cost in exhaustive(spec, on, abilities) if cost is not None]
    candidates = search(spec, on, abilities=abilities).candidates
    assert bool(costs) == bool(candidates)
    if candidates:
        best = min(candidate.cost(spec.strategy.objective) for candidate in candidates)
        assert best <= min(costs) * (1 + 1e-9)
        assert candidates[0].cost(spec.strategy.objective) <= min(costs) * 1.01


def exhaustive(spec, on, abilities):
    """The cost of every layout that the API allows, or None where it doesn't fit."""
    load, network = Workload.of(spec, on.accelerator(GPU)), Network.of(on)
    arithmetic = Arithmetic(load)
    strategy, objective = spec.strategy, spec.strategy.objective
    for split in every_split(spec, abilities):
        sequence = abilities.sequence_parallel and split.tensor_parallel > 1
        per_rank = spec.optimization.global_batch_size // split.batch_ranks
        for sequences, kind in product(range(1, per_rank + 1), abilities.checkpointing):
            if per_rank % sequences:
                continue
            for schedule, parts, stages in every_schedule(load, split, per_rank // sequences, abilities):
                layout = Layout(
                    degrees=split,
                    microbatch_sequences=sequences,
                    microbatches=per_rank // sequences,
                    checkpointing=kind,
                    schedule=schedule,
                    stage_layers=stages,
                    virtual_stages=parts,
                    sequence_parallel=sequence,
                )
                needed = MemoryModel(load, split, stages, sequence).needed(layout)
                if needed > load.memory_bytes:
                    yield None
                    continue
                seconds = StepModel(arithmetic, split, stages, network, sequence).time(layout).total
                yield {
                    "Time": seconds,
                    "Efficiency": seconds * split.world_size,
                    "Memory": float(needed),
                }[objective]
    assert strategy.mode == "Auto"


def every_split(spec, abilities):
    """All degrees that the API allows."""
    shape, strategy, batch = spec.model, spec.strategy, spec.optimization.global_batch_size
    most = spec.accelerators.max
    contexts = range(1, most + 1) if abilities.context_parallel else (1,)
    experts = range(1, batch + 1) if abilities.expert_parallel and shape.experts else (1,)
    for data, sharded, tensor, pipeline in product(range(1, most + 1), repeat=4):
        if data * sharded * tensor * pipeline > most:
            continue
        for context, expert in product(contexts, experts):
            split = Degrees(
                data_parallel=data,
                sharded_data_parallel=sharded,
                tensor_parallel=tensor,
                pipeline_parallel=pipeline,
                context_parallel=context,
                expert_parallel=expert,
            )
            if (
                spec.accelerators.min <= split.world_size <= most
                and strategy.tensor_parallel in (None, tensor)
                and strategy.pipeline_parallel in (None, pipeline)
                and strategy.sharded_data_parallel in (None, sharded)
                and not any(size % tensor for size in (shape.attention_heads, shape.kv_heads, shape.ffn_size))
                and pipeline <= (1 if shape.tied_embeddings else shape.layers)
                and batch % split.batch_ranks == 0
                and (context == 1 or shape.sequence_length % (2 * context) == 0)
                and (expert == 1 or (shape.experts.count % expert == 0 and split.batch_ranks % expert == 0))
            ):
                yield split


def every_schedule(load, split, microbatches, abilities):
    """All schedules that can run, with their virtual stages and the layers of each stage."""
    stages, layers = split.pipeline_parallel, load.shape.layers
    balanced = load.balanced(stages)
    if stages == 1:
        yield "None", 1, balanced
    elif microbatches < stages:
        yield "GPipe", 1, balanced
    else:
        yield "1F1B", 1, balanced
        yield "GPipe", 1, balanced
        if "ZeroBubble" in abilities.schedules:
            yield "ZeroBubble", 1, balanced
            for parts in range(2, layers + 1):
                if layers % (stages * parts) == 0 and microbatches % stages == 0:
                    yield "Interleaved1F1B", parts, (layers // stages,) * stages
