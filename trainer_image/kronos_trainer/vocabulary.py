"""Embedding and cross-entropy, also over a vocabulary that is split across tensor-parallel ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from kronos_trainer.tensor_parallel import enter_split, leave_split, own_part, split_group


def embed(tokens: Tensor, weight: Tensor) -> Tensor:
    """Rows of the embedding matrix (vocabulary, hidden) for token ids (batch, sequence): (batch, sequence, hidden).

    When the matrix is split by rows, each rank looks up its own and the results are added.
    """
    group = split_group(weight)
    if group is None:
        return functional.embedding(tokens, weight)
    rows = own_part(weight)
    here, row = _own_rows(tokens, dist.get_rank(group) * len(rows), len(rows))
    return leave_split(functional.embedding(row, rows) * here[..., None], group)


def project(x: Tensor, weight: Tensor) -> Tensor:
    """Logits (..., vocabulary) of hidden states (..., hidden), or this rank's slice of them when weight is split."""
    return functional.linear(enter_split(x, split_group(weight)), own_part(weight))


def token_loss_sum(logits: Tensor, targets: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Sum of the losses of all tokens, in nats, as an fp32 scalar.

    logits: (batch, sequence, vocabulary), or this rank's slice of the vocabulary when `group` is given, in the order
    of the group's ranks. targets: (batch, sequence) global token ids. Every rank of the group gets the same sum.
    """
    flat = logits.flatten(0, 1).float()
    if group is None:
        return functional.cross_entropy(flat, targets.flatten(), reduction="sum")
    loss: Tensor = _SplitCrossEntropy.apply(flat, targets.flatten(), group)
    return loss


class _SplitCrossEntropy(torch.autograd.Function):
    """The log-sum-exp and the target's logit are summed over the group; the gradient needs no communication."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, group: dist.ProcessGroup) -> Tensor:
        first = dist.get_rank(group) * logits.shape[1]
        top = logits.amax(dim=1)
        dist.all_reduce(top, dist.ReduceOp.MAX, group)
        exponentials = torch.exp(logits - top[:, None])
        here, column = _own_rows(targets, first, logits.shape[1])
        own = torch.where(here, logits.gather(1, column[:, None]).squeeze(1) - top, 0.0)
        sums = torch.stack((exponentials.sum(dim=1), own))
        dist.all_reduce(sums, dist.ReduceOp.SUM, group)
        ctx.save_for_backward(exponentials, sums[0], here, column)
        return (sums[0].log() - sums[1]).sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        exponentials, total, here, column = ctx.saved_tensors
        gradient = exponentials / total[:, None]
        gradient.scatter_add_(1, column[:, None], -here.to(gradient.dtype)[:, None])
        return gradient * grads[0], None, None


def _own_rows(tokens: Tensor, first: int, count: int) -> tuple[Tensor, Tensor]:
    """Which tokens fall into the slice of `count` ids from `first` on, and their place in it (0 for the others)."""
    here = (tokens >= first) & (tokens < first + count)
    return here, torch.where(here, tokens - first, 0)
