"""KronosFabric: the levels of the network and the accelerators of a cluster, as people describe them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kronos.api.base import Model, list_map, rules

NODE_LEVEL = "node"
"""Name of the level that is always there and always the narrowest: one Kubernetes node."""


class Link(Model):
    """What one accelerator gets from the network of a level when it talks to another in the same domain."""

    bandwidth_gigabytes_per_second: float = Field(gt=0, le=1e6)
    """Bandwidth per accelerator and direction, in 10^9 bytes per second."""
    latency_microseconds: float = Field(ge=0, le=1e9)
    """Time of a smallest message, in microseconds."""


class Level(Link):
    """One level of the network: nodes with equal values of this label and of all wider ones form one domain."""

    name: str = Field(pattern=r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$", max_length=63)
    """Name by which jobs refer to the level, such as `rack`."""
    node_label: str = Field(min_length=1, max_length=317)
    """Label key on nodes that tells their domain at this level."""


class PeakTflops(Model):
    """Peak dense arithmetic of one accelerator, in 10^12 FLOP/s."""

    fp32: float = Field(gt=0)
    """With 32-bit operands (TF32 where the accelerator uses it for fp32 matrix products)."""
    bf16: float = Field(gt=0)
    """With bfloat16 operands."""


class Accelerator(Model):
    """What one unit of an extended resource is."""

    resource: str = Field(min_length=1, max_length=317)
    """Name of the extended resource on nodes, such as `nvidia.com/gpu`."""
    model: str = Field(min_length=1, max_length=63)
    """Name for people, such as `H100-80GB`."""
    memory_gib: float = Field(gt=0, le=1e6, alias="memoryGiB")
    """Memory of one accelerator in GiB (2^30 bytes)."""
    peak_tflops: PeakTflops
    """Peak arithmetic."""


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


class Fabric(Model):
    """A KronosFabric object as people apply it."""

    api_version: Literal["training.kronos.dev/v1alpha1"]
    kind: Literal["KronosFabric"]
    spec: FabricSpec
