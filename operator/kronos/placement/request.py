"""What a gang asks of the cluster."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from kronos.api.job import NodeTerm, Toleration
from kronos.api.plan import Degrees


class Traffic(Protocol):
    """Bytes that one rank sends per step along each axis of parallelism."""

    @property
    def tensor(self) -> float:
        """Along tensor groups."""

    @property
    def pipeline(self) -> float:
        """To the neighbouring stages."""

    @property
    def sharded_data(self) -> float:
        """Along the ranks that share one sharded copy."""

    @property
    def data(self) -> float:
        """Along replicas."""


@dataclass(frozen=True, slots=True)
class GangRequest:
    """One way of running a job: so many ranks, in groups that talk so much, each needing so much of a node.

    Level names are those of the fabric, or `node`. `per_rank` holds what a rank needs besides its one accelerator,
    in the base units of `Node.allocatable`. Without `traffic` the order of the axes decides what sits close: tensor,
    pipeline, sharded data, data.

    Groups nest: a pipeline holds its tensor groups, a sharded copy of the model its pipelines.
    """

    degrees: Degrees
    resource: str
    per_rank: Mapping[str, int] = field(default_factory=dict)
    required: str | None = None
    preferred: str | None = None
    tensor_parallel_within: str | None = None
    pipeline_parallel_within: str | None = None
    sharded_data_parallel_within: str | None = None
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    node_affinity: tuple[NodeTerm, ...] = ()
    avoid_nodes: frozenset[str] = frozenset()
    traffic: Traffic | None = None

    @property
    def pod_kind(self) -> Hashable:
        """Equal for two requests exactly when their pods may go to the same nodes and take as much there per rank."""
        return (
            self.resource,
            tuple(sorted(self.per_rank.items())),
            tuple(sorted(self.node_selector.items())),
            self.tolerations,
            self.node_affinity,
            self.avoid_nodes,
        )

    @property
    def nested(self) -> tuple[tuple[str, int, str | None], ...]:
        """Groups of ranks, innermost first: (what they are called, the ranks of one, the level of which one domain must hold it)."""
        degrees = self.degrees
        pipeline = degrees.tensor_parallel * degrees.pipeline_parallel
        return (
            ("tensor groups", degrees.tensor_parallel, self.tensor_parallel_within),
            ("pipelines", pipeline, self.pipeline_parallel_within),
            ("sharded copies", pipeline * degrees.sharded_data_parallel, self.sharded_data_parallel_within),
        )

    @property
    def shape(self) -> Hashable:
        """Equal for two requests exactly when the same sets of nodes hold them: of the degrees, ranks and groups count."""
        return (
            self.degrees.world_size,
            self.required,
            self.preferred,
            self.degrees.tensor_parallel,
            tuple((ranks, level) for _, ranks, level in self.nested if level),
            self.pod_kind,
        )
