"""Placement agrees with another scheduler's facts on what fits, and in how few domains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kronos.api.fabric import NODE_LEVEL, Accelerator, FabricSpec, Level, Link, PeakTflops
from kronos.api.job import Toleration
from kronos.api.plan import Degrees
from kronos.placement import PODS, GangRequest, Node, Placement, Taint, Topology, place, reserve, usage_of

HOST = "kubernetes.io/hostname"
SEAT = "example.com/seat"
"""Stands for the accelerator, of which our ranks take one each: there are always enough, what the pods ask for counts."""

CASES = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "kueue_cases.jsonl").read_text().splitlines()
]


def level_name(key: str | None) -> str | None:
    return None if key is None else NODE_LEVEL if key == HOST else key.rpartition("/")[2]


def fabric_of(case: dict[str, Any]) -> FabricSpec:
    return FabricSpec(
        levels=tuple(
            Level(
                name=str(level_name(key)),
                node_label=key,
                bandwidth_gigabytes_per_second=1,
                latency_microseconds=1,
            )
            for key in case["levels"]
            if key != HOST
        ),
        node=Link(bandwidth_gigabytes_per_second=1, latency_microseconds=1),
        accelerators=(
            Accelerator(resource=SEAT, model="seat", memory_gib=1, peak_tflops=PeakTflops(fp32=1, bf16=1)),
        ),
    )


def node_of(item: dict[str, Any]) -> Node:
    return Node(
        item["name"],
        item["labels"],
        {**item["allocatable"], SEAT: 10**6},
        tuple(Taint(taint["key"], taint["value"], taint["effect"]) for taint in item.get("taints", ())),
        ready=item.get("ready", True),
        schedulable=item.get("schedulable", True),
    )


def request_of(gang: dict[str, Any], case: dict[str, Any]) -> GangRequest:
    # Slices are given widest first. Whatever nests in ranks is a tensor group, what nests in those a pipeline, and so on.
    (tensor, pipeline, copy) = (
        *reversed([(item["size"], item["level"]) for item in gang.get("slices", ())]),
        *[(None, None)] * 3,
    )[:3]
    sizes = [tensor[0] or 1]
    for size, _ in (pipeline, copy):
        sizes.append(size or sizes[-1])
    return GangRequest(
        degrees=Degrees(
            data_parallel=gang["count"] // sizes[2],
            sharded_data_parallel=sizes[2] // sizes[1],
            pipeline_parallel=sizes[1] // sizes[0],
            tensor_parallel=sizes[0],
        ),
        resource=SEAT,
        # Each of these pods takes one of `pods` where our members would share one.
        per_rank={**gang["perPod"], PODS: 1},
        required=level_name(gang.get("required")),
        preferred=level_name(gang.get("preferred")),
        tensor_parallel_within=level_name(tensor[1]),
        pipeline_parallel_within=level_name(pipeline[1]),
        sharded_data_parallel_within=level_name(copy[1]),
        node_selector=case.get("nodeSelector", {}),
        tolerations=tuple(Toleration(**toleration) for toleration in case.get("tolerations", ())),
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_agrees(case):
    topology = Topology.build(map(node_of, case["nodes"]), fabric_of(case))
    usage = usage_of((pod["node"], pod["requests"]) for pod in case.get("bound", ()))
    for gang in (case, *case.get("then", ())):
        request = request_of(gang, case)
        outcome = place(topology, usage, request)
        assert isinstance(outcome, Placement) == case["fits"], outcome
        if isinstance(outcome, Placement):
            usage = reserve(usage, outcome, request)
            fewest = {level_name(key): number for key, number in gang.get("fewestDomains", {}).items()}
            assert {level: outcome.domains[level] for level in fewest} == fewest
