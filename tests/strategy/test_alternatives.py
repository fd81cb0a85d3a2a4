"""Why not otherwise, and would more accelerators help?"""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings

from kronos.strategy import TRAINER, search
from kronos.strategy.alternatives import ScalePoint, alternatives, scaling, stops_paying
from support.searches import LLAMA_2_7B, LLAMA_3_8B, fabric, job, jobs, memories


def reasons(spec, on=None, slots=None):
    on = on or fabric()
    chosen = search(spec, on, slots).candidates[0]
    return {other.degrees.summary: other.reason for other in alternatives(spec, on, chosen, slots)}


def test_pure_splits_that_do_not_fit_say_what_they_lack():
    said = reasons(job(LLAMA_2_7B, batch=512, low=64, high=64))
    assert said["dp64"] == (
        "needs 121.0 GiB per accelerator, 41.0 GiB more than H100 has; first of all optimizer state 50.2 GiB, then weights "
        "25.1 GiB"
    )
    assert "tensorParallel 64 does not divide model.attentionHeads 32" in said["tp64"]
    assert "pipelineParallel 64 exceeds model.layers 32" in said["pp64"]


def test_a_tensor_group_that_crosses_nodes_is_slower_for_that():
    said = reasons(job(LLAMA_2_7B, batch=16, low=16, high=16), slots={"node": 8, "leaf": 64, "spine": 512})
    assert re.fullmatch(r"tp16 crosses node: \+[0-9]+% step time", said["tp16"])


def test_faster_splits_that_the_pins_exclude_are_told_as_such():
    said = reasons(job(batch=64, low=8, high=8, tensor_parallel=2, pipeline_parallel=2))
    assert re.fullmatch(
        r"excluded by strategy\.tensorParallel 2 and pipelineParallel 2; it would have -[0-9.]+% step time",
        said["dp8"],
    )
    assert re.fullmatch(r"excluded by strategy\.pipelineParallel 2; it would have .*", said["dp4·tp2"])


@settings(deadline=None, max_examples=50)
@given(jobs(), memories())
def test_alternatives_use_as_many_accelerators_and_are_told_the_nearest_first(spec, memory):
    on = fabric(memory=memory)
    found = search(spec, on).candidates
    if not found:
        return
    others = alternatives(spec, on, found[0])
    assert all(other.degrees.world_size == found[0].degrees.world_size for other in others)
    assert all(other.degrees != found[0].degrees and other.reason for other in others)
    seconds = [other.step_seconds for other in others if other.step_seconds is not None]
    assert seconds == sorted(seconds)
    assert len({other.degrees for other in others}) == len(others)


def test_the_scaling_curve_falls():
    points = scaling(search(job(batch=512, high=16), fabric()).candidates)
    assert points[-1].world_size == 16
    assert [point.step_seconds for point in points] == sorted(
        (point.step_seconds for point in points), reverse=True
    )
    one, last = points[0], points[-1]
    assert last.tokens_per_second < one.tokens_per_second * last.world_size / one.world_size
    assert 0 < last.utilization < 1


DEGREES = search(job(high=1), fabric()).candidates[0].degrees


def curve(*times: tuple[int, float]) -> list[ScalePoint]:
    return [ScalePoint(size, DEGREES, "None", seconds, 1 / seconds, 0.5) for size, seconds in times]


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        pytest.param([], None, id="nothing"),
        pytest.param(curve((4, 1.0)), 4, id="one point"),
        pytest.param(curve((1, 8.0), (2, 4.0), (4, 2.0), (8, 1.0)), 8, id="linear pays to the end"),
        pytest.param(curve((1, 8.0), (2, 4.1), (4, 2.2), (8, 2.0)), 4, id="the last doubling brings a tenth"),
        pytest.param(
            curve((1, 8.0), (2, 7.9), (4, 2.2)), 4, id="a number that suits the batch badly ends nothing"
        ),
    ],
)
def test_where_more_accelerators_stop_paying(points, expected):
    assert stops_paying(points) == expected


def test_what_the_trainer_cannot_do_is_refused_with_the_change():
    spec = job({**LLAMA_3_8B, "experts": {"count": 8, "active": 2}})
    assert search(spec, fabric()).refusal == (
        "this version's trainer can't build models with experts, only decoders without experts; train it with another "
        "trainer, for which `kubectl kronos plan --any-trainer` plans"
    )
    plain = job({**LLAMA_3_8B, "feed_forward": "Plain"})
    assert search(plain, fabric(), abilities=TRAINER).refusal == (
        "this version's trainer can't build a model with feedForward Plain; set model.feedForward to Gated"
    )
