"""What the messages of a gang cost, counted one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from kronos.api.plan import Degrees
from kronos.placement import Placement


@dataclass(frozen=True)
class Bytes:
    """Traffic per rank and step."""

    tensor: float = 0.0
    pipeline: float = 0.0
    sharded_data: float = 0.0
    data: float = 0.0


def cost_of(rank_map: Sequence[int], degrees: Degrees, traffic: Bytes, placement: Placement) -> float:
    """Bytes times seconds per byte, counted message by message over the coordinates of the mesh."""
    where = [
        labels
        for member, labels in zip(placement.members, placement.node_domains, strict=True)
        for _ in range(member.ranks)
    ]
    axes = {
        "pipeline": degrees.pipeline_parallel,
        "data": degrees.data_parallel,
        "sharded_data": degrees.sharded_data_parallel,
        "tensor": degrees.tensor_parallel,
    }
    sizes = list(axes.values())
    grid = dict(zip(product(*map(range, sizes)), rank_map, strict=True))

    def seconds_per_byte(one, other) -> float:
        speeds = {"node": 1e12, "rack": 1e11, "block": 1e10}
        if one["block"] != other["block"]:
            return 2 / speeds["block"]
        if one["rack"] != other["rack"]:
            return 1 / speeds["block"]
        return 1 / speeds["rack"] if one["node"] != other["node"] else 1 / speeds["node"]

    total = 0.0
    for coordinates, rank in grid.items():
        for at, (axis, size) in enumerate(axes.items()):
            step = coordinates[at] + 1
            if size == 1 or (axis == "pipeline" and step == size):
                continue
            peer = grid[*coordinates[:at], step % size, *coordinates[at + 1 :]]
            total += getattr(traffic, axis) * seconds_per_byte(where[rank], where[peer])
    return total
