"""Weighing layouts: the best one for each combination of degrees, without looking at what can't win.

Layouts of one family (see `degrees.Family`) differ in how the batch is dealt out, and share most of their costs. A family is
looked at in three steps, each dearer than the one before:

1. Could it be fast enough? Its arithmetic alone, the pipeline's bubble and the tensor group's collectives bound its time from
   below. If another layout on no more accelerators takes less than `SLACK` times shorter, the family is left out.
2. Could it fit? With the most shards it needs the least memory; if no microbatch and no checkpointing fits then, none does.
3. Which microbatch, schedule and checkpointing is best for each number of shards?
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from kronos.api.plan import Degrees, Schedule
from kronos.strategy.abilities import Abilities
from kronos.strategy.arithmetic import Arithmetic
from kronos.strategy.blocks import Checkpointing
from kronos.strategy.candidate import Candidate, Objective, cost_of
from kronos.strategy.communication import Network
from kronos.strategy.degrees import Family, divisors
from kronos.strategy.layout import Layout, Workload
from kronos.strategy.memory import MemoryBreakdown, MemoryModel, SharedMemory
from kronos.strategy.stages import virtual_stage_options
from kronos.strategy.timing import Pace, StepModel

SLACK = 2.0
"""Layouts that take longer than this times another one's step, on no fewer accelerators, are no alternative to it."""


Option = tuple[int, Schedule, int, Checkpointing]
"""Sequences per microbatch, schedule, parts per stage, checkpointing."""


@dataclass(frozen=True, slots=True)
class _Weighed:
    """The best layout for some degrees."""

    layout: Layout
    models: _Models
    seconds: float
    needed: int


