"""Settings that fix the arithmetic of one layout."""

from __future__ import annotations

import os

import torch

from kronos.api.training import Reproducibility
from kronos_trainer.environment import THREADS_VARIABLE


def fix_arithmetic(reproducibility: Reproducibility) -> None:
    """Pin threads and seeds of this process and, when asked to, allow deterministic algorithms only."""
    torch.set_num_threads(int(os.environ.get(THREADS_VARIABLE, "1")))
    torch.manual_seed(reproducibility.seed)
    if reproducibility.mode == "Deterministic":
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
        # Filling fresh memory would only guard against reads of garbage, at a cost on every allocation.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
