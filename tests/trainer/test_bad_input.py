"""Wrong plans, data and environments are answered with one sentence and exit code 2, within a second."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kronos.api.plan import Plan
from kronos.api.training import Data
from kronos_trainer import exits
from kronos_trainer.exits import InputError
from kronos_trainer.inputs import check_supported, ranks_of_member, read_plan, read_settings
from kronos_trainer.text import open_corpus
from support.plans import tiny_plan
from support.training_launcher import Gang


def settings_for(path: Path, **environment: str) -> Any:
    return read_settings({"KRONOS_PLAN": str(path), **environment})


@pytest.mark.training
def test_the_launcher_says_what_is_wrong_with_a_plan(text: Path, tmp_path: Path) -> None:
    wire = tiny_plan(text).wire()
    wire["optimization"]["steps"] = 0
    with Gang(tiny_plan(text), tmp_path, plan_text=json.dumps(wire)) as gang:
        gang.start()
        assert gang.wait() == {0: exits.BAD_INPUT}
        words = gang.words(0)
    assert words.outcome == "Failed"
    assert words.error is not None
    assert words.error.endswith(
        "is not valid: optimization.steps: Input should be greater than or equal to 1."
    )
    assert words.trace is None


@pytest.mark.training
def test_the_launcher_says_that_data_is_missing(tmp_path: Path) -> None:
    plan = tiny_plan(tmp_path / "nowhere")
    with Gang(plan, tmp_path / "gang") as gang:
        gang.start()
        assert gang.wait() == {0: exits.BAD_INPUT}
        assert gang.words(0).error == (
            f"The data path {tmp_path}/nowhere does not exist in this pod; check data.path and data.volume."
        )


def test_a_missing_plan_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"The plan at .*/plan.json can't be read: .*No such file"):
        read_plan(settings_for(tmp_path / "plan.json"))


@pytest.mark.parametrize("content", ["", "{", "[]", "{}"])
def test_a_plan_that_is_no_plan_is_told(tmp_path: Path, content: str) -> None:
    (tmp_path / "plan.json").write_text(content)
    with pytest.raises(InputError, match=r"The plan at .* is not valid: "):
        read_plan(settings_for(tmp_path / "plan.json"))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda wire: wire["degrees"].update(dataParallel=2),
            "the degrees multiply to 2 ranks but the members offer 1",
        ),
        (lambda wire: wire.update(rankMap=[1]), "rankMap must hold each rank from 0 to 0 exactly once"),
        (lambda wire: wire.update(microbatches=3), "not the global batch size of 8"),
        (lambda wire: wire.update(stageLayers=[3]), "adding up to the model's layers"),
        (
            lambda wire: wire.update(schedule="1F1B"),
            "schedule is None exactly when there is one pipeline stage",
        ),
        (lambda wire: wire.update(surprise=1), "surprise: Extra inputs are not permitted"),
        (lambda wire: wire.update(formatVersion=2), "formatVersion: Input should be 1"),
        (lambda wire: wire["model"].update(attentionHeads=5), "must be an even multiple of 5 heads"),
    ],
)
def test_an_inconsistent_plan_is_told(
    text: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None], sentence: str
) -> None:
    wire = tiny_plan(text).wire()
    change(wire)
    (tmp_path / "plan.json").write_text(json.dumps(wire))
    with pytest.raises(InputError) as caught:
        read_plan(settings_for(tmp_path / "plan.json"))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"tp": 4}, "tensorParallel is 4 but keyValueHeads 2 is no multiple of it; change one of them."),
        (
            {"tp": 3, "model": {"hidden_size": 24, "attention_heads": 3, "key_value_heads": 3}},
            "tensorParallel is 3 but feedForwardSize 64 is no multiple of it",
        ),
        (
            {"pp": 2, "model": {"tied_embeddings": True}},
            "tiedEmbeddings needs the embedding and the head on one",
        ),
        ({"pp": 2, "microbatches": 1}, "at least as many microbatches as the 2 pipeline stages"),
        ({"pp": 2, "stage_layers": (4, 0)}, "leaves a pipeline stage without layers"),
        ({"model": {"vocabulary_size": 255}}, "vocabularySize is 255 but text is read as bytes"),
    ],
)
def test_a_combination_that_the_trainer_does_not_run_is_told(
    text: Path, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError) as caught:
        check_supported(tiny_plan(text, **options))
    assert sentence in str(caught.value)


def test_a_member_that_the_plan_does_not_have_is_told(text: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(tiny_plan(text).wire()))
    with pytest.raises(InputError, match="KRONOS_MEMBER is 4 but the plan has 1 members"):
        read_plan(settings_for(tmp_path / "plan.json", KRONOS_MEMBER="4"))
    with pytest.raises(InputError, match="must be the index of a member in the plan, not 'first'"):
        settings_for(tmp_path / "plan.json", KRONOS_MEMBER="first")


def test_ranks_are_numbered_through_the_members(text: Path) -> None:
    plan: Plan = tiny_plan(text, dp=5, batch=5, members=2)
    assert [list(ranks_of_member(plan, member)) for member in (0, 1)] == [[0, 1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("include", "content", "sentence"),
    [
        (("*.rst",), "x" * 100, "No file under .* matches data.include"),
        (("**/*",), "", "holds 0 bytes in 1 files, too few for one sequence of 32 tokens"),
        (("**/*",), "x" * 32, "holds 32 bytes in 1 files, too few for one sequence"),
        (("/etc/*",), "x" * 100, "data.include has '/etc/\\*', which is no pattern relative to"),
    ],
)
def test_data_with_nothing_to_read_is_told(
    tmp_path: Path, include: tuple[str, ...], content: str, sentence: str
) -> None:
    (tmp_path / "a.txt").write_text(content)
    with pytest.raises(InputError, match=sentence):
        open_corpus(Data(path=str(tmp_path), include=include), 32)


def test_data_that_shrinks_while_training_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 100)
    corpus = open_corpus(Data(path=str(tmp_path)), 32)
    (tmp_path / "a.txt").write_text("x" * 50)
    with pytest.raises(InputError, match="is shorter than when training started"):
        corpus.read(2)
    (tmp_path / "a.txt").unlink()
    with pytest.raises(InputError, match="can't be read any more"):
        corpus.read(0)


def test_plan_and_data_are_checked_without_loading_torch() -> None:
    code = "import sys, kronos_trainer.launcher; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
