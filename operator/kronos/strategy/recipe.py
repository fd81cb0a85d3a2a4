"""How a training system computes, what it keeps, and what it hides: the facts that memory and time depend on.

Kronos runs its own trainer, `KRONOS`. The others describe systems whose runs were published, so that the same formulas
can be checked against what was measured.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Facts about a training system; sizes are bytes per scalar unless said otherwise."""

    name: str
    weight_bytes: int
    """Of the weights that the forward pass starts from, held all the time."""
    master_bytes: int
    """Of further copies of the weights that the optimizer holds."""
    gradient_bytes: int
    """Of gradients as they are accumulated and summed over replicas."""
    residual_bytes: int
    """Of the residual stream, which is what stages and tensor ranks pass on."""
    gradient_stream_bytes: int
    """Of the residual stream's gradient."""
    casts_weights: bool
    """Weights are cast for matrix products where these are narrower, by FSDP's gather or by autocast."""
    fused_attention: bool
    """No matrix of sequence x sequence exists."""
    dropout: bool
    """Masks of one byte are kept behind attention's softmax, behind attention and behind the feed-forward."""
    separate_products: bool
    """Products with the same input keep a cast of it each, rather than one for all."""
    embedding_stream: bool
    """Tensor ranks sum the embedding's output, and the gradient that leaves the head."""
    gradients_wait: bool
    """FSDP reduces gradients in the last microbatch only, and keeps a stage's weights gathered in a pipeline."""
    hides_gathers: bool
    """FSDP gathers the next block, and reduces the last one, while a block computes."""
    bucket_elements: int
    """Gradients that replicas sum in one all-reduce, from a buffer; a larger tensor goes alone. 0: in place."""
    receives_all: bool
    """A pipeline has receive buffers for all microbatches at once, rather than one per direction."""
    sends_split: bool
    """A stage passes on a tensor rank's share alone, which the next stage gathers on its own links."""


KRONOS = Recipe(
    name="Kronos",
    weight_bytes=4,
    master_bytes=0,
    gradient_bytes=4,
    residual_bytes=4,
    gradient_stream_bytes=4,
    casts_weights=True,
    fused_attention=True,
    dropout=False,
    separate_products=True,
    embedding_stream=True,
    gradients_wait=True,
    hides_gathers=False,
    bucket_elements=1 << 23,
    receives_all=True,
    sends_split=False,
)
"""The trainer of this repository: fp32 masters and residuals, bf16 through autocast or FSDP's casts."""

MEGATRON = Recipe(
    name="Megatron-LM",
    weight_bytes=2,
    master_bytes=4,
    gradient_bytes=4,
    residual_bytes=2,
    gradient_stream_bytes=2,
    casts_weights=False,
    fused_attention=False,
    dropout=True,
    separate_products=False,
    embedding_stream=True,
    gradients_wait=False,
    hides_gathers=False,
    bucket_elements=0,
    receives_all=False,
    sends_split=True,
)
"""Narayanan et al., SC21, and Korthikanti et al. 2022 (arXiv 2205.05198): 16-bit weights with fp32 gradients, masters and
moments (18 bytes per parameter), unfused attention with dropout, replicas summed after the last backward pass, and the
scatter/gather optimization between stages (SC21, section 4.1)."""

TORCHTITAN = Recipe(
    name="torchtitan",
    weight_bytes=4,
    master_bytes=0,
    gradient_bytes=4,
    residual_bytes=2,
    gradient_stream_bytes=2,
    casts_weights=True,
    fused_attention=True,
    dropout=False,
    separate_products=False,
    embedding_stream=False,
    gradients_wait=False,
    hides_gathers=True,
    bucket_elements=0,
    receives_all=True,
    sends_split=False,
)
"""Liang et al. 2024 (arXiv 2410.06511): FSDP2 over fp32 shards, gathered and computed in bf16, gradients reduced in fp32."""
