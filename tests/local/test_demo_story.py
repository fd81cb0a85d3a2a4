"""What the demo concludes from watch events."""

from __future__ import annotations

from typing import Any

import pytest

from kronos.local.demo.story import Story, row_of

RACKS = {"a0": "rack-a", "a1": "rack-a", "b0": "rack-b"}


def job(name: str, phase: str, **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {"optimization": {"steps": 30}},
        "status": {"phase": phase, **status},
    }


def progress(step: int, loss: float | None) -> dict[str, Any]:
    return {"step": step, "steps": 30, "loss": loss, "tokensPerSecond": 1000.0}


def placement(*nodes: str) -> dict[str, Any]:
    return {
        "summary": "here",
        "members": [{"node": node, "ranks": 4} for node in nodes],
        "rankMap": "0-7",
        "reservedAt": "2026-01-01T00:00:00Z",
    }


def pod(
    job_name: str, index: int, *, node: str | None = "a0", phase: str = "Running", attempt: int = 1
) -> dict[str, Any]:
    labels = {"training.kronos.dev/job": job_name, "training.kronos.dev/attempt": str(attempt)}
    return {
        "metadata": {"name": f"{job_name}-{attempt}-{index}", "labels": labels},
        "spec": {"nodeName": node},
        "status": {"phase": phase},
    }


@pytest.fixture
def told() -> Story:
    """A demo that went as it should: one runs, the other waits and follows while the first one's pods end."""
    story = Story(("first", "second"))
    story.see_job(job("first", "Running", placement=placement("a0", "a1"), progress=progress(1, 5.5)))
    story.see_job(job("second", "Queued", reason="waits for 6 more"))
    for index in (0, 1):
        story.see_pod("ADDED", pod("first", index, node=None, phase="Pending"))
        story.see_pod("MODIFIED", pod("first", index))
    story.see_pod("MODIFIED", pod("first", 0, phase="Succeeded"))
    for index in (0, 1):
        story.see_pod("MODIFIED", pod("second", index))
    story.see_pod("MODIFIED", pod("first", 1, phase="Succeeded"))
    story.see_job(job("first", "Complete", placement=placement("a0", "a1"), progress=progress(30, 2.7)))
    story.see_job(job("second", "Running", placement=placement("a0", "b0"), progress=progress(2, 5.2)))
    story.see_job(job("second", "Complete", placement=placement("a0", "b0"), progress=progress(30, 2.6)))
    return story


def test_a_story_as_it_should_be_has_no_faults(told):
    assert told.over
    assert told.faults() == []


def test_what_is_printed_in_the_end(told):
    assert told.places(RACKS) == [
        "first (): rack-a: a0 (4), a1 (4)",
        "second (): rack-a: a0 (4); rack-b: b0 (4)",
    ]
    assert told.improvements() == [
        "first: loss 5.50 at step 1, 2.70 at step 30",
        "second: loss 5.20 at step 2, 2.60 at step 30",
    ]
    assert told.waited() == ["second waited: waits for 6 more"]


def test_it_is_over_only_when_all_jobs_are_complete_or_one_has_failed():
    story = Story(("first", "second"))
    story.see_job(job("first", "Complete"))
    assert not story.over
    story.see_job(job("second", "Running"))
    assert not story.over
    story.see_job(job("second", "Failed", reason="rank 3 ended"))
    assert story.over
    assert story.faults() == ["second failed: rank 3 ended"]


def test_two_jobs_that_each_hold_a_part_are_a_fault(told):
    story = Story(told.names, rows=told.rows, losses=told.losses, waits=told.waits)
    story.see_pod("MODIFIED", pod("first", 0))
    story.see_pod("MODIFIED", pod("second", 0))
    assert story.faults() == ["first and second each held a part of the accelerators that it needs."]


def test_a_part_that_was_given_back_before_is_none(told):
    story = Story(told.names, rows=told.rows, losses=told.losses, waits=told.waits)
    story.see_pod("MODIFIED", pod("first", 0))
    story.see_pod("DELETED", pod("first", 0))
    story.see_pod("MODIFIED", pod("second", 0))
    assert story.faults() == []


def test_each_attempt_must_become_whole_anew(told):
    for index in (0, 1):
        told.see_pod("DELETED", pod("second", index))
    told.see_pod("MODIFIED", pod("first", 0, attempt=2))
    told.see_pod("MODIFIED", pod("second", 0, attempt=2))
    assert told.faults() == ["first and second each held a part of the accelerators that it needs."]


def test_pods_of_others_are_nothing_to_it(told):
    before = list(told.moments)
    told.see_pod("ADDED", {"metadata": {"name": "web"}, "spec": {"nodeName": "a0"}})
    assert told.moments == before


def test_nobody_waiting_is_a_fault(told):
    told.waits.clear()
    assert told.faults() == ["no job was seen waiting with a reason while the other held a place."]


def test_waiting_counts_only_while_another_job_holds_a_place():
    story = Story(("first", "second"))
    story.see_job(job("second", "Queued", reason="waits for 6 more"))
    assert not any(story.waits.values())
    story.see_job(job("first", "Starting"))
    assert story.waits["second"] == ["waits for 6 more"]
    story.see_job(job("first", "Complete"))
    story.see_job(job("second", "Queued", reason="waits for its turn"))
    assert story.waits["second"] == ["waits for 6 more"]


@pytest.mark.parametrize(
    ("losses", "fault"),
    [
        ([], "first never reported its loss."),
        ([(1, 5.5), (30, 5.0)], "the loss of first isn't clearly down: 5.50 to 5.00."),
        ([(9, 2.9), (30, 3.1)], "the loss of first isn't clearly down: 2.90 to 3.10."),
    ],
)
def test_a_loss_that_is_not_clearly_down_is_a_fault(told, losses, fault):
    told.losses["first"] = losses
    assert told.faults() == [fault]


def test_a_loss_that_was_first_seen_late_is_down_from_where_training_starts(told):
    told.losses["first"] = [(20, 3.1), (30, 2.9)]
    assert told.faults() == []


def test_a_job_that_has_no_status_yet_is_queued():
    row = row_of({"metadata": {"name": "new"}, "spec": {"optimization": {"steps": 5}}})
    assert (row.status.phase, row.step, row.loss, row.strategy) == ("Queued", None, None, "")
