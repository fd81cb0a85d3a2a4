"""Which degrees of parallelism a job may have at all: its pins, its shape, its batch and its accelerators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import gcd, prod

from kronos.api.job import TrainingJobSpec
from kronos.api.plan import Degrees
from kronos.strategy.abilities import Abilities
from kronos.strategy.widths import Width, Widths

TENSOR_CODES = ("AttentionHeadsNotDivisible", "KeyValueHeadsNotDivisible", "FeedForwardNotDivisible")
PIPELINE_CODES = ("FewerLayersThanStages", "TiedEmbeddings")
BATCH_CODE = "GlobalBatchNotDivisible"
SEQUENCE_CODE = "SequenceNotDivisible"
LANES_CODE = "LanesNotDivisible"
CUSTOM_CODE = "CustomNotSplit"
EXPERT_CODES = ("NoExperts", "ExpertsNotDivisible")


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why some splits of the job were refused."""

    code: str
    """Stable, for machines, such as `GlobalBatchNotDivisible`."""
    message: str
    """One sentence about the first such split (for memory, about the one that misses least)."""
    count: int
    """Splits that were refused so; a refused tensor or pipeline degree counts once."""


class Rejections:
    """Collects refusals by code."""

    def __init__(self) -> None:
        self._messages: dict[str, str] = {}
        self._counts: Counter[str] = Counter()

    def add(self, code: str, message: Callable[[], str], count: int = 1) -> None:
        """Count some more; only a code's first message is kept, and made."""
        if code not in self._messages:
            self._messages[code] = message()
        self._counts[code] += count

    def most_frequent_first(self) -> tuple[Rejection, ...]:
        """All of them, by falling count, then by code."""
        found = (Rejection(code, message, self._counts[code]) for code, message in self._messages.items())
        return tuple(sorted(found, key=lambda rejection: (-rejection.count, rejection.code)))


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """Divisors of a positive number, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


@dataclass(frozen=True, slots=True)
class Pins:
    """Degrees that the job fixes; None where the choice is free."""

    data: int | None
    sharded: int | None
    tensor: int | None
    pipeline: int | None
    context: int | None
    expert: int | None

    @classmethod
    def of(cls, spec: TrainingJobSpec) -> Pins:
        """The pins of a job; in mode Fixed a degree that isn't given is 1."""
        strategy = spec.strategy
        free = 1 if strategy.mode == "Fixed" else None
        return cls(
            data=strategy.data_parallel or free,
            sharded=strategy.sharded_data_parallel or free,
            tensor=strategy.tensor_parallel or free,
            pipeline=strategy.pipeline_parallel or free,
            context=strategy.context_parallel or free,
            expert=strategy.expert_parallel or free,
        )

    @staticmethod
    def fields(spec: TrainingJobSpec) -> tuple[str, ...]:
        """The pins as people write them, such as `strategy.tensorParallel 2`."""
        return tuple(
            f"strategy.{field} {degree}"
            for field, degree in spec.strategy.model_dump(by_alias=True, exclude_none=True).items()
            if field.endswith("Parallel")
        )

    def against(self, degrees: Degrees) -> tuple[str, ...]:
        """The fields that keep a job from having these degrees, such as `tensorParallel 2`."""
        wanted = (
            ("dataParallel", self.data, degrees.data_parallel),
            ("shardedDataParallel", self.sharded, degrees.sharded_data_parallel),
            ("tensorParallel", self.tensor, degrees.tensor_parallel),
            ("pipelineParallel", self.pipeline, degrees.pipeline_parallel),
            ("contextParallel", self.context, degrees.context_parallel),
            ("expertParallel", self.expert, degrees.expert_parallel),
        )
        return tuple(f"{field} {pin}" for field, pin, degree in wanted if pin not in (None, degree))

    @property
    def _factors(self) -> tuple[int | None, ...]:
        """The degrees that multiply to the world size."""
        return self.data, self.sharded, self.tensor, self.pipeline, self.context

    @property
    def product(self) -> int:
        """Every world size is a multiple of this."""
        return prod(pin or 1 for pin in self._factors)

    @property
    def all_given(self) -> bool:
        """Nothing is left to choose of the world size."""
        return None not in self._factors


