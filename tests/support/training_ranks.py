"""Runs the ranks of a plan as real processes without a launcher, for tests that compare layouts.

Ranks are forked from a server that has loaded torch once, so that a gang of eight starts in about a second.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from kronos.api.plan import Plan

_PRELOADED = [
    "kronos_trainer.member",
    "torch.distributed.pipelining",
    "torch.distributed.checkpoint",
    "torch.distributed.checkpoint.filesystem",
    "support.training_tasks",
]
_GANG_SECONDS = 100


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

    def each(self, plan: Plan, task: str, **options: Any) -> list[Any]:
        """Run a function of `support.training_tasks` in every rank of a plan at once; returns their results by rank.

        It is named and not given, since its module loads torch, which only ranks should do.
        """
        with tempfile.TemporaryDirectory() as folder:
            ends, processes = [], []
            for rank in range(plan.world_size):
                receiver, sender = self._context.Pipe(duplex=False)
                arguments = (task, plan.model_dump_json(), rank, f"{folder}/store", options, sender)
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
        messages = self.each(plan, "train", stop_after=stop_after)[0]
        reports = [message["progress"] for message in messages if message["kind"] == "progress"]
        ended = [message for message in messages if message["kind"] == "ended"]
        losses = {report["step"]: report["loss"] for report in reports if report["loss"] is not None}
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


def _run_task(
    task: str, plan: str, rank: int, store: str, options: dict[str, Any], sender: Connection
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        run = getattr(import_module("support.training_tasks"), task)
        sender.send((True, run(Plan.model_validate_json(plan), rank, store, **options)))
    except Exception:
        sender.send((False, traceback.format_exc()))
    sender.close()
    # Threads of native libraries may outlive the work.
    os._exit(0)
