"""Ranks go where another scheduler's tests say that they must, in the order of numbers."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kronos.lifecycle import PodView, Snapshot
from kronos.lifecycle.holding import held
from kronos.placement import Placement, Topology, place
from support.gangs import SLOT, fabric, gang, node

CASES = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "rank_cases.jsonl").read_text(encoding="utf-8").splitlines()
]
MANY = {
    "name": "ten comes after nine, not after one",
    "slots": {f"b1/r{number}": 1 for number in range(1, 13)},
    "bound": [],
    "world": 12,
    "ranks": {str(rank): f"b1/r{rank + 1}" for rank in range(12)},
}


@pytest.mark.parametrize("case", [*CASES, MANY], ids=lambda case: case["name"])
def test_ranks_lie_as_they_must(case):
    nodes = []
    for domain, slots in case["slots"].items():
        block = domain.split("/")[0]
        nodes.append(node(domain, slots, block=block, rack=domain))
    pods = tuple(
        PodView("n", f"p{at}", f"u{at}", item["phase"], item["domain"], {SLOT: 1})
        for at, item in enumerate(case["bound"])
    )
    taken = held(Snapshot(datetime.now(UTC), {}, pods, tuple(nodes), {}))
    outcome = place(Topology.build(nodes, fabric("block", "rack")), taken, gang(dp=case["world"]))
    assert isinstance(outcome, Placement), outcome
    # By process: members in turn, each with its ranks; the map says which rank each process is.
    domains = [member.node for member in outcome.members for _ in range(member.ranks)]
    where = dict(zip(outcome.rank_map, domains, strict=True))
    assert {rank: where[int(rank)] for rank in case["ranks"]} == case["ranks"]
