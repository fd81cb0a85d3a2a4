"""Turning a model into this rank's part of it: tensor parallelism, then sharding."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from kronos_trainer.mesh import Layout
from kronos_trainer.model import Block, Decoder, Embedding, Head, stage_range
from kronos_trainer.tensor_parallel import split_weight


def build_stage(layout: Layout) -> Decoder:
    """The part of the model that this rank holds, on its device, with memory but without values."""
    plan = layout.plan
    with torch.device("meta"):
        model = Decoder(
            plan.model,
            stage_range(plan.stage_layers, layout.seat.pp),
            first=layout.first_stage,
            last=layout.last_stage,
            recompute=plan.activation_checkpointing,
        )
    tensor_mesh = layout.submesh("tp")
    if tensor_mesh is not None:
        _split_tensors(model, tensor_mesh, splits_vocabulary(layout))
    if plan.degrees.sharded_data_parallel > 1:
        _shard(model, layout)
    model.to_empty(device=layout.device)
    return model


def splits_vocabulary(layout: Layout) -> bool:
    """Whether embedding and head are split over the tensor-parallel ranks: when the vocabulary divides evenly."""
    tensor = layout.plan.degrees.tensor_parallel
    return tensor > 1 and layout.plan.model.vocabulary_size % tensor == 0


def _split_tensors(model: Decoder, mesh: DeviceMesh, vocabulary: bool) -> None:
    """Split outputs, then inputs in each half of a block, so that nothing is exchanged in between."""
    for block in model.layers.values():
        assert isinstance(block, Block)
        attention, feed_forward = block.attention, block.feed_forward
        for module in (attention.wq, attention.wk, attention.wv, feed_forward.gate, feed_forward.up):
            split_weight(module, mesh, 0)
        for module in (attention.wo, feed_forward.down):
            split_weight(module, mesh, 1)
    if vocabulary:
        for matrix in (model.embedding, model.head):
            if isinstance(matrix, Embedding | Head):
                split_weight(matrix, mesh, 0)


def _shard(model: Decoder, layout: Layout) -> None:
    """Shard each block, then the rest; with replicas too, shards live inside a replica (hybrid sharding)."""
    plan = layout.plan
    mesh = layout.submesh("dp", "fsdp")
    assert mesh is not None
    half = plan.optimization.precision == "bf16"
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if half else None,
        reduce_dtype=torch.float32,
        # Autocast decides the type of each operation, as on the layouts without sharding.
        cast_forward_inputs=False,
    )
    # A pipeline stage runs many microbatches per step: gathering its weights once beats gathering for each.
    reshard = plan.degrees.pipeline_parallel == 1
    modules: list[nn.Module] = [*model.layers.values(), model]
    for module in modules:
        sharded = fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
        assert isinstance(sharded, FSDPModule)
        # The loss is already divided by the tokens of the global batch: gradients are plain sums.
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)
