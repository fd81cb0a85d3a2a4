"""What jobs measure corrects later predictions, and how wrong predictions were is shown."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kronos.api.fabric import MOST_SAMPLES, FabricStatus
from kronos.api.plan import Progress
from kronos.lifecycle import Snapshot, lessons_learnt
from support.worlds import SLOT, World, job


def measured(world: World, name: str, times: float, step: int = 30, began: int = 0) -> None:
    """Let a running job report a time per step that is so many times the uncorrected prediction."""
    status = world.status(name)
    assert status.strategy is not None
    predicted = status.strategy.predicted
    seconds = times * predicted.step_seconds / predicted.correction
    report = Progress(step=step, began_at_step=began, step_seconds=seconds)
    world.progress[f"uid-{name}", status.attempt] = report
    world.round()


def running(*names: str, minutes: int = 0, **sections: Any) -> World:
    """A world in which these jobs train, each on a few slots, since so many minutes after it began."""
    small = {"accelerators": {"min": 2, "max": 2}, **sections}
    world = World(*(job(name, at, **small) for at, name in enumerate(names)))
    world.now += timedelta(minutes=minutes)
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
        world = running(f"job-{number}", minutes=number)
        world.lessons.update(lessons)
        measured(world, f"job-{number}", 2.0)
        lessons.update(lessons_learnt(world.snapshot()))
    (calibration,) = lessons["default"].calibrations
    assert [sample.job for sample in calibration.samples] == [
        f"forge/job-{number}" for number in range(3, MOST_SAMPLES + 3)
    ]


def test_the_first_steps_after_a_restart_do_not_count():
    world = running("a")
    measured(world, "a", 9.0, step=1001, began=1000)
    assert lessons_learnt(world.snapshot()) == {}
    measured(world, "a", 2.0, step=1020, began=1000)
    learn(world)
    assert world.lessons["default"].factor(SLOT) == pytest.approx(2.0, rel=0.01)


def test_a_job_is_counted_once_more_when_it_ends():
    world = running("a")
    measured(world, "a", 2.0, 20)
    learn(world)
    measured(world, "a", 1.0, 30)
    assert lessons_learnt(world.snapshot()) == {}, "not yet twice as many steps"
    ended = world.status("a").model_copy(update={"phase": "Complete", "finished_at": "2026-12-01T12:00:00Z"})
    view = world.snapshot().jobs["forge", "a"]
    snapshot = replace(world.snapshot(), jobs={view.key: replace(view, status=ended)})
    (sample,) = lessons_learnt(snapshot)["default"].calibrations[0].samples
    assert (sample.ratio, sample.steps, sample.at) == (
        pytest.approx(1.0, rel=0.01),
        30,
        "2026-12-01T12:00:00Z",
    )


@pytest.fixture(scope="module")
def one_measured() -> Snapshot:
    """A snapshot with one job that has measured something."""
    world = running("a")
    measured(world, "a", 2.0)
    return world.snapshot()


def many_measured(snapshot: Snapshot, ends: list[int], order: list[int]) -> Snapshot:
    """As many jobs, each of which ended in its minute (or began then, where that is odd), listed in a certain order."""
    (job_,) = snapshot.jobs.values()
    jobs = {}
    for number in order:
        at = f"2026-12-01T{ends[number] // 60:02}:{ends[number] % 60:02}:00Z"
        ended = {"started_at": at} if ends[number] % 2 else {"finished_at": at}
        status = job_.status.model_copy(update=ended)
        jobs["forge", f"j{number}"] = replace(job_, name=f"j{number}", uid=f"uid-{number}", status=status)
    return replace(snapshot, jobs=jobs)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_one_write_says_all_that_any_number_of_jobs_has_taught(one_measured: Snapshot, data: st.DataObject):
    ends = data.draw(st.lists(st.integers(0, 1439), min_size=1, max_size=3 * MOST_SAMPLES))
    numbers = list(range(len(ends)))
    first, second = (many_measured(one_measured, ends, data.draw(st.permutations(numbers))) for _ in range(2))
    lessons = lessons_learnt(first)
    assert lessons == lessons_learnt(second), "the order of the jobs doesn't matter"
    assert lessons_learnt(replace(first, lessons=lessons)) == {}, "and what is known is not written again"
    (calibration,) = lessons["default"].calibrations
    latest = sorted(sample.at for sample in calibration.samples)
    assert [sample.at for sample in calibration.samples] == latest
    assert latest == sorted(f"2026-12-01T{end // 60:02}:{end % 60:02}:00Z" for end in ends)[-MOST_SAMPLES:]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"correction": 0.0}, id="a correction of nothing"),
        pytest.param({"correction": float("inf")}, id="an endless correction"),
        pytest.param({"step_seconds": 0.0}, id="no time at all"),
        pytest.param({"step_seconds": float("nan")}, id="no number"),
        pytest.param({"step_seconds": 1e-300}, id="absurdly little time"),
    ],
)
def test_a_job_with_an_absurd_status_teaches_nothing_and_stops_nobody(
    one_measured: Snapshot, change: dict[str, float]
):
    (job_,) = one_measured.jobs.values()
    assert job_.status.strategy is not None
    predicted = job_.status.strategy.predicted.model_copy(update=change)
    strategy = job_.status.strategy.model_copy(update={"predicted": predicted})
    absurd = replace(
        job_, name="absurd", uid="u", status=job_.status.model_copy(update={"strategy": strategy})
    )
    both = replace(one_measured, jobs={**one_measured.jobs, absurd.key: absurd})
    assert lessons_learnt(both) == lessons_learnt(one_measured) != {}


def test_what_a_newer_version_wrote_beside_the_lessons_stays():
    world = running("a")
    measured(world, "a", 2.0)
    world.lessons["default"] = FabricStatus.model_validate({"weather": {"wind": 3}})
    learn(world)
    assert world.lessons["default"].wire()["weather"] == {"wind": 3}
    assert world.lessons["default"].factor(SLOT) == pytest.approx(2.0, rel=0.01)


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
