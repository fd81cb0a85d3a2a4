"""What one block of a model computes, moves and keeps for each token, under a training system's recipe.

Time and memory follow from the same lists. Sizes are per token of a microbatch. How a size shrinks is its `Spread`:
over the ranks of a tensor group always, over them only with sequence parallelism, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from kronos.api.training import ModelShape
from kronos.strategy.recipe import Recipe
from kronos.strategy.shapes import Split

FP32_BYTES = 4

Spread = Literal["tensor", "sequence", "whole"]
Checkpointing = Literal["None", "Selective", "Full"]
"""What is recomputed in the backward pass: nothing; what is large and quickly computed; each block from its input.

`Selective` recomputes attention's scores where attention isn't fused (Korthikanti et al. 2022, section 5), and otherwise every
second matrix product and all that lies between products, which keeps attention's output (Liang et al. 2024, section 3.1).
"""


@dataclass(frozen=True, slots=True)
class Matmul:
    """A product of activations with a weight matrix."""

    name: str
    inner: int
    """Input features."""
    outer: int
    """Output features."""
    split: Split
    """How tensor parallelism divides the weight: `rows` its outputs, `columns` its inputs."""
    passes: int = 1
    """Times that a token goes through: the experts that are active for it."""
    groups: int = 1
    """Experts among which the tokens are dealt out."""
    recomputed: bool = False
    """Selective checkpointing computes it again."""

    @property
    def flops(self) -> int:
        """Forward FLOPs per token: a multiplication and an addition for each weight."""
        return 2 * self.inner * self.outer * self.passes


@dataclass(frozen=True, slots=True)
class Attention:
    """The products of queries with keys and of probabilities with values."""

    heads: int
    head_size: int
    length: int
    """Tokens of a sequence."""
    share: float
    """Part of the sequence x sequence products that is computed: fused causal kernels skip half."""

    @property
    def flops(self) -> float:
        """Forward FLOPs per token: 2 x sequence x width in each of the two products."""
        return 4 * self.length * self.heads * self.head_size * self.share


@dataclass(frozen=True, slots=True)
class Stream:
    """Bytes per token that operations other than matrix products read and write."""

    forward: int
    backward: int
    spread: Spread
    scores: bool = False
    """They belong to attention's scores, which selective checkpointing computes again where attention isn't fused."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Bytes per token that the backward pass needs."""

    size: int
    spread: Spread
    without: bool = True
    """Kept when nothing is recomputed."""
    selective: bool = True
    """Kept under selective checkpointing."""


