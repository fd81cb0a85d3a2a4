"""Which degrees of parallelism a job may have at all: its pins, its shape, its batch and its accelerators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from math import gcd, prod

from kronos.api.job import TrainingJobSpec
from kronos.api.plan import Degrees

TENSOR_CODES = ("AttentionHeadsNotDivisible", "KeyValueHeadsNotDivisible", "FeedForwardNotDivisible")
PIPELINE_CODES = ("FewerLayersThanStages", "TiedEmbeddings")
BATCH_CODE = "GlobalBatchNotDivisible"


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
        )

    @property
    def product(self) -> int:
        """Every world size is a multiple of this."""
        return prod(pin or 1 for pin in (self.data, self.sharded, self.tensor, self.pipeline))

    @property
    def all_given(self) -> bool:
        """Nothing is left to choose."""
        return None not in (self.data, self.sharded, self.tensor, self.pipeline)


def possible_degrees(spec: TrainingJobSpec, rejections: Rejections) -> Iterator[Degrees]:
    """Every combination that the job allows and that divides heads, layers and batch; the rest is noted as rejected.

    No world size from accelerators.min to accelerators.max is skipped: loops run over axes rather than over world
    sizes, so that a degree which divides nothing is refused once, with all the world sizes it would have led to.
    """
    pins = Pins.of(spec)
    low, high = spec.accelerators.min, spec.accelerators.max
    if not (low <= pins.product <= high if pins.all_given else _multiples(pins.product, low, high)):
        rejections.add("WorldSizeOutOfRange", partial(_world_size_message, pins, low, high))
        return
    data_pins = (pins.data or 1) * (pins.sharded or 1)
    pipeline_pin = pins.pipeline or 1
    for tensor in _options(pins.tensor, high // (data_pins * pipeline_pin)):
        if not _multiples(tensor * data_pins * pipeline_pin, low, high):
            continue
        if not _tensor_parallel_fits(spec, tensor, rejections):
            continue
        for pipeline in _options(pins.pipeline, high // (data_pins * tensor)):
            model_ranks = tensor * pipeline
            batch_options = _multiples(data_pins, -(-low // model_ranks), high // model_ranks)
            if pins.data and pins.sharded:
                batch_options = range(data_pins, data_pins + 1) if data_pins in batch_options else range(0)
            if not batch_options or not _pipeline_parallel_fits(spec, pipeline, rejections):
                continue
            for batch_ranks in _batch_ranks_that_fit(spec, batch_options, rejections):
                yield from _data_splits(pins, batch_ranks, tensor, pipeline)


def _options(pin: int | None, most: int) -> range:
    return range(pin, pin + 1) if pin else range(1, most + 1)


def _multiples(of: int, low: int, high: int) -> range:
    """Multiples of a number from low to high."""
    return range(-(-low // of) * of, high + 1, of)


def _data_splits(pins: Pins, batch_ranks: int, tensor: int, pipeline: int) -> Iterator[Degrees]:
    for data in divisors(batch_ranks):
        sharded = batch_ranks // data
        if pins.data in (None, data) and pins.sharded in (None, sharded):
            # Skips validation, which these loops have done, because it would be most of the search's time.
            yield Degrees.model_construct(
                data_parallel=data,
                sharded_data_parallel=sharded,
                tensor_parallel=tensor,
                pipeline_parallel=pipeline,
            )


def _tensor_parallel_fits(spec: TrainingJobSpec, degree: int, rejections: Rejections) -> bool:
    shape = spec.model
    sizes = (
        ("attentionHeads", shape.attention_heads),
        ("keyValueHeads", shape.kv_heads),
        ("feedForwardSize", shape.ffn_size),
    )
    for code, (field, size) in zip(TENSOR_CODES, sizes, strict=True):
        if size % degree:
            rejections.add(code, partial(_not_divided, spec, degree, field, size))
            return False
    return True


def _not_divided(spec: TrainingJobSpec, degree: int, field: str, size: int) -> str:
    shape = spec.model
    allowed = _one_of(divisors(gcd(shape.attention_heads, shape.kv_heads, shape.ffn_size)))
    return f"tensorParallel {degree} does not divide model.{field} {size}; use {allowed}, or change model.{field}"


def _pipeline_parallel_fits(spec: TrainingJobSpec, degree: int, rejections: Rejections) -> bool:
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
    return True


def _batch_ranks_that_fit(spec: TrainingJobSpec, options: range, rejections: Rejections) -> list[int]:
    # Goes through the batch's divisors, which are few, rather than through the options, of which a large job has many.
    batch = spec.optimization.global_batch_size
    fitting = [divisor for divisor in divisors(batch) if divisor in options]
    if len(fitting) < len(options):
        first = next(number for number in options if batch % number)
        rejections.add(BATCH_CODE, partial(_batch_not_divided, batch, first), len(options) - len(fitting))
    return fitting


def _batch_not_divided(batch: int, batch_ranks: int) -> str:
    usable = divisors(batch)
    below = max(divisor for divisor in usable if divisor < batch_ranks)
    near = (below, *(divisor for divisor in usable if divisor > batch_ranks))[:2]
    above = -(-batch // batch_ranks) * batch_ranks
    return (
        f"dataParallel x shardedDataParallel {batch_ranks} does not divide optimization.globalBatchSize {batch}; "
        f"use {_one_of(near)}, or set globalBatchSize to {above}"
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
