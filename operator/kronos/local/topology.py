"""The nodes of a local cluster: their names, labels and capacity."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

ACCELERATOR = "kronos.dev/accelerator"
DEFAULT_CAPACITY = {"cpu": "8", "memory": "16Gi", "pods": "110", "ephemeral-storage": "100Gi"}


@dataclass(frozen=True)
class LocalNode:
    """One node; ``capacity`` is added to a default for CPU, memory and pods."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, str], ...] = ()

    def all_labels(self, architecture: str) -> dict[str, str]:
        """The labels that every kubelet sets, and this node's own."""
        standard = {
            "kubernetes.io/hostname": self.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": architecture,
        }
        return standard | dict(self.labels)

    def all_capacity(self) -> dict[str, str]:
        """Every resource that the node offers."""
        return DEFAULT_CAPACITY | dict(self.capacity)

    def as_dict(self) -> dict[str, Any]:
        """A form that survives JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> LocalNode:
        """The inverse of ``as_dict``; ``labels``, ``capacity`` and ``taints`` may be left out."""
        unknown = set(content) - {"name", "labels", "capacity", "taints"}
        if unknown or "name" not in content:
            raise ValueError(
                f"a node needs a name, and may have labels, capacity and taints; this one is {dict(content)}"
            )
        return cls(
            content["name"],
            {str(key): str(value) for key, value in (content.get("labels") or {}).items()},
            {str(key): str(value) for key, value in (content.get("capacity") or {}).items()},
            tuple(content.get("taints") or ()),
        )


def default_topology(racks: int = 2, nodes_per_rack: int = 2, slots: int = 4) -> list[LocalNode]:
    """Racks of equal nodes, each node with ``slots`` accelerator slots."""
    if not (1 <= racks <= 26 and nodes_per_rack >= 1 and slots >= 0):
        raise ValueError("a topology has 1 to 26 racks, at least one node in each, and no negative slots")
    nodes = []
    for letter in string.ascii_lowercase[:racks]:
        for index in range(nodes_per_rack):
            labels = {
                "topology.kubernetes.io/zone": "local",
                "kronos.dev/rack": f"rack-{letter}",
                "kronos.dev/accelerator.product": "CPU",
            }
            nodes.append(LocalNode(f"rack-{letter}-{index}", labels, {ACCELERATOR: str(slots)}))
    return nodes
