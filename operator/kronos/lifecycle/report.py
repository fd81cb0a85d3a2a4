"""What people read about the strategy and the progress, from what was chosen and what was reported."""

from __future__ import annotations

from dataclasses import fields

from kronos.api.plan import Progress
from kronos.api.status import MemoryGiB, Predicted, ProgressStatus, StepBreakdown, StrategyStatus
from kronos.lifecycle.queueing import Reservation

_GIB = 2**30


def progress_status(
    progress: Progress, steps: int, attempt: int, strategy: StrategyStatus | None
) -> ProgressStatus:
    """A report of the trainer as status, with the time that is left at its recent pace, and how wrong the prediction was."""
    error = None
    if progress.step_seconds is not None and strategy is not None and strategy.predicted.step_seconds > 0:
        error = f"{progress.step_seconds / strategy.predicted.step_seconds - 1:+.0%}"
    left = (steps - progress.step) * progress.step_seconds if progress.step_seconds is not None else None
    return ProgressStatus(
        attempt=attempt,
        began_at_step=progress.began_at_step,
        step=progress.step,
        steps=steps,
        loss=progress.loss,
        tokens_per_second=progress.tokens_per_second,
        measured_step_seconds=progress.step_seconds,
        prediction_error=error,
        time_left=_duration(left) if left is not None else None,
        checkpoint_step=progress.checkpoint_step,
        digest=progress.digest,
    )


def _duration(seconds: float) -> str:
    whole = max(0, round(seconds))
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"


def strategy_status(reservation: Reservation) -> StrategyStatus:
    """The chosen strategy as status."""
    candidate = reservation.candidate
    assert reservation.search.bottleneck is not None, "a search with candidates knows what limits the job"
    memory, time, factor = candidate.memory, reservation.time, reservation.correction
    return StrategyStatus(
        summary=candidate.degrees.summary,
        bottleneck=reservation.search.bottleneck,
        world_size=candidate.degrees.world_size,
        degrees=candidate.degrees,
        schedule=candidate.schedule,
        microbatch_sequences=candidate.microbatch_sequences,
        microbatches=candidate.microbatches,
        activation_checkpointing=candidate.activation_checkpointing,
        stage_layers=candidate.stage_layers,
        predicted=Predicted(
            step_seconds=_figures(factor * time.total),
            correction=factor,
            tokens_per_second=_figures(candidate.tokens / (factor * time.total)),
            utilization=_figures(candidate.utilization * candidate.time.total / (factor * time.total)),
            breakdown=StepBreakdown(
                **{item.name: _figures(factor * getattr(time, item.name)) for item in fields(time)}
            ),
            memoryGiB=MemoryGiB(
                **{item.name: _figures(getattr(memory, item.name) / _GIB) for item in fields(memory)},
                total=_figures(memory.total / _GIB),
                limit=reservation.memory_limit_gib,
            ),
        ),
        runner_up=reservation.runner_up,
        alternatives=tuple(
            f"{other.degrees.summary}: {other.reason}" for other in reservation.alternatives[:5]
        ),
        pays_up_to=reservation.pays_up_to,
    )


def _figures(value: float) -> float:
    """Four significant figures: predictions deserve no more."""
    return float(f"{value:.4g}")
