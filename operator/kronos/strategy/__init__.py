"""Which parallelism: the layouts of a job that fit its accelerators, the best first, and why others don't.

Pure: the answer follows from the job and the fabric alone. `search` is the way in; `docs/strategy.md` explains the model.
"""

from kronos.strategy.abilities import EVERYTHING, TRAINER, Abilities
from kronos.strategy.advice import advised
from kronos.strategy.alternatives import Alternative, alternatives, scaling, stops_paying
from kronos.strategy.candidate import Candidate, Objective
from kronos.strategy.communication import AxisTraffic
from kronos.strategy.degrees import Rejection
from kronos.strategy.memory import MemoryBreakdown
from kronos.strategy.place import time_in_place
from kronos.strategy.search import NEAR_TIE, Bottleneck, Search, search
from kronos.strategy.shapes import parameter_count
from kronos.strategy.timing import StepTime

__all__ = [
    "EVERYTHING",
    "NEAR_TIE",
    "TRAINER",
    "Abilities",
    "Alternative",
    "AxisTraffic",
    "Bottleneck",
    "Candidate",
    "MemoryBreakdown",
    "Objective",
    "Rejection",
    "Search",
    "StepTime",
    "advised",
    "alternatives",
    "parameter_count",
    "scaling",
    "search",
    "stops_paying",
    "time_in_place",
]
