"""KronosFabric: the levels of the network and the accelerators of a cluster, as people describe them."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Literal, Self

from pydantic import Field, model_validator

from kronos.api.base import Lenient, Model, list_map, rules
from kronos.api.catalog import ACCELERATORS, BYTES_PER_FLOP, LINKS, UNKNOWN_MATMUL_EFFICIENCY

MOST_SAMPLES = 20
"""Jobs whose measurements a fabric remembers for each accelerator."""
LEAST = 1e-6
"""Figures of links and accelerators are greater: slower than any there is, and far from where arithmetic breaks down.

As an exclusive bound, since the API server rounds an inclusive one down before it compares a whole number with it.
"""
NODE_LEVEL = "node"
"""Name of the level that is always there and always the narrowest: one Kubernetes node."""


_KINDS = ", ".join(LINKS)
_MODELS = ", ".join(ACCELERATORS)

_LINK_RULE = (
    f"(has(self.kind) && self.kind in {list(LINKS)}) || "
    "(has(self.bandwidthGigabytesPerSecond) && has(self.latencyMicroseconds))",
    f"give a kind that Kronos knows ({_KINDS}), or bandwidthGigabytesPerSecond and latencyMicroseconds",
)
_ACCELERATOR_RULE = (
    f"self.model in {list(ACCELERATORS)} || (has(self.memoryGiB) && has(self.peakTflops))",
    f"Kronos knows {_MODELS}; for another model give memoryGiB and peakTflops",
)


class Link(Model):
    """What one accelerator gets from the network of a level when it talks to another in the same domain."""

    model_config = {"json_schema_extra": rules(_LINK_RULE)}

    kind: str | None = Field(default=None, min_length=1, max_length=63)
    """A link that Kronos knows, such as `NVLink4` or `InfiniBand-NDR`; the fields below override its figures."""
    bandwidth_gigabytes_per_second: float | None = Field(default=None, gt=LEAST, le=1e6)
    """Bandwidth per accelerator and direction, in 10^9 bytes per second."""
    latency_microseconds: float | None = Field(default=None, ge=0, le=1e9)
    """Time of a smallest message, in microseconds."""
    efficiency: float | None = Field(default=None, gt=LEAST, le=1)
    """Share of the bandwidth that large collectives reach. Default: that of the kind, or 1 without a known kind."""

    @property
    def seconds_per_byte(self) -> float:
        """What a byte of a large collective takes."""
        known = LINKS.get(self.kind or "")
        bandwidth = self.bandwidth_gigabytes_per_second or (known.gigabytes_per_second if known else 0.0)
        # Who gives a bandwidth has measured it, or means the line rate of a link whose kind says the rest.
        efficiency = self.efficiency or (known.efficiency if known else 1.0)
        return 1e-9 / (bandwidth * efficiency)

    @property
    def latency_seconds(self) -> float:
        """Time of a smallest message."""
        if self.latency_microseconds is not None:
            return self.latency_microseconds * 1e-6
        return LINKS[self.kind or ""].latency_microseconds * 1e-6

    @model_validator(mode="after")
    def _known_or_told(self) -> Self:
        told = self.bandwidth_gigabytes_per_second is not None and self.latency_microseconds is not None
        if self.kind not in LINKS and not told:
            raise ValueError(_LINK_RULE[1])
        return self


class Level(Link):
    """One level of the network: nodes with equal values of this label and of all wider ones form one domain."""

    name: str = Field(pattern=r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$", max_length=63)
    """Name by which jobs refer to the level, such as `rack`."""
    node_label: str = Field(min_length=1, max_length=317)
    """Label key on nodes that tells their domain at this level."""


class PeakTflops(Model):
    """Peak dense arithmetic of one accelerator, in 10^12 FLOP/s."""

    fp32: float = Field(gt=LEAST, le=1e9)
    """With 32-bit operands; not TF32, which the trainer doesn't use."""
    bf16: float = Field(gt=LEAST, le=1e9)
    """With bfloat16 operands."""


