"""The parts of a job that the trainer needs as well: model, data, optimization, reproducibility."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from kronos.api.base import Model, rules


class Experts(Model):
    """A mixture of experts in place of each block's feed-forward."""

    model_config = {
        "json_schema_extra": rules(
            ("self.active <= self.count", "active must not exceed count; lower active or raise count")
        )
    }

    count: int = Field(ge=2, le=100_000)
    """Routed experts per block."""
    active: int = Field(ge=1, le=1000)
    """Routed experts that each token passes through."""
    shared: int = Field(default=0, ge=0, le=1000)
    """Experts that every token passes through besides."""

    @model_validator(mode="after")
    def _active_exist(self) -> Self:
        if self.active > self.count:
            raise ValueError(f"active {self.active} must not exceed count {self.count}")
        return self


class Patches(Model):
    """How a forecaster cuts time series into tokens: each is one patch of all channels."""

    length: int = Field(ge=1, le=1_000_000)
    """Time steps in a patch."""
    channels: int = Field(ge=1, le=1_000_000)
    """Variables that are measured together."""
    horizon: int = Field(ge=1, le=1_000_000)
    """Time steps that each token predicts."""


class CustomShape(Model):
    """What Kronos must know of a model that it doesn't build itself."""

    parameters_per_layer: int = Field(ge=1, le=10**15)
    """Trainable scalars of one layer."""
    flops_per_token_per_layer: int = Field(ge=1, le=10**18)
    """Floating-point operations of one layer's forward pass on one token, a multiplication and an addition being two."""
    activation_bytes_per_token_per_layer: int = Field(ge=0, le=10**15)
    """Bytes that one layer keeps of each token for its backward pass."""
    input_parameters: int = Field(default=0, ge=0, le=10**15)
    """Trainable scalars in front of the first layer."""
    output_parameters: int = Field(default=0, ge=0, le=10**15)
    """Trainable scalars behind the last layer."""


class ModelShape(Model):
    """The shape of the model."""

    model_config = {
        "json_schema_extra": rules(
            (
                "self.hiddenSize % self.attentionHeads == 0",
                "hiddenSize must be a multiple of attentionHeads; change one of them",
            ),
            (
                "!has(self.keyValueHeads) || self.attentionHeads % self.keyValueHeads == 0",
                "attentionHeads must be a multiple of keyValueHeads; change one of them",
            ),
            (
                "self.positions != 'Rotary' || self.hiddenSize % (2 * self.attentionHeads) == 0",
                "hiddenSize / attentionHeads must be even (rotary positions turn pairs); change one of them",
            ),
            (
                "(self.architecture == 'forecaster') == has(self.patches)",
                "patches belong to architecture forecaster, which needs them; add or drop them",
            ),
            (
                "(self.architecture == 'custom') == has(self.custom)",
                "custom belongs to architecture custom, which needs it; add or drop it",
            ),
        )
    }

    architecture: Literal["decoder", "encoder", "forecaster", "custom"] = "decoder"
    """Kind of model. `decoder`: a transformer whose tokens see the earlier ones. `encoder`: one whose tokens see all.
    `forecaster`: a decoder over patches of multivariate time series. `custom`: layers that `custom` describes.
    """
    layers: int = Field(ge=1, le=1_000)
    """Number of transformer blocks."""
    hidden_size: int = Field(ge=2, le=1_000_000)
    """Width of the residual stream."""
    attention_heads: int = Field(ge=1, le=10_000)
    """Query heads per block; must divide hiddenSize."""
    key_value_heads: int | None = Field(default=None, ge=1, le=10_000)
    """Key and value heads per block (grouped-query attention); must divide attentionHeads. Default: attentionHeads."""
    feed_forward: Literal["Gated", "Plain"] = "Gated"
    """`Gated`: three matrices, one of which gates (SwiGLU). `Plain`: two matrices with a GELU between."""
    feed_forward_size: int | None = Field(default=None, ge=1, le=10_000_000)
    """Width of the feed-forward layer, or of each expert's. Default: 4 x hiddenSize."""
    experts: Experts | None = None
    """Makes every feed-forward a mixture of experts."""
    normalization: Literal["RMSNorm", "LayerNorm"] = "RMSNorm"
    """Norms before attention, before the feed-forward, and before the head."""
    positions: Literal["Rotary", "Learned"] = "Rotary"
    """How tokens know their place; `Learned` adds a trained vector per position."""
    biases: bool = False
    """Matrices of the blocks have biases."""
    vocabulary_size: int = Field(default=256, ge=2, le=100_000_000)
    """Number of token ids. Text is read as bytes, so 256 is the least that text needs; a forecaster has none."""
    sequence_length: int = Field(ge=2, le=100_000_000)
    """Tokens per training sequence."""
    tied_embeddings: bool = False
    """Share one matrix between the token embedding and the output head."""
    patches: Patches | None = None
    """How a forecaster cuts its data."""
    custom: CustomShape | None = None
    """What a custom model is made of."""

    @property
    def kv_heads(self) -> int:
        """Key/value heads, with the default filled in."""
        return self.key_value_heads or self.attention_heads

    @property
    def ffn_size(self) -> int:
        """Feed-forward width, with the default filled in."""
        return self.feed_forward_size or 4 * self.hidden_size

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.attention_heads

    @property
    def causal(self) -> bool:
        """Whether a token sees only those before it."""
        return self.architecture != "encoder"

    @model_validator(mode="after")
    def _divisible(self) -> Self:
        even = 2 if self.positions == "Rotary" else 1
        if self.hidden_size % (even * self.attention_heads):
            kind = "an even multiple" if even == 2 else "a multiple"
            raise ValueError(f"hiddenSize {self.hidden_size} must be {kind} of {self.attention_heads} heads")
        if self.attention_heads % self.kv_heads:
            raise ValueError(
                f"attentionHeads {self.attention_heads} must be a multiple of keyValueHeads {self.kv_heads}"
            )
        return self

    @model_validator(mode="after")
    def _described(self) -> Self:
        for architecture, given in (("forecaster", self.patches), ("custom", self.custom)):
            if (self.architecture == architecture) != (given is not None):
                field = "patches" if architecture == "forecaster" else "custom"
                raise ValueError(f"{field} belong to architecture {architecture}, which needs them")
        return self


