"""Memory per rank, against published figures and against what the trainer's block really saves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kronos.api.plan import Degrees
from kronos.api.training import ModelShape
from kronos.strategy.layout import GIB, Layout, Workload
from kronos.strategy.memory import MemoryBreakdown, MemoryModel, StageMemory
from kronos.strategy.stages import Stage
from kronos_trainer.model import Block


def workload(batch: int = 64, half: bool = True, **shape: Any) -> Workload:
    return Workload(
        shape=ModelShape(**shape),
        global_batch_size=batch,
        compute_bytes=2 if half else 4,
        peak_flops=1e15,
        memory_bytes=80 * GIB,
    )


def needs(
    load: Workload, degrees: Degrees, *, sequences: int = 1, recompute: bool = False
) -> tuple[Layout, MemoryBreakdown]:
    stages = load.balanced(degrees.pipeline_parallel)
    microbatches = load.global_batch_size // degrees.batch_ranks // sequences
    layout = Layout(
        degrees=degrees,
        microbatch_sequences=sequences,
        microbatches=microbatches,
        checkpointing="Full" if recompute else "None",
        schedule="None" if len(stages) == 1 else "1F1B" if microbatches >= len(stages) else "GPipe",
        stage_layers=stages,
    )
    return layout, MemoryModel(load, degrees, stages).heaviest(layout)


SEVEN_AND_A_HALF_BILLION = {
    "layers": 26,
    "hidden_size": 4096,
    "attention_heads": 32,
    "vocabulary_size": 64_000,
    "sequence_length": 64,
}


@pytest.mark.parametrize(
    ("degrees", "published_gb"),
    [
        pytest.param(Degrees(data_parallel=64), 120.0, id="replicated"),
        pytest.param(Degrees(sharded_data_parallel=64), 1.875, id="all sharded"),
    ],
)
def test_model_states_of_zero(degrees, published_gb):
    # Rajbhandari et al. 2020 (ZeRO), figure 1: 7.5 x 10^9 parameters on 64 ranks. Stages 1 and 2 aren't offered.
    _, memory = needs(workload(**SEVEN_AND_A_HALF_BILLION), degrees)
    states = memory.weights + memory.gradients + memory.optimizer
    assert states / 1e9 == pytest.approx(published_gb, rel=0.01)


def test_recomputing_keeps_the_inputs_of_blocks():
    load = workload(
        layers=48, hidden_size=6144, attention_heads=64, vocabulary_size=256, sequence_length=2048, batch=4
    )
    _, memory = needs(load, Degrees(tensor_parallel=8), sequences=4, recompute=True)
    inputs = 48 * 4 * 2048 * 6144 * 4
    one_block = 4 * 2048 * load.block.kept_bytes("None", 8, False)
    assert inputs < memory.activations < inputs + 2 * one_block


@pytest.mark.parametrize("half", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("key_value_heads", [8, 2], ids=["multi-head", "grouped"])
def test_activations_of_the_trainers_block(half, key_value_heads):
    """Counts what autograd really saves.

    On a CPU a norm also keeps its normalised input and attention's output is copied, which GPUs don't.
    """
    shape = {
        "layers": 1,
        "hidden_size": 256,
        "attention_heads": 8,
        "key_value_heads": key_value_heads,
        "feed_forward_size": 512,
        "sequence_length": 96,
    }
    load = workload(half=half, **shape)
    saved = saved_bytes(Block(load.shape, False), torch.randn(1, 96, 256, requires_grad=True), half)
    normalised, copied = 2 * 256 * 4, 256 * load.compute_bytes
    predicted = load.block.kept_bytes("None", 1, False) + normalised + copied
    assert saved / 96 == pytest.approx(predicted, rel=0.02)


def saved_bytes(block: Block, x: torch.Tensor, half: bool) -> int:
    """Bytes of distinct saved tensors that hold a row per token; weights and their casts do not."""
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if 96 in tensor.shape:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=half),
    ):
        block(x)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


MEDIUM = {
    "layers": 8,
    "hidden_size": 1024,
    "attention_heads": 8,
    "vocabulary_size": 32_000,
    "sequence_length": 512,
}


@pytest.mark.parametrize(
    ("degrees", "batch", "whole"),
    [
        pytest.param(Degrees(sharded_data_parallel=4), 4, False, id="one microbatch"),
        pytest.param(Degrees(sharded_data_parallel=4), 8, True, id="several microbatches"),
        pytest.param(Degrees(sharded_data_parallel=4, pipeline_parallel=2), 8, True, id="a pipeline"),
    ],
)
def test_fsdp_keeps_gradients_whole_while_it_accumulates(degrees, batch, whole):
    _, memory = needs(workload(batch=batch, **MEDIUM), degrees)
    assert memory.gradients == memory.weights * (4 if whole else 1)
    assert memory.optimizer == 2 * memory.weights


@pytest.mark.parametrize(
    ("degrees", "copies"),
    [
        pytest.param(Degrees(), 1, id="once per step"),
        pytest.param(Degrees(pipeline_parallel=4), 1, id="once per step in a pipeline"),
        pytest.param(
            Degrees(tensor_parallel=2, pipeline_parallel=4), 4, id="per microbatch in flight, and one block's"
        ),
    ],
)
def test_autocast_keeps_casts_of_weights_where_nothing_is_sharded(degrees, copies):
    load = workload(batch=8, **MEDIUM)
    full = StageMemory(workload(batch=8, half=False, **MEDIUM), degrees, first(degrees))
    half = StageMemory(load, degrees, first(degrees))
    layout, _ = needs(load, degrees)
    difference = half.itemised(layout, 0).unsharded - full.itemised(layout, 0).unsharded
    block = load.part_elements(degrees.tensor_parallel, 1).block * 2
    blocks = first(degrees).layers * block
    if degrees.tensor_parallel > 1:
        blocks = copies * blocks + block
    head = (32_000 * 1024 + 1024) * 2 if degrees.pipeline_parallel == 1 else 0
    assert difference == blocks + head


def first(degrees: Degrees) -> Stage:
    stages = degrees.pipeline_parallel
    return Stage(0, 8 // stages, first=True, last=stages == 1)


def test_a_pipeline_has_receive_buffers_for_all_microbatches():
    _, few = needs(workload(batch=8, **MEDIUM), Degrees(pipeline_parallel=4))
    _, many = needs(workload(batch=80, **MEDIUM), Degrees(pipeline_parallel=4))
    residual = 512 * 1024 * 4
    assert many.communication - few.communication in (72 * residual, 2 * 72 * residual)


degrees = st.builds(
    Degrees,
    data_parallel=st.sampled_from([1, 2]),
    sharded_data_parallel=st.sampled_from([1, 2]),
    tensor_parallel=st.sampled_from([1, 2, 4]),
    pipeline_parallel=st.sampled_from([1, 2, 3, 5]),
)


@given(degrees, st.sampled_from([1, 2, 4]), st.booleans(), st.booleans(), st.integers(5, 13))
def test_no_rank_of_any_stage_needs_more_than_reported(split, sequences, recompute, half, layers):
    load = workload(batch=16, half=half, **{**MEDIUM, "layers": layers})
    layout, heaviest = needs(load, split, sequences=sequences, recompute=recompute)
    count = split.pipeline_parallel
    for index, held in enumerate(layout.stage_layers):
        stage = StageMemory(load, split, Stage(index, held, index == 0, index == count - 1))
        assert stage.itemised(layout, heaviest.reserve).total <= heaviest.total
        assert stage.peak(layout) == stage.itemised(layout, 0).total


def test_every_part_of_an_interleaved_stage_has_buffers_to_receive_in():
    """Without interleaving the first stage receives gradients alone; of two parts the second one receives both."""
    load = workload(layers=8, hidden_size=512, attention_heads=8, sequence_length=64)
    degrees = Degrees(data_parallel=1, pipeline_parallel=2)

    def received(parts: int) -> int:
        layout = Layout(
            degrees=degrees,
            microbatch_sequences=4,
            microbatches=16,
            checkpointing="Full",
            schedule="1F1B" if parts == 1 else "Interleaved1F1B",
            stage_layers=(4, 4),
            virtual_stages=parts,
        )
        stage = StageMemory(load, degrees, Stage(0, 4, first=True, last=False))
        return stage.itemised(layout, 0).communication

    whole_batch = 64 * 64 * 512 * 4
    assert received(2) - received(1) == 2 * whole_batch
    assert received(4) - received(2) == 4 * whole_batch


def test_casts_in_flight_are_those_of_a_part_of_the_stage():
    load = workload(layers=8, hidden_size=512, attention_heads=8, sequence_length=64)
    degrees = Degrees(tensor_parallel=2, pipeline_parallel=2)
    assert MemoryModel(load, degrees, (4, 4)).casts_in_flight
    stage = StageMemory(load, degrees, Stage(0, 4, first=True, last=False))
    block = load.part_elements(2, 1).block * 2

    def unsharded(parts: int) -> int:
        layout = Layout(
            degrees=degrees,
            microbatch_sequences=1,
            microbatches=64,
            checkpointing="None",
            schedule="1F1B" if parts == 1 else "Interleaved1F1B",
            stage_layers=(4, 4),
            virtual_stages=parts,
        )
        return stage.itemised(layout, 0).unsharded

    assert unsharded(1) == block + 2 * 4 * block
    assert unsharded(2) == block + 5 * 2 * block
