"""Runs the ranks of a plan as real processes without a launcher, for tests that compare layouts.

Ranks are forked from a server that has loaded torch once, so that a gang of eight starts in about a second.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from kronos.api.plan import Plan

_PRELOADED = [
    "kronos_trainer.member",
    "torch.distributed.pipelining",
    "torch.distributed.checkpoint",
    "torch.distributed.checkpoint.filesystem",
    "support.training_ranks",
]
_GANG_SECONDS = 100

RankTask = Callable[[Plan, int, str], Any]
"""Called in each rank's process with the plan, the rank and a path for the store; returns something to pickle."""


@dataclass(frozen=True)
class Run:
    """What a gang reported."""

    losses: dict[int, float]
    """Loss by step, counted from 1."""
    digest: str | None
    stopped: bool
    first_step: int
    """The first step of this run; more than 1 when it resumed."""


class Ranks:
    """Starts gangs, one at a time."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOADED)

    def each(self, plan: Plan, task: RankTask) -> list[Any]:
        """Run a task in every rank of a plan at once; returns their results by rank, or fails with a traceback."""
        with tempfile.TemporaryDirectory() as folder:
            ends, processes = [], []
            for rank in range(plan.world_size):
                receiver, sender = self._context.Pipe(duplex=False)
                arguments = (task, plan.model_dump_json(), rank, f"{folder}/store", sender)
                process = self._context.Process(target=_run_task, args=arguments, daemon=True)
                process.start()
                sender.close()
                ends.append(receiver)
                processes.append(process)
            try:
                return self._collect(ends)
            finally:
                for process in processes:
                    process.kill()
                    process.join()

    def train(self, plan: Plan, stop_after: int | None = None) -> Run:
        """Train as the plan says; with `stop_after`, one rank is asked to stop during the step after that one."""
        task = _Train(stop_after)
        results = self.each(plan, task)
        messages = results[0]
        reports = [message["progress"] for message in messages if message["kind"] == "progress"]
        ended = [message for message in messages if message["kind"] == "ended"]
        losses = {report["step"]: report["loss"] for report in reports}
        return Run(losses, reports[-1].get("digest"), ended[0]["stopped"], min(losses))

    def _collect(self, ends: list[Connection]) -> list[Any]:
        results: dict[int, Any] = {}
        while len(results) < len(ends):
            ready = wait([end for rank, end in enumerate(ends) if rank not in results], _GANG_SECONDS)
            assert ready, f"ranks {sorted(set(range(len(ends))) - set(results))} hang"
            for end in ready:
                try:
                    good, value = end.recv()
                except EOFError:
                    good, value = False, "died without a word"
                rank = ends.index(end)
                assert good, f"rank {rank}: {value}"
                results[rank] = value
        return [results[rank] for rank in range(len(ends))]


@contextmanager
def rank_server() -> Iterator[Ranks]:
    """The server, in an environment like a launcher's; the environment of this process is put back afterwards."""
    from multiprocessing import forkserver

    from kronos_trainer.environment import prepare_environment

    before = dict(os.environ)
    root = Path(__file__).resolve().parents[2]
    folders = [str(root / "operator"), str(root / "trainer_image"), str(root / "tests")]
    os.environ["PYTHONPATH"] = os.pathsep.join(folders)
    prepare_environment(os.environ, "127.0.0.1")
    try:
        ranks = Ranks()
        forkserver.ensure_running()
        yield ranks
    finally:
        forkserver._forkserver._stop()
        os.environ.clear()
        os.environ.update(before)


def _run_task(task: RankTask, plan: str, rank: int, store: str, sender: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        sender.send((True, task(Plan.model_validate_json(plan), rank, store)))
    except Exception:
        sender.send((False, traceback.format_exc()))
    sender.close()
    # Threads of native libraries may outlive the work.
    os._exit(0)


class _Train:
    def __init__(self, stop_after: int | None) -> None:
        self._stop_after = stop_after

    def __call__(self, plan: Plan, rank: int, store: str) -> list[dict[str, Any]]:
        from torch.distributed import FileStore

        from kronos_trainer import worker
        from kronos_trainer.text import open_corpus

        state = worker.RankState()
        reporter = _Recorder(state, self._stop_after if rank == plan.world_size - 1 else None)
        corpus = open_corpus(plan.data, plan.model.sequence_length)
        place = worker.Place(rank, rank, FileStore(store, plan.world_size))
        worker.train(plan, corpus, place, reporter, state)
        return reporter.messages


class _Recorder:
    """Takes the place of the pipe to the launcher."""

    def __init__(self, state: Any, stop_after: int | None) -> None:
        self.messages: list[dict[str, Any]] = []
        self._state = state
        self._stop_after = stop_after

    def send(self, message: Any) -> None:
        data = json.loads(message.model_dump_json())
        self.messages.append(data)
        if data["kind"] == "step" and data["step"] == self._stop_after:
            self._state.stop = True


def gradients(plan: Plan, rank: int, store: str) -> dict[str, Any]:
    """A `RankTask`: full gradients of the first step by parameter name, as numpy arrays, from one rank per stage."""
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor

    from kronos_trainer.batches import Batches
    from kronos_trainer.engine import Engine
    from kronos_trainer.gradients import agree_on_totals, sum_over_replicas
    from kronos_trainer.initialise import initialise
    from kronos_trainer.mesh import build_layout, position_of
    from kronos_trainer.parallel import build_stage
    from kronos_trainer.reproducible import fix_arithmetic
    from kronos_trainer.text import open_corpus

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
    batches = Batches(layout, open_corpus(plan.data, plan.model.sequence_length))
    loss = Engine(model, layout).run(*batches.read(0))
    sum_over_replicas(model, layout)
    totals = agree_on_totals(model, layout, loss, stop=False)
    found: dict[str, Any] = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        assert gradient is not None
        full = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
        if (layout.seat.dp, layout.seat.fsdp, layout.seat.tp) == (0, 0, 0):
            found[name] = full.numpy().copy()
    dist.barrier()
    dist.destroy_process_group()
    return {"gradients": found, "norm": totals.gradient_norm, "loss": totals.loss}
