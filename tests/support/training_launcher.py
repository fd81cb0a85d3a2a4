"""Runs whole members of a gang, each a launcher with its ranks on a loopback address of its own."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kronos.api.plan import PROGRESS_PORT, LastWords, Plan

_ROOT = Path(__file__).resolve().parents[2]
_GANGS = itertools.count()
_LARGEST_GANG = 8
# Local clusters take their pods' addresses from 127.1.0.0 to 127.254.255.255.
_NETWORK = f"127.255.{os.getpid() % 255}"

FAULTY = """
import sys
from kronos_trainer import environment, launcher
import os
environment.prepare_environment(os.environ, "127.0.0.1")
from kronos_trainer import worker
healthy = worker.Training._step
def faulty(self, step):
    if self._layout.rank == {rank} and step == {step}:
        {fault}
    return healthy(self, step)
worker.Training._step = faulty
sys.exit(launcher.main())
"""
"""A launcher whose ranks inherit a fault: before a step, one rank runs a statement."""


class Gang:
    """Members of a plan; leaving the context kills those that still run."""

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        fault: tuple[int, int, str] | None = None,
        plan_text: str | None = None,
    ) -> None:
        """`fault` is (rank, step from 0, statement); `plan_text` replaces the plan's document."""
        self._folder = folder
        self._plan = plan
        self._fault = fault
        assert len(plan.members) <= _LARGEST_GANG
        self._first_host = 1 + next(_GANGS) % 30 * _LARGEST_GANG
        self._members: dict[int, subprocess.Popen[str]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self.plan_file = folder / "plan.json"
        self.plan_file.write_text(plan_text if plan_text is not None else json.dumps(plan.wire()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._members.values():
            if process.poll() is None:
                process.kill()
            process.wait()

    def start(self, *members: int, **environment: str) -> None:
        """Start the launchers of some members; all when none is named."""
        command = [sys.executable, "-m", "kronos_trainer"]
        if self._fault is not None:
            rank, step, statement = self._fault
            command = [sys.executable, "-c", FAULTY.format(rank=rank, step=step, fault=statement)]
        for member in members or range(len(self._plan.members)):
            variables = {
                "PATH": os.environ["PATH"],
                "PYTHONPATH": f"{_ROOT / 'operator'}{os.pathsep}{_ROOT / 'trainer_image'}",
                "KRONOS_PLAN": str(self.plan_file),
                "KRONOS_MEMBER": str(member),
                "KRONOS_MASTER": self.address(0),
                "KRONOS_POD_IP": self.address(member),
                "KRONOS_TERMINATION_LOG": str(self._folder / f"words-{member}"),
                **environment,
            }
            log = (self._folder / f"log-{member}").open("w")
            self._members[member] = subprocess.Popen(
                command, env=variables, stdout=log, stderr=subprocess.STDOUT, text=True
            )
            log.close()

    def address(self, member: int) -> str:
        """The address of a member's pod."""
        return f"{_NETWORK}.{self._first_host + member}"

    def process(self, member: int) -> subprocess.Popen[str]:
        """The launcher's process of a member."""
        return self._members[member]

    def wait(self, seconds: float = 90) -> dict[int, int]:
        """Wait for all started members; their exit codes."""
        deadline = time.monotonic() + seconds
        return {
            member: process.wait(max(0.1, deadline - time.monotonic()))
            for member, process in self._members.items()
        }

    def words(self, member: int) -> LastWords:
        """The last words of a member."""
        return LastWords.model_validate_json((self._folder / f"words-{member}").read_bytes())

    def log(self, member: int) -> str:
        """What a member has written so far."""
        return (self._folder / f"log-{member}").read_text()

    def get(self, path: str) -> Any:
        """A page of the first member's progress server; None when it doesn't answer."""
        url = f"http://{self.address(0)}:{PROGRESS_PORT}{path}"
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                return answer.read().decode()
        except OSError:
            return None

    def until_waiting(self, seconds: float = 60) -> None:
        """Wait until the first member has forked its ranks and serves its progress port."""
        deadline = time.monotonic() + seconds
        while self.get("/healthz") is None:
            assert time.monotonic() < deadline, self.log(0)
            time.sleep(0.05)

    def until_step(self, step: int, seconds: float = 60) -> dict[str, Any]:
        """Wait until the gang has done a step; its progress then."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            progress = json.loads(self.get("/progress") or '{"step": -1}')
            if progress["step"] >= step:
                return dict(progress)
            time.sleep(0.05)
        raise AssertionError(f"step {step} was not reached:\n{self.log(0)}")

    def rank_processes(self, member: int) -> list[int]:
        """Process ids of a member's ranks."""
        parent = self.process(member).pid
        text = Path(f"/proc/{parent}/task/{parent}/children").read_text()
        return [int(pid) for pid in text.split()]
