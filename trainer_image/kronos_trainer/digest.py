"""A digest of the whole model's weights that doesn't depend on the layout."""

from __future__ import annotations

import logging
from hashlib import sha256

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from kronos_trainer.mesh import Layout


@torch.no_grad()
def weights_digest(model: nn.Module, layout: Layout) -> str:
    """SHA-256, as hex, over the sorted names and the digests of all parameters; every rank must call this together.

    One parameter at a time is gathered, so memory for one full parameter is enough.
    """
    # Gathering a matrix that is split twice takes two steps; torch warns that sums might then differ, but this moves
    # values without adding any.
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    own: dict[str, str] = {}
    for name, parameter in model.named_parameters():
        full = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        if (layout.seat.dp, layout.seat.fsdp, layout.seat.tp) == (0, 0, 0):
            own[name] = tensor_digest(full)
    parts: list[dict[str, str]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(parts, own)
    lines = [f"{name} {digest}\n" for part in parts for name, digest in part.items()]
    return sha256("".join(sorted(lines)).encode()).hexdigest()


def tensor_digest(tensor: Tensor) -> str:
    """SHA-256, as hex, over the type, the shape and the little-endian values of a full tensor."""
    values = tensor.detach().cpu().contiguous()
    header = f"{str(values.dtype).removeprefix('torch.')} {tuple(values.shape)}\n".encode()
    return sha256(header + values.view(torch.uint8).numpy().tobytes()).hexdigest()
