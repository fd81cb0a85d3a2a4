"""Where a rank sits on the mesh (pp, dp, fsdp, tp).

The plan's rank map says which rank sits where. torch sorts the members of every group that a mesh creates, so a mesh
over permuted ranks would gather shards in another order than it cut them, and pipelines would mistake their neighbours.
Ranks therefore join torch's process group under their position on the mesh, where ascending order is the mesh's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from kronos.api.plan import Degrees, Plan

AXES = ("pp", "dp", "fsdp", "tp")


def axis_degrees(degrees: Degrees) -> tuple[int, int, int, int]:
    """Sizes of the axes, in the order of AXES."""
    return (
        degrees.pipeline_parallel,
        degrees.data_parallel,
        degrees.sharded_data_parallel,
        degrees.tensor_parallel,
    )


@dataclass(frozen=True)
class Seat:
    """The coordinates of one rank, in the order of AXES."""

    pp: int
    dp: int
    fsdp: int
    tp: int


def position_of(plan: Plan, rank: int) -> int:
    """Position of a global rank on the flattened mesh, which is its rank in torch's process group."""
    return plan.rank_map.index(rank)


def seat_of(plan: Plan, rank: int) -> Seat:
    """The seat that the plan's rank map gives to a global rank."""
    position = position_of(plan, rank)
    sizes = axis_degrees(plan.degrees)
    return Seat(*(position // prod(sizes[axis + 1 :]) % size for axis, size in enumerate(sizes)))


@dataclass(frozen=True)
class Layout:
    """The seat of this rank and its mesh."""

    plan: Plan
    rank: int
    """Global rank, as the plan's members number them."""
    seat: Seat
    device: torch.device
    mesh: DeviceMesh | None
    """Mesh over the axes that are split; None when none is."""

    def submesh(self, *axes: str) -> DeviceMesh | None:
        """The mesh of this rank over those of the named axes that are split; None when none of them is."""
        if self.mesh is None:
            return None
        assert self.mesh.mesh_dim_names is not None
        split = tuple(axis for axis in axes if axis in self.mesh.mesh_dim_names)
        if not split:
            return None
        return self.mesh[split if len(split) > 1 else split[0]]

    def group(self, axis: str) -> dist.ProcessGroup | None:
        """The process group of this rank along one axis; None when the axis isn't split."""
        mesh = self.submesh(axis)
        return None if mesh is None else mesh.get_group()

    @property
    def leader(self) -> bool:
        """Whether this rank does what one rank must do for all: it is rank 0 of torch's process group."""
        return position_of(self.plan, self.rank) == 0

    @property
    def batch_rank(self) -> int:
        """Which share of the global batch this rank works on."""
        return self.seat.dp * self.plan.degrees.sharded_data_parallel + self.seat.fsdp

    @property
    def first_stage(self) -> bool:
        """Whether this rank embeds tokens."""
        return self.seat.pp == 0

    @property
    def last_stage(self) -> bool:
        """Whether this rank computes the loss."""
        return self.seat.pp == self.plan.degrees.pipeline_parallel - 1


def build_layout(plan: Plan, rank: int, device: torch.device) -> Layout:
    """Create the mesh and its process groups; every rank of the gang must call this together."""
    names = tuple(axis for axis, size in zip(AXES, axis_degrees(plan.degrees), strict=True) if size > 1)
    sizes = tuple(size for size in axis_degrees(plan.degrees) if size > 1)
    mesh = None
    if names:
        mesh = DeviceMesh(device.type, torch.arange(plan.world_size).view(sizes), mesh_dim_names=names)
    return Layout(plan, rank, seat_of(plan, rank), device, mesh)