class Weighing:
    """Finds the best layout of each combination of degrees, and remembers what was left out."""

    def __init__(
        self, workload: Workload, network: Network, objective: Objective, abilities: Abilities
    ) -> None:
        self._workload = workload
        self._arithmetic = Arithmetic(workload)
        self._network = network
        self._objective = objective
        self._abilities = abilities
        self._stage_layers: dict[int, tuple[int, ...]] = {}
        self._shared_memory: SharedMemory = {}
        self._states: dict[tuple[int, int, int], int] = {}
        self.short = 0
        """Combinations of degrees that need more memory than there is."""
        self.nearest: tuple[Layout, MemoryBreakdown] | None = None
        """Of those, the layout that misses least."""
        self.slow: list[tuple[Family, float]] = []
        """Families that can't be fast enough, with the least seconds that they could take."""

    def candidates(self, families: list[Family]) -> list[Candidate]:
        """The best layout of each combination of degrees, but those that fit no memory or can't win."""
        memory = self._objective == "Memory"
        bounded = [(family.world_size, 0.0 if memory else self._bound(family), family) for family in families]
        bounded.sort(key=lambda item: item[:2])
        found: list[_Weighed] = []
        hopeless: list[tuple[int, Family]] = []
        fastest: list[tuple[int, float]] = []
        best = inf
        for world_size, bound, family in bounded:
            if bound > SLACK * best:
                self.slow.append((family, bound))
                continue
            states = self._whole_states(family) // family.sharded[0]
            if states > self._workload.memory_bytes:
                hopeless.append((states, family))
                self.short += len(family.sharded)
                continue
            for weighed in self._weigh(family):
                found.append(weighed)
                if weighed.seconds < best:
                    best = weighed.seconds
                    fastest.append((world_size, best))
        if not found:
            self._find_nearest(hopeless)
        if not memory:
            worlds = [world_size for world_size, _ in fastest]
            found = [
                weighed
                for weighed in found
                if weighed.seconds
                <= SLACK * fastest[bisect_right(worlds, weighed.layout.degrees.world_size) - 1][1]
            ]
        return [self._candidate(weighed) for weighed in found]

    def _bound(self, family: Family) -> float:
        """No layout of a family takes fewer seconds: arithmetic at the peak's share, bubble, tensor collectives."""
        workload, arithmetic = self._workload, self._arithmetic
        ranks = family.tensor * family.context
        sequences = workload.global_batch_size // family.batch_ranks
        sequence = arithmetic.least_per_sequence / ranks
        layers = workload.shape.layers / family.pipeline
        sums = 0.0
        if family.tensor > 1:
            width = workload.shape.sequence_length / family.context * workload.shape.hidden_size
            route = self._network.route(1, family.tensor)
            sums = 8 * layers * width * workload.compute_bytes * route.seconds_per_byte
        seconds = sequences * (sequence / family.pipeline + sums)
        if family.pipeline > 1 and "ZeroBubble" not in self._abilities.schedules:
            parts = max(1.0, layers) if "Interleaved1F1B" in self._abilities.schedules else 1.0
            seconds += sequence * (1 - 1 / family.pipeline) / parts
        return seconds

    def _whole_states(self, family: Family) -> int:
        """No layout of a family needs fewer bytes without shards: weights, gradients and optimizer on the fullest stage."""
        key = (family.tensor, family.pipeline, family.expert)
        whole = self._states.get(key)
        if whole is None:
            layers = -(-self._workload.shape.layers // family.pipeline)
            recipe = self._workload.recipe
            parts = self._workload.part_elements(family.tensor, 1, family.expert)
            per_element = recipe.weight_bytes + recipe.gradient_bytes + recipe.master_bytes
            whole = layers * (parts.block * per_element + parts.block_state)
            self._states[key] = whole
        return whole

    def _weigh(self, family: Family) -> Iterator[_Weighed]:
        """The best layout for each number of shards; nothing when none fits."""
        layers = self._balanced(family.pipeline)
        shared = _Shared(self._shared_memory, {})
        missed = False
        for sharded in family.sharded:
            # Fewer shards need more, unless there are none, which need no gathered weights.
            if missed and (sharded > 1 or self._whole_states(family) > self._workload.memory_bytes):
                self.short += 1
                continue
            degrees = family.degrees(sharded)
            models = _Models(self._arithmetic, degrees, self._network, self._sequence(degrees), shared)
            fitting, missing = self._options(models, degrees, layers)
            if fitting:
                yield self._best(fitting, models)
                continue
            self._miss(missing, models)
            self.short += 1
            missed = True

    def _miss(self, missing: list[tuple[Layout, int]], models: _Models) -> None:
        layout, needed = min(missing, key=lambda weighed: weighed[1])
        if self.nearest is None or needed < self.nearest[1].total:
            self.nearest = layout, models.memory(layout.stage_layers).heaviest(layout)

    def _find_nearest(self, hopeless: list[tuple[int, Family]]) -> None:
        """The nearest miss among families whose states alone are too large."""
        short = self.short
        for states, family in sorted(hopeless, key=lambda item: item[0]):
            if self.nearest is not None and states >= self.nearest[1].total:
                break
            assert not list(self._weigh(family)), "states alone don't fit"
        self.short = short

    def _options(
        self, models: _Models, degrees: Degrees, stage_layers: tuple[int, ...]
    ) -> tuple[list[tuple[Layout, int]], list[tuple[Layout, int]]]:
        """Layouts that fit and layouts that don't, with the bytes that they need.

        Every microbatch size that divides a rank's part of the batch is looked at. Larger microbatches never need less
        memory, except that a single one lets FSDP keep gradients sharded: after the first that doesn't fit, those between
        are skipped. Where each microbatch in flight keeps casts of weights nothing is: of larger ones fewer are in flight.
        Recomputing is never faster, so where memory isn't the objective more of it is weighed only for what doesn't fit
        with less.
        """
        per_rank = self._workload.global_batch_size // degrees.batch_ranks
        leaf = self._workload.leaf_sequences
        sizes = tuple(leaf * leaves for leaves in divisors(per_rank // leaf))
        if degrees.pipeline_parallel == 1 and self._objective != "Memory":
            return self._largest(models, stage_layers, sizes)
        fitting: list[tuple[Layout, int]] = []
        missing: list[tuple[Layout, int]] = []
        fit: set[tuple[int, Schedule, int]] = set()
        available = self._workload.memory_bytes
        # The first schedule needs the least memory, unless stages of others have fewer layers, since parts must be equal.
        comparable = stage_layers[0] * len(stage_layers) <= self._workload.shape.layers
        growing = not models.memory(stage_layers).casts_in_flight
        for checkpointing in self._abilities.checkpointing:
            full = False
            for sequences in sizes:
                if full and growing and sequences != per_rank:
                    continue
                fits, first = False, True
                for schedule, parts in self._schedules(degrees.pipeline_parallel, per_rank // sequences):
                    if not (first or fits) and comparable:
                        break
                    first = False
                    if (sequences, schedule, parts) in fit:
                        fits = True
                        continue
                    layout = models.layout(
                        (sequences, schedule, parts, checkpointing), stage_layers, per_rank
                    )
                    needed = models.memory(layout.stage_layers).needed(layout)
                    fits = fits or needed <= available
                    (fitting if needed <= available else missing).append((layout, needed))
                    if needed <= available and self._objective != "Memory":
                        fit.add((sequences, schedule, parts))
                full = not fits
        return fitting, missing

    def _largest(
        self, models: _Models, stage_layers: tuple[int, ...], sizes: tuple[int, ...]
    ) -> tuple[list[tuple[Layout, int]], list[tuple[Layout, int]]]:
        """The same without a pipeline, where of the microbatches that fit only the largest is of use.

        Fewer and larger ones are never slower: they do the same arithmetic and move the same bytes in fewer messages.
        """
        available, per_rank = self._workload.memory_bytes, sizes[-1]
        memory = models.memory(stage_layers)
        fitting: list[tuple[Layout, int]] = []
        missing: list[tuple[Layout, int]] = []

        def weigh(position: int, checkpointing: Checkpointing) -> bool:
            layout = models.layout((sizes[position], "None", 1, checkpointing), stage_layers, per_rank)
            needed = memory.needed(layout)
            fits = needed <= available
            (fitting if fits else missing).append((layout, needed))
            return fits

        for checkpointing in self._abilities.checkpointing:
            # A single microbatch may fit where smaller ones don't, since FSDP keeps its gradients sharded.
            if weigh(len(sizes) - 1, checkpointing):
                break
            low, high = -1, len(sizes) - 1
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if weigh(middle, checkpointing) else (low, middle)
        return fitting, missing

    def _schedules(self, stages: int, microbatches: int) -> list[tuple[Schedule, int]]:
        """Schedules that can run, with their virtual stages.

        1F1B and those that build on it need as many microbatches as stages to begin, where GPipe, which keeps more, is
        never better.
        """
        if stages == 1:
            return [("None", 1)]
        if microbatches < stages:
            return [("GPipe", 1)] if "GPipe" in self._abilities.schedules else []
        found: list[tuple[Schedule, int]] = []
        for schedule in self._abilities.schedules:
            if schedule == "Interleaved1F1B":
                options = virtual_stage_options(self._workload.shape.layers, stages, microbatches)
                found += [(schedule, parts) for parts in options]
            elif schedule != "GPipe":
                found.append((schedule, 1))
        return found

    def _best(self, fitting: list[tuple[Layout, int]], models: _Models) -> _Weighed:
        """The layout that costs least; on a tie the faster one, then the one with the fewest microbatches."""
        objective = self._objective
        timed = [
            _Weighed(layout, models, models.step(layout.stage_layers).seconds(layout), needed)
            for layout, needed in fitting
        ]
        return min(
            timed,
            key=lambda option: (
                cost_of(objective, option.seconds, option.needed, option.layout.degrees),
                option.seconds,
                option.layout.microbatches,
            ),
        )

    def _candidate(self, weighed: _Weighed) -> Candidate:
        workload = self._workload
        layout = weighed.layout
        step = weighed.models.step(layout.stage_layers)
        return Candidate(
            degrees=layout.degrees,
            microbatch_sequences=layout.microbatch_sequences,
            microbatches=layout.microbatches,
            checkpointing=layout.checkpointing,
            schedule=layout.schedule,
            stage_layers=layout.stage_layers,
            virtual_stages=layout.virtual_stages,
            sequence_parallel=layout.sequence_parallel,
            memory=weighed.models.memory(layout.stage_layers).heaviest(layout),
            time=step.time(layout),
            traffic=step.traffic(layout),
            tokens=workload.global_batch_size * workload.shape.sequence_length,
            model_flops=workload.global_batch_size * workload.model_flops,
            peak_flops=workload.peak_flops,
        )

    def _sequence(self, degrees: Degrees) -> bool:
        return self._abilities.sequence_parallel and degrees.tensor_parallel > 1

    def _balanced(self, count: int) -> tuple[int, ...]:
        if count not in self._stage_layers:
            self._stage_layers[count] = self._workload.balanced(count)
        return self._stage_layers[count]


@dataclass(frozen=True, slots=True)
class _Shared:
    """What the members of a family have in common, by layout; filled as it is asked for."""

    memory: SharedMemory
    time: dict[object, Pace]


class _Models:
    """Memory and time of the layouts that have the same degrees, by how layers are dealt out to stages."""

    def __init__(
        self,
        arithmetic: Arithmetic,
        degrees: Degrees,
        network: Network,
        sequence_parallel: bool,
        shared: _Shared,
    ) -> None:
        self._arithmetic = arithmetic
        self._degrees = degrees
        self._network = network
        self._sequence_parallel = sequence_parallel
        self._shared = shared
        self._memory: dict[tuple[int, ...], MemoryModel] = {}
        self._step: dict[tuple[int, ...], StepModel] = {}

    def memory(self, stage_layers: tuple[int, ...]) -> MemoryModel:
        """What ranks need."""
        found = self._memory.get(stage_layers)
        if found is None:
            found = self._memory[stage_layers] = MemoryModel(
                self._arithmetic.workload,
                self._degrees,
                stage_layers,
                self._sequence_parallel,
                self._shared.memory,
            )
        return found

    def step(self, stage_layers: tuple[int, ...]) -> StepModel:
        """How long a step takes."""
        found = self._step.get(stage_layers)
        if found is None:
            found = self._step[stage_layers] = StepModel(
                self._arithmetic,
                self._degrees,
                stage_layers,
                self._network,
                self._sequence_parallel,
                self._shared.time,
            )
        return found

    def layout(self, option: Option, stage_layers: tuple[int, ...], per_rank: int) -> Layout:
        """The layout that works through `per_rank` sequences as the option says."""
        sequences, schedule, parts, checkpointing = option
        stages = len(stage_layers)
        # Parts must be equal.
        layers = stage_layers if parts == 1 else (sum(stage_layers) // stages,) * stages
        return Layout(
            degrees=self._degrees,
            microbatch_sequences=sequences,
            microbatches=per_rank // sequences,
            checkpointing=checkpointing,
            schedule=schedule,
            stage_layers=layers,
            virtual_stages=parts,
            sequence_parallel=self._sequence_parallel,
        )
