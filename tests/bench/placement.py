"""How long placement takes on 5,000 nodes with 8 accelerators each, of which 60% are busy at random."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from time import process_time

from kronos.api.plan import Degrees
from kronos.placement import PODS, GangRequest, Node, Room, Topology, Usage, place_in, why_not_in
from support.gangs import fabric

GPU = "nvidia.com/gpu"
NODES, SLOTS, BUSY = 5_000, 8, 0.6
NODES_PER_RACK, RACKS_PER_BLOCK = 8, 8
SEED = 20_260_101
ROUNDS = 60


def nodes() -> list[Node]:
    """Racks of 8 nodes, blocks of 8 racks."""
    return [
        Node(
            f"node-{at}",
            {
                "net/block": f"block-{at // NODES_PER_RACK // RACKS_PER_BLOCK}",
                "net/rack": f"rack-{at // NODES_PER_RACK}",
                "pool": "gpu",
            },
            {GPU: SLOTS, "cpu": 128_000, "memory": 2**40, PODS: 110},
        )
        for at in range(NODES)
    ]


def busy(rng: random.Random, *, whole: bool) -> Usage:
    """60% of the nodes taken, or of each node's accelerators on average."""
    usage = {}
    for at in range(NODES):
        taken = SLOTS * (rng.random() < BUSY) if whole else sum(rng.random() < BUSY for _ in range(SLOTS))
        if taken:
            usage[f"node-{at}"] = {GPU: taken, PODS: 1}
    return usage


def gang(pods: int, *, whole: bool, required: str | None = None) -> GangRequest:
    """So many pods' worth of accelerators: as tensor groups of a node each, or one by one."""
    degrees = (
        Degrees(data_parallel=pods, tensor_parallel=SLOTS) if whole else Degrees(data_parallel=pods * SLOTS)
    )
    return GangRequest(degrees, GPU, {"cpu": 8_000, "memory": 2**33}, required=required)


def _times(work: Callable[[random.Random], Callable[[], object]]) -> Iterator[float]:
    rng = random.Random(SEED)
    for _ in range(ROUNDS):
        prepared = work(rng)
        began = process_time()
        prepared()
        yield process_time() - began


def _figures(times: Iterator[float]) -> dict[str, float]:
    found = sorted(times)
    return {
        "p50_ms": round(1000 * found[len(found) // 2], 3),
        "p95_ms": round(1000 * found[int(len(found) * 0.95)], 3),
        "max_ms": round(1000 * found[-1], 3),
    }


def placement() -> dict[str, dict[str, float]]:
    """Figures by case."""
    topology = Topology.build(nodes(), fabric("block", "rack"))
    rng = random.Random(SEED)
    figures = {}
    began = process_time()
    Topology.build(nodes(), fabric("block", "rack"))
    figures["build the topology"] = {"p50_ms": round(1000 * (process_time() - began), 1)}

    def one_node(draw: random.Random) -> Callable[[], object]:
        cordoned = list(topology.nodes)
        at = draw.randrange(NODES)
        cordoned[at] = replace(cordoned[at], schedulable=False)
        return lambda: topology.with_nodes(cordoned)

    figures["follow one cordoned node"] = _figures(_times(one_node))
    for whole in (True, False):
        words = "whole nodes busy" if whole else "single accelerators busy"
        usages = [busy(rng, whole=whole) for _ in range(5)]

        def fresh(draw: random.Random, usages: list[Usage] = usages) -> Room:
            return Room(topology, draw.choice(usages))

        def warm(
            draw: random.Random, request: GangRequest, make: Callable[[random.Random], Room] = fresh
        ) -> Room:
            room = make(draw)
            why_not_in(room, request)
            return room

        cases = {
            "8 pods": gang(8, whole=whole),
            "8 pods in one block": gang(8, whole=whole, required="block"),
            "512 pods": gang(512, whole=whole),
        }
        for name, request in cases.items():
            figures[f"place {name}, {words}, first of its kind"] = _figures(
                _times(
                    lambda draw, request=request: (lambda room: lambda: place_in(room, request))(fresh(draw))
                )
            )
            figures[f"place {name}, {words}"] = _figures(
                _times(
                    lambda draw, request=request: (lambda room: lambda: place_in(room, request))(
                        warm(draw, request)
                    )
                )
            )

        def one_pod(draw: random.Random, request: GangRequest = cases["8 pods"]) -> Callable[[], object]:
            room = warm(draw, request)
            place_in(room, request)
            return lambda: room.take(f"node-{draw.randrange(NODES)}", {GPU: SLOTS, PODS: 1})

        figures[f"follow one pod, {words}"] = _figures(_times(one_pod))
        hopeless = {"in one rack": gang(9, whole=whole, required="rack"), "at all": gang(4000, whole=whole)}
        for name, request in hopeless.items():
            figures[f"why no place {name}, {words}"] = _figures(
                _times(
                    lambda draw, request=request: (lambda room: lambda: why_not_in(room, request))(
                        fresh(draw)
                    )
                )
            )
    return figures
