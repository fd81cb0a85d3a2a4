"""What a trainer can do: the search weighs nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from kronos.api.job import TrainingJobSpec
from kronos.api.plan import Schedule
from kronos.strategy.blocks import Checkpointing


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """Models that can be built and ways in which they can be split."""

    every_model: bool
    """Else only decoders with rotary positions, RMSNorm and a gated feed-forward without biases or experts."""
    optimizers: tuple[str, ...]
    schedules: tuple[Schedule, ...]
    """Pipeline schedules, in the order in which they are preferred where equally good."""
    checkpointing: tuple[Checkpointing, ...]
    """From what costs no time to what keeps least."""
    sequence_parallel: bool
    """Tensor ranks split norms and residuals, too."""
    context_parallel: bool
    expert_parallel: bool
    certified: bool
    """Arithmetic that keeps a canonical structure on every layout."""

    def lacks(self, spec: TrainingJobSpec) -> str | None:
        """One sentence about something in a job that the trainer can't do, if there is something."""
        model = spec.model
        if not self.every_model:
            wanted = (
                ("architecture", model.architecture, "decoder"),
                ("feedForward", model.feed_forward, "Gated"),
                ("normalization", model.normalization, "RMSNorm"),
                ("positions", model.positions, "Rotary"),
                ("biases", str(model.biases).lower(), "false"),
                ("experts", "set" if model.experts else "unset", "unset"),
            )
            for field, value, known in wanted:
                if value != known:
                    if field in ("architecture", "experts"):
                        # Another model altogether, which nobody gets by changing a field.
                        kind = "models with experts" if field == "experts" else f"{value} models"
                        return (
                            f"this version's trainer can't build {kind}, only decoders without experts; train it with "
                            "another trainer, for which `kubectl kronos plan --any-trainer` plans"
                        )
                    return f"this version's trainer can't build a model with {field} {value}; set model.{field} to {known}"
        if spec.optimization.optimizer not in self.optimizers:
            known_ones = " or ".join(self.optimizers)
            return (
                f"this version's trainer has no optimizer {spec.optimization.optimizer}; change "
                f"optimization.optimizer to {known_ones}"
            )
        if spec.reproducibility.mode == "Certified" and not self.certified:
            return (
                "this version's trainer can't run reproducibility.mode Certified; use Deterministic, which gives the same bits "
                "on the same layout"
            )
        for field, degree, able in (
            ("contextParallel", spec.strategy.context_parallel, self.context_parallel),
            ("expertParallel", spec.strategy.expert_parallel, self.expert_parallel),
        ):
            if (degree or 1) > 1 and not able:
                return f"this version's trainer can't run strategy.{field} {degree}; drop it"
        return None


TRAINER = Abilities(
    every_model=False,
    optimizers=("AdamW",),
    schedules=("1F1B", "GPipe"),
    checkpointing=("None", "Full"),
    sequence_parallel=False,
    context_parallel=False,
    expert_parallel=False,
    certified=False,
)
"""What `kronos_trainer` can do today."""

EVERYTHING = Abilities(
    every_model=True,
    optimizers=("AdamW", "AdamW8bit", "SGD", "Adafactor", "Muon"),
    schedules=("1F1B", "Interleaved1F1B", "ZeroBubble", "GPipe"),
    checkpointing=("None", "Selective", "Full"),
    sequence_parallel=True,
    context_parallel=True,
    expert_parallel=True,
    certified=True,
)
"""All that the planner can weigh, for plans that another trainer carries out."""
