"""Initial weights from the seed, the parameter's name and the global row alone, so equal on every layout."""

from __future__ import annotations

from hashlib import sha256

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

_DEVIATION = 0.02
_BLOCK_ELEMENTS = 1 << 20
"""Rows are drawn in blocks of about this many elements, so that a rank draws little beyond its own shard."""


@torch.no_grad()
def initialise(model: nn.Module, seed: int, layers: int) -> None:
    """Fill the local shard of every parameter; `layers` is the depth of the whole model."""
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            local(parameter).fill_(1.0)
            continue
        # Projections into the residual stream start smaller, so that its variance doesn't grow with depth.
        residual = name.endswith(("attention.wo.weight", "feed_forward.down.weight"))
        deviation = _DEVIATION / (2 * layers) ** 0.5 if residual else _DEVIATION
        _fill(parameter, seed, name, deviation)


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor that may be distributed; shares its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def draw_rows(seed: int, name: str, shape: tuple[int, int], rows: range) -> Tensor:
    """Some rows of the standard normal matrix of `shape` that belongs to (seed, name): fp32 on the CPU."""
    height, columns = shape
    per_block = max(1, _BLOCK_ELEMENTS // columns)
    pieces = []
    for block in range(rows.start // per_block, (rows.stop - 1) // per_block + 1):
        digest = sha256(f"{seed}/{name}/{block}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
        start = block * per_block
        values = torch.randn(min(per_block, height - start), columns, generator=generator)
        pieces.append(values[max(rows.start - start, 0) : rows.stop - start])
    return torch.cat(pieces)


def _fill(parameter: Tensor, seed: int, name: str, deviation: float) -> None:
    shape, offset = tuple(parameter.shape), (0,) * parameter.dim()
    if isinstance(parameter, DTensor):
        # The same arithmetic as checkpoints use, which knows how FSDP shards what tensor parallelism split first.
        shape, offset = compute_local_shape_and_global_offset(
            parameter.shape, parameter.device_mesh, parameter.placements
        )
    target = local(parameter)
    assert target.shape == torch.Size(shape)
    if target.numel() == 0:
        return
    height, columns = parameter.shape
    rows = draw_rows(seed, name, (height, columns), range(offset[0], offset[0] + shape[0]))
    target.copy_(rows[:, offset[1] : offset[1] + shape[1]] * deviation)
