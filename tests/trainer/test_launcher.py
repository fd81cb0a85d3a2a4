"""Members of a gang as a cluster runs them: real launchers that meet, train, fail and stop."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from kronos.api.plan import CheckpointPlan
from kronos_trainer import exits
from kronos_trainer.checkpoint import complete_steps
from support.plans import tiny_plan
from support.training_launcher import Gang

pytestmark = pytest.mark.training


def test_two_members_wait_for_each_other_and_train_to_completion(text: Path, tmp_path: Path) -> None:
    plan = tiny_plan(text, dp=2, pp=2, members=2, steps=30)
    with Gang(plan, tmp_path) as gang:
        gang.start(0)
        gang.until_waiting()
        assert len(gang.rank_processes(0)) == 2
        assert gang.get("/progress") is None
        assert "starting" not in gang.log(0)
        gang.start(1)
        progress = gang.until_step(2)
        assert gang.get("/healthz") == "ok"
        assert gang.get("/other") is None
        assert gang.wait() == {0: exits.COMPLETE, 1: exits.COMPLETE}
        first, second = gang.words(0), gang.words(1)
    assert progress["loss"] > 0
    assert progress["tokensPerSecond"] > 0
    assert (first.outcome, second.outcome) == ("Complete", "Complete")
    assert first.progress is not None
    assert first.progress.step == 30
    assert first.progress.digest is not None
    assert len(first.progress.digest) == 64
    assert "rank=0 step 30/30 loss" in gang.log(0)


def test_the_first_cause_is_told_by_its_member_and_named_by_the_other(text: Path, tmp_path: Path) -> None:
    plan = tiny_plan(text, fsdp=4, members=2, steps=200)
    with Gang(plan, tmp_path, fault=(3, 2, "raise ValueError('the lamp went out')")) as gang:
        gang.start()
        assert gang.wait() == {0: exits.PEER_FAILED, 1: exits.FAILED}
        first, second = gang.words(0), gang.words(1)
    assert (second.outcome, second.rank, second.step, second.secondary) == ("Failed", 3, 2, False)
    assert second.error == "ValueError: the lamp went out"
    assert second.trace is not None
    assert "in _step" in second.trace or "in faulty" in second.trace
    assert (first.outcome, first.rank, first.secondary) == ("Failed", 3, True)
    assert first.error == "rank 3 failed first: ValueError: the lamp went out"


def test_a_killed_rank_is_named_with_its_signal_and_step(text: Path, tmp_path: Path) -> None:
    plan = tiny_plan(text, dp=3, members=2, batch=6, steps=10_000)
    with Gang(plan, tmp_path) as gang:
        gang.start()
        gang.until_step(3)
        started = time.monotonic()
        os.kill(gang.rank_processes(1)[0], signal.SIGKILL)
        codes = gang.wait()
        took = time.monotonic() - started
        words = [gang.words(member) for member in range(2)]
    assert codes == {0: exits.PEER_FAILED, 1: exits.FAILED}
    assert words[1].rank == 2
    assert words[1].step is not None
    assert words[1].step >= 3
    assert words[1].error == "killed by SIGKILL (out of memory, if nobody killed it on purpose)"
    assert [word.secondary for word in words] == [True, False]
    assert took < 15


def test_a_killed_launcher_takes_its_ranks_along_and_ends_the_gang(text: Path, tmp_path: Path) -> None:
    plan = tiny_plan(text, dp=2, members=2, steps=10_000)
    with Gang(plan, tmp_path) as gang:
        gang.start()
        gang.until_step(1)
        orphans = gang.rank_processes(1)
        assert len(orphans) == 1
        gang.process(1).kill()
        assert gang.wait() == {0: exits.PEER_FAILED, 1: -signal.SIGKILL}
        assert gang.words(0).secondary
    assert not any(Path(f"/proc/{pid}").exists() for pid in orphans)


def test_sigterm_at_one_member_saves_and_stops_the_whole_gang(text: Path, tmp_path: Path) -> None:
    where = CheckpointPlan(path=str(tmp_path / "saved"), every_steps=5_000, keep=1)
    plan = tiny_plan(text, fsdp=2, members=2, steps=10_000, checkpoint=where)
    with Gang(plan, tmp_path / "gang") as gang:
        gang.start()
        gang.until_step(2)
        gang.process(1).terminate()
        assert gang.wait() == {0: exits.STOPPED, 1: exits.STOPPED}
        first, second = gang.words(0), gang.words(1)
    assert (first.outcome, second.outcome) == ("Stopped", "Stopped")
    assert first.progress is not None
    assert complete_steps(tmp_path / "saved") == [first.progress.step]
    assert first.progress.checkpoint_step == first.progress.step == second.step


def test_members_that_do_not_arrive_in_time_are_named(text: Path, tmp_path: Path) -> None:
    plan = tiny_plan(text, dp=3, members=3, batch=6, rendezvous_timeout_seconds=30)
    with Gang(plan, tmp_path) as gang:
        gang.start(0, 1)
        assert gang.wait() == {0: exits.RENDEZVOUS_TIMED_OUT, 1: exits.RENDEZVOUS_TIMED_OUT}
        assert gang.words(0).error == (
            "The gang did not meet: after 30 s member 2 (node node-2) of 3 has not arrived."
        )
        # The second one says the same, or that the first has given up by then.
        assert "member 2 (node node-2)" in (gang.words(1).error or "")


def test_an_absent_first_member_is_named_too(text: Path, tmp_path: Path) -> None:
    plan = tiny_plan(text, dp=2, members=2, rendezvous_timeout_seconds=5)
    with Gang(plan, tmp_path) as gang:
        gang.start(1, KRONOS_MASTER="no-such-host.invalid")
        assert gang.wait() == {1: exits.RENDEZVOUS_TIMED_OUT}
        assert "member 0 (node node-0) of 2 has not arrived" in (gang.words(1).error or "")


def test_sigterm_before_the_gang_has_met_ends_at_once(text: Path, tmp_path: Path) -> None:
    plan = tiny_plan(text, dp=2, members=2)
    with Gang(plan, tmp_path) as gang:
        gang.start(0)
        gang.until_waiting()
        gang.process(0).terminate()
        assert gang.wait(10) == {0: exits.STOPPED}
        assert gang.words(0).outcome == "Stopped"


def test_members_with_different_plans_refuse_to_train(text: Path, tmp_path: Path) -> None:
    plan = tiny_plan(text, dp=2, members=2)
    other = tiny_plan(text, dp=2, members=2, seed=99)
    with Gang(plan, tmp_path / "a") as gang, Gang(other, tmp_path / "b") as strangers:
        gang.start(0)
        strangers.start(1, KRONOS_MASTER=gang.address(0))
        assert gang.wait() == {0: exits.BAD_INPUT}
        assert strangers.wait() == {1: exits.BAD_INPUT}
        assert gang.words(0).error == "Member 1 was given another plan than member 0."


def test_a_loss_that_is_no_number_stops_the_run_and_names_the_step(text: Path, tmp_path: Path) -> None:
    plan = tiny_plan(text, optimization={"learning_rate": 1e-2})
    poison = "self.model.norm.weight.data.fill_(float('nan'))"
    with Gang(plan, tmp_path, fault=(0, 3, poison)) as gang:
        gang.start()
        assert gang.wait() == {0: exits.FAILED}
        assert (
            gang.words(0).error == "FloatingPointError: the loss is nan and the gradient norm nan in step 4"
        )
