"""The pieces of the trainer that need no gang."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kronos.api.plan import LastWords, Progress
from kronos.api.training import Optimization
from kronos_trainer import last_words
from kronos_trainer.environment import interface_of, prepare_environment
from kronos_trainer.exits import InputError
from kronos_trainer.failures import looks_secondary, one_line
from kronos_trainer.last_words import LIMIT_BYTES, encode, write
from support.plans import tiny_plan

texts = st.one_of(st.none(), st.text(max_size=9000), st.text(alphabet='é"\\\n\ud7ff😀', max_size=6000))


@given(error=texts, trace=texts)
def test_last_words_are_valid_json_of_at_most_4096_bytes(error: str | None, trace: str | None) -> None:
    words = LastWords(outcome="Failed", rank=3, step=7, error=error, trace=trace, progress=Progress(step=7))
    data = encode(words)
    assert len(data) <= LIMIT_BYTES
    again = LastWords.model_validate_json(data)
    assert (again.rank, again.step, again.progress) == (3, 7, Progress(step=7))
    assert again.trace is None or (trace or "").endswith(again.trace)


def test_short_last_words_are_kept_whole() -> None:
    words = LastWords(outcome="Failed", error="ValueError: no", trace="line 1\nline 2", secondary=True)
    assert json.loads(encode(words)) == words.wire()


def test_a_termination_log_that_cannot_be_written_is_a_problem_and_no_crash(tmp_path: Path) -> None:
    problem = write(tmp_path / "absent" / "log", LastWords(outcome="Complete"))
    assert problem is not None
    assert "can't be written" in problem
    assert last_words.write(tmp_path / "log", LastWords(outcome="Complete")) is None


@pytest.mark.parametrize(
    ("error", "secondary"),
    [
        (RuntimeError("[/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:45"), True),
        (RuntimeError("NCCL communicator was aborted on rank 3"), True),
        (RuntimeError("Timed out waiting 60000ms for send operation to complete"), True),
        (ConnectionResetError("reset"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("connection closed by peer"), False),
        (MemoryError(), False),
    ],
)
def test_consequences_are_told_from_causes(error: Exception, secondary: bool) -> None:
    assert looks_secondary(error) is secondary


def test_an_error_is_told_on_one_line() -> None:
    assert one_line(ValueError("two\n lines")) == "ValueError: two lines"
    assert one_line(MemoryError()) == "MemoryError"
    assert one_line(InputError("A sentence.")) == "A sentence."
    gloo = (
        "[/a/b/pair.cc:553] Connection closed by peer [10.0.0.1]:5. This is typically caused by a crash. Bye"
    )
    assert one_line(RuntimeError(gloo)) == "RuntimeError: Connection closed by peer [10.0.0.1]:5."


def test_loopback_pods_talk_over_loopback_and_settings_of_the_user_stay() -> None:
    environ = {"OMP_NUM_THREADS": "4", "NCCL_SOCKET_IFNAME": "eth7"}
    prepare_environment(environ, "127.3.2.1")
    assert environ["GLOO_SOCKET_IFNAME"] == "lo"
    assert environ["NCCL_SOCKET_IFNAME"] == "eth7"
    assert environ["MKL_NUM_THREADS"] == "4"
    assert interface_of("192.0.2.77") is None
    assert interface_of("fd00::1") is None


def test_the_learning_rate_warms_up_and_decays_to_its_floor() -> None:
    from kronos_trainer.optimizer import learning_rate

    optimization = Optimization(
        global_batch_size=1, steps=10, learning_rate=1.0, warmup_steps=4, minimum_learning_rate_ratio=0.1
    )
    rates = [learning_rate(optimization, step) for step in range(10)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert rates[9] == pytest.approx(0.1)
    constant = Optimization(global_batch_size=1, steps=3, warmup_steps=3, learning_rate=1.0)
    assert learning_rate(constant, 2) == 1.0


def test_a_seat_follows_from_the_rank_map(text: Path) -> None:
    from kronos_trainer.mesh import Seat, position_of, seat_of

    plan = tiny_plan(text, pp=2, fsdp=2, tp=2, rank_map=(7, 6, 5, 4, 3, 2, 1, 0))
    assert seat_of(plan, 7) == Seat(pp=0, dp=0, fsdp=0, tp=0)
    assert seat_of(plan, 6) == Seat(pp=0, dp=0, fsdp=0, tp=1)
    assert seat_of(plan, 5) == Seat(pp=0, dp=0, fsdp=1, tp=0)
    assert seat_of(plan, 0) == Seat(pp=1, dp=0, fsdp=1, tp=1)
    assert position_of(plan, 0) == 7


def test_rows_of_initial_weights_do_not_depend_on_who_draws_them() -> None:
    import torch

    from kronos_trainer.initialise import draw_rows

    shape = (5_000, 700)
    whole = draw_rows(3, "layers.0.attention.wq.weight", shape, range(5_000))
    part = draw_rows(3, "layers.0.attention.wq.weight", shape, range(1_400, 3_100))
    assert torch.equal(part, whole[1_400:3_100])
    assert abs(float(whole.mean())) < 0.01
    assert abs(float(whole.std()) - 1) < 0.01
    other = draw_rows(3, "layers.1.attention.wq.weight", shape, range(10))
    assert not torch.equal(other, whole[:10])
