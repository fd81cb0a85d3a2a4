"""What a model is made of: every parameter tensor, by the part of the model that a pipeline stage holds whole."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

from kronos.api.training import CustomShape, ModelShape

Split = Literal["rows", "columns", "none"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """One parameter, stored as torch stores it: rows are output features, columns input features."""

    name: str
    rows: int
    columns: int
    split: Split
    """Dimension that tensor parallelism divides."""
    experts: int = 0
    """Number of routed experts that have such a tensor each; 0 for a tensor of the whole block."""

    @property
    def elements(self) -> int:
        """Number of scalars."""
        return self.rows * self.columns * (self.experts or 1)

    def shard_shape(
        self, tensor_parallel: int, sharded: int, expert_parallel: int = 1
    ) -> tuple[int, int, int]:
        """Experts, rows and columns on the rank that holds most.

        Tensor parallelism splits a dimension that it divides and leaves the tensor whole on every rank otherwise. Expert
        parallelism divides the experts. FSDP divides the rows that are left, and the first shards get more when they
        don't come out even.
        """
        rows, columns = self.rows, self.columns
        if self.split == "rows" and rows % tensor_parallel == 0:
            rows //= tensor_parallel
        elif self.split == "columns" and columns % tensor_parallel == 0:
            columns //= tensor_parallel
        experts = ceil(self.experts / expert_parallel) if self.experts else 1
        return experts, ceil(rows / sharded), columns

    def shard_elements(self, tensor_parallel: int, sharded: int, expert_parallel: int = 1) -> int:
        """Most scalars that one rank holds; see `shard_shape`."""
        experts, rows, columns = self.shard_shape(tensor_parallel, sharded, expert_parallel)
        return experts * rows * columns


@dataclass(frozen=True, slots=True)
class Parameters:
    """All tensors of a model, by the part that a pipeline stage holds whole."""

    embedding: tuple[Tensor, ...]
    block: tuple[Tensor, ...]
    """Tensors of one block; all blocks are alike."""
    head: tuple[Tensor, ...]
    """Final norm and output matrix; the norm alone when the embedding is tied."""


def parameters(shape: ModelShape) -> Parameters:
    """The tensors of a model.

    Decoders, encoders and forecasters share their blocks: norms, grouped-query attention, and a feed-forward or experts
    with a router. A forecaster's embedding and head are matrices between patches and the residual stream, with biases.
    """
    if shape.custom is not None:
        return _custom(shape.custom)
    hidden = shape.hidden_size
    embedding: list[Tensor] = []
    head = list(_norm("norm", shape))
    if shape.patches is not None:
        patches = shape.patches
        embedding += _linear("embedding", hidden, patches.length * patches.channels, "none", biases=True)
        head += _linear("head", patches.horizon * patches.channels, hidden, "none", biases=True)
    else:
        embedding.append(Tensor("embedding", shape.vocabulary_size, hidden, "rows"))
        if not shape.tied_embeddings:
            head.append(Tensor("head", shape.vocabulary_size, hidden, "rows"))
    if shape.positions == "Learned":
        embedding.append(Tensor("positions", shape.sequence_length, hidden, "none"))
    return Parameters(tuple(embedding), tuple(_block(shape)), tuple(head))


def _block(shape: ModelShape) -> list[Tensor]:
    hidden, key_value, biases = shape.hidden_size, shape.kv_heads * shape.head_size, shape.biases
    tensors = [
        *_norm("attention_norm", shape),
        *_linear("wq", hidden, hidden, "rows", biases),
        *_linear("wk", key_value, hidden, "rows", biases),
        *_linear("wv", key_value, hidden, "rows", biases),
        *_linear("wo", hidden, hidden, "columns", biases),
        *_norm("feed_forward_norm", shape),
    ]
    if shape.experts is None:
        return [*tensors, *_feed_forward("", shape, shape.ffn_size, 0)]
    tensors.append(Tensor("router", shape.experts.count, hidden, "none"))
    tensors += _feed_forward("experts.", shape, shape.ffn_size, shape.experts.count)
    if shape.experts.shared:
        tensors += _feed_forward("shared.", shape, shape.experts.shared * shape.ffn_size, 0)
    return tensors


def _feed_forward(prefix: str, shape: ModelShape, width: int, experts: int) -> list[Tensor]:
    """The matrices of one feed-forward, or of `experts` of them."""
    hidden, biases = shape.hidden_size, shape.biases
    tensors = [
        *_linear(f"{prefix}w1", width, hidden, "rows", biases, experts),
        *_linear(f"{prefix}w2", hidden, width, "columns", biases, experts),
    ]
    if shape.feed_forward == "Gated":
        tensors += _linear(f"{prefix}w3", width, hidden, "rows", biases, experts)
    return tensors


def _linear(name: str, rows: int, columns: int, split: Split, biases: bool, experts: int = 0) -> list[Tensor]:
    """A matrix, and its bias if it has one; the bias of a matrix whose inputs are split is whole everywhere."""
    matrix = Tensor(name, rows, columns, split, experts)
    bias = Tensor(f"{name}.bias", rows, 1, "rows" if split == "rows" else "none", experts)
    return [matrix, bias] if biases else [matrix]


def _norm(name: str, shape: ModelShape) -> list[Tensor]:
    weight = Tensor(name, shape.hidden_size, 1, "none")
    if shape.normalization == "LayerNorm":
        return [weight, Tensor(f"{name}.bias", shape.hidden_size, 1, "none")]
    return [weight]


def _custom(custom: CustomShape) -> Parameters:
    def part(name: str, count: int) -> tuple[Tensor, ...]:
        return (Tensor(name, count, 1, "none"),) if count else ()

    return Parameters(
        part("input", custom.input_parameters),
        part("layer", custom.parameters_per_layer),
        part("output", custom.output_parameters),
    )


def elements(
    tensors: tuple[Tensor, ...], tensor_parallel: int = 1, sharded: int = 1, expert_parallel: int = 1
) -> int:
    """Scalars of these tensors on the rank that holds most of them."""
    return sum(tensor.shard_elements(tensor_parallel, sharded, expert_parallel) for tensor in tensors)


def parameter_count(shape: ModelShape) -> int:
    """Exact number of trainable scalars in the whole model."""
    parts = parameters(shape)
    return elements(parts.embedding) + shape.layers * elements(parts.block) + elements(parts.head)


def active_parameter_count(shape: ModelShape) -> int:
    """Trainable scalars that one token passes through; all of them unless there are experts."""
    if shape.experts is None:
        return parameter_count(shape)
    routed = sum(tensor.elements for tensor in parameters(shape).block if tensor.experts)
    idle = routed - routed * shape.experts.active // shape.experts.count
    return parameter_count(shape) - shape.layers * idle
