"""Tensor parallelism: which matrices are split how, and what crosses the group.

Weights are DTensors, so that sharding, checkpoints and digests know the whole matrix; the arithmetic works on this
rank's part of them with one all-reduce per half block and direction. Running each operation through DTensor's dispatch
instead gave the same numbers, but took two to three times as long per step on small models.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn import functional


def own_part(weight: Tensor) -> Tensor:
    """This rank's part of a weight that may be split; gradients flow back into the split weight."""
    return weight.to_local() if isinstance(weight, DTensor) else weight


def split_group(weight: Tensor) -> dist.ProcessGroup | None:
    """The ranks that share a weight; None when it isn't split."""
    return weight.device_mesh.get_group() if isinstance(weight, DTensor) else None


class Linear(nn.Linear):
    """A matrix without bias, of which this rank may hold some rows (outputs) or columns (inputs)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(..., this rank's inputs) to (..., this rank's outputs); split inputs give a part of a sum."""
        return functional.linear(x, own_part(self.weight))


def split_weight(module: nn.Module, mesh: DeviceMesh, dimension: int) -> None:
    """Split a module's weight: dimension 0 splits a linear layer's outputs, dimension 1 its inputs."""
    weight = module.weight
    assert isinstance(weight, nn.Parameter)
    # No source rank: every rank cuts its own part and nothing is sent.
    module.weight = nn.Parameter(distribute_tensor(weight, mesh, [Shard(dimension)], src_data_rank=None))


def enter_split(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Hand the same x to every rank of the group; the ranks' gradients of it are summed."""
    entered: Tensor = x if group is None else _Enter.apply(x, group)
    return entered


def leave_split(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Sum the ranks' parts of x; every rank gets the sum, and its gradient unchanged."""
    summed: Tensor = x if group is None else _Leave.apply(x, group)
    return summed


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _sum(grads[0], ctx.group), None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        return _sum(x, group)

    @staticmethod
    def backward(_ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


def _sum(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    # A copy, since autograd may hand the same tensor to others.
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total
