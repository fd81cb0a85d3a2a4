"""KronosQueue: how many accelerators the jobs of a team may hold, and what teams lend each other."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kronos.api.base import Lenient, Model, list_map, rules
from kronos.api.job import AdmissionRules, QueueName

DEFAULT_QUEUE = "default"
"""Queue of jobs that name none; without a KronosQueue of that name they have no limits."""


class ResourceQuota(Model):
    """Accelerators of one resource that the queue's jobs may hold at once."""

    resource: str = Field(min_length=1, max_length=317)
    """Extended resource, such as `nvidia.com/gpu`."""
    nominal: int = Field(ge=0, le=1_000_000)
    """What is the queue's own."""
    borrowing_limit: int | None = Field(default=None, ge=0, le=1_000_000)
    """Most that its jobs may hold beyond that, while other queues of the cohort don't need it. Default: no limit."""
    lending_limit: int | None = Field(default=None, ge=0, le=1_000_000)
    """Most of `nominal` that other queues of the cohort may use meanwhile. Default: all of it."""


class Preemption(Model):
    """Whose jobs may be stopped, after a checkpoint, so that a job of this queue can start."""

    within_queue: Literal["Never", "LowerPriority"] = "LowerPriority"
    """Jobs of the same queue."""
    reclaim: Literal["Never", "LowerPriority", "Any"] = "Any"
    """Jobs of other queues of the cohort that use what they have borrowed, so that this queue gets its own quota back."""


class QueueSpec(Model):
    """Limits and rules of a queue."""

    model_config = {
        "json_schema_extra": rules(
            (
                "has(self.cohort) || !has(self.quotas) || "
                "self.quotas.all(q, !has(q.borrowingLimit) && !has(q.lendingLimit))",
                "borrowingLimit and lendingLimit need a cohort to borrow from and lend to; set cohort or drop them",
            )
        )
    }

    cohort: QueueName | None = None
    """Queues of the same cohort lend each other what they don't use."""
    namespaces: tuple[str, ...] = Field(
        default=(), max_length=1000, json_schema_extra={"x-kubernetes-list-type": "set"}
    )
    """Namespaces whose jobs may use the queue. Default: all."""
    quotas: tuple[ResourceQuota, ...] = Field(
        default=(), max_length=32, json_schema_extra=list_map("resource")
    )
    """Limits by accelerator. With none the queue has no limits; with some, its jobs can't use other accelerators."""
    weight: float = Field(default=1.0, gt=1e-6, le=1e6)
    """How much the queue may borrow, relative to others of the cohort, before they go first."""
    admission: AdmissionRules | None = None
    """Who decides when the queue's jobs start. Default: Kronos; quotas count only then."""
    preemption: Preemption = Preemption()
    """Whose jobs may be stopped for its jobs."""


class ResourceUse(Lenient):
    """What the queue's jobs hold of one resource."""

    resource: str
    """The accelerator's extended resource."""
    used: int = Field(ge=0)
    """What its jobs hold."""
    borrowed: int = Field(default=0, ge=0)
    """The part of that beyond its own quota."""


class QueueStatus(Lenient):
    """What the queue's jobs hold, and how many wait."""

    observed_generation: int = Field(default=0, ge=0)
    """Generation of the spec that this status speaks about."""
    running: int = Field(default=0, ge=0)
    """Jobs that hold a place."""
    waiting: int = Field(default=0, ge=0)
    """Jobs that wait for one."""
    use: tuple[ResourceUse, ...] = Field(default=(), max_length=64, json_schema_extra=list_map("resource"))
    """By accelerator."""
