"""How wide the groups of a job may be: what the levels that it names for them hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kronos.api.job import PlacementRules

TENSOR_CODE, PIPELINE_CODE, SHARDED_CODE = "TensorGroupTooWide", "PipelineTooWide", "ShardedCopyTooWide"


@dataclass(frozen=True, slots=True)
class Width:
    """A limit on a group of ranks: those of the axis `field` and of the axes inside it."""

    code: str
    """Of a refusal, for machines."""
    field: str
    """As people write it, such as `tensorParallel`."""
    level: str
    """The level that the job names: one domain of it must hold each such group."""
    slots: int
    """Accelerators of such a domain."""

    def refusal(self, degree: int, inner: int) -> str:
        """Why the axis can't have this degree around groups of `inner` ranks, which are more than there is room for."""
        ranks = degree * inner
        takes = f"{self.field} {degree} is"
        if inner > 1:
            takes = f"{self.field} {degree} around groups of {inner} ranks takes {ranks},"
        most = self.slots // inner
        change = f"use at most {most}, or name" if most else "name"
        return (
            f"{takes} more than the {self.slots} accelerators of a {self.level}, which placement.{self.field}Within names; "
            f"{change} a wider level"
        )


@dataclass(frozen=True, slots=True)
class Widths:
    """The limits of a job, None where it names no level. Pipelines hold tensor groups, sharded copies hold pipelines."""

    tensor: Width | None = None
    pipeline: Width | None = None
    sharded: Width | None = None

    @classmethod
    def of(cls, rules: PlacementRules, slots_of: Callable[[str | None], int | None]) -> Widths:
        """The limits that a job's levels set, given the accelerators in a domain of a level (None where not known)."""

        def width(code: str, field: str, level: str | None) -> Width | None:
            slots = slots_of(level)
            return None if level is None or slots is None else Width(code, field, level, slots)

        return cls(
            tensor=width(TENSOR_CODE, "tensorParallel", rules.tensor_parallel_within),
            pipeline=width(PIPELINE_CODE, "pipelineParallel", rules.pipeline_parallel_within),
            sharded=width(SHARDED_CODE, "shardedDataParallel", rules.sharded_data_parallel_within),
        )
