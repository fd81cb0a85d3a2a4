"""One forward and backward pass over all microbatches of a step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from kronos.api.plan import Plan
from kronos_trainer.mesh import Layout
from kronos_trainer.model import Decoder
from kronos_trainer.parallel import splits_vocabulary
from kronos_trainer.vocabulary import token_loss_sum


class Engine:
    """Runs a step on one stage, or on the whole model when there is one; leaves summed gradients behind."""

    def __init__(self, model: Decoder, layout: Layout) -> None:
        plan = layout.plan
        self._model = model
        self._layout = layout
        self._tokens = plan.optimization.global_batch_size * plan.model.sequence_length
        self._vocabulary_group = layout.group("tp") if splits_vocabulary(layout) else None
        self._pipeline = _Pipeline(model, layout, self._loss) if plan.degrees.pipeline_parallel > 1 else None

    def run(self, inputs: Tensor | None, targets: Tensor | None) -> Tensor | None:
        """Forward and backward over this batch rank's sequences.

        inputs, targets: token ids (sequences, length); inputs are needed on the first stage, targets on the last.
        Returns this batch rank's part of the mean loss over the global batch (a scalar), None off the last stage.
        """
        half = self._layout.plan.optimization.precision == "bf16"
        with torch.autocast(self._layout.device.type, torch.bfloat16) if half else nullcontext():
            if self._pipeline is not None:
                return self._pipeline.run(inputs, targets)
            assert inputs is not None
            assert targets is not None
            return self._run_whole(inputs, targets)

    def _run_whole(self, inputs: Tensor, targets: Tensor) -> Tensor:
        size = self._layout.plan.microbatch_sequences
        losses = []
        for start in range(0, len(inputs), size):
            if isinstance(self._model, FSDPModule):
                last = start + size == len(inputs)
                self._model.set_requires_gradient_sync(last)
                self._model.set_is_last_backward(last)
            # Without a name for the logits, which are the largest tensor of all, they go as soon as autograd lets go of them.
            loss = self._loss(self._model(inputs[start : start + size]), targets[start : start + size])
            loss.backward()
            losses.append(loss.detach())
        return torch.stack(losses).sum(dtype=torch.float64)

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return token_loss_sum(logits, targets, self._vocabulary_group) / self._tokens


class _Pipeline:
    """The schedule of torch.distributed.pipelining over this rank's stage."""

    def __init__(self, model: Decoder, layout: Layout, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        # Imported here because it costs half a second, which plans without a pipeline needn't pay.
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

        plan = layout.plan
        group = layout.group("pp")
        assert group is not None
        shapes = _stage_shapes(plan, layout)
        stage = PipelineStage(
            model,
            layout.seat.pp,
            dist.get_world_size(group),
            layout.device,
            input_args=shapes[0],
            output_args=shapes[1],
            group=group,
        )
        schedule = Schedule1F1B if plan.schedule == "1F1B" else ScheduleGPipe
        self._layout = layout
        # Losses are already divided by the tokens of the global batch.
        self._schedule = schedule(stage, plan.microbatches, loss_fn=loss, scale_grads=False)

    def run(self, inputs: Tensor | None, targets: Tensor | None) -> Tensor | None:
        losses: list[Tensor] = []
        self._schedule.step(
            *(() if inputs is None else (inputs,)), target=targets, losses=losses, return_outputs=False
        )
        if not self._layout.last_stage:
            return None
        return torch.stack([loss.detach() for loss in losses]).sum(dtype=torch.float64)


def _stage_shapes(plan: Plan, layout: Layout) -> tuple[Tensor, Tensor]:
    """What enters and leaves a stage for one microbatch, as tensors without memory."""
    rows, length = plan.microbatch_sequences, plan.model.sequence_length
    hidden = torch.empty(rows, length, plan.model.hidden_size, device="meta", requires_grad=True)
    tokens = torch.empty(rows, length, dtype=torch.int64, device="meta")
    split = plan.degrees.tensor_parallel if splits_vocabulary(layout) else 1
    half = plan.optimization.precision == "bf16"
    logits = torch.empty(
        rows,
        length,
        plan.model.vocabulary_size // split,
        dtype=torch.bfloat16 if half else torch.float32,
        device="meta",
        requires_grad=True,
    )
    return tokens if layout.first_stage else hidden, logits if layout.last_stage else hidden