@dataclass(frozen=True, slots=True)
class Family:
    """Degrees that differ only in how the batch ranks are dealt out to replicas and shards."""

    tensor: int
    pipeline: int
    context: int
    expert: int
    batch_ranks: int
    sharded: tuple[int, ...]
    """Sharded degrees that are allowed, the largest first; the replicas are what is left of the batch ranks."""

    @property
    def world_size(self) -> int:
        """Ranks of every member."""
        return self.tensor * self.pipeline * self.context * self.batch_ranks

    def degrees(self, sharded: int) -> Degrees:
        """The member with so many shards."""
        # Skips validation, which the loops below have done, because it would be most of the search's time.
        return Degrees.model_construct(
            data_parallel=self.batch_ranks // sharded,
            sharded_data_parallel=sharded,
            tensor_parallel=self.tensor,
            pipeline_parallel=self.pipeline,
            context_parallel=self.context,
            expert_parallel=self.expert,
        )


def families(
    spec: TrainingJobSpec, abilities: Abilities, rejections: Rejections, widths: Widths
) -> Iterator[Family]:
    """Every combination that the job allows and that divides heads, layers, sequence and batch; the rest is noted.

    `widths` say how many ranks the domains hold that the job names for its groups.

    No world size from accelerators.min to accelerators.max is skipped: loops run over axes rather than over world
    sizes, so that a degree which divides nothing is refused once, with all the world sizes it would have led to.
    """
    pins = Pins.of(spec)
    low, high = spec.accelerators.min, spec.accelerators.max
    # Without the trainer's ability, one that isn't pinned isn't a choice.
    structure = spec.reproducibility.structure
    contexts = abilities.context_parallel and structure is None
    experts = abilities.expert_parallel and spec.model.experts and structure is None
    pins = replace(
        pins,
        context=pins.context if contexts else pins.context or 1,
        expert=pins.expert if experts else pins.expert or 1,
    )
    if not _axes_are_allowed(spec, pins, rejections):
        return
    if not (low <= pins.product <= high if pins.all_given else _multiples(pins.product, low, high)):
        rejections.add("WorldSizeOutOfRange", partial(_world_size_message, pins, low, high))
        return
    data_pins = (pins.data or 1) * (pins.sharded or 1)
    pipeline_pin, context_pin = pins.pipeline or 1, pins.context or 1
    for tensor in _options(pins.tensor, high // (data_pins * pipeline_pin * context_pin)):
        if not _multiples(tensor * data_pins * pipeline_pin * context_pin, low, high):
            continue
        if not _tensor_parallel_fits(spec, tensor, widths, rejections):
            continue
        for context in _contexts(spec, pins, high // (data_pins * pipeline_pin * tensor), rejections):
            for pipeline in _options(pins.pipeline, high // (data_pins * tensor * context)):
                model_ranks = tensor * pipeline * context
                batch_options = _multiples(data_pins, -(-low // model_ranks), high // model_ranks)
                if pins.data and pins.sharded:
                    batch_options = (
                        range(data_pins, data_pins + 1) if data_pins in batch_options else range(0)
                    )
                if not batch_options or not _pipeline_parallel_fits(
                    spec, pipeline, tensor * context, widths, rejections
                ):
                    continue
                for batch_ranks in _batch_ranks_that_fit(spec, pins, model_ranks, batch_options, rejections):
                    sharded = _sharded(pins, batch_ranks, widths.sharded, model_ranks, rejections)
                    for expert in _experts(spec, pins, batch_ranks, rejections) if sharded else ():
                        yield Family(tensor, pipeline, context, expert, batch_ranks, sharded)


def _options(pin: int | None, most: int) -> range:
    return range(pin, pin + 1) if pin else range(1, most + 1)


def _multiples(of: int, low: int, high: int) -> range:
    """Multiples of a number from low to high."""
    return range(-(-low // of) * of, high + 1, of)


def _contexts(spec: TrainingJobSpec, pins: Pins, most: int, rejections: Rejections) -> Iterator[int]:
    """Context degrees: each rank has two parts of the sequence, an early and a late one, so that all have as much to do."""
    length = spec.model.sequence_length
    for degree in _options(pins.context, most):
        if degree == 1 or (length % (2 * degree) == 0 and spec.model.custom is None):
            yield degree
        else:
            rejections.add(SEQUENCE_CODE, partial(_sequence_not_divided, spec, degree))


def _sequence_not_divided(spec: TrainingJobSpec, degree: int) -> str:
    if spec.model.custom is not None:
        return f"contextParallel {degree} can't split the sequences of a custom model; drop it"
    length = spec.model.sequence_length
    above = -(-length // (2 * degree)) * 2 * degree
    return (
        f"contextParallel {degree} needs a model.sequenceLength that is a multiple of {2 * degree}, not {length}; "
        f"set it to {above}, or change contextParallel"
    )


def _axes_are_allowed(spec: TrainingJobSpec, pins: Pins, rejections: Rejections) -> bool:
    """Whether the job's model and its reproducibility allow the context and expert degrees that are pinned."""
    context, expert, experts = pins.context or 1, pins.expert or 1, spec.model.experts
    if spec.reproducibility.structure is not None and max(context, expert) > 1:
        # Ring attention and dealing tokens out to experts add in orders that follow the layout.
        message = (
            "contextParallel and expertParallel can't keep a certified run's bits; drop them from strategy"
        )
        rejections.add("NotCertifiable", lambda: message)
        return False
    if expert > 1 and experts is None:
        rejections.add(EXPERT_CODES[0], lambda: "strategy.expertParallel needs model.experts; drop it")
        return False
    if experts is not None and experts.count % expert:
        usable = _one_of(divisors(experts.count)[:8])
        wrong = f"expertParallel {expert} does not divide model.experts.count {experts.count}; use {usable}"
        rejections.add(EXPERT_CODES[1], lambda: wrong)
        return False
    return True


def _experts(spec: TrainingJobSpec, pins: Pins, batch_ranks: int, rejections: Rejections) -> Iterator[int]:
    """Expert degrees: each divides the batch ranks, among which it deals the experts out, and the experts."""
    experts = spec.model.experts
    for degree in (pins.expert,) if pins.expert else divisors(batch_ranks):
        if degree == 1 or (experts is not None and batch_ranks % degree == 0 and experts.count % degree == 0):
            yield degree
        elif pins.expert:
            message = (
                "expertParallel {} does not divide dataParallel x shardedDataParallel {}; change one of them"
            )
            rejections.add(EXPERT_CODES[1], partial(message.format, degree, batch_ranks))


def _sharded(
    pins: Pins, batch_ranks: int, width: Width | None, model_ranks: int, rejections: Rejections
) -> tuple[int, ...]:
    """Sharded degrees that go with the pins and that their level has room for, the largest first."""
    return tuple(
        sharded
        for sharded in reversed(divisors(batch_ranks))
        if pins.sharded in (None, sharded)
        and pins.data in (None, batch_ranks // sharded)
        and not _too_wide(width, sharded, model_ranks, rejections)
    )


def _too_wide(width: Width | None, degree: int, inner: int, rejections: Rejections) -> bool:
    """Whether the level that the job names for an axis has no room for such a group of it."""
    if width is None or degree * inner <= width.slots:
        return False
    rejections.add(width.code, partial(width.refusal, degree, inner))
    return True


def _tensor_parallel_fits(spec: TrainingJobSpec, degree: int, widths: Widths, rejections: Rejections) -> bool:
    shape, structure = spec.model, spec.reproducibility.structure
    if _too_wide(widths.tensor, degree, 1, rejections):
        return False
    if structure is not None and structure.tensor_lanes % degree:
        rejections.add(LANES_CODE, partial(_lanes_not_divided, structure.tensor_lanes, degree))
        return False
    if shape.custom is not None:
        if degree > 1 and spec.strategy.tensor_parallel:
            rejections.add(
                CUSTOM_CODE,
                lambda: "the layers of a custom model can't be split; drop strategy.tensorParallel",
            )
        return degree == 1
    sizes = (
        ("attentionHeads", shape.attention_heads),
        ("keyValueHeads", shape.kv_heads),
        ("feedForwardSize", shape.ffn_size),
    )
    for code, (field, size) in zip(TENSOR_CODES, sizes, strict=True):
        if size % degree:
            rejections.add(code, partial(_not_divided, degree, sizes, field))
            return False
    return True


def _lanes_not_divided(lanes: int, degree: int) -> str:
    allowed = _one_of(divisors(lanes))
    return (
        f"tensorParallel {degree} does not divide reproducibility.canonical.tensorLanes {lanes}; use {allowed}, or change "
        "tensorLanes before the first certified run"
    )


def _not_divided(degree: int, sizes: Sequence[tuple[str, int]], field: str) -> str:
    """Names all that the degree must divide, since what divides one of them may not divide the next."""
    common = gcd(*(size for _, size in sizes))
    size = dict(sizes)[field]
    rest = [f"{other} {value}" for other, value in sizes if other != field and value % size]
    also = f" (it must divide {' and '.join(rest)}, too)" if rest else ""
    return (
        f"tensorParallel {degree} does not divide model.{field} {size}; use {_one_of(divisors(common))}{also}, or change "
        f"model.{field}"
    )


def _pipeline_parallel_fits(
    spec: TrainingJobSpec, degree: int, inner: int, widths: Widths, rejections: Rejections
) -> bool:
    layers = spec.model.layers
    if degree > layers:
        message = f"pipelineParallel {degree} exceeds model.layers {layers}; use at most {layers}"
        rejections.add(PIPELINE_CODES[0], lambda: message)
        return False
    if degree > 1 and spec.model.tied_embeddings:
        message = (
            f"model.tiedEmbeddings keeps the embedding and the head on one stage; use pipelineParallel 1 instead of "
            f"{degree}, or set tiedEmbeddings to false"
        )
        rejections.add(PIPELINE_CODES[1], lambda: message)
        return False
    return not _too_wide(widths.pipeline, degree, inner, rejections)


def _batch_ranks_that_fit(
    spec: TrainingJobSpec, pins: Pins, model_ranks: int, options: range, rejections: Rejections
) -> list[int]:
    # Goes through the batch's divisors, which are few, rather than through the options, of which a large job has many.
    structure = spec.reproducibility.structure
    leaf = structure.leaf_sequences if structure else 1
    batch, rest = divmod(spec.optimization.global_batch_size, leaf)
    if rest:
        whole = spec.optimization.global_batch_size
        rejections.add(BATCH_CODE, partial(_leaf_not_divided, leaf, whole), len(options))
        return []
    # In leaves: a batch rank's share is so many whole ones.
    fitting = [divisor for divisor in divisors(batch) if divisor in options]
    if len(fitting) < len(options):
        first = next(number for number in options if batch % number)
        # Where nothing fits and nothing is pinned, the number of accelerators is what people can change.
        free = not fitting and pins.data is None and pins.sharded is None
        message = partial(_batch_not_divided, batch, first, leaf, model_ranks if free else None, options)
        rejections.add(BATCH_CODE, message, len(options) - len(fitting))
    return fitting


def _leaf_not_divided(leaf: int, batch: int) -> str:
    above = -(-batch // leaf) * leaf
    return (
        f"reproducibility.canonical.leafSequences {leaf} does not divide optimization.globalBatchSize {batch}; set "
        f"globalBatchSize to {above}"
    )


def _batch_not_divided(
    leaves: int, batch_ranks: int, leaf: int, model_ranks: int | None, options: range
) -> str:
    """What to change so that the batch can be dealt out.

    `model_ranks` are the ranks of one replica where the number of accelerators is what can be changed, else None; then
    the numbers named are those next to what was allowed. Else they lie among the options, if any does.
    """
    usable = divisors(leaves)
    below = max(divisor for divisor in usable if divisor < batch_ranks)
    near = (below, *(divisor for divisor in usable if divisor > batch_ranks))[:2]
    above = -(-leaves // batch_ranks) * batch_ranks * leaf
    of = f" in leaves of {leaf}" if leaf > 1 else ""
    if model_ranks is None:
        allowed = tuple(number for number in usable if number in options)
        change = f"use {_one_of(allowed[:8] or near)}, or set globalBatchSize to {above}"
    else:
        counts = _one_of(tuple(number * model_ranks for number in near))
        change = f"set globalBatchSize to {above}, or let accelerators.min to max include {counts}"
    return (
        f"dataParallel x shardedDataParallel {batch_ranks} does not divide optimization.globalBatchSize {leaves * leaf}{of}; "
        f"{change}"
    )


def _world_size_message(pins: Pins, low: int, high: int) -> str:
    product = pins.product
    if product > high:
        return (
            f"the strategy's degrees multiply to {product} ranks, more than accelerators.max {high}; "
            f"lower a degree or raise max to {product}"
        )
    if pins.all_given:
        return (
            f"the strategy's degrees multiply to {product} ranks, fewer than accelerators.min {low}; "
            f"raise a degree or lower min to {product}"
        )
    above = -(-low // product) * product
    return (
        f"the pinned degrees multiply to {product}, and no multiple of {product} lies from accelerators.min {low} to "
        f"max {high}; set max to {above}"
    )


def _one_of(numbers: tuple[int, ...]) -> str:
    """`1, 2 or 4`."""
    *head, last = (str(number) for number in numbers)
    return f"{', '.join(head)} or {last}" if head else last
