"""`kubectl kronos simulate`: traces from a file or from standard input, and what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.commands import API_VERSION, Answer, manifest
from support.searches import fabric

FABRIC = manifest(fabric())
"""Levels spine, leaf and node."""
JOB = {"name": "a", "arrival_s": 0, "pods": 2, "gpus_per_pod": 8, "duration_s": 60}


def simulate(
    tmp_path: Path, *jobs: dict[str, Any] | str, options: tuple[str, ...] = (), documents: str = FABRIC
) -> Answer:
    source = tmp_path / "fabric.yaml"
    source.write_text(documents)
    trace = "\n".join(job if isinstance(job, str) else json.dumps(job) for job in jobs)
    return Answer("simulate", "-", "--fabric", str(source), "--nodes", "4", *options, stdin=trace)


def test_a_trace_is_replayed(tmp_path: Path):
    answer = simulate(tmp_path, JOB, JOB | {"name": "b", "pods": 4, "arrival_s": 10})
    assert answer.code == 0
    assert "4 nodes with 32 nvidia.com/gpu, fabric default" in answer.text
    assert "2 jobs in 120 s" in answer.text


@pytest.mark.parametrize(("form", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_programs_get_the_same_as_data(tmp_path: Path, form: str, read: Any):
    found = read(simulate(tmp_path, JOB, options=("-o", form)).output)
    assert found["nodes"] == 4
    assert found["report"]["makespanSeconds"] == 60.0
    assert found["report"]["domains"]["leaf"] == {"used": 1, "least": 1}


def test_slots_say_how_large_domains_are(tmp_path: Path):
    wanted = JOB | {"topology_mode": "required", "topology_level": "leaf"}
    assert simulate(tmp_path, wanted, options=("--slots", "node=8,leaf=16")).code == 0
    answer = simulate(tmp_path, wanted, options=("--slots", "node=8,leaf=8"))
    assert answer.code == 3
    assert "a can never start: needs 16 free nvidia.com/gpu slots in one leaf" in answer.text


def test_queues_are_read_from_the_fabrics_file(tmp_path: Path):
    queue = {
        "apiVersion": API_VERSION,
        "kind": "KronosQueue",
        "metadata": {"name": "lab"},
        "spec": {"quotas": [{"resource": "nvidia.com/gpu", "nominal": 16}]},
    }
    documents = f"{FABRIC}---\n{yaml.safe_dump(queue)}"
    jobs = [JOB | {"name": name, "queue": "lab"} for name in "ab"]
    answer = simulate(tmp_path, *jobs, documents=documents, options=("-o", "json"))
    assert json.loads(answer.output)["report"]["makespanSeconds"] == 120.0


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("xx", "standard input, line 2: is no JSON object; correct it"),
        ("[]", "standard input, line 2: is a list and must hold fields"),
        (
            JOB | {"name": "b", "pods": 0},
            "standard input, line 2.pods: is 0 and must be greater than or equal to 1; change it",
        ),
        ({"name": "b"}, "standard input, line 2.arrival_s: is missing; add it"),
        (JOB, "standard input, line 2: the name a is taken by an earlier line; change one of them"),
        (
            JOB | {"name": "b", "topology_mode": "required", "topology_level": "moon"},
            "standard input, line 2: topology_level is moon, which the fabric lacks; change it to one of spine, leaf, node",
        ),
        (
            JOB | {"name": "b", "topology_mode": "required"},
            "standard input, line 2: topology_level is missing; change it to one of spine, leaf, node",
        ),
    ],
)
def test_a_bad_line_gets_a_sentence(tmp_path: Path, line: Any, sentence: str):
    answer = simulate(tmp_path, JOB, line)
    assert answer.code == 2
    assert answer.errors.startswith(f"error: {sentence}")


@pytest.mark.parametrize(
    ("documents", "sentence"),
    [("", "holds no KronosFabric; give a file with one"), ("a: [", "this is no YAML")],
)
def test_a_bad_fabric_gets_a_sentence(tmp_path: Path, documents: str, sentence: str):
    answer = simulate(tmp_path, JOB, documents=documents)
    assert answer.code == 2
    assert sentence in answer.errors


def test_an_empty_trace_gets_a_sentence(tmp_path: Path):
    answer = simulate(tmp_path, "")
    assert answer.code == 2
    assert answer.errors == "error: standard input holds no job; write one JSON object a line\n"
