"""A layout that fits, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kronos.api.plan import Degrees
from kronos.strategy.communication import AxisTraffic
from kronos.strategy.layout import Layout
from kronos.strategy.memory import MemoryBreakdown
from kronos.strategy.timing import StepTime

Objective = Literal["Time", "Efficiency", "Memory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate(Layout):
    """A layout that fits, with what it is predicted to cost."""

    memory: MemoryBreakdown
    time: StepTime
    traffic: AxisTraffic
    tokens: int
    """Of the global batch."""
    model_flops: float
    """Of a step, forward and backward without recomputing."""
    peak_flops: float
    """FLOP/s of one accelerator."""

    @property
    def tokens_per_second(self) -> float:
        """Predicted, of all accelerators together."""
        return self.tokens / self.time.total

    @property
    def utilization(self) -> float:
        """Model FLOPs utilization (MFU): the share of the accelerators' peak that goes into the model's own arithmetic.

        Chowdhery et al. 2022 (PaLM), appendix B; causal attention counts as the half that is computed.
        """
        return self.model_flops / (self.time.total * self.degrees.world_size * self.peak_flops)

    def cost(self, objective: Objective) -> float:
        """What the objective minimises: seconds, accelerator-seconds, or bytes on the heaviest rank."""
        return self.cost_of(objective, self.time)

    def cost_of(self, objective: Objective, time: StepTime) -> float:
        """The same if a step took another time, as in another place."""
        return cost_of(objective, time.total, self.memory.total, self.degrees)


def cost_of(objective: Objective, seconds: float, needed: int, degrees: Degrees) -> float:
    """See `Candidate.cost`."""
    if objective == "Time":
        return seconds
    if objective == "Efficiency":
        return seconds * degrees.world_size
    return float(needed)
