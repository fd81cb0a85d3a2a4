"""Reports for people: tables in a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from pydantic.alias_generators import to_camel
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from kronos.cli.plan_report import ChosenReport, PinsReport, PlanReport, ScalingReport
from kronos.strategy.alternatives import WORTH
from kronos.strategy.words import MEMORY_ITEMS, TIME_ITEMS

_LEGEND = (
    "Strategies name ranks per group: dp replicas, fsdp shards of weights, tp tensor ranks, pp pipeline stages, cp context "
    "ranks, ep expert ranks. Recomputing: which activations are computed again instead of kept (strategy.md says more). MFU: "
    "share of the accelerators' peak that goes into the model's own arithmetic."
)
BAR_CELLS = 24
"""Width of the longest bar."""

_BOTTLENECKS = {
    "DataVolume": "data volume: one accelerator holds the model with its optimizer, so more of them bring speed alone",
    "ModelSize": "model size: one accelerator doesn't hold the model with its optimizer",
    "Both": "both: one accelerator doesn't hold the model with its optimizer, and replicas bring speed",
}
_MEMORY_ITEMS = {to_camel(name): words for name, words in MEMORY_ITEMS.items()}
_TIME_ITEMS = {to_camel(name): words for name, words in TIME_ITEMS.items()}
_ALWAYS = frozenset({"optimizer"})
"""Items that are shown even where they are zero: what decides most often whether a model fits."""


def show_plan(console: Console, report: PlanReport) -> None:
    """Write all that a report says about a job."""
    _facts(console, report)
    chosen = report.chosen
    if chosen is None:
        sentence(console, f"Kronos can't plan {report.job}: {report.refusal}.")
    else:
        _memory(console, chosen)
        _time(console, chosen)
        _runners_up(console, report)
        _alternatives(console, report)
        _scaling(console, report.scaling)
    _rejections(console, report)
    if chosen is not None:
        console.print()
        console.print(Text(_LEGEND, style="dim"))


def _facts(console: Console, report: PlanReport) -> None:
    """What is known of the job, and what was chosen, as names with values."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True, style="bold")
    facts.add_column()
    for name, value in _described(report):
        facts.add_row(name, Text(value))
    console.print(facts)


def _described(report: PlanReport) -> Iterable[tuple[str, str]]:
    model, accelerator, chosen = report.model, report.accelerator, report.chosen
    yield "Job", f"{report.job} in namespace {report.namespace}"
    active = f", {count(model.active_parameter_count)} of them active"
    same = model.active_parameter_count == model.parameter_count
    yield (
        "Model",
        f"{model.architecture}, {_plural(model.layers, 'layer')}, {count(model.parameter_count)} parameters"
        + ("" if same else active),
    )
    if accelerator is not None:
        yield (
            "Accelerator",
            f"{accelerator.model} ({accelerator.resource}), {accelerator.memory_gib:g} GiB, "
            f"{accelerator.peak_tflops:g} TFLOP/s in {accelerator.precision}",
        )
    sizes = ", ".join(
        f"{size} in a {level}{' (assumed)' if level in report.assumed_levels else ''}"
        for level, size in report.accelerators_per_domain.items()
    )
    told = "; say with --slots what is there" if report.assumed_levels else ""
    yield "Fabric", f"{report.fabric}, accelerators: {sizes}{told}"
    if report.accelerators_limit is not None:
        yield "Limit", f"{report.accelerators_limit:,} accelerators, by placement.required"
    if report.pins is not None:
        yield "Pinned", _pinned(report.pins, chosen)
    yield "Trainer", "any: all that Kronos can weigh" if report.any_trainer else "this version's"
    if report.bottleneck is not None:
        yield "Bottleneck", _BOTTLENECKS[report.bottleneck]
    if chosen is None:
        return
    yield (
        "Strategy",
        f"{chosen.strategy} on {_plural(chosen.world_size, 'accelerator')}, best by {report.objective}",
    )
    yield "Schedule", _schedule(chosen)
    ranks = chosen.degrees.batch_ranks
    yield (
        "Batch",
        f"{_plural(chosen.microbatches, 'microbatch', 'es')} × {_plural(chosen.microbatch_sequences, 'sequence')} × "
        f"{_plural(ranks, 'batch rank')} = {chosen.global_batch_sequences}",
    )
    yield "Recomputing", chosen.checkpointing
    yield "Layers", stages(chosen.stage_layers)
    yield (
        "Predicted",
        f"{seconds(chosen.step_seconds)} per step, {chosen.tokens_per_second:,.0f} tokens/s, "
        f"{chosen.model_flops_utilization_percent:.1f}% MFU",
    )


