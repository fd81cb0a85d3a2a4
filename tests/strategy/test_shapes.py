"""Parameters and FLOPs of the decoder."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from kronos.api.training import ModelShape
from kronos.strategy import parameter_count
from kronos.strategy.layout import GIB, Workload
from kronos.strategy.shapes import elements, parameters
from support.searches import LLAMA_2_7B, LLAMA_3_8B, LLAMA_3_70B, SMALL

PUBLISHED = [
    pytest.param(LLAMA_2_7B, 6_738_415_616, id="Llama 2 7B"),
    pytest.param(LLAMA_3_8B, 8_030_261_248, id="Llama 3 8B"),
    pytest.param(LLAMA_3_70B, 70_553_706_496, id="Llama 3 70B"),
]


@pytest.mark.parametrize(("model", "published"), PUBLISHED)
def test_counts_of_published_models(model, published):
    assert parameter_count(ModelShape(**model)) == published


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("model", [SMALL, LLAMA_3_8B], ids=["multi-head", "grouped"])
def test_counts_by_hand(model, tied):
    shape = ModelShape(**model, tied_embeddings=tied)
    h, f, v = shape.hidden_size, shape.ffn_size, shape.vocabulary_size
    attention = h * h + 2 * h * (h * shape.kv_heads // shape.attention_heads) + h * h
    by_hand = v * h * (1 if tied else 2) + shape.layers * (attention + 3 * h * f + 2 * h) + h
    assert parameter_count(shape) == by_hand


@pytest.mark.parametrize("degree", [2, 4])
def test_tensor_parallelism_splits_all_but_norms(degree):
    block = parameters(ModelShape(**LLAMA_3_8B)).block
    norms = 2 * 4096
    assert elements(block, degree) == norms + (elements(block) - norms) // degree


def test_a_vocabulary_that_does_not_divide_stays_whole():
    embedding = parameters(ModelShape(**{**SMALL, "vocabulary_size": 257})).embedding
    assert elements(embedding, 2) == elements(embedding)


def test_the_first_shard_holds_the_rest_of_an_uneven_division():
    embedding = parameters(ModelShape(**{**SMALL, "vocabulary_size": 257})).embedding
    assert elements(embedding, 1, 4) == 65 * 768


def test_flops_per_token_are_six_per_matrix_weight_and_the_attention():
    # Narayanan et al., SC21, appendix: 96 B s l h^2 (1 + s / 6h + V / 16 l h) with recomputing (4 forward passes), for a
    # plain feed-forward of width 4h and attention without causal skipping; 8/3 h gated has as many weights.
    h, layers, s, v = 6144, 48, 2048, 51200
    shape = ModelShape(
        layers=layers,
        hidden_size=h,
        attention_heads=64,
        feed_forward_size=8 * h // 3,
        vocabulary_size=v,
        sequence_length=s,
    )
    load = Workload(shape, global_batch_size=1, compute_bytes=2, peak_flops=1e15, memory_bytes=GIB)
    skipped = 2 * s * h
    published = 96 * s * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h)) / s
    ours = 4 * layers * (load.block.flops + skipped) + 3 * load.head_flops
    assert ours == pytest.approx(published)


def test_tensors_are_named_once():
    parts = asdict(parameters(ModelShape(**SMALL)))
    names = [tensor["name"] for part in parts.values() for tensor in part]
    assert len(names) == len(set(names)) == 12