class Accelerator(Model):
    """What one unit of an extended resource is."""

    model_config = {"json_schema_extra": rules(_ACCELERATOR_RULE)}

    resource: str = Field(min_length=1, max_length=317)
    """Name of the extended resource on nodes, such as `nvidia.com/gpu`."""
    model: str = Field(min_length=1, max_length=63)
    """What it is, such as `H100-80GB`; of a model that Kronos knows, the fields below override the figures."""
    memory_gib: float | None = Field(default=None, gt=1e-3, le=1e6, alias="memoryGiB")
    """Memory of one accelerator in GiB (2^30 bytes)."""
    peak_tflops: PeakTflops | None = None
    """Peak arithmetic."""
    memory_bandwidth_gigabytes_per_second: float | None = Field(default=None, gt=LEAST, le=1e9)
    """Bandwidth of its memory, in 10^9 bytes per second. Default: that of the model, or of an A100 for as many FLOP/s."""
    matmul_efficiency: float | None = Field(default=None, gt=LEAST, le=1)
    """Share of the peak that large matrix products reach. Default: that of the model, or 0.75."""

    @property
    def memory(self) -> float:
        """Memory in GiB."""
        return self.memory_gib or ACCELERATORS[self.model].memory_gib

    @property
    def matmul_share(self) -> float:
        """Share of the peak that large matrix products reach."""
        known = ACCELERATORS.get(self.model)
        return self.matmul_efficiency or (known.matmul_efficiency if known else UNKNOWN_MATMUL_EFFICIENCY)

    def flops_per_second(self, precision: Literal["fp32", "bf16"]) -> float:
        """Peak FLOP/s of matrix products in a precision."""
        if self.peak_tflops is not None:
            return 1e12 * (self.peak_tflops.bf16 if precision == "bf16" else self.peak_tflops.fp32)
        known = ACCELERATORS[self.model]
        return 1e12 * (known.bf16_tflops if precision == "bf16" else known.fp32_tflops)

    @property
    def memory_bytes_per_second(self) -> float:
        """Bandwidth of its memory."""
        if self.memory_bandwidth_gigabytes_per_second is not None:
            return self.memory_bandwidth_gigabytes_per_second * 1e9
        known = ACCELERATORS.get(self.model)
        if known is not None:
            return known.memory_gigabytes_per_second * 1e9
        return BYTES_PER_FLOP * max(self.flops_per_second("bf16"), self.flops_per_second("fp32"))

    @model_validator(mode="after")
    def _known_or_told(self) -> Self:
        if self.model not in ACCELERATORS and (self.memory_gib is None or self.peak_tflops is None):
            near = [name for name in ACCELERATORS if name.startswith(self.model.upper())]
            near = near or get_close_matches(self.model, ACCELERATORS)
            meant = f"write {' or '.join(near)} instead of {self.model}, or" if near else "for another model"
            raise ValueError(f"Kronos knows {_MODELS}; {meant} give memoryGiB and peakTflops")
        return self


class FabricSpec(Model):
    """The network from widest to narrowest, and the accelerators."""

    model_config = {
        "json_schema_extra": rules(
            (
                f"self.levels.all(l, l.name != '{NODE_LEVEL}')",
                f"the level {NODE_LEVEL} is always there; describe it under spec.node and drop it from levels",
            ),
            (
                "self.levels.all(l, self.levels.exists_one(m, m.nodeLabel == l.nodeLabel))",
                "each level needs a nodeLabel of its own; two levels use the same one",
            ),
        )
    }

    levels: tuple[Level, ...] = Field(default=(), max_length=8, json_schema_extra=list_map("name"))
    """Levels above the node, widest first."""
    node: Link
    """Links between the accelerators of one node."""
    accelerators: tuple[Accelerator, ...] = Field(
        min_length=1, max_length=32, json_schema_extra=list_map("resource")
    )
    """The accelerators that jobs may ask for."""

    def accelerator(self, resource: str) -> Accelerator | None:
        """The description of an extended resource, or None when the fabric doesn't have it."""
        return next((item for item in self.accelerators if item.resource == resource), None)

    @property
    def level_names(self) -> tuple[str, ...]:
        """Names of all levels, widest first, with the node as the last."""
        return (*(level.name for level in self.levels), NODE_LEVEL)


class CalibrationSample(Lenient):
    """What one job measured."""

    uid: str
    """UID of the job."""
    job: str
    """Its namespace and name."""
    ratio: float = Field(gt=0)
    """Measured over predicted time per step, the prediction being uncorrected."""
    steps: int = Field(ge=1)
    """Steps that the job had done by then."""
    at: str = Field(json_schema_extra={"format": "date-time"})
    """When the job ended, or while it runs when it began to train."""


class Calibration(Lenient):
    """How predictions for one accelerator on this fabric compare with what jobs measured."""

    resource: str
    """The accelerator's extended resource."""
    factor: float = Field(gt=0)
    """By what predicted times are multiplied: the median of the samples."""
    error_percent: float = Field(ge=0)
    """Mean deviation of the samples from that, in percent: what is left when predictions are corrected."""
    samples: tuple[CalibrationSample, ...] = Field(
        min_length=1, max_length=MOST_SAMPLES, json_schema_extra=list_map("uid")
    )
    """One for each of the latest jobs, the last one last."""


class FabricStatus(Lenient):
    """What jobs have taught about a fabric."""

    calibrations: tuple[Calibration, ...] = Field(
        default=(), max_length=32, json_schema_extra=list_map("resource")
    )
    """By accelerator."""

    def factor(self, resource: str) -> float:
        """By what predicted times are multiplied for an accelerator; 1 while nothing was measured."""
        found = next((item for item in self.calibrations if item.resource == resource), None)
        return found.factor if found else 1.0
