"""Jobs and fabrics for tests of the strategy."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kronos.api.fabric import Accelerator, FabricSpec, Level, Link, PeakTflops
from kronos.api.job import TrainingJobSpec
from kronos.api.plan import GangMember, Plan
from kronos.strategy import Candidate

GPU = "nvidia.com/gpu"


def fabric(*, memory: float = 80, node: float = 450, leaf: float = 50, spine: float = 25) -> FabricSpec:
    """H100 nodes with a leaf and a spine level; memory in GiB, bandwidths in GB/s per accelerator."""
    return FabricSpec(
        levels=(
            Level(
                name="spine",
                node_label="net/spine",
                bandwidth_gigabytes_per_second=spine,
                latency_microseconds=10,
            ),
            Level(
                name="leaf",
                node_label="net/leaf",
                bandwidth_gigabytes_per_second=leaf,
                latency_microseconds=5,
            ),
        ),
        node=Link(bandwidth_gigabytes_per_second=node, latency_microseconds=2),
        accelerators=(
            Accelerator(
                resource=GPU, model="H100", memory_gib=memory, peak_tflops=PeakTflops(fp32=400, bf16=989)
            ),
        ),
    )


SMALL = {"layers": 12, "hidden_size": 768, "attention_heads": 12, "sequence_length": 1024}
"""85 million parameters."""
LLAMA_2_7B = {
    "layers": 32,
    "hidden_size": 4096,
    "attention_heads": 32,
    "feed_forward_size": 11008,
    "vocabulary_size": 32000,
    "sequence_length": 4096,
}
LLAMA_3_8B = {
    **LLAMA_2_7B,
    "key_value_heads": 8,
    "feed_forward_size": 14336,
    "vocabulary_size": 128256,
    "sequence_length": 8192,
}
LLAMA_3_70B = {
    **LLAMA_3_8B,
    "layers": 80,
    "hidden_size": 8192,
    "attention_heads": 64,
    "feed_forward_size": 28672,
}


def job(
    model: dict[str, Any] = SMALL,
    *,
    batch: int = 64,
    low: int = 1,
    high: int = 8,
    precision: str = "bf16",
    resource: str = GPU,
    reproducibility: dict[str, Any] | None = None,
    **strategy: Any,
) -> TrainingJobSpec:
    """A job for `low` to `high` accelerators; `strategy` holds fields of that section."""
    return TrainingJobSpec.model_validate(
        {
            "model": model,
            "data": {"path": "/data"},
            "optimization": {"global_batch_size": batch, "steps": 10, "precision": precision},
            "accelerators": {"resource": resource, "min": low, "max": high},
            "strategy": strategy,
            "reproducibility": reproducibility or {},
        }
    )


def plan(spec: TrainingJobSpec, candidate: Candidate) -> Plan:
    """The plan that a candidate becomes on one large node; its validators check the arithmetic."""
    world = candidate.degrees.world_size
    return Plan(
        namespace="forge",
        job="job",
        attempt=1,
        model=spec.model,
        data=spec.data,
        optimization=spec.optimization,
        reproducibility=spec.reproducibility,
        degrees=candidate.degrees,
        schedule=candidate.schedule,
        microbatch_sequences=candidate.microbatch_sequences,
        microbatches=candidate.microbatches,
        activation_checkpointing=candidate.activation_checkpointing,
        stage_layers=candidate.stage_layers,
        members=(GangMember(node="node", ranks=world),),
        rank_map=tuple(range(world)),
        rendezvous_timeout_seconds=60,
    )


@st.composite
def jobs(draw: st.DrawFn, *, experts: bool = False) -> TrainingJobSpec:
    """Small jobs of every kind: odd head counts, tied embeddings, odd batches, with and without pins and experts."""
    key_value_heads = draw(st.sampled_from([1, 2, 3, 4]))
    heads = key_value_heads * draw(st.sampled_from([1, 2]))
    low = draw(st.integers(1, 6))
    pin = st.none() | st.sampled_from([1, 2, 3])
    return job(
        {
            "layers": draw(st.integers(1, 7)),
            "hidden_size": heads * draw(st.sampled_from([16, 64, 512])),
            "attention_heads": heads,
            "key_value_heads": key_value_heads,
            "feed_forward_size": draw(st.sampled_from([96, 1024, 5000])),
            "vocabulary_size": draw(st.sampled_from([256, 257, 50_000])),
            "sequence_length": draw(st.sampled_from([64, 2048])),
            "tied_embeddings": draw(st.booleans()),
            **(draw(st.sampled_from([{}, {}, {"experts": {"count": 4, "active": 2}}])) if experts else {}),
        },
        batch=draw(st.integers(1, 24)),
        low=low,
        high=low + draw(st.integers(0, 6)),
        precision=draw(st.sampled_from(["fp32", "bf16"])),
        objective=draw(st.sampled_from(["Time", "Efficiency", "Memory"])),
        tensor_parallel=draw(pin),
        pipeline_parallel=draw(pin),
        sharded_data_parallel=draw(pin),
    )


def deep_job(layers: int, batch: int = 32, **strategy: Any) -> TrainingJobSpec:
    """A job whose layers are wide for their work, on 8 accelerators: weights and their casts decide what fits."""
    model = {
        "layers": layers,
        "hidden_size": 2048,
        "attention_heads": 8,
        "feed_forward_size": 1024,
        "vocabulary_size": 32_000,
        "sequence_length": 64,
    }
    return job(model, batch=batch, low=8, high=8, **strategy)


@st.composite
def deep_jobs(draw: st.DrawFn) -> TrainingJobSpec:
    """Such jobs with many microbatches, mostly of tensor groups in pipelines."""
    few = st.none() | st.sampled_from([1, 2])
    return deep_job(
        draw(st.sampled_from([4, 8, 12, 16])),
        draw(st.sampled_from([8, 12, 32, 64])),
        objective=draw(st.sampled_from(["Time", "Efficiency", "Memory"])),
        tensor_parallel=draw(st.none() | st.sampled_from([2, 4])),
        pipeline_parallel=draw(st.none() | st.sampled_from([2, 4])),
        sharded_data_parallel=draw(few),
    )


def memories() -> st.SearchStrategy[float]:
    """Accelerator memory in GiB, between too little for the jobs above and plenty."""
    return st.floats(0.6, 8)


def bandwidths() -> st.SearchStrategy[float]:
    """Link bandwidth in GB/s."""
    return st.floats(0.1, 900)
