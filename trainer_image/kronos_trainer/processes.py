"""The rank processes of one member.

Ranks are forked from a launcher that has loaded torch already: loading it takes seconds of processor time, which a
fork pays once per pod instead of once per rank, and shares its memory. They are forked before the launcher starts any
thread and wait for the word to begin.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from kronos_trainer.messages import Advanced, AtStep, Ended, Failure, Reporter, parse

_PR_SET_PDEATHSIG = 1
_WORD_BYTES = 512

RankBody = Callable[[int, int, Callable[[], str], Reporter], int]
"""Called in the rank's process with (rank, local rank, wait for the word to begin, reporter); returns the exit code.
The wait gives the word, or nothing when the launcher has gone."""


@dataclass
class RankProcess:
    """One rank as its launcher sees it."""

    rank: int
    pid: int
    reports: int
    """Descriptor to read messages from."""
    go: int
    """Descriptor to write the word to begin to."""
    step: int | None = None
    """Steps done, as last heard."""
    last: Ended | Failure | None = None
    """How it ended, in its own words."""
    alive: bool = True
    pending: bytes = field(default=b"", repr=False)


class RankProcesses:
    """Starts, watches and stops the ranks of this member."""

    def __init__(self, ranks: range, body: RankBody) -> None:
        """Fork one process per rank; none begins before `begin`."""
        self._selector = selectors.DefaultSelector()
        self.processes: list[RankProcess] = []
        for local_rank, rank in enumerate(ranks):
            process = self._fork(rank, local_rank, body)
            self.processes.append(process)
            self._selector.register(process.reports, selectors.EVENT_READ, process)

    @property
    def alive(self) -> list[RankProcess]:
        """Ranks that have not ended yet."""
        return [process for process in self.processes if process.alive]

    def begin(self, word: str) -> None:
        """Give every rank the word to begin: a short text that it needs to know by then."""
        for process in self.processes:
            with suppress(BrokenPipeError):
                os.write(process.go, word.encode())

    def poll(self, timeout: float) -> list[AtStep | Advanced | Ended | Failure]:
        """Messages that arrived within `timeout` seconds; a rank that died without a word counts as a failure."""
        messages: list[AtStep | Advanced | Ended | Failure] = []
        for key, _ in self._selector.select(timeout):
            process: RankProcess = key.data
            data = os.read(process.reports, 1 << 16)
            lines = (process.pending + data).split(b"\n")
            process.pending = lines.pop()
            for message in map(parse, lines):
                if isinstance(message, AtStep):
                    process.step = message.step
                elif isinstance(message, Ended | Failure):
                    process.last = message
                messages.append(message)
            if not data:
                failure = self._reap(process)
                if failure is not None:
                    messages.append(failure)
        return messages

    def ask_to_stop(self) -> None:
        """Ask the ranks to end after their current step."""
        self._signal(signal.SIGTERM)

    def end(self, grace_seconds: float) -> None:
        """Stop all ranks: SIGTERM, then after the grace SIGKILL. Returns when none is left."""
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + grace_seconds
        while self.alive and (left := deadline - time.monotonic()) > 0:
            self.poll(left)
        self._signal(signal.SIGKILL)
        while self.alive:
            self.poll(1.0)

    def _signal(self, number: signal.Signals) -> None:
        for process in self.alive:
            os.kill(process.pid, number)

    def _reap(self, process: RankProcess) -> Failure | None:
        _, status = os.waitpid(process.pid, 0)
        process.alive = False
        self._selector.unregister(process.reports)
        os.close(process.reports)
        os.close(process.go)
        if process.last is not None:
            return None
        code = os.waitstatus_to_exitcode(status)
        error = f"exited with code {code} and no message"
        if code < 0:
            error = f"killed by {signal.Signals(-code).name}"
            if -code == signal.SIGKILL:
                error += " (out of memory, if nobody killed it on purpose)"
        process.last = Failure(rank=process.rank, step=process.step, error=error)
        return process.last

    def _fork(self, rank: int, local_rank: int, body: RankBody) -> RankProcess:
        reports_in, reports_out = os.pipe()
        go_in, go_out = os.pipe()
        launcher = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        # A signal between the fork and the child's own handlers would run the launcher's.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                for number in (signal.SIGTERM, signal.SIGINT):
                    signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
                _die_with(launcher)
                for other in self.processes:
                    os.close(other.reports)
                    os.close(other.go)
                os.close(reports_in)
                os.close(go_out)
                code = body(
                    rank, local_rank, lambda: os.read(go_in, _WORD_BYTES).decode(), Reporter(reports_out)
                )
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                # Leaves without the launcher's own clean-up, and without waiting for threads of native libraries.
                os._exit(code)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        os.close(reports_out)
        os.close(go_in)
        return RankProcess(rank, pid, reports_in, go_out)


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, however that happens."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
