"""What holds for every job on every fabric."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from kronos.api.plan import Degrees
from kronos.strategy import Search, search
from kronos.strategy.communication import Network
from kronos.strategy.layout import GIB, Layout, Workload
from kronos.strategy.memory import MemoryModel
from kronos.strategy.stages import balance, schedule_for
from kronos.strategy.timing import StepModel
from support.searches import GPU, bandwidths, fabric, jobs, memories, plan


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
    assert by_degrees(little).keys() <= by_degrees(more).keys()


@settings(deadline=None)
@given(
    jobs(), st.tuples(bandwidths(), bandwidths(), bandwidths()), st.sampled_from(["node", "leaf", "spine"])
)
def test_a_faster_link_never_makes_a_prediction_slower(spec, links, faster):
    speeds = dict(zip(("node", "leaf", "spine"), links, strict=True))
    slots = {"node": 2, "leaf": 4, "spine": 16}
    before = by_degrees(search(spec, fabric(memory=8, **speeds), slots))
    after = by_degrees(search(spec, fabric(memory=8, **{**speeds, faster: 2 * speeds[faster]}), slots))
    assert before.keys() == after.keys()
    for summary, candidate in after.items():
        assert candidate.time.total <= before[summary].time.total * (1 + 1e-9)


@settings(max_examples=200, deadline=None)
@given(jobs(), memories())
def test_nothing_better_is_overlooked(spec, memory):
    """Weighs every layout one by one; the search may only be as good, and picks simpler ones within one percent."""
    on = fabric(memory=memory)
    costs = [cost for layout, cost in exhaustive(spec, on) if cost is not None]
    candidates = search(spec, on).candidates
    assert bool(costs) == bool(candidates)
    if candidates:
        best = min(candidate.cost(spec.strategy.objective) for candidate in candidates)
        assert best <= min(costs) * (1 + 1e-9)
        assert candidates[0].cost(spec.strategy.objective) <= min(costs) * 1.01


def exhaustive(spec, on):
    """All layouts that the API allows, each with its cost, or None where it doesn't fit."""
    accelerator = on.accelerator(GPU)
    load, network = Workload.of(spec, accelerator), Network.of(on)
    shape, strategy, batch = spec.model, spec.strategy, spec.optimization.global_batch_size
    most = range(1, spec.accelerators.max + 1)
    for data, sharded, tensor, pipeline in product(most, repeat=4):
        if data * sharded * tensor * pipeline > spec.accelerators.max:
            continue
        split = Degrees.model_construct(
            data_parallel=data,
            sharded_data_parallel=sharded,
            tensor_parallel=tensor,
            pipeline_parallel=pipeline,
        )
        if (
            split.world_size < spec.accelerators.min
            or strategy.tensor_parallel not in (None, tensor)
            or strategy.pipeline_parallel not in (None, pipeline)
            or strategy.sharded_data_parallel not in (None, sharded)
            or any(size % tensor for size in (shape.attention_heads, shape.kv_heads, shape.ffn_size))
            or pipeline > (1 if shape.tied_embeddings else shape.layers)
            or batch % split.batch_ranks
        ):
            continue
        stages = balance(shape.layers, pipeline, load.head_flops / load.block_flops)
        per_rank = batch // split.batch_ranks
        for sequences, recompute in product(range(1, per_rank + 1), (False, True)):
            if per_rank % sequences:
                continue
            layout = Layout(
                degrees=split,
                microbatch_sequences=sequences,
                microbatches=per_rank // sequences,
                activation_checkpointing=recompute,
                schedule=schedule_for(pipeline, per_rank // sequences),
                stage_layers=stages,
            )
            needed = MemoryModel(load, split, stages).heaviest(layout).total
            if needed > load.memory_bytes:
                yield layout, None
                continue
            seconds = StepModel(load, split, stages, network).time(layout).total
            yield (
                layout,
                {"Time": seconds, "Efficiency": seconds * split.world_size, "Memory": float(needed)}[
                    strategy.objective
                ],
            )
