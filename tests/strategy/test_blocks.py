"""What blocks of all kinds of models are made of, compute and keep."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kronos.api.plan import Degrees
from kronos.api.training import CustomShape, Experts, ModelShape, Patches
from kronos.strategy import parameter_count
from kronos.strategy.arithmetic import Arithmetic
from kronos.strategy.blocks import BlockWork, Checkpointing
from kronos.strategy.layout import GIB, Layout, Workload
from kronos.strategy.memory import MemoryModel
from kronos.strategy.optimizers import state_bytes
from kronos.strategy.recipe import KRONOS, MEGATRON, TORCHTITAN
from kronos.strategy.shapes import Tensor, active_parameter_count

MIXTRAL = ModelShape(
    layers=32,
    hidden_size=4096,
    attention_heads=32,
    key_value_heads=8,
    feed_forward_size=14336,
    experts=Experts(count=8, active=2),
    vocabulary_size=32000,
    sequence_length=4096,
)
BERT_LARGE = ModelShape(
    architecture="encoder",
    layers=24,
    hidden_size=1024,
    attention_heads=16,
    feed_forward="Plain",
    normalization="LayerNorm",
    positions="Learned",
    biases=True,
    vocabulary_size=30522,
    sequence_length=512,
    tied_embeddings=True,
)
FORECASTER = ModelShape(
    architecture="forecaster",
    layers=4,
    hidden_size=64,
    attention_heads=4,
    feed_forward_size=128,
    sequence_length=32,
    patches=Patches(length=16, channels=7, horizon=24),
)
CUSTOM = ModelShape(
    architecture="custom",
    layers=10,
    hidden_size=512,
    attention_heads=8,
    sequence_length=100,
    custom=CustomShape(
        parameters_per_layer=1000,
        flops_per_token_per_layer=102_400,
        activation_bytes_per_token_per_layer=333,
        input_parameters=50,
        output_parameters=7,
    ),
)


def test_parameters_of_a_published_mixture_of_experts():
    # Jiang et al. 2024 (Mixtral of Experts): 47 x 10^9 parameters, of which a token uses 13 x 10^9.
    assert parameter_count(MIXTRAL) == 46_702_792_704
    assert active_parameter_count(MIXTRAL) / 1e9 == pytest.approx(12.9, abs=0.05)


def test_parameters_of_an_encoder_by_hand():
    h, f, length, v = 1024, 4096, 512, 30522
    block = 4 * (h * h + h) + (h * f + f) + (f * h + h) + 2 * 2 * h
    assert parameter_count(BERT_LARGE) == v * h + length * h + 24 * block + 2 * h


def test_parameters_of_a_forecaster_by_hand():
    h = 64
    block = 4 * h * h + 3 * h * 128 + 2 * h
    inputs, outputs = 16 * 7 * h + h, 24 * 7 * h + 24 * 7
    assert parameter_count(FORECASTER) == inputs + 4 * block + h + outputs


def test_parameters_of_a_custom_model_are_those_that_it_says():
    assert parameter_count(CUSTOM) == 10 * 1000 + 50 + 7


def test_shared_experts_are_one_wide_feed_forward():
    shared = MIXTRAL.model_copy(update={"experts": Experts(count=8, active=2, shared=2)})
    more = 32 * 3 * 4096 * 2 * 14336
    assert parameter_count(shared) - parameter_count(MIXTRAL) == more
    assert active_parameter_count(shared) - active_parameter_count(MIXTRAL) == more


def work(shape: ModelShape, recipe=KRONOS) -> BlockWork:
    return BlockWork(shape, recipe, 2)


def test_flops_of_blocks_are_two_per_weight_that_a_token_meets_and_the_attention():
    h, k, f = 4096, 1024, 14336
    matrices = 2 * h * h + 2 * h * k + 2 * 3 * h * f + 8 * h
    assert work(MIXTRAL).flops == 2 * matrices + 2 * 4096 * h
    encoder = 2 * (4 * 1024**2 + 2 * 1024 * 4096) + 4 * 512 * 1024
    assert work(BERT_LARGE).flops == encoder, "an encoder's tokens see all others"
    assert work(CUSTOM).flops == 102_400


def workload(shape: ModelShape, batch: int = 8) -> Workload:
    return Workload(
        shape=shape,
        global_batch_size=batch,
        compute_bytes=2,
        peak_flops=1e12,
        memory_bytes=8 * GIB,
        bytes_per_second=1e11,
    )


def test_a_forecaster_multiplies_its_patches_where_a_decoder_looks_tokens_up():
    load = workload(FORECASTER)
    embedding, head = 2 * 16 * 7 * 64, 2 * 24 * 7 * 64
    assert load.embedding_flops == embedding
    assert load.model_flops == 32 * (3 * (4 * load.block.flops + head) + 2 * embedding)
    assert Arithmetic(load).embedding(1e6) > 2 * embedding * 1e6 / 1e12
    tokens = FORECASTER.model_copy(update={"architecture": "decoder", "patches": None})
    assert workload(tokens).embedding_flops == Arithmetic(workload(tokens)).embedding(1e6) == 0


def test_a_dear_embedding_relieves_its_pipeline_stage_of_layers():
    wide = FORECASTER.model_copy(update={"layers": 8, "patches": Patches(length=64, channels=64, horizon=1)})
    first, *_, last = workload(wide).balanced(4)
    assert first < last


def test_the_first_stage_of_a_forecaster_keeps_its_patches():
    layout = Layout(
        degrees=Degrees(),
        microbatch_sequences=1,
        microbatches=8,
        checkpointing="Full",
        schedule="None",
        stage_layers=(4,),
    )

    def activations(length: int) -> int:
        shape = FORECASTER.model_copy(update={"patches": Patches(length=length, channels=7, horizon=24)})
        return MemoryModel(workload(shape), Degrees(), (4,)).heaviest(layout).activations

    assert activations(116) - activations(16) == 100 * 7 * 2 * 32


def test_a_custom_layer_costs_what_its_user_says_whatever_the_residual_stream():
    for hidden in (64, 512, 65_536):
        shape = CUSTOM.model_copy(update={"hidden_size": hidden})
        assert work(shape).flops == 102_400
        load = workload(shape)
        forward, backward, _, _ = Arithmetic(load).block(1e6, 1, 1, False)
        streams = 333 * 1e6 / 1e11
        assert forward == pytest.approx(102_400 * 1e6 / 1e12 + 2 * 1000 / 1e11 + streams)
        assert backward == pytest.approx(2 * (102_400 * 1e6 / 1e12 + 2 * 1000 / 1e11) + 2 * streams)


SHAPES = {"experts": MIXTRAL, "encoder": BERT_LARGE, "forecaster": FORECASTER, "custom": CUSTOM}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("recipe", [KRONOS, MEGATRON, TORCHTITAN], ids=lambda recipe: recipe.name)
def test_more_checkpointing_keeps_less(name, recipe):
    block = work(SHAPES[name], recipe)
    kinds: tuple[Checkpointing, ...] = ("None", "Selective", "Full")
    for split in (False, True):
        kept = [block.kept_bytes(kind, 4, split) for kind in kinds]
        if name != "custom":
            assert kept == sorted(kept, reverse=True)
            assert kept[0] > kept[2]


@given(
    st.sampled_from(sorted(SHAPES)),
    st.sampled_from([KRONOS, MEGATRON, TORCHTITAN]),
    st.sampled_from(["None", "Selective", "Full"]),
    st.booleans(),
    st.sampled_from([1, 2, 4]),
)
def test_wider_tensor_groups_and_split_sequences_never_keep_more(name, recipe, kind, split, degree):
    block = work(SHAPES[name], recipe)
    assert block.kept_bytes(kind, 2 * degree, split) <= block.kept_bytes(kind, degree, split)
    assert block.kept_bytes(kind, degree, True) <= block.kept_bytes(kind, degree, False)


def test_dropout_and_unfused_attention_cost_what_they_keep():
    plain = BlockWork(BERT_LARGE, replace(MEGATRON, dropout=False), 2).kept_bytes("None", 1, False)
    masks = 2 * 1024 + 16 * 512 * (2 + 1)
    assert BlockWork(BERT_LARGE, MEGATRON, 2).kept_bytes("None", 1, False) - plain == masks


MATRIX = Tensor("w", 1000, 500, "rows")
NORM = Tensor("norm", 1000, 1, "none")


@pytest.mark.parametrize(
    ("optimizer", "matrix", "norm"),
    [
        pytest.param("AdamW", 8 * 500_000, 8000, id="two moments"),
        pytest.param("SGD", 4 * 500_000, 4000, id="one momentum"),
        pytest.param("Adafactor", 4 * 1500, 4000, id="rows and columns"),
        pytest.param("Muon", 4 * 500_000, 8000, id="one momentum for matrices, two moments for the rest"),
        pytest.param(
            "AdamW8bit", 2 * 500_000 + 8 * 1954, 8000, id="8 bits, and scales; small tensors in full"
        ),
    ],
)
def test_state_of_optimizers(optimizer: Any, matrix: int, norm: int):
    assert state_bytes(optimizer, MATRIX, (1, 1000, 500), in_block=True) == matrix
    assert state_bytes(optimizer, NORM, (1, 1000, 1), in_block=True) == norm


def test_muon_gives_embeddings_the_state_of_adamw():
    assert state_bytes("Muon", MATRIX, (1, 1000, 500), in_block=False) == 8 * 500_000