def _pinned(pins: PinsReport, chosen: ChosenReport | None) -> str:
    """The pins, and what would be gained without them."""
    fields, free = ", ".join(pins.fields), pins.free
    if (
        free is None
        or chosen is None
        or (free.degrees, free.checkpointing)
        == (
            chosen.degrees,
            chosen.checkpointing,
        )
    ):
        return fields
    saved = 1 - free.step_seconds / chosen.step_seconds
    gain = f"{saved:.0%} less time per step" if saved >= 0.01 else "no faster"
    return f"{fields}; without: {free.strategy} on {_plural(free.world_size, 'accelerator')}, {gain}"


def _schedule(chosen: ChosenReport) -> str:
    if chosen.schedule == "None":
        return "no pipeline"
    parts = f", {chosen.virtual_stages} virtual stages each" if chosen.virtual_stages > 1 else ""
    return f"{chosen.schedule}, {len(chosen.stage_layers)} stages{parts}"


def _memory(console: Console, chosen: ChosenReport) -> None:
    table = new_table(console, "Memory of the heaviest accelerator", "Item", "GiB>", "% of limit>")
    memory = chosen.memory
    for name, item in memory.items.items():
        if item.size_gib or name in _ALWAYS:
            label = _MEMORY_ITEMS[name]
            table.add_row(label, gib(item.size_gib), f"{item.percent_of_limit:.1f}")
    table.add_row("total", gib(memory.total_gib), f"{memory.percent_of_limit:.1f}", style="bold")
    table.add_row("limit", gib(memory.limit_gib), "100.0")
    console.print(table)


def _time(console: Console, chosen: ChosenReport) -> None:
    table = new_table(console, "Time of a step", "Item", "Time>", "% of step>")
    for name, item in chosen.time.items.items():
        if item.seconds:
            label = _TIME_ITEMS[name]
            table.add_row(label, seconds(item.seconds), f"{item.percent_of_step:.1f}")
    table.add_row("total", seconds(chosen.time.total_seconds), "100.0", style="bold")
    console.print(table)


def _runners_up(console: Console, report: PlanReport) -> None:
    if not report.runners_up:
        others = "that the job allows fits" if report.pins is not None else "fits the job"
        sentence(console, f"Nothing else {others}.")
        return
    headings = ("Strategy", "Accelerators>", "Step>", "GiB>", "MFU>", "Recomputing")
    table = new_table(console, "Runners-up", *headings)
    for other in report.runners_up:
        table.add_row(
            other.strategy,
            str(other.world_size),
            seconds(other.step_seconds),
            gib(other.memory_gib),
            f"{other.model_flops_utilization_percent:.1f}%",
            other.checkpointing,
        )
    console.print(table)


def _alternatives(console: Console, report: PlanReport) -> None:
    if not report.alternatives:
        return
    table = new_table(console, "Why not on as many accelerators", "Strategy", "Step>", "Reason")
    for other in report.alternatives:
        step = "-" if other.step_seconds is None else seconds(other.step_seconds)
        table.add_row(other.strategy, step, Text(other.reason))
    console.print(table)


