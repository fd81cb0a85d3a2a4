"""AdamW with its state held by parameter name, so that a checkpoint fits any layout; and the learning rate."""

from __future__ import annotations

from math import cos, pi

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from kronos.api.training import Optimization
from kronos_trainer.initialise import local

_BETA1, _BETA2, _EPSILON = 0.9, 0.95, 1e-8


def learning_rate(optimization: Optimization, step: int) -> float:
    """Learning rate of a step (from 0): a linear warm-up, then a cosine that ends at the last step."""
    peak, warmup = optimization.learning_rate, optimization.warmup_steps
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup + 1) / max(1, optimization.steps - warmup)
    floor = optimization.minimum_learning_rate_ratio
    return peak * (floor + (1 - floor) * (1 + cos(pi * min(1.0, progress))) / 2)


class AdamW:
    """Decoupled weight decay on matrices; norms are not decayed. Works on local shards."""

    def __init__(self, model: nn.Module, optimization: Optimization) -> None:
        self._optimization = optimization
        self._parameters = dict(model.named_parameters())
        self.first_moments = {name: torch.zeros_like(value) for name, value in self._parameters.items()}
        self.second_moments = {name: torch.zeros_like(value) for name, value in self._parameters.items()}

    @torch.no_grad()
    def step(self, step: int) -> None:
        """Update the parameters from their gradients and drop these; `step` counts from 0."""
        for matrices in (True, False):
            names = [name for name, value in self._parameters.items() if (value.dim() > 1) == matrices]
            if names:
                self._update(names, step, self._optimization.weight_decay if matrices else 0.0)
        for parameter in self._parameters.values():
            parameter.grad = None

    def _update(self, names: list[str], step: int, decay: float) -> None:
        parameters = [local(self._parameters[name]) for name in names]
        adamw(
            parameters,
            [_gradient(self._parameters[name]) for name in names],
            [local(self.first_moments[name]) for name in names],
            [local(self.second_moments[name]) for name in names],
            [],
            # The update adds one before it corrects the bias.
            [torch.tensor(float(step), device=parameter.device) for parameter in parameters],
            fused=True,
            amsgrad=False,
            beta1=_BETA1,
            beta2=_BETA2,
            lr=learning_rate(self._optimization, step),
            weight_decay=decay,
            eps=_EPSILON,
            maximize=False,
        )


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return local(parameter.grad)
