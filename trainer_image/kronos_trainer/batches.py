"""The part of the global batch that one rank works on."""

from __future__ import annotations

import torch
from torch import Tensor

from kronos_trainer.mesh import Layout
from kronos_trainer.sampler import Sampler
from kronos_trainer.text import TextCorpus


class Batches:
    """Reads this rank's sequences of any step; the global batch of a step is the same on every layout."""

    def __init__(self, layout: Layout, corpus: TextCorpus) -> None:
        plan = layout.plan
        self._layout = layout
        self._corpus = corpus
        self._share = plan.microbatches * plan.microbatch_sequences
        self._sampler = Sampler(
            corpus.sequences, plan.optimization.global_batch_size, plan.reproducibility.seed
        )

    def read(self, step: int) -> tuple[Tensor | None, Tensor | None]:
        """Inputs and targets for a step (from 0), each (sequences, length), where this rank's stage needs them."""
        first, last = self._layout.first_stage, self._layout.last_stage
        if not (first or last):
            return None, None
        start = self._layout.batch_rank * self._share
        rows = bytearray()
        for slot in range(start, start + self._share):
            rows += self._corpus.read(self._sampler.sequence(step, slot))
        tokens = torch.frombuffer(rows, dtype=torch.uint8).view(self._share, -1)
        tokens = tokens.to(device=self._layout.device, dtype=torch.int64)
        return (tokens[:, :-1] if first else None), (tokens[:, 1:] if last else None)