def _scaling(console: Console, scaling: ScalingReport) -> None:
    headings = (
        "Accelerators>",
        "Strategy",
        "Recomputing",
        "Step>",
        "Tokens/s>",
        "Speed-up>",
        "MFU>",
        "|",
    )
    table = new_table(console, "Scaling", *headings)
    fastest = max(point.tokens_per_second for point in scaling.points)
    stop = scaling.pays_up_to_accelerators
    for point in scaling.points:
        table.add_row(
            str(point.accelerators),
            point.strategy,
            point.checkpointing,
            seconds(point.step_seconds),
            f"{point.tokens_per_second:,.0f}",
            f"{point.speed_up:.2f}",
            f"{point.model_flops_utilization_percent:.1f}%",
            Bar(point.tokens_per_second / fastest),
            style="bold" if point.accelerators == stop else "",
        )
    console.print(table)
    if stop is None or len(scaling.points) == 1:
        return
    first = scaling.points[0].accelerators
    sentence(
        console, f"Speed-up is against {_plural(first, 'accelerator')}, the fewest on which the job fits."
    )
    beyond = f"Beyond {_plural(stop, 'accelerator')}, more of them bring less than {WORTH:.0%} of their share of speed."
    last = f"More accelerators pay up to {stop:,}, the most on which the job gets faster."
    if stop == scaling.most_accelerators:
        last = f"More accelerators pay up to accelerators.max {stop:,}, where this curve ends."
    sentence(console, beyond if stop < scaling.points[-1].accelerators else last)


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar that is as long as there is room for, at most `BAR_CELLS`."""

    share: float
    """Of the longest bar."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        cells = min(BAR_CELLS, options.max_width)
        yield Text(("#" if options.ascii_only else "█") * max(1, round(self.share * cells)))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, BAR_CELLS)


def _rejections(console: Console, report: PlanReport) -> None:
    if not report.rejections or (report.chosen is None and len(report.rejections) == 1):
        # A single one is what the refusal says already.
        return
    table = new_table(console, "Refused splits", "Count>", "Code", "Reason")
    for rejection in report.rejections:
        table.add_row(f"{rejection.count:,}", rejection.code, Text(rejection.message))
    console.print(table)


def new_table(console: Console, title: str, *headings: str) -> Table:
    """An empty table without lines, under its title.

    A heading that ends in > is above numbers. Where a terminal is narrow, the reasons and the bars (|) get narrower and
    everything else stays whole.
    """
    sentence(console, title, style="bold")
    narrows = not {"Reason", "|"}.isdisjoint(headings)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", expand=narrows)
    for heading in headings:
        if heading in ("Reason", "|"):
            table.add_column(heading.removesuffix("|"), ratio=1)
            continue
        name = heading.removesuffix(">")
        table.add_column(name, justify="left" if name == heading else "right", no_wrap=True)
    return table


def sentence(console: Console, text: str, style: str = "") -> None:
    """A line after an empty one, left to the terminal to wrap."""
    console.print()
    console.print(Text(text, style=style), soft_wrap=True)


def seconds(value: float) -> str:
    """A length of time with three digits: `1.23 s`, `45.6 ms`, `789 µs`."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= 0.9995 * size:
            return f"{_three(value / size)} {unit}"
    return f"{_three(value / 1e-6)} µs"


def _three(value: float) -> str:
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:,.{decimals}f}"


def gib(size: float) -> str:
    """A size in GiB; what is there but rounds to nothing doesn't look like nothing."""
    return "<0.01" if 0 < size < 0.005 else f"{size:,.2f}"


def count(number: int) -> str:
    """A large number in words: `6.74 billion`."""
    for name, size in (("trillion", 10**12), ("billion", 10**9), ("million", 10**6)):
        if number >= 0.9995 * size:
            return f"{_three(number / size)} {name}"
    return f"{number:,}"


def stages(layers: tuple[int, ...]) -> str:
    """Layers of each stage, in order: `32`, `16 in each of 2 stages`, `7, then 8 in each of 3 stages`."""
    runs = [(size, len(list(run))) for size, run in groupby(layers)]
    return ", then ".join(
        str(size) if times == 1 else f"{size} in each of {times} stages" for size, times in runs
    )


def _plural(number: int, noun: str, ending: str = "s") -> str:
    return f"{number:,} {noun}{ending if number != 1 else ''}"
