"""State that optimizers keep beside weights and gradients."""

from __future__ import annotations

from typing import Literal

from kronos.strategy.shapes import Tensor

Optimizer = Literal["AdamW", "AdamW8bit", "SGD", "Adafactor", "Muon"]

QUANTIZATION_BLOCK = 256
"""Scalars that share one fp32 scale in an 8-bit moment (bitsandbytes and torchao; Dettmers et al. 2022 used 2048)."""
SMALLEST_QUANTIZED = 4096
"""Tensors with fewer scalars keep fp32 moments (ibid.)."""
TRAFFIC = {"AdamW": 16, "AdamW8bit": 4, "SGD": 8, "Adafactor": 2, "Muon": 8}
"""Bytes per parameter that an update reads and writes of its state."""


def state_bytes(optimizer: Optimizer, tensor: Tensor, shard: tuple[int, int, int], *, in_block: bool) -> int:
    """Bytes of state for a shard (experts, rows, columns) of a tensor.

    AdamW keeps two fp32 moments; Adafactor, without a first moment, one fp32 scalar for each row and column of a matrix
    (Shazeer and Stern 2018); Muon one fp32 momentum for the blocks' matrices and AdamW's moments for all other tensors
    (Jordan et al. 2024); SGD one fp32 momentum.
    """
    experts, rows, columns = shard
    elements = experts * rows * columns
    matrix = columns > 1
    if optimizer == "SGD" or (optimizer == "Muon" and matrix and in_block):
        return 4 * elements
    if optimizer == "Adafactor":
        return 4 * experts * (rows + columns if matrix else rows)
    if optimizer == "AdamW8bit" and tensor.elements >= SMALLEST_QUANTIZED:
        return 2 * elements + 8 * (-(-elements // QUANTIZATION_BLOCK))
    return 8 * elements
