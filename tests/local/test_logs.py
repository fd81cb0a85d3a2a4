"""Container logs, with the options of kubectl logs."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from kronos.local.node.logs import ContainerLog, LogOptions, last_lines, read, timestamp

SECOND = 1_000_000_000


def test_timestamps_sort_as_text() -> None:
    assert timestamp(0) == "1970-01-01T00:00:00.000000000Z"
    assert timestamp(SECOND + 5) == "1970-01-01T00:00:01.000000005Z"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, b"hello\n"),
        ({"timestamps": "true"}, b"1970-01-01T00:00:01.000000000Z hello\n"),
        ({"stream": "Stderr"}, None),
        ({"stream": "Stdout"}, b"hello\n"),
        ({"sinceSeconds": "1"}, None),
        ({"sinceSeconds": "10"}, b"hello\n"),
        ({"sinceTime": "1970-01-01T00:00:02Z"}, None),
        ({"sinceTime": "1970-01-01T00:00:01Z"}, b"hello\n"),
    ],
)
def test_options_decide_what_is_shown_of_a_line(query: dict[str, str], expected: bytes | None) -> None:
    options = LogOptions.from_query(query, now_ns=4 * SECOND)
    assert options.render(b"1970-01-01T00:00:01.000000000Z stdout F hello\n") == expected


def test_partial_lines_are_joined() -> None:
    options = LogOptions()
    stamp = timestamp(0).encode()
    assert options.render(stamp + b" stdout P hel\n") == b"hel"
    assert options.render(stamp + b" stdout F lo\n") == b"lo\n"


async def write(path: Path, *pieces: bytes) -> ContainerLog:
    log = ContainerLog(path)
    read_end, write_end = os.pipe()
    log.attach(read_end, "stdout")
    for piece in pieces:
        os.write(write_end, piece)
        await asyncio.sleep(0.01)
    os.close(write_end)
    await log.finished.wait()
    return log


async def collect(path: Path, log: ContainerLog | None, **options: object) -> bytes:
    return b"".join([piece async for piece in read(path, LogOptions(**options), log)])  # type: ignore[arg-type]


async def test_what_a_program_writes_is_read_back_exactly(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    pieces = [b"one\ntw", b"o\n", b"x" * 40000 + b"\n", b"no line feed"]
    await write(path, *pieces)
    assert await collect(path, None) == b"".join(pieces)
    assert await collect(path, None, limit_bytes=5) == b"one\nt"
    assert last_lines(path, 1, 100) == "no line feed"


async def test_a_follower_sees_everything_and_then_the_end(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    log = ContainerLog(path)
    read_end, write_end = os.pipe()
    log.attach(read_end, "stdout")
    follower = asyncio.create_task(collect(path, log, follow=True))
    for number in range(3):
        os.write(write_end, b"%d\n" % number)
        await asyncio.sleep(0.01)
    assert not follower.done()
    os.close(write_end)
    assert await asyncio.wait_for(follower, 5) == b"0\n1\n2\n"
    assert log.followers == set()


async def test_the_tail_is_counted_in_lines(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    log = await write(path, b"1\n2\n3\n")
    assert await collect(path, log, tail_lines=2, follow=True) == b"2\n3\n"
    assert await collect(path, log, tail_lines=0) == b""
