"""Placements of generated small cases beside the best that there are, found by trying everything."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import permutations

from kronos.placement import GangRequest, Node, Placement, Topology, Usage, place
from support.gangs import SLOT, Truth, fabric, gang, node
from support.messages import Bytes, cost_of

LEVELS = ("block", "rack")
FABRIC = fabric(*LEVELS)
MOST_GROUPS = 6
"""Tensor groups of which all orders are tried: 720."""
_DEGREES = (
    {"dp": 6},
    {"pp": 6},
    {"tp": 2, "dp": 3},
    {"tp": 2, "pp": 2, "dp": 2},
    {"pp": 2, "dp": 3},
    {"pp": 3, "fsdp": 2},
    {"dp": 2, "fsdp": 3},
    {"tp": 2, "pp": 3, "dp": 2},
    {"tp": 3, "dp": 4},
    {"dp": 9},
)


@dataclass(frozen=True)
class Survey:
    """What a number of cases showed."""

    cases: int
    placed: int
    wrong: tuple[str, ...]
    """Cases in which a place was missed or used more domains than the best does."""
    maps: int
    """Rank maps that were compared with all orders."""
    excess: float
    """By how much they cost more than the best order, on average."""
    worst: float
    worse_than_natural: int


def survey(seed: int, count: int) -> Survey:
    """Place `count` gangs on clusters of up to 12 nodes with unequal, partly used and partly unlabelled nodes."""
    rng = random.Random(seed)
    wrong, ratios, placed, worse = [], [], 0, 0
    for case in range(count):
        nodes, usage, request, traffic = _case(rng)
        outcome = place(Topology.build(nodes, FABRIC), usage, request)
        free = {item.name: item.allocatable[SLOT] - usage.get(item.name, {}).get(SLOT, 0) for item in nodes}
        best = Truth(LEVELS, nodes, free).best(request)
        if not isinstance(outcome, Placement):
            wrong += [f"case {case} of seed {seed}: a place was missed"] if best else []
            continue
        placed += 1
        if best is None or tuple(outcome.domains.values()) != best[1]:
            wrong.append(f"case {case} of seed {seed}: uses {outcome.domains}, the best is {best}")
        world, group = request.degrees.world_size, request.degrees.tensor_parallel
        if world // group > MOST_GROUPS or any(
            {"block", "rack"} - set(labels) for labels in outcome.node_domains
        ):
            continue
        chosen = cost_of(outcome.rank_map, request.degrees, traffic, outcome)
        worse += chosen > cost_of(range(world), request.degrees, traffic, outcome) * (1 + 1e-9)
        groups = [range(start, start + group) for start in range(0, world, group)]
        least = min(
            cost_of([rank for ranks in order for rank in ranks], request.degrees, traffic, outcome)
            for order in permutations(groups)
        )
        if least:
            ratios.append(chosen / least)
    return Survey(
        count,
        placed,
        tuple(wrong),
        len(ratios),
        sum(ratios) / len(ratios) - 1 if ratios else 0.0,
        max(ratios, default=1.0) - 1,
        worse,
    )


def _case(rng: random.Random) -> tuple[list[Node], Usage, GangRequest, Bytes]:
    labelled = rng.random() < 0.7
    nodes = []
    for at in range(rng.randint(1, 12)):
        labels = {"block": rng.choice("ab"), "rack": rng.choice("cd")}
        if not labelled:
            labels = {level: value for level, value in labels.items() if rng.random() < 0.8}
        nodes.append(node(f"n{at}", rng.randint(1, 4), **labels))
    usage = {
        item.name: {SLOT: rng.randint(0, item.allocatable[SLOT])} for item in nodes if rng.random() < 0.4
    }
    traffic = Bytes(*[rng.choice((0.0, 1.0, 20.0, 500.0)) for _ in range(4)])
    required = rng.choice((None, None, "rack", "block"))
    return nodes, usage, gang(**rng.choice(_DEGREES), required=required, traffic=traffic), traffic
