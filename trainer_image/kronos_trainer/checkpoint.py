"""Sharded checkpoints that are complete or don't exist, and fit any layout.

A checkpoint is a folder `step-<number>` with the shards that torch.distributed.checkpoint writes and `checkpoint.json`,
which says what it is. It is written under another name and renamed once every rank is done.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from kronos.api.plan import CheckpointPlan, Plan
from kronos_trainer.exits import InputError
from kronos_trainer.mesh import Layout
from kronos_trainer.optimizer import AdamW
from kronos_trainer.text import TextCorpus

_MANIFEST = "checkpoint.json"
_FORMAT_VERSION = 1


class Checkpoints:
    """Saves and restores the model, the optimizer and the step; every rank must call the methods together."""

    def __init__(
        self, where: CheckpointPlan, layout: Layout, corpus: TextCorpus, model: nn.Module, optimizer: AdamW
    ) -> None:
        self._where = where
        self._root = Path(where.path)
        self._layout = layout
        self._description = describe(layout.plan, corpus)
        self._model = model
        self._optimizer = optimizer

    def save(self, step: int) -> None:
        """Save the state after `step` steps; returns once it is complete for every rank."""
        # Imported here because it costs time at the start, which plans without checkpoints needn't pay.
        from torch.distributed.checkpoint.filesystem import FileSystemWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        final, partial = self._root / _folder_name(step), self._root / f".{_folder_name(step)}.partial"
        if self._layout.leader:
            for stale in self._root.glob(".step-*.partial"):
                shutil.rmtree(stale, ignore_errors=True)
            partial.mkdir(parents=True)
        dist.barrier()
        save(self._state(), storage_writer=FileSystemWriter(partial))
        # The collective save ends on every rank only after every shard and the metadata are on disk.
        dist.barrier()
        if self._layout.leader:
            _write_durably(partial / _MANIFEST, json.dumps({"step": step, **self._description}, indent=2))
            if final.exists():
                shutil.rmtree(final)
            partial.rename(final)
            _sync_folder(self._root)
            for old in complete_steps(self._root)[: -self._where.keep]:
                shutil.rmtree(self._root / _folder_name(old), ignore_errors=True)
        dist.barrier()

    def restore(self) -> int:
        """Load the latest complete checkpoint; returns its step, 0 when there is none.

        InputError when it belongs to another model, data order or optimization.
        """
        from torch.distributed.checkpoint.filesystem import FileSystemReader
        from torch.distributed.checkpoint.state_dict_loader import load

        # One rank looks and tells, since views of a shared file system may differ for a moment.
        latest = torch.zeros(1, dtype=torch.int64, device=self._layout.device)
        if self._layout.leader and (steps := complete_steps(self._root)):
            latest[0] = steps[-1]
        dist.broadcast(latest, src=0)
        step = int(latest.item())
        if step == 0:
            return 0
        folder = self._root / _folder_name(step)
        check_same_run(folder, self._description)
        load(self._state(), storage_reader=FileSystemReader(folder))
        return step

    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            f"model.{name}": value.detach() for name, value in self._model.named_parameters()
        }
        state |= {f"optimizer.first.{name}": value for name, value in self._optimizer.first_moments.items()}
        state |= {f"optimizer.second.{name}": value for name, value in self._optimizer.second_moments.items()}
        return state


def complete_steps(root: Path) -> list[int]:
    """Steps of the complete checkpoints in a folder, oldest first."""
    return sorted(int(path.parent.name.removeprefix("step-")) for path in root.glob(f"step-*/{_MANIFEST}"))


def describe(plan: Plan, corpus: TextCorpus) -> dict[str, Any]:
    """What must be equal for a run to go on from a checkpoint; its manifest says this and the step."""
    return {
        "formatVersion": _FORMAT_VERSION,
        "model": plan.model.wire(),
        "optimization": plan.optimization.wire(),
        "data": {"format": plan.data.format, "files": len(corpus.files), "bytes": corpus.ends[-1]},
        "seed": plan.reproducibility.seed,
    }


def check_same_run(folder: Path, wanted: dict[str, Any]) -> None:
    """InputError, naming what differs, when the checkpoint in `folder` comes from another run than the one wanted."""
    try:
        found = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"The checkpoint {folder} can't be read: {error}.") from error
    differing = [key for key in wanted if found.get(key) != wanted[key]]
    if differing:
        raise InputError(
            f"The checkpoint {folder} was written with another {', '.join(differing)}; "
            "give this job its own checkpoint path, or remove the checkpoint."
        )


def _folder_name(step: int) -> str:
    return f"step-{step:010d}"


def _write_durably(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
