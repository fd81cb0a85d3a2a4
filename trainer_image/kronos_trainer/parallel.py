"""Turning a model into this rank's part of it: tensor parallelism, then sharding."""

from __future__ import annotations

import warnings

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    RowwiseParallel,
    parallelize_module,
)

from kronos_trainer.mesh import Layout
from kronos_trainer.model import Decoder, TiedHead, stage_range


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
    """Column-wise, then row-wise in each half of a block: one all-reduce forward and one backward per half."""
    style: dict[str, ParallelStyle] = {
        "attention.wq": ColwiseParallel(),
        "attention.wk": ColwiseParallel(),
        "attention.wv": ColwiseParallel(),
        "attention.wo": RowwiseParallel(),
        "feed_forward.gate": ColwiseParallel(),
        "feed_forward.up": ColwiseParallel(),
        "feed_forward.down": RowwiseParallel(),
        # One conversion of the shared input, so that its gradient is summed once and not per projection.
        "attention": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate()),
        "feed_forward": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate()),
    }
    for block in model.layers.values():
        parallelize_module(block, mesh, style)
    if vocabulary and model.embedding is not None:
        rows = distribute_tensor(model.embedding.weight, mesh, [Shard(0)], src_data_rank=None)
        model.embedding.weight = nn.Parameter(rows)
    if vocabulary and model.head is not None:
        head: ParallelStyle = ColwiseParallel()
        if isinstance(model.head, TiedHead):
            head = PrepareModuleInputOutput(
                input_layouts=Replicate(),
                desired_input_layouts=Replicate(),
                output_layouts=Shard(-1),
                desired_output_layouts=Shard(-1),
            )
        parallelize_module(model.head, mesh, head)


def _shard(model: Decoder, layout: Layout) -> None:
    """Shard each block, then the rest; with replicas too, shards live inside a replica (hybrid sharding)."""
    # The split head returns its local logits as a view, which torch warns about since changing it in place would break
    # the backward pass; the loss doesn't.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor", UserWarning)
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
