"""What happens to gradients between the backward pass and the optimizer: sums over replicas, norm, clipping."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from kronos_trainer.initialise import local
from kronos_trainer.mesh import Layout

_BUCKET_ELEMENTS = 1 << 23
"""32 MiB of fp32 per all-reduce: large enough for bandwidth, small enough to need little extra memory."""


@dataclass(frozen=True)
class StepTotals:
    """What all ranks agree on at the end of a step."""

    loss: float
    """Mean loss over the tokens of the global batch."""
    gradient_norm: float
    """L2 norm of the whole model's gradient, before clipping."""
    stop: bool
    """Whether any rank was asked to stop."""


@torch.no_grad()
def sum_over_replicas(model: nn.Module, layout: Layout) -> None:
    """Add up the gradients of plain data-parallel replicas, in place; FSDP has already done so for its own."""
    group = layout.group("dp")
    if group is None or layout.plan.degrees.sharded_data_parallel > 1:
        return
    for bucket in _buckets(_local_gradients(model)):
        flat = torch.cat([gradient.flatten() for gradient in bucket])
        dist.all_reduce(flat, group=group)
        for gradient, summed in zip(
            bucket, flat.split([gradient.numel() for gradient in bucket]), strict=True
        ):
            gradient.copy_(summed.view_as(gradient))


@torch.no_grad()
def agree_on_totals(model: nn.Module, layout: Layout, loss: Tensor | None, stop: bool) -> StepTotals:
    """One small all-reduce over the gang gives every rank the loss, the true gradient norm and the wish to stop.

    loss: this rank's share of the loss (a scalar), None off the last stage.
    """
    totals = torch.zeros(3, dtype=torch.float64, device=layout.device)
    seat = layout.seat
    for parameter in model.parameters():
        # Each element of the model counts once: replicas, and what tensor parallelism doesn't split, only at seat 0.
        if seat.dp == 0 and (seat.tp == 0 or _split_over_tensor_ranks(parameter)):
            assert parameter.grad is not None
            totals[0] += torch.linalg.vector_norm(local(parameter.grad), dtype=torch.float64).square()
    if loss is not None and seat.tp == 0:
        totals[1] = loss
    totals[2] = float(stop)
    dist.all_reduce(totals)
    squares, mean_loss, stops = totals.tolist()
    return StepTotals(mean_loss, squares**0.5, stops > 0)


@torch.no_grad()
def clip(model: nn.Module, norm: float, limit: float | None) -> None:
    """Scale all gradients so that their global norm is at most `limit`."""
    if limit is not None and norm > limit:
        torch._foreach_mul_(list(_local_gradients(model)), limit / norm)


def _split_over_tensor_ranks(parameter: Tensor) -> bool:
    if not isinstance(parameter, DTensor):
        return False
    names = parameter.device_mesh.mesh_dim_names
    return names is not None and "tp" in names


def _local_gradients(model: nn.Module) -> Iterable[Tensor]:
    for parameter in model.parameters():
        assert parameter.grad is not None
        if isinstance(parameter, DTensor):
            assert isinstance(parameter.grad, DTensor)
            assert parameter.grad.placements == parameter.placements
        yield local(parameter.grad)


def _buckets(gradients: Iterable[Tensor]) -> Iterable[list[Tensor]]:
    bucket: list[Tensor] = []
    elements = 0
    for gradient in gradients:
        if bucket and elements + gradient.numel() > _BUCKET_ELEMENTS:
            yield bucket
            bucket, elements = [], 0
        bucket.append(gradient)
        elements += gradient.numel()
    if bucket:
        yield bucket
