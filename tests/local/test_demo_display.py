"""What the demo shows, with and without a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from kronos.api.status import ProgressStatus, TrainingJobStatus
from kronos.local.demo.display import Display, line_of, table_of
from kronos.local.demo.story import Row


def row(step: int | None = None, **status: object) -> Row:
    progress = (
        None if step is None else ProgressStatus(step=step, steps=40, loss=3.25, tokens_per_second=1234.5)
    )
    return Row("burner", TrainingJobStatus(progress=progress, **status), 40)


def shown(*rows: Row) -> list[str]:
    output = io.StringIO()
    with Display(Console(file=output, width=100)) as display:
        for item in rows:
            display.show([item])
    return [line.partition("] ")[2] for line in output.getvalue().splitlines()]


def test_a_line_holds_all_that_is_known():
    text = line_of(row(12, phase="Running", ready="3/3"))
    assert text.split() == [
        "burner",
        "Running",
        "pods",
        "3/3",
        "step",
        "12/40",
        "loss",
        "3.250",
        "1,234",
        "tokens/s",
    ]
    assert line_of(row(phase="Queued", reason="waits for 4 more")).endswith("Queued      waits for 4 more")


def test_without_a_terminal_there_is_a_line_per_change():
    queued = row(phase="Queued", reason="waits")
    assert len(shown(queued, queued, queued)) == 1
    assert len(shown(queued, row(phase="Starting", ready="0/3"), row(phase="Starting", ready="1/3"))) == 3


def test_without_a_terminal_steps_are_told_four_times():
    assert len(shown(*(row(step, phase="Running") for step in range(40)))) == 4


def test_sentences_are_neither_wrapped_nor_read_as_markup():
    output = io.StringIO()
    Display(Console(file=output, width=40)).say(
        "[bold] is kept and this sentence is longer than the console is wide"
    )
    assert output.getvalue().count("\n") == 1
    assert "[bold] is kept" in output.getvalue()


def test_the_table_has_a_row_per_job():
    output = io.StringIO()
    console = Console(file=output, width=140, force_terminal=True)
    console.print(
        table_of([row(12, phase="Running", ready="3/3"), row(phase="Queued", reason="waits for 4 more")])
    )
    text = output.getvalue()
    for expected in ("Running", "3/3", "12/40", "3.250", "1,234", "waits for 4 more"):
        assert expected in text
