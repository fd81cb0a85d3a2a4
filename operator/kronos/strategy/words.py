"""What the items of memory and of a step's time are called in sentences and tables."""

from __future__ import annotations

from collections.abc import Mapping

MEMORY_ITEMS: Mapping[str, str] = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "activations": "activations",
    "unsharded": "gathered or cast weights",
    "logits": "logits",
    "communication": "communication buffers",
    "reserve": "process and fragmentation",
}
"""By the fields of `MemoryBreakdown`."""

TIME_ITEMS: Mapping[str, str] = {
    "compute": "arithmetic",
    "tensor_parallel": "tensor collectives",
    "context_parallel": "context exchanges",
    "expert_parallel": "expert exchanges",
    "data_parallel": "gradient and weight collectives",
    "pipeline": "sends between stages",
    "pipeline_bubble": "pipeline bubble",
    "optimizer": "optimizer update",
}
"""By the fields of `StepTime`."""
