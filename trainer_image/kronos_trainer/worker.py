"""One rank: builds its part of the model, trains, reports."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from math import isfinite

import torch
import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from kronos.api.plan import Plan, Progress
from kronos_trainer.batches import Batches
from kronos_trainer.checkpoint import Checkpoints
from kronos_trainer.digest import weights_digest
from kronos_trainer.engine import Engine
from kronos_trainer.gradients import StepTotals, agree_on_totals, clip, sum_over_replicas
from kronos_trainer.initialise import initialise
from kronos_trainer.log import logger
from kronos_trainer.mesh import Layout, build_layout, position_of
from kronos_trainer.messages import Advanced, AtStep, Ended, Reporter
from kronos_trainer.model import Decoder
from kronos_trainer.optimizer import AdamW, learning_rate
from kronos_trainer.parallel import build_stage
from kronos_trainer.reproducible import fix_arithmetic
from kronos_trainer.text import TextCorpus

_RECENT_STEPS = 10
_LOG_SECONDS = 1.0


@dataclass
class RankState:
    """What must be known when a rank fails."""

    step: int | None = None
    """Steps done; None until training can begin."""
    stop: bool = False
    """Set by SIGTERM: end after the current step."""

    def listen(self) -> None:
        """Take SIGTERM as the wish to stop after the current step."""

        def ask(*_: object) -> None:
            self.stop = True

        signal.signal(signal.SIGTERM, ask)


@dataclass(frozen=True)
class Place:
    """Who a rank is and how it reaches the others."""

    rank: int
    local_rank: int
    store: Store


def train(plan: Plan, corpus: TextCorpus, place: Place, reporter: Reporter, state: RankState) -> None:
    """Train as one rank until the last step or until any rank is asked to stop; raises what goes wrong."""
    fix_arithmetic(plan.reproducibility)
    device = _claim_device(place.local_rank)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        store=place.store,
        rank=position_of(plan, place.rank),
        world_size=plan.world_size,
        timeout=timedelta(seconds=plan.collective_timeout_seconds),
    )
    Training(plan, corpus, build_layout(plan, place.rank, device), reporter, state).run()
    # Nobody leaves while another still needs the connection. After a failure nothing is tidied up: that may hang when
    # the others are gone, and the process ends anyway.
    dist.barrier()
    dist.destroy_process_group()


class Training:
    """The training loop of one rank."""

    def __init__(
        self, plan: Plan, corpus: TextCorpus, layout: Layout, reporter: Reporter, state: RankState
    ) -> None:
        self._plan = plan
        self._layout = layout
        self._reporter = reporter
        self._state = state
        self._corpus = corpus
        self._batches = Batches(layout, corpus)
        self.model: Decoder = build_stage(layout)
        initialise(self.model, plan.reproducibility.seed, plan.model.layers)
        self._engine = Engine(self.model, layout)
        self._optimizer = AdamW(self.model, plan.optimization)
        self._checkpoints = None
        if plan.checkpoint is not None:
            self._checkpoints = Checkpoints(plan.checkpoint, layout, corpus, self.model, self._optimizer)
        self._saved: int | None = None
        self._began = 0
        self._pace = _Pace(plan.optimization.global_batch_size * plan.model.sequence_length)

    def run(self) -> None:
        """Resume, train, save, digest."""
        steps = self._plan.optimization.steps
        done = 0
        if self._checkpoints is not None and (done := self._checkpoints.restore()):
            self._saved = self._began = done
        self._state.step = done
        self._log_start(done)
        progress = Progress(step=done, began_at_step=done, checkpoint_step=self._saved)
        self._publish(progress)
        self._pace.begin()
        stopping = False
        while done < steps and not stopping:
            totals = self._step(done)
            done += 1
            self._state.step = done
            stopping = totals.stop and done < steps
            self._save_if_due(done, stopping)
            progress = self._report(done, totals)
        if not stopping:
            digest = weights_digest(self.model, self._layout)
            self._publish(progress.model_copy(update={"digest": digest}))
        self._reporter.send(Ended(stopped=stopping))

    def _step(self, step: int) -> StepTotals:
        optimization = self._plan.optimization
        loss = self._engine.run(*self._batches.read(step))
        sum_over_replicas(self.model, self._layout)
        totals = agree_on_totals(self.model, self._layout, loss, self._state.stop)
        if not (isfinite(totals.loss) and isfinite(totals.gradient_norm)):
            raise FloatingPointError(
                f"the loss is {totals.loss} and the gradient norm {totals.gradient_norm} in step {step + 1}"
            )
        clip(self.model, totals.gradient_norm, optimization.gradient_clip_norm)
        self._optimizer.step(step)
        return totals

    def _save_if_due(self, done: int, stopping: bool) -> None:
        if self._checkpoints is None:
            return
        assert self._plan.checkpoint is not None
        if stopping or done == self._plan.optimization.steps or done % self._plan.checkpoint.every_steps == 0:
            self._checkpoints.save(done)
            self._saved = done

    def _report(self, done: int, totals: StepTotals) -> Progress:
        self._reporter.send(AtStep(step=done))
        seconds = self._pace.step_seconds()
        speed = self._pace.tokens_per_step / seconds
        progress = Progress(
            step=done,
            began_at_step=self._began,
            loss=totals.loss,
            tokens_per_second=speed,
            step_seconds=seconds,
            checkpoint_step=self._saved,
        )
        self._publish(progress)
        steps = self._plan.optimization.steps
        if self._layout.rank == 0 and (done in (1, steps) or self._pace.time_to_log()):
            rate = learning_rate(self._plan.optimization, done - 1)
            logger.info(
                "step %d/%d loss %.4f lr %.3g norm %.3g tokens/s %.0f",
                *(done, steps, totals.loss, rate, totals.gradient_norm, speed),
            )
        return progress

    def _publish(self, progress: Progress) -> None:
        if self._layout.rank == 0:
            self._reporter.send(Advanced(progress=progress))

    def _log_start(self, done: int) -> None:
        if self._layout.rank == 0:
            logger.info(
                "training %s as %s from step %d, %d sequences of %d tokens",
                self._plan.job,
                self._plan.degrees.summary,
                done,
                self._corpus.sequences,
                self._corpus.length,
            )


class _Pace:
    """How fast the last steps were."""

    def __init__(self, tokens_per_step: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.tokens_per_step = tokens_per_step
        self._clock = clock
        self._ends: deque[float] = deque(maxlen=_RECENT_STEPS + 1)
        self._logged = clock()

    def begin(self) -> None:
        """The first step starts now."""
        self._ends.append(self._clock())

    def step_seconds(self) -> float:
        """A step has ended: mean wall time of the recent ones, saving included."""
        self._ends.append(self._clock())
        return max(1e-9, (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1))

    def time_to_log(self) -> bool:
        """Whether the last line is long enough ago; then the next one counts from now."""
        due = self._clock() - self._logged >= _LOG_SECONDS
        if due:
            self._logged = self._clock()
        return due


def _claim_device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)
