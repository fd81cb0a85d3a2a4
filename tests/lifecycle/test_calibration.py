"""What jobs measure corrects later predictions, and how wrong predictions were is shown."""

from __future__ import annotations

from typing import Any

import pytest

from kronos.api.fabric import MOST_SAMPLES, FabricStatus
from kronos.api.plan import Progress
from kronos.lifecycle import lessons_learnt
from support.worlds import SLOT, World, job


def measured(world: World, name: str, times: float, step: int = 30) -> None:
    """Let a running job report a time per step that is so many times the uncorrected prediction."""
    status = world.status(name)
    assert status.strategy is not None
    predicted = status.strategy.predicted
    seconds = times * predicted.step_seconds / predicted.correction
    report = Progress(step=step, step_seconds=seconds)
    world.progress[f"uid-{name}", status.attempt] = report
    world.round()


def running(*names: str, **sections: Any) -> World:
    """A world in which these jobs train, each on a few slots."""
    small = {"accelerators": {"min": 2, "max": 2}, **sections}
    world = World(*(job(name, at, **small) for at, name in enumerate(names)))
    world.settle()
    for name in names:
        world.start(name)
    return world


def learn(world: World) -> None:
    world.lessons.update(lessons_learnt(world.snapshot()))


def test_a_job_shows_by_how_much_its_prediction_was_wrong():
    world = running("a")
    measured(world, "a", 1.5)
    progress = world.status("a").progress
    assert progress is not None
    assert progress.prediction_error == "+50%"


def test_the_next_job_is_predicted_with_what_the_first_measured():
    world = running("a")
    measured(world, "a", 3.0)
    learn(world)
    assert world.lessons["default"].factor(SLOT) == pytest.approx(3.0, rel=0.01)
    later = running("b")
    later.lessons.update(world.lessons)
    fresh = World(job("b", accelerators={"min": 2, "max": 2}))
    fresh.lessons.update(world.lessons)
    fresh.settle()
    corrected, plain = fresh.status("b").strategy, later.status("b").strategy
    assert corrected is not None
    assert plain is not None
    assert corrected.predicted.correction == world.lessons["default"].factor(SLOT)
    assert corrected.predicted.step_seconds == pytest.approx(3 * plain.predicted.step_seconds, rel=0.01)
    assert corrected.degrees == plain.degrees
    fresh.start("b")
    measured(fresh, "b", 3.0)
    progress = fresh.status("b").progress
    assert progress is not None
    assert progress.prediction_error is not None
    assert abs(int(progress.prediction_error.strip("+%"))) <= 1, "a correct prediction shows no error"


def test_the_same_snapshot_teaches_nothing_twice():
    world = running("a", "b")
    measured(world, "a", 2.0)
    learn(world)
    assert lessons_learnt(world.snapshot()) == {}
    measured(world, "b", 4.0)
    learn(world)
    assert lessons_learnt(world.snapshot()) == {}
    (calibration,) = world.lessons["default"].calibrations
    assert [sample.job for sample in calibration.samples] == ["forge/a", "forge/b"]
    assert calibration.factor == pytest.approx(8**0.5, rel=0.01), "between the two, as ratios go"
    assert calibration.error_percent > 20


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        pytest.param(3, False, id="the first steps are slower than the rest"),
        pytest.param(20, True, id="enough steps"),
    ],
)
def test_a_job_counts_when_it_has_done_enough_steps(step, expected):
    world = running("a")
    measured(world, "a", 2.0, step)
    assert bool(lessons_learnt(world.snapshot())) == expected


def test_a_job_that_has_done_twice_as_many_steps_is_counted_anew():
    world = running("a")
    measured(world, "a", 2.0, 20)
    learn(world)
    measured(world, "a", 1.0, 39)
    assert lessons_learnt(world.snapshot()) == {}
    measured(world, "a", 1.0, 40)
    learn(world)
    assert world.lessons["default"].factor(SLOT) == pytest.approx(1.0, rel=0.01)


def test_only_the_last_jobs_are_remembered_and_deleted_ones_stay_counted():
    lessons: dict[str, FabricStatus] = {}
    for number in range(MOST_SAMPLES + 3):
        world = running(f"job-{number}")
        world.lessons.update(lessons)
        measured(world, f"job-{number}", 2.0)
        lessons.update(lessons_learnt(world.snapshot()))
    (calibration,) = lessons["default"].calibrations
    assert [sample.job for sample in calibration.samples] == [
        f"forge/job-{number}" for number in range(3, MOST_SAMPLES + 3)
    ]


def test_status_tells_the_choice_in_short():
    strategy = running("a").status("a").strategy
    assert strategy is not None
    assert strategy.pays_up_to == 2
    assert strategy.runner_up
    assert strategy.alternatives
    assert all(": " in other for other in strategy.alternatives)
    assert strategy.predicted.tokens_per_second == pytest.approx(
        48 * 64 / strategy.predicted.step_seconds, rel=0.01
    )
    assert strategy.predicted.utilization is not None
    assert 0 < strategy.predicted.utilization < 1