class PersistentVolumeClaimSource(Model):
    """A PersistentVolumeClaim in the job's namespace."""

    claim_name: str = Field(min_length=1, max_length=253)
    """Name of the claim."""


class HostPathSource(Model):
    """A folder of the node; every node must offer the same content."""

    path: str = Field(pattern="^/", max_length=4096)
    """Absolute path on the node."""


class Volume(Model):
    """Where a folder comes from; exactly one kind."""

    model_config = {
        "json_schema_extra": rules(
            (
                "[has(self.persistentVolumeClaim), has(self.hostPath)].filter(x, x).size() == 1",
                "give exactly one of persistentVolumeClaim and hostPath",
            )
        )
    }

    persistent_volume_claim: PersistentVolumeClaimSource | None = None
    """A PersistentVolumeClaim in the job's namespace."""
    host_path: HostPathSource | None = None
    """A folder of the node, for development clusters and nodes that mount a shared file system."""


FilePattern = Annotated[str, Field(min_length=1, max_length=256)]


class Data(Model):
    """What to train on."""

    path: str = Field(pattern="^/", max_length=4096)
    """Absolute path, inside the training pods, of the folder (or one file) to read."""
    format: Literal["text"] = "text"
    """`text`: files are read as bytes, each byte one token."""
    include: tuple[FilePattern, ...] = Field(default=("**/*",), min_length=1, max_length=64)
    """Shell patterns, relative to path, of the files to read; files are taken in the order of their names."""
    volume: Volume | None = None
    """Volume mounted at path, read-only. Without it the image must hold the data."""


class Optimization(Model):
    """How the weights are updated."""

    model_config = {
        "json_schema_extra": rules(
            ("self.warmupSteps <= self.steps", "warmupSteps must not exceed steps; lower warmupSteps"),
        )
    }

    global_batch_size: int = Field(ge=1, le=100_000_000)
    """Sequences per optimizer step over all ranks."""
    steps: int = Field(ge=1, le=1_000_000_000)
    """Optimizer steps to train for."""
    optimizer: Literal["AdamW", "AdamW8bit", "SGD", "Adafactor", "Muon"] = "AdamW"
    """The optimizer. `AdamW8bit` keeps its moments in 8 bits, `SGD` one momentum, `Adafactor` a row and a column for each
    matrix, `Muon` one momentum for the blocks' matrices and AdamW's two moments for the rest.
    """
    learning_rate: float = Field(default=3e-4, gt=0, le=100)
    """Peak learning rate, reached after the warm-up."""
    minimum_learning_rate_ratio: float = Field(default=0.1, ge=0, le=1)
    """Learning rate at the last step, as a fraction of the peak; the decay between is a cosine."""
    warmup_steps: int = Field(default=0, ge=0, le=1_000_000_000)
    """Steps over which the learning rate rises linearly from zero."""
    weight_decay: float = Field(default=0.1, ge=0, le=100)
    """Decoupled weight decay on matrices (not on norms)."""
    gradient_clip_norm: float | None = Field(default=None, gt=0)
    """Scale gradients down to this global L2 norm when they exceed it. Default: no clipping."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Arithmetic of the forward and backward pass; masters, gradients' sums and optimizer state stay fp32."""

    @model_validator(mode="after")
    def _warmup_fits(self) -> Self:
        if self.warmup_steps > self.steps:
            raise ValueError(f"warmupSteps {self.warmup_steps} must not exceed steps {self.steps}")
        return self


class Canonical(Model):
    """The structure of a certified run's arithmetic, which every layout keeps: it is the job's, never the layout's."""

    tensor_lanes: int = Field(default=1, ge=1, le=1024)
    """Lanes in which products with split weights are summed; a tensor degree must divide them."""
    leaf_sequences: int = Field(default=1, ge=1, le=1_000_000)
    """Sequences in a leaf, the smallest part of a batch that is ever computed at once; must divide the global batch."""


class Reproducibility(Model):
    """How far a run can be repeated bit for bit."""

    model_config = {
        "json_schema_extra": rules(
            (
                "!has(self.canonical) || self.mode == 'Certified'",
                "canonical belongs to mode Certified; use that mode or drop canonical",
            ),
        )
    }

    mode: Literal["Off", "Deterministic", "Certified"] = "Off"
    """`Deterministic`: seeds, algorithms and reduction order are fixed, so the same layout gives the same bits. `Certified`:
    every layout that keeps the canonical structure gives the same bits.
    """
    seed: int = Field(default=0, ge=0, le=2**53 - 1)
    """Seed of the initial weights and of the data order."""
    canonical: Canonical | None = None
    """The structure of a certified run. Default: one lane, leaves of one sequence."""

    @property
    def structure(self) -> Canonical | None:
        """The canonical structure of a certified run; None for any other."""
        return (self.canonical or Canonical()) if self.mode == "Certified" else None

    @model_validator(mode="after")
    def _canonical_is_certified(self) -> Self:
        if self.canonical is not None and self.mode != "Certified":
            raise ValueError("canonical belongs to mode Certified; use that mode or drop canonical")
        return self