class BlockWork:
    """One block: its products, its streams, and what it keeps."""

    def __init__(self, shape: ModelShape, recipe: Recipe, compute_bytes: int) -> None:
        """Describe a block of `shape` whose matrix products take scalars of `compute_bytes` bytes."""
        self._shape = shape
        self._recipe = recipe
        self._bytes = compute_bytes
        self.input_bytes = shape.hidden_size * recipe.residual_bytes
        """The block's input, per token: all that full checkpointing keeps."""

    @cached_property
    def matmuls(self) -> tuple[Matmul, ...]:
        """The products with weights, in order; of a custom layer they aren't known."""
        shape = self._shape
        hidden, key_value = shape.hidden_size, shape.kv_heads * shape.head_size
        again = self._recipe.fused_attention
        if shape.custom is not None:
            return ()
        found = [
            Matmul("wq", hidden, hidden, "rows"),
            Matmul("wk", hidden, key_value, "rows", recomputed=again),
            Matmul("wv", hidden, key_value, "rows"),
            Matmul("wo", hidden, hidden, "columns", recomputed=again),
        ]
        for prefix, width, passes, groups in self._feed_forwards:
            found.append(Matmul(f"{prefix}w1", hidden, width, "rows", passes, groups))
            if shape.feed_forward == "Gated":
                found.append(Matmul(f"{prefix}w3", hidden, width, "rows", passes, groups, again))
            found.append(Matmul(f"{prefix}w2", width, hidden, "columns", passes, groups))
        if shape.experts is not None:
            found.append(Matmul("router", hidden, shape.experts.count, "none", recomputed=again))
        return tuple(found)

    @cached_property
    def attention(self) -> Attention | None:
        """The products inside attention; a custom layer's are among its FLOPs."""
        shape = self._shape
        if shape.custom is not None:
            return None
        share = 0.5 if shape.causal and self._recipe.fused_attention else 1.0
        return Attention(shape.attention_heads, shape.head_size, shape.sequence_length, share)

    @cached_property
    def flops(self) -> float:
        """Forward FLOPs per token."""
        if self._shape.custom is not None:
            return self._shape.custom.flops_per_token_per_layer
        return sum(matmul.flops for matmul in self.matmuls) + (self.attention.flops if self.attention else 0)

    @cached_property
    def streams(self) -> tuple[Stream, ...]:
        """What is read and written between products."""
        shape, recipe, narrow = self._shape, self._recipe, self._bytes
        hidden, wide, mask = shape.hidden_size, recipe.residual_bytes, int(recipe.dropout)
        if shape.custom is not None:
            size = shape.custom.activation_bytes_per_token_per_layer
            return (Stream(size, 2 * size, "whole"),)
        casts = self._norm_readers * (wide + narrow) if narrow < wide else 0
        # Twice: a norm reads and writes; adding to the residual stream reads two and writes one.
        norms = Stream(
            hidden * (2 * (2 * wide + 3 * wide + mask) + casts),
            hidden * (2 * (4 * wide + 2 * wide + mask) + casts),
            "sequence",
        )
        key_value = shape.kv_heads * shape.head_size
        heads = Stream(*(2 * narrow * (hidden + 2 * key_value),) * 2, "tensor")
        found = [norms, heads]
        if shape.positions == "Rotary":
            found.append(Stream(*((2 * narrow + 4 * FP32_BYTES) * (hidden + key_value),) * 2, "tensor"))
        passes = sum(width * passes for _, width, passes, _ in self._feed_forwards)
        forward, backward = (5, 8) if shape.feed_forward == "Gated" else (2, 3)
        found.append(Stream(forward * narrow * passes, backward * narrow * passes, "tensor"))
        if shape.experts is not None:
            # Dealing tokens out to experts, and adding up what comes back.
            found.append(Stream(*(5 * narrow * hidden * shape.experts.active,) * 2, "whole"))
        if not recipe.fused_attention:
            scores = shape.attention_heads * shape.sequence_length
            dropout = (2 * narrow + 1) * mask
            found.append(
                Stream(scores * (2 * narrow + dropout), scores * (3 * narrow + dropout), "tensor", True)
            )
        return tuple(found)

    @cached_property
    def kept(self) -> tuple[Kept, ...]:
        """What is kept for the backward pass, operation by operation: the method of Korthikanti et al. 2022, section 4.

        Norms are taken to be fused, as on GPUs; unfused ones, as on CPUs, keep their normalised input too.
        """
        return tuple(self._kept())

    def _kept(self) -> Iterator[Kept]:
        shape, recipe, narrow = self._shape, self._recipe, self._bytes
        hidden, key_value = shape.hidden_size, shape.kv_heads * shape.head_size
        if shape.custom is not None:
            yield Kept(shape.custom.activation_bytes_per_token_per_layer, "whole")
            return
        # Without fused attention, selective checkpointing keeps all but the scores.
        rest = not recipe.fused_attention
        yield Kept(
            hidden * recipe.residual_bytes, "sequence"
        )  # the block's input, which the first norm keeps
        yield Kept(hidden * recipe.residual_bytes, "sequence", selective=rest)  # the second norm's
        yield Kept(hidden * narrow * self._norm_readers, "sequence", selective=rest)  # the norms' outputs
        if recipe.dropout:
            yield Kept(2 * hidden, "sequence", selective=rest)
        yield Kept((hidden + key_value) * narrow, "tensor")  # queries and values
        yield Kept(key_value * narrow, "tensor", selective=rest)  # keys
        yield Kept(hidden * narrow, "tensor")  # attention's output
        if recipe.fused_attention:
            yield Kept(shape.attention_heads * FP32_BYTES, "tensor")  # the logarithms of its sums
        else:
            scores = shape.attention_heads * shape.sequence_length
            yield Kept(scores * narrow, "tensor", selective=False)  # the softmax
            if recipe.dropout:
                yield Kept(scores * (narrow + 1), "tensor", selective=False)  # its dropout and the mask
        for _, width, passes, _ in self._feed_forwards:
            between = 3 if shape.feed_forward == "Gated" else 1
            yield Kept(width * passes * narrow, "tensor")  # what the first product gives
            yield Kept(width * passes * narrow * between, "tensor", selective=rest)
        if not rest:
            yield Kept(hidden * narrow, "tensor", without=False)  # what the last product gives
        if shape.experts is not None:
            # The router's probabilities, tokens as dealt out, and what the experts give back, to be weighed.
            yield Kept(shape.experts.count * FP32_BYTES, "whole")
            yield Kept(2 * shape.experts.active * hidden * narrow, "whole", selective=rest)

    def kept_bytes(self, checkpointing: Checkpointing, tensor_parallel: int, sequence_parallel: bool) -> int:
        """Bytes per token that one block keeps on each rank of a tensor group."""
        if checkpointing == "Full":
            return self.input_bytes // (tensor_parallel if sequence_parallel else 1)
        chosen = [item for item in self.kept if (item.without if checkpointing == "None" else item.selective)]
        split = sum(
            item.size
            for item in chosen
            if item.spread == "tensor" or (item.spread == "sequence" and sequence_parallel)
        )
        return sum(item.size for item in chosen) - split + split // tensor_parallel

    @cached_property
    def inner_width(self) -> int:
        """Scalars per token that one inner product of the feed-forwards gives."""
        if self._shape.custom is not None:
            return 0
        return sum(width * passes for _, width, passes, _ in self._feed_forwards)

    @property
    def _norm_readers(self) -> int:
        """Copies of the norms' outputs that products keep."""
        if not self._recipe.separate_products or self._bytes == self._recipe.residual_bytes:
            return 2
        feed_forward = 2 if self._shape.feed_forward == "Gated" else 1
        return 3 + feed_forward + (self._shape.experts is not None)

    @cached_property
    def _feed_forwards(self) -> tuple[tuple[str, int, int, int], ...]:
        """Name, width, passes per token and number of experts of each feed-forward in the block."""
        shape = self._shape
        if shape.experts is None:
            return (("", shape.ffn_size, 1, 1),)
        routed = ("experts.", shape.ffn_size, shape.experts.active, shape.experts.count)
        if not shape.experts.shared:
            return (routed,)
        return (routed, ("shared.", shape.experts.shared * shape.ffn_size, 1, 1))
