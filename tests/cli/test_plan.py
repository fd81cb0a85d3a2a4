"""`kubectl kronos plan` as people and programs use it: what it says, and how it ends."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic.alias_generators import to_camel

from kronos.api.job import PlacementRules
from kronos.strategy import EVERYTHING, MemoryBreakdown, StepTime, advised, parameter_count, search
from kronos.strategy.alternatives import alternatives, scaling, stops_paying
from support.commands import Answer, manifest, plan
from support.repository import ROOT
from support.searches import GPU, LLAMA_2_7B, LLAMA_3_70B, fabric, job, jobs, memories

EXAMPLES = ROOT / "manifests" / "examples"
LARGE = job(LLAMA_2_7B, batch=64, low=8, high=16)
TOO_LARGE = job(LLAMA_3_70B, batch=8, high=8)
EXPERTS = job({**LLAMA_2_7B, "experts": {"count": 8, "active": 2}}, batch=64, low=8, high=32)


def test_the_examples_can_be_planned():
    for name in ("breeder", "burner"):
        answer = Answer("plan", str(EXAMPLES / f"{name}.yaml"), "--fabric", str(EXAMPLES / "fabric.yaml"))
        assert answer.code == 0
        assert re.search(rf"^Job +{name} in namespace forge", answer.output, re.MULTILINE)
        assert answer.errors == ""


def test_what_is_chosen_is_what_the_search_finds_best():
    found = search(LARGE, fabric())
    best = found.candidates[0]
    (report,) = plan(manifest(LARGE, fabric()), "-o", "json").plans
    chosen = report["chosen"]
    assert report["job"] == "job-1"
    assert report["bottleneck"] == found.bottleneck
    assert report["refusal"] is None
    assert report["model"]["parameterCount"] == parameter_count(LARGE.model) == 6_738_415_616
    assert report["accelerator"] == {
        "resource": GPU,
        "model": "H100",
        "memoryGiB": 80,
        "precision": "bf16",
        "peakTflops": 989,
    }
    assert chosen["degrees"] == best.degrees.wire()
    assert chosen["strategy"] == best.degrees.summary
    assert chosen["worldSize"] == best.degrees.world_size
    assert chosen["schedule"] == best.schedule
    assert chosen["virtualStages"] == best.virtual_stages
    assert chosen["microbatches"] * chosen["microbatchSequences"] * best.degrees.batch_ranks == 64
    assert chosen["checkpointing"] == best.checkpointing
    assert chosen["stageLayers"] == list(best.stage_layers)
    assert chosen["stepSeconds"] == best.time.total
    assert chosen["tokensPerSecond"] == best.tokens_per_second
    assert chosen["modelFlopsUtilizationPercent"] == pytest.approx(100 * best.utilization)


def test_every_item_of_memory_and_time_is_told_and_adds_up():
    best = search(LARGE, fabric()).candidates[0]
    chosen = plan(manifest(LARGE, fabric()), "-o", "json").plans[0]["chosen"]
    memory, time = chosen["memory"], chosen["time"]
    assert set(memory["items"]) == {to_camel(field.name) for field in fields(MemoryBreakdown)}
    assert set(time["items"]) == {to_camel(field.name) for field in fields(StepTime)}
    for field in fields(MemoryBreakdown):
        assert memory["items"][to_camel(field.name)]["sizeGiB"] * 2**30 == getattr(best.memory, field.name)
    for field in fields(StepTime):
        assert time["items"][to_camel(field.name)]["seconds"] == getattr(best.time, field.name)
    assert memory["limitGiB"] == 80
    assert sum(item["sizeGiB"] for item in memory["items"].values()) == pytest.approx(memory["totalGiB"])
    assert sum(item["percentOfLimit"] for item in memory["items"].values()) == pytest.approx(
        memory["percentOfLimit"]
    )
    assert sum(item["percentOfStep"] for item in time["items"].values()) == pytest.approx(100)
    assert time["totalSeconds"] == chosen["stepSeconds"]


def test_the_others_are_told_in_the_order_of_the_search():
    found = search(LARGE, fabric())
    (report,) = plan(manifest(LARGE, fabric()), "-o", "json").plans
    assert [(other["degrees"], other["stepSeconds"]) for other in report["runnersUp"]] == [
        (candidate.degrees.wire(), candidate.time.total) for candidate in found.candidates[1:6]
    ]
    assert [
        (other["strategy"], other["stepSeconds"], other["reason"]) for other in report["alternatives"]
    ] == [
        (other.degrees.summary, other.step_seconds, other.reason)
        for other in alternatives(LARGE, fabric(), found.candidates[0])
    ]
    assert [(item["code"], item["message"], item["count"]) for item in report["rejections"]] == [
        (rejection.code, rejection.message, rejection.count) for rejection in found.rejections
    ]


def test_scaling_begins_below_the_fewest_accelerators_that_the_job_asks_for():
    points = scaling(search(job(LLAMA_2_7B, batch=64, low=1, high=16), fabric()).candidates)
    (report,) = plan(manifest(LARGE, fabric()), "-o", "json").plans
    told = report["scaling"]
    assert [point["accelerators"] for point in told["points"]] == [point.world_size for point in points]
    assert told["points"][0]["accelerators"] < 8
    assert told["points"][0]["speedUp"] == 1
    assert told["paysUpToAccelerators"] == stops_paying(points)


def test_the_table_tells_people_the_same():
    answer = plan(manifest(LARGE, fabric()))
    chosen = plan(manifest(LARGE, fabric()), "-o", "json").plans[0]["chosen"]
    assert answer.code == 0
    for part in (
        "decoder, 32 layers, 6.74 billion parameters",
        "H100 (nvidia.com/gpu), 80 GiB, 989 TFLOP/s in bf16",
        "accelerators: 8 in a node (assumed), 64 in a leaf (assumed), 512 in a spine (assumed); say with --slots what is there",
        "model size: one accelerator doesn't hold the model with its optimizer",
        f"{chosen['strategy']} on {chosen['worldSize']} accelerators, best by Time",
        f"{chosen['modelFlopsUtilizationPercent']:.1f}% MFU",
        f"optimizer state {chosen['memory']['items']['optimizer']['sizeGiB']:.2f} ",
        "limit 80.00 100.0",
        "Runners-up Strategy Accelerators Step GiB MFU Recomputing",
        "Why not on as many accelerators",
        "GlobalBatchNotDivisible",
    ):
        assert part in answer.text
    bars = [line.count("█") for line in answer.output.splitlines() if "█" in line]
    assert bars == sorted(bars)
    assert bars[-1] == 24
    assert "More accelerators pay up to accelerators.max 16, where this curve ends." in answer.text


def test_the_optimizers_share_is_shown_even_where_there_is_none():
    spec = job(LLAMA_2_7B, batch=64, low=8, high=8)
    small = job({"layers": 1, "hidden_size": 16, "attention_heads": 1, "sequence_length": 16}, high=1)
    for one in (spec, small):
        assert re.search(r"^optimizer state +[<0-9]", plan(manifest(one, fabric())).output, re.MULTILINE)


def test_the_table_says_where_more_accelerators_stop_paying():
    slow = fabric(node=0.2, leaf=0.1, spine=0.1)
    answer = plan(manifest(job(LLAMA_2_7B, batch=64, high=32), slow))
    (report,) = plan(manifest(job(LLAMA_2_7B, batch=64, high=32), slow), "-o", "json").plans
    stop = report["scaling"]["paysUpToAccelerators"]
    assert stop < report["scaling"]["points"][-1]["accelerators"]
    assert (
        f"Beyond {stop} accelerators, more of them bring less than 50% of their share of speed."
        in answer.text
    )


def test_the_slots_of_domains_change_the_plan_and_are_told():
    spec = job(LLAMA_2_7B, batch=64, low=16, high=16, tensor_parallel=8)
    eight = plan(manifest(spec, fabric()), "--slots", "node=8", "-o", "json").plans[0]
    two = plan(
        manifest(spec, fabric()), "--slots", "node=2,leaf=4", "--slots", "spine=16", "-o", "json"
    ).plans[0]
    assert two["acceleratorsPerDomain"] == {"node": 2, "leaf": 4, "spine": 16}
    assert (
        two["chosen"]["time"]["items"]["tensorParallel"]["seconds"]
        > (eight["chosen"]["time"]["items"]["tensorParallel"]["seconds"])
    )


def test_any_trainer_weighs_what_this_trainer_cannot_run():
    refused = plan(manifest(EXPERTS, fabric()), "-o", "json")
    assert refused.code == 3
    assert refused.plans[0]["refusal"].startswith("this version's trainer can't build models with experts")
    (report,) = plan(manifest(EXPERTS, fabric()), "--any-trainer", "-o", "json").plans
    assert report["anyTrainer"]
    assert (
        report["chosen"]["degrees"]
        == search(EXPERTS, fabric(), None, EVERYTHING).candidates[0].degrees.wire()
    )
    assert report["model"]["activeParameterCount"] < report["model"]["parameterCount"]
    assert "of them active" in plan(manifest(EXPERTS, fabric()), "--any-trainer").text


def test_a_job_that_fits_nowhere_is_refused_with_the_reasons():
    answer = plan(manifest(TOO_LARGE, fabric()))
    assert answer.code == 3
    assert "Kronos can't plan job-1: no split of the model fits: the nearest miss, " in answer.text
    assert "optimizer state " in answer.text
    assert re.search(r"raise accelerators.max to \d+ \(", answer.text)
    assert re.search(r"\d+ +MemoryShort +the nearest miss", answer.output)
    (report,) = plan(manifest(TOO_LARGE, fabric()), "-o", "json").plans
    assert report["chosen"] is None
    assert report["bottleneck"] is None
    assert report["scaling"] == {"points": [], "paysUpToAccelerators": None, "mostAccelerators": 8}
    assert report["refusal"] == advised(TOO_LARGE, fabric()).refusal


def test_pins_are_told_with_what_they_cost():
    pinned = job(batch=64, low=8, high=8, tensor_parallel=2, pipeline_parallel=2)
    answer = plan(manifest(pinned, fabric()))
    assert re.search(
        r"Pinned strategy\.tensorParallel 2, strategy\.pipelineParallel 2; without: dp8 on 8 accelerators, "
        r"[0-9]+% less time per step",
        answer.text,
    )
    (report,) = plan(manifest(pinned, fabric()), "-o", "json").plans
    assert report["pins"]["free"]["stepSeconds"] < report["chosen"]["stepSeconds"]
    assert plan(manifest(LARGE, fabric()), "-o", "json").plans[0]["pins"] is None


def test_a_required_level_bounds_the_accelerators():
    inside = PlacementRules(required="node")
    wide = job(LLAMA_2_7B, batch=64, low=4, high=64).model_copy(update={"placement": inside})
    (report,) = plan(manifest(wide, fabric()), "-o", "json").plans
    assert report["acceleratorsLimit"] == 8
    assert report["chosen"]["worldSize"] <= 8
    assert report["scaling"]["mostAccelerators"] == 8
    assert "Limit 8 accelerators, by placement.required" in plan(manifest(wide, fabric())).text
    large = job(LLAMA_2_7B, batch=64, low=64, high=64).model_copy(update={"placement": inside})
    refused = plan(manifest(large, fabric()))
    assert refused.code == 3
    assert (
        "placement.required asks for one node, which has 8 accelerators, fewer than accelerators.min 64; lower "
        "accelerators.min to 8, require a wider level, or say with --slots what a node has"
    ) in refused.text


def test_an_accelerator_that_the_fabric_lacks_is_refused():
    answer = plan(manifest(job(resource="amd.com/gpu"), fabric()))
    assert answer.code == 3
    assert "the fabric default does not describe amd.com/gpu; add it under spec.accelerators" in answer.text


def test_every_job_is_planned_and_one_refusal_tells():
    answer = plan(manifest(LARGE, fabric(), TOO_LARGE), "-o", "json")
    assert answer.code == 3
    assert [(report["job"], report["refusal"] is None) for report in answer.plans] == [
        ("job-1", True),
        ("job-3", False),
    ]
    assert plan(manifest(LARGE, fabric(), TOO_LARGE)).output.count("in namespace default") == 2


def test_other_kinds_are_ignored_with_a_note():
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}}
    answer = plan(manifest(service, LARGE, fabric()), "-o", "json")
    assert answer.code == 0
    assert answer.errors == "note: standard input: Service web is ignored\n"
    assert len(answer.plans) == 1


def test_a_fabric_of_another_name_is_used_with_a_note():
    answer = plan(manifest(LARGE, fabric(), fabric_name="lab"), "-o", "json")
    assert answer.code == 0
    assert answer.errors == "note: job-1 asks for the fabric default; this plan is for the fabric lab\n"
    assert answer.plans[0]["fabric"] == "lab"


def test_a_fabric_file_comes_before_the_fabric_among_the_jobs(tmp_path: Path):
    other = tmp_path / "fabric.yaml"
    other.write_text(manifest(fabric(memory=40)))
    (report,) = plan(manifest(LARGE, fabric()), "--fabric", str(other), "-o", "json").plans
    assert report["accelerator"]["memoryGiB"] == 40


@pytest.mark.parametrize("output", ["table", "json", "yaml"])
def test_the_same_question_has_the_same_answer(output: str):
    text = manifest(LARGE, EXPERTS, fabric())
    assert plan(text, "-o", output).output == plan(text, "-o", output).output


@settings(max_examples=25, deadline=None)
@given(spec=jobs(), memory=memories(), trainer=st.sampled_from([(), ("--any-trainer",)]))
def test_json_and_yaml_carry_the_same_data(spec: Any, memory: float, trainer: tuple[str, ...]):
    text = manifest(spec, fabric(memory=memory))
    as_json, as_yaml = plan(text, "-o", "json", *trainer), plan(text, "-o", "yaml", *trainer)
    assert json.loads(as_json.output) == yaml.safe_load(as_yaml.output)
    assert as_json.code == as_yaml.code == (3 if as_json.plans[0]["refusal"] else 0)


@settings(max_examples=15, deadline=None)
@given(spec=jobs(), memory=memories())
def test_every_job_has_a_table(spec: Any, memory: float):
    answer = plan(manifest(spec, fabric(memory=memory)))
    assert answer.code in (0, 3)
    assert ("Kronos can't plan job-1: " in answer.text) == (answer.code == 3)


def test_the_command_works_as_a_program_and_in_a_terminal_without_unicode(tmp_path: Path):
    source = tmp_path / "job.yaml"
    source.write_text(manifest(LARGE, fabric()))
    environment = {**os.environ, "PYTHONIOENCODING": "ascii:strict"}
    for output in ("table", "json"):
        done = subprocess.run(
            [sys.executable, "-m", "kronos.cli", "plan", str(source), "-o", output],
            env=environment,
            capture_output=True,
            check=True,
        )
        assert done.stderr == b""
        assert b"job-1" in done.stdout
    assert "·" in json.loads(done.stdout)["plans"][0]["runnersUp"][0]["strategy"]


@pytest.mark.parametrize("columns", [80, 100, 240])
def test_numbers_are_whole_in_a_narrow_terminal(columns: int):
    def written(width: int) -> list[str]:
        output = Answer("plan", "-", stdin=manifest(LARGE, fabric()), columns=width).output
        assert all(len(line) <= width for line in output.splitlines() if "  " in line)
        return re.sub("█+", "", output).split()

    assert written(columns) == written(120)


def test_help_tells_the_command_and_its_exit_codes():
    assert "plan" in Answer("--help").output
    text = Answer("plan", "--help").text
    assert "--any-trainer" in text
    assert "Exit code 2" in text


def test_the_documents_example_can_be_planned():
    text = (ROOT / "docs" / "plan.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    answer = plan(block, "--slots", "node=8,rack=64")
    assert not any(line.endswith(" ") for line in answer.output.splitlines())
    assert answer.code == 0
    assert answer.errors == ""
    # What the predictions say changes with the models behind them; what the answer is made of is in the document.
    (shown,) = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    titles = re.compile(r"^(?:[A-Z][a-z]+(?: [a-z]+)* {3,}|[A-Z][a-z -]+$)", re.MULTILINE)
    assert titles.findall(shown) == titles.findall(answer.output)
