"""Container logs: written in the CRI format, read back with the options of ``kubectl logs``."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

CHUNK = 65536
LONGEST_LINE = 16384


def timestamp(nanoseconds: int) -> str:
    """RFC 3339 with nanoseconds, which sort as text."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest:09d}Z"


@dataclass(frozen=True)
class LogOptions:
    """What a reader wants of a log."""

    follow: bool = False
    timestamps: bool = False
    tail_lines: int | None = None
    limit_bytes: int | None = None
    since: str = ""
    stream: str = "All"

    @classmethod
    def from_query(cls, query: Mapping[str, str], now_ns: int) -> LogOptions:
        """Read the query parameters of a log request."""
        since = ""
        if seconds := query.get("sinceSeconds"):
            since = timestamp(now_ns - int(seconds) * 1_000_000_000)
        elif moment := query.get("sinceTime"):
            parsed = datetime.datetime.fromisoformat(moment.replace("Z", "+00:00"))
            since = timestamp(int(parsed.timestamp()) * 1_000_000_000)
        return cls(
            follow=query.get("follow", "").lower() in ("1", "true"),
            timestamps=query.get("timestamps", "").lower() in ("1", "true"),
            tail_lines=int(query["tailLines"]) if "tailLines" in query else None,
            limit_bytes=int(query["limitBytes"]) if "limitBytes" in query else None,
            since=since,
            stream=query.get("stream") or "All",
        )

    def render(self, line: bytes) -> bytes | None:
        """Turn one stored line into what the reader sees, or None when it does not want the line."""
        moment, stream, tag, text = line.split(b" ", 3)
        if self.stream != "All" and stream.decode() != self.stream.lower():
            return None
        if self.since and moment.decode() < self.since:
            return None
        # A partial line is continued by the next one; its line feed is not the program's.
        content = text[:-1] if tag == b"P" else text
        return moment + b" " + content if self.timestamps else content


class ContainerLog:
    """The log of one run of a container, and those who follow it."""

    def __init__(self, path: Path) -> None:
        """Open the file for writing."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.file = path.open("ab", buffering=0)
        self.open_streams = 0
        self.finished = asyncio.Event()
        self.followers: set[asyncio.Event] = set()

    def attach(self, descriptor: int, stream: str) -> None:
        """Copy everything from a pipe into the log until its end, then close the pipe."""
        self.open_streams += 1
        os.set_blocking(descriptor, False)
        rest = b""
        loop = asyncio.get_running_loop()

        def readable() -> None:
            nonlocal rest
            try:
                chunk = os.read(descriptor, CHUNK)
            except BlockingIOError:
                return
            if chunk:
                *lines, rest = (rest + chunk).split(b"\n")
                self._write(stream, lines, b"F")
                if len(rest) >= LONGEST_LINE:
                    self._write(stream, [rest], b"P")
                    rest = b""
            else:
                if rest:
                    self._write(stream, [rest], b"P")
                loop.remove_reader(descriptor)
                os.close(descriptor)
                self._stream_ended()

        loop.add_reader(descriptor, readable)

    def _write(self, stream: str, lines: list[bytes], tag: bytes) -> None:
        if lines:
            prefix = f"{timestamp(time.time_ns())} {stream} ".encode() + tag + b" "
            self.file.write(b"".join(prefix + line + b"\n" for line in lines))
            self._notify()

    def _stream_ended(self) -> None:
        self.open_streams -= 1
        if self.open_streams == 0:
            self.finished.set()
            self.file.close()
            self._notify()

    def _notify(self) -> None:
        for follower in self.followers:
            follower.set()


def last_lines(path: Path, count: int, size: int) -> str:
    """The end of a log as the program wrote it, for termination messages."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - 4 * size))
        lines = file.read().split(b"\n")[-count - 1 : -1]
        everything = LogOptions()
        shown = [everything.render(line + b"\n") or b"" for line in lines if line.count(b" ") >= 3]
        return b"".join(shown)[-size:].decode(errors="replace")
    return ""


async def read(path: Path, options: LogOptions, log: ContainerLog | None) -> AsyncIterator[bytes]:
    """Yield a log, and what is added to it when it is followed and still being written."""
    budget = options.limit_bytes if options.limit_bytes is not None else float("inf")
    changed = asyncio.Event()
    if log is not None:
        log.followers.add(changed)
    try:
        with path.open("rb") as file:
            pending: Iterator[bytes] = complete_lines(file.read())
            if options.tail_lines is not None:
                pending = iter(deque(pending, maxlen=options.tail_lines))
            while budget > 0:
                shown = b"".join(text for line in pending if (text := options.render(line)) is not None)
                if shown:
                    yield shown[: int(min(budget, len(shown)))]
                    budget -= len(shown)
                if log is None or not options.follow or (log.finished.is_set() and not changed.is_set()):
                    return
                await changed.wait()
                changed.clear()
                pending = complete_lines(file.read())
    finally:
        if log is not None:
            log.followers.discard(changed)


def complete_lines(content: bytes) -> Iterator[bytes]:
    """The lines of a piece of a log; the writer only ever adds whole ones."""
    return iter(content.splitlines(keepends=True))
