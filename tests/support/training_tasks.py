"""What a test may ask every rank of a gang to do (see `support.training_ranks`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from kronos.api.plan import Plan
from kronos_trainer import worker
from kronos_trainer.batches import Batches
from kronos_trainer.checkpoint import Checkpoints
from kronos_trainer.digest import weights_digest
from kronos_trainer.engine import Engine
from kronos_trainer.gradients import agree_on_totals, sum_over_replicas
from kronos_trainer.initialise import initialise, local
from kronos_trainer.mesh import Layout, build_layout, position_of
from kronos_trainer.messages import AtStep, Reporter
from kronos_trainer.model import Decoder
from kronos_trainer.optimizer import AdamW
from kronos_trainer.parallel import build_stage
from kronos_trainer.reproducible import fix_arithmetic
from kronos_trainer.text import TextCorpus, open_corpus


@dataclass
class Part:
    """A rank's part of a model before the first step."""

    layout: Layout
    corpus: TextCorpus
    model: Decoder


@contextmanager
def joined(plan: Plan, rank: int, store: str) -> Iterator[Part]:
    """Join the gang and build this rank's part."""
    fix_arithmetic(plan.reproducibility)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(store, plan.world_size),
        rank=position_of(plan, rank),
        world_size=plan.world_size,
    )
    layout = build_layout(plan, rank, torch.device("cpu"))
    model = build_stage(layout)
    initialise(model, plan.reproducibility.seed, plan.model.layers)
    yield Part(layout, open_corpus(plan.data, plan.model.sequence_length), model)
    dist.barrier()
    dist.destroy_process_group()


def train(plan: Plan, rank: int, store: str, stop_after: int | None) -> list[dict[str, Any]]:
    """Train as a launcher's rank would; returns the messages that would have gone to the launcher."""
    state = worker.RankState()
    # The last rank is the one asked to stop, since the others must learn of it.
    recorder = Recorder(state, stop_after if rank == plan.world_size - 1 else None)
    place = worker.Place(rank, rank, dist.FileStore(store, plan.world_size))
    worker.train(plan, open_corpus(plan.data, plan.model.sequence_length), place, recorder, state)
    return recorder.messages


class Recorder(Reporter):
    """Keeps messages, and asks its rank to stop when a step is done."""

    def __init__(self, state: worker.RankState, stop_after: int | None) -> None:
        self.messages: list[dict[str, Any]] = []
        self._state = state
        self._stop_after = stop_after

    def send(self, message: Any) -> None:
        """Keep a message."""
        self.messages.append(message.model_dump())
        if isinstance(message, AtStep) and message.step == self._stop_after:
            self._state.stop = True


def gradients(plan: Plan, rank: int, store: str) -> dict[str, Any]:
    """Full gradients of the first step by parameter name, as numpy arrays, from one rank per stage."""
    with joined(plan, rank, store) as part:
        layout, model = part.layout, part.model
        loss = Engine(model, layout).run(*Batches(layout, part.corpus).read(0))
        sum_over_replicas(model, layout)
        totals = agree_on_totals(model, layout, loss, stop=False)
        found = _full_gradients(model)
        if (layout.seat.dp, layout.seat.fsdp, layout.seat.tp) != (0, 0, 0):
            found = {}
        return {"gradients": found, "norm": totals.gradient_norm, "loss": totals.loss}


def held_bytes(plan: Plan, rank: int, store: str) -> dict[str, int]:
    """Bytes of this rank's tensors: weights, gradients after the first step, whole gradients before, optimizer state."""
    with joined(plan, rank, store) as part:
        layout, model = part.layout, part.model
        Engine(model, layout).run(*Batches(layout, part.corpus).read(0))
        optimizer = AdamW(model, plan.optimization)
        parameters = list(model.parameters())
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        moments = [*optimizer.first_moments.values(), *optimizer.second_moments.values()]
        return {
            "stage": layout.seat.pp,
            "weights": _bytes(parameters),
            "gradients": _bytes(gradients),
            "optimizer": _bytes(moments),
        }


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the storage on this rank; FSDP's gradients are views of one reduced buffer."""
    storages = [local(tensor.detach()).untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def initial_digest(plan: Plan, rank: int, store: str) -> str:
    """Digest of the initial weights."""
    with joined(plan, rank, store) as part:
        return weights_digest(part.model, part.layout)


def restored_digest(plan: Plan, rank: int, store: str) -> tuple[int, str]:
    """Step and digest of the latest checkpoint."""
    with joined(plan, rank, store) as part:
        assert plan.checkpoint is not None
        optimizer = AdamW(part.model, plan.optimization)
        step = Checkpoints(plan.checkpoint, part.layout, part.corpus, part.model, optimizer).restore()
        return step, weights_digest(part.model, part.layout)


def _full_gradients(model: nn.Module) -> dict[str, Any]:
    found = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        assert gradient is not None
        full = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
        found[name] = full.numpy().copy()
    return found
