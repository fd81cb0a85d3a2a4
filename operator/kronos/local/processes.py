"""Child processes that cannot outlive their owner.

Everything that Kronos starts locally runs under ``guard.py``, which kills the program and all its
descendants when the owner dies or when it is told to.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

GUARD = Path(__file__).with_name("guard.py")
KILL_ALL = signal.SIGRTMIN


@dataclass(frozen=True)
class Isolation:
    """Namespaces for one container: its host name and the root file system to build."""

    hostname: str
    root: str
    steps: list[list[Any]] = field(default_factory=list)


class GuardedProcess:
    """A running program together with its guard."""

    def __init__(self, popen: subprocess.Popen[bytes], report: int | None) -> None:
        """Wrap a started guard; use ``spawn`` instead."""
        self.popen = popen
        self.report = report
        self.pid = popen.pid

    @property
    def running(self) -> bool:
        """Whether the guard, and so possibly the program, is still there."""
        return self.popen.poll() is None

    def terminate(self) -> None:
        """Send SIGTERM to the program."""
        self.popen.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the program and all of its descendants."""
        self.popen.send_signal(KILL_ALL)

    async def wait(self) -> None:
        """Return when the program and all of its descendants are gone."""
        if not self.running:
            return
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        descriptor = os.pidfd_open(self.pid)
        loop.add_reader(descriptor, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        self.popen.wait()

    async def stop(self, grace: float) -> None:
        """Ask the program to end, and kill it when it has not done so in time."""
        self.terminate()
        try:
            await asyncio.wait_for(self.wait(), grace)
        except TimeoutError:
            self.kill()
            await self.wait()
        except BaseException:
            self.kill()
            raise

    def stop_now(self, grace: float) -> None:
        """The blocking form of ``stop``."""
        self.terminate()
        try:
            self.popen.wait(grace)
        except subprocess.TimeoutExpired:
            self.kill()
            self.popen.wait()


def spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    stdout: int,
    stderr: int,
    cwd: str = "",
    isolation: Isolation | None = None,
    report: bool = False,
) -> GuardedProcess:
    """Start a program under a guard that dies, with all descendants, together with this process.

    With ``report`` the result's ``report`` is the reading end of a pipe of JSON lines, which the caller
    closes: ``started``, or ``failed`` with a message, then ``exited`` with code and signal.
    """
    read_end, write_end = os.pipe() if report else (None, None)
    spec = {
        "owner": os.getpid(),
        "argv": list(argv),
        "env": dict(env),
        "cwd": cwd,
        "report": write_end,
        "isolation": asdict(isolation) if isolation else None,
    }
    memory = os.memfd_create("kronos-guard", 0)
    try:
        with os.fdopen(os.dup(memory), "wb") as file:
            file.write(json.dumps(spec).encode())
        os.lseek(memory, 0, os.SEEK_SET)
        passed = [memory] if write_end is None else [memory, write_end]
        popen = subprocess.Popen(
            [sys.executable, "-S", "-E", "-s", "-P", str(GUARD), str(memory)],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            pass_fds=passed,
            start_new_session=True,
            cwd="/",
        )
    except BaseException:
        if read_end is not None:
            os.close(read_end)
        raise
    finally:
        os.close(memory)
        if write_end is not None:
            os.close(write_end)
    return GuardedProcess(popen, read_end)


async def read_reports(descriptor: int, handle: Callable[[dict[str, Any]], None]) -> None:
    """Pass every report to the handler until the guard has closed the pipe; closes the descriptor."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", buffering=0)
    )
    try:
        while line := await reader.readline():
            handle(json.loads(line))
    finally:
        transport.close()


def last_lines(path: Path, count: int = 15, within: int = 16384) -> str:
    """The end of a log file, for error messages; empty when there is none."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - within))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-count:])
    return ""
