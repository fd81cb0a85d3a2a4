"""What the model is made of: every parameter tensor as the trainer builds it, and the FLOPs of a forward pass."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

from kronos.api.training import ModelShape


@dataclass(frozen=True, slots=True)
class Tensor:
    """One parameter, stored as torch stores it: rows are output features, columns input features."""

    name: str
    rows: int
    columns: int
    split: Literal["rows", "columns", "none"]
    """Dimension that tensor parallelism divides."""

    @property
    def elements(self) -> int:
        """Number of scalars."""
        return self.rows * self.columns

    def shard_elements(self, tensor_parallel: int, sharded: int) -> int:
        """Most scalars that one rank holds.

        Tensor parallelism splits a dimension that it divides and leaves the tensor whole on every rank otherwise. FSDP
        divides the rows that are left, and the first shards get more when they don't come out even.
        """
        rows, columns = self.rows, self.columns
        if self.split == "rows" and rows % tensor_parallel == 0:
            rows //= tensor_parallel
        elif self.split == "columns" and columns % tensor_parallel == 0:
            columns //= tensor_parallel
        return ceil(rows / sharded) * columns


@dataclass(frozen=True, slots=True)
class Parameters:
    """All tensors of a decoder, by the part that a pipeline stage holds whole."""

    embedding: tuple[Tensor, ...]
    block: tuple[Tensor, ...]
    """Tensors of one transformer block; all blocks are alike."""
    head: tuple[Tensor, ...]
    """Final norm and output matrix; the norm alone when the embedding is tied."""


def parameters(shape: ModelShape) -> Parameters:
    """The tensors of a decoder with RMSNorm, grouped-query attention and a gated feed-forward, none with a bias."""
    hidden, vocabulary, ffn = shape.hidden_size, shape.vocabulary_size, shape.ffn_size
    key_value = shape.kv_heads * shape.head_size
    final_norm = Tensor("norm", hidden, 1, "none")
    output = Tensor("head", vocabulary, hidden, "rows")
    return Parameters(
        embedding=(Tensor("embedding", vocabulary, hidden, "rows"),),
        block=(
            Tensor("attention_norm", hidden, 1, "none"),
            Tensor("wq", hidden, hidden, "rows"),
            Tensor("wk", key_value, hidden, "rows"),
            Tensor("wv", key_value, hidden, "rows"),
            Tensor("wo", hidden, hidden, "columns"),
            Tensor("feed_forward_norm", hidden, 1, "none"),
            Tensor("w1", ffn, hidden, "rows"),
            Tensor("w2", hidden, ffn, "columns"),
            Tensor("w3", ffn, hidden, "rows"),
        ),
        head=(final_norm,) if shape.tied_embeddings else (final_norm, output),
    )


def elements(tensors: tuple[Tensor, ...], tensor_parallel: int = 1, sharded: int = 1) -> int:
    """Scalars of these tensors on the rank that holds most of them."""
    return sum(tensor.shard_elements(tensor_parallel, sharded) for tensor in tensors)


def parameter_count(shape: ModelShape) -> int:
    """Exact number of trainable scalars in the whole model."""
    parts = parameters(shape)
    return elements(parts.embedding) + shape.layers * elements(parts.block) + elements(parts.head)


def block_flops(shape: ModelShape) -> int:
    """Forward FLOPs of one block per token.

    Two per weight of a matrix, and 2 x sequence x hidden for the causal attention products (QK^T and PV are 4 x
    sequence x hidden without the mask, half of which fused causal kernels skip). Narayanan et al., SC21, appendix,
    counts the same products without the mask.
    """
    matrices = sum(tensor.elements for tensor in parameters(shape).block if tensor.split != "none")
    return 2 * matrices + 2 * shape.sequence_length * shape.hidden_size


def head_flops(shape: ModelShape) -> int:
    """Forward FLOPs of the output matrix per token; tying it to the embedding doesn't change them."""
    return 2 * shape.vocabulary_size * shape.hidden_size
