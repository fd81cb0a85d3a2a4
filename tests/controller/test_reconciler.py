"""Which statuses are stored at once, and which can wait a little."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from kronos.controller.cache import Cache
from kronos.controller.reconciler import Reconciler
from kronos.lifecycle import gist
from support.worlds import START, World, job


@pytest.fixture
def waiting() -> Any:
    """A job that waits behind another, as it was stored."""
    world = World(job("first"), job("second", 1))
    world.settle()
    return world.jobs["forge", "second"]


def reconciler(seconds: float, uid: str) -> Reconciler:
    """One that stored the status of the job so many seconds ago."""
    made = Reconciler(None, Cache(), clock=lambda: START)  # type: ignore[arg-type]
    made._stored[uid] = START - timedelta(seconds=seconds)
    return made


def test_another_sentence_about_a_waiting_job_waits_half_a_minute(waiting):
    reworded = waiting.status.model_copy(update={"reason": "needs 11 free slots"})
    assert gist(reworded) == gist(waiting.status)
    assert reconciler(4, waiting.uid)._can_wait_until(waiting, reworded) == START + timedelta(seconds=26)
    assert reconciler(30, waiting.uid)._can_wait_until(waiting, reworded) is None


def test_what_a_new_operator_sees_first_is_stored_at_once(waiting):
    reworded = waiting.status.model_copy(update={"reason": "needs 11 free slots"})
    fresh = Reconciler(None, Cache(), clock=lambda: START)  # type: ignore[arg-type]
    assert fresh._can_wait_until(waiting, reworded) is None


@pytest.mark.parametrize(
    "change", [{"phase": "Suspended"}, {"attempt": 1}, {"failures": 1}, {"observed_generation": 9}]
)
def test_a_change_of_state_is_stored_at_once(waiting, change):
    changed = waiting.status.model_copy(update=change)
    assert reconciler(0, waiting.uid)._can_wait_until(waiting, changed) is None


def test_counts_of_a_gang_wait_two_seconds():
    world = World(job("only"))
    world.settle()
    only = world.jobs["forge", "only"]
    counted = only.status.model_copy(update={"ready": "2/3"})
    assert reconciler(0.5, only.uid)._can_wait_until(only, counted) == START + timedelta(seconds=1.5)
    running = replace(only, status=counted)
    done = counted.model_copy(update={"phase": "Running"})
    assert reconciler(0.5, only.uid)._can_wait_until(running, done) is None
