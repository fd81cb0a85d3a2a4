"""One run of one container: start, log, end."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kronos.local.node.isolation import Launch
from kronos.local.node.logs import ContainerLog, last_lines
from kronos.local.processes import GuardedProcess, read_reports, spawn
from kronos.local.tasks import background

FALLBACK_LINES, FALLBACK_BYTES = 80, 2048
MESSAGE_BYTES = 4096
START_ERROR = 128
KILLED = 137


@dataclass(frozen=True)
class Exit:
    """How a run ended."""

    code: int
    signal: int
    reason: str
    message: str


class ContainerRun:
    """A container's process with its log; made by ``start``."""

    def __init__(self, process: GuardedProcess, log: ContainerLog) -> None:
        """Wrap a started guard; use ``start`` instead."""
        self.process = process
        self.log = log
        self.reports: list[dict[str, Any]] = []
        self.begun = asyncio.Event()
        assert process.report is not None
        self.reader = background(self._read(process.report))

    @classmethod
    def start(cls, launch: Launch, log_path: Path) -> ContainerRun:
        """Start the process; whether that succeeded is known once ``begun`` is set."""
        log = ContainerLog(log_path)
        pipes = [os.pipe(), os.pipe()]
        try:
            process = spawn(
                launch.argv,
                env=launch.env,
                cwd=launch.cwd,
                stdout=pipes[0][1],
                stderr=pipes[1][1],
                isolation=launch.isolation,
                report=True,
            )
        finally:
            for _, write_end in pipes:
                os.close(write_end)
            for (read_end, _), stream in zip(pipes, ("stdout", "stderr"), strict=True):
                log.attach(read_end, stream)
        return cls(process, log)

    async def _read(self, descriptor: int) -> None:
        def handle(report: dict[str, Any]) -> None:
            self.reports.append(report)
            self.begun.set()

        await read_reports(descriptor, handle)
        self.begun.set()

    async def running(self) -> bool:
        """Wait until the program runs, or has failed to start."""
        await self.begun.wait()
        return bool(self.reports) and self.reports[0]["event"] == "started"

    def stop(self) -> None:
        """Ask the program to end."""
        if self.process.running:
            self.process.terminate()

    def kill(self) -> None:
        """Kill the program and all of its descendants."""
        if self.process.running:
            self.process.kill()

    async def wait(self, message_file: Path, policy: str) -> Exit:
        """Wait for the end of everything, log included."""
        await self.process.wait()
        await self.reader
        await self.log.finished.wait()
        last = self.reports[-1] if self.reports else {"event": "killed"}
        if last["event"] == "failed":
            return Exit(START_ERROR, 0, "StartError", last["message"])
        ended = last if last["event"] == "exited" else {"code": KILLED, "signal": int(signal.SIGKILL)}
        code, number = int(ended["code"]), int(ended["signal"])
        return Exit(
            code, number, "Completed" if code == 0 else "Error", self._message(message_file, policy, code)
        )

    def _message(self, message_file: Path, policy: str, code: int) -> str:
        with message_file.open("rb") as file:
            message = file.read(MESSAGE_BYTES).decode(errors="replace")
        if not message and code != 0 and policy == "FallbackToLogsOnError":
            return last_lines(self.log.path, FALLBACK_LINES, FALLBACK_BYTES)
        return message
