"""A decoder-only transformer, or the slice of it that one pipeline stage holds.

Blocks live in a ModuleDict keyed by their global index, so a parameter has the same name on every layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from kronos.api.training import ModelShape
from kronos_trainer.tensor_parallel import Linear, enter_split, leave_split, split_group
from kronos_trainer.vocabulary import embed, project

_ROTARY_BASE = 10_000.0
_NORM_EPSILON = 1e-5


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in fp32 whatever the precision around it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension; same shape, fp32."""
        return functional.rms_norm(x.float(), self.weight.shape, self.weight.float(), _NORM_EPSILON)


class Attention(nn.Module):
    """Causal self-attention with rotary positions and grouped keys and values."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.head_size = shape.head_size
        self.wq = Linear(shape.hidden_size, shape.attention_heads * shape.head_size)
        self.wk = Linear(shape.hidden_size, shape.kv_heads * shape.head_size)
        self.wv = Linear(shape.hidden_size, shape.kv_heads * shape.head_size)
        self.wo = Linear(shape.attention_heads * shape.head_size, shape.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, hidden) to the same; under tensor parallelism the heads here are this rank's."""
        batch, length, _ = x.shape
        group = split_group(self.wo.weight)
        x = enter_split(x, group)
        # The number of heads is inferred, since tensor parallelism leaves each rank a part of them.
        query, key, value = (
            projection(x).view(batch, length, -1, self.head_size).transpose(1, 2)
            for projection in (self.wq, self.wk, self.wv)
        )
        cosine, sine = _rotary(length, self.head_size, x.device)
        query, key = _rotate(query, cosine, sine), _rotate(key, cosine, sine)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=query.shape[1] != key.shape[1]
        )
        return leave_split(self.wo(mixed.transpose(1, 2).reshape(batch, length, -1)), group)


class FeedForward(nn.Module):
    """Gated feed-forward layer (SwiGLU)."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.gate = Linear(shape.hidden_size, shape.ffn_size)
        self.up = Linear(shape.hidden_size, shape.ffn_size)
        self.down = Linear(shape.ffn_size, shape.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """(..., hidden) to the same."""
        group = split_group(self.down.weight)
        x = enter_split(x, group)
        return leave_split(self.down(functional.silu(self.gate(x)) * self.up(x)), group)


class Block(nn.Module):
    """One transformer block with a residual stream in fp32."""

    def __init__(self, shape: ModelShape, recompute: bool) -> None:
        super().__init__()
        self.recompute = recompute
        self.attention_norm = RMSNorm(shape.hidden_size)
        self.attention = Attention(shape)
        self.feed_forward_norm = RMSNorm(shape.hidden_size)
        self.feed_forward = FeedForward(shape)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, hidden) to the same."""
        if self.recompute and torch.is_grad_enabled():
            # Inside the module, so that the hooks of FSDP on the block stay outside of the recomputation.
            out: Tensor = checkpoint(self._transform, x, use_reentrant=False, preserve_rng_state=False)
            return out
        return self._transform(x)

    def _transform(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


class Embedding(nn.Module):
    """Token embedding."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape.vocabulary_size, shape.hidden_size))

    def forward(self, tokens: Tensor) -> Tensor:
        """Token ids (batch, sequence) to (batch, sequence, hidden), in fp32."""
        return embed(tokens, self.weight).float()


class Head(nn.Module):
    """Output head."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape.vocabulary_size, shape.hidden_size))

    def forward(self, x: Tensor) -> Tensor:
        """(..., hidden) to (..., vocabulary), or to this rank's slice of the vocabulary."""
        return project(x, self.weight)


class TiedHead(nn.Module):
    """An output head that uses the embedding's matrix and owns no parameter."""

    def __init__(self, embedding: Embedding) -> None:
        super().__init__()
        # In a tuple, so that the embedding isn't registered (and named) a second time.
        self._embedding = (embedding,)

    def forward(self, x: Tensor) -> Tensor:
        """(..., hidden) to (..., vocabulary), or to this rank's slice of the vocabulary."""
        return project(x, self._embedding[0].weight)


class Decoder(nn.Module):
    """The blocks of one pipeline stage, with the embedding on the first stage and the head on the last."""

    def __init__(
        self, shape: ModelShape, layers: Sequence[int], first: bool, last: bool, recompute: bool
    ) -> None:
        super().__init__()
        self.embedding = Embedding(shape) if first else None
        self.layers = nn.ModuleDict({str(layer): Block(shape, recompute) for layer in layers})
        self.norm = RMSNorm(shape.hidden_size) if last else None
        self.head: nn.Module | None = None
        if last and shape.tied_embeddings:
            assert self.embedding is not None
            self.head = TiedHead(self.embedding)
        elif last:
            self.head = Head(shape)

    def forward(self, x: Tensor) -> Tensor:
        """Token ids (batch, sequence) on the first stage, else hidden states (batch, sequence, hidden), in fp32.

        Returns logits (batch, sequence, vocabulary) on the last stage, else hidden states.
        """
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.layers.values():
            x = block(x)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x


def stage_range(stage_layers: Sequence[int], stage: int) -> range:
    """Global indices of the layers on a pipeline stage."""
    first = sum(stage_layers[:stage])
    return range(first, first + stage_layers[stage])


@lru_cache(maxsize=4)
def _rotary(length: int, head_size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the angles, each (length, head_size / 2), in fp32."""
    powers = torch.arange(0, head_size, 2, dtype=torch.float32, device=device) / head_size
    angles = torch.outer(torch.arange(length, dtype=torch.float32, device=device), _ROTARY_BASE**-powers)
    return angles.cos(), angles.sin()


def _rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn the pairs (i, i + head_size / 2) of (batch, heads, sequence, head_size); same shape and type."""
    left, right = x.float().chunk(2, dim=-1)
    return torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1).to(x.dtype)
