"""Commands that take a while, with progress, and questions that must not."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kronos.local.gobuild import BuildError, elapsed
from kronos.local.gobuild import run as run_guarded
from kronos.local.images.errors import ImagesError

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Answer:
    """Whether a command succeeded, and what it wrote."""

    good: bool
    output: str

    @property
    def text(self) -> str:
        """The last line."""
        return self.output.strip().rpartition("\n")[2].strip()


class Runner:
    """Runs commands that die together with this process."""

    def __init__(self, log: Path, environ: Mapping[str, str], progress: Progress) -> None:
        """Commands write into the log; when one fails, its last lines become the error."""
        self.environ = environ
        self.progress = progress
        self._log = log

    def run(self, command: Sequence[str], label: str, environ: Mapping[str, str] | None = None) -> str:
        """Run a command to its end, and return the last line that it writes; ImagesError when it fails."""
        self.progress(label)

        def tick(seconds: float) -> None:
            self.progress(f"{label}: {elapsed(seconds)} so far")

        surroundings = dict(self.environ if environ is None else environ)
        try:
            run_guarded(list(command), Path("/"), surroundings, self._log, tick, f"{label} failed")
        except BuildError as error:
            raise ImagesError(str(error)) from None
        lines = self._log.read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def ask(self, command: Sequence[str], seconds: float) -> Answer:
        """Run a command that must answer within some seconds."""
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                timeout=seconds,
                stdin=subprocess.DEVNULL,
                env=dict(self.environ),
            )
        except subprocess.TimeoutExpired:
            return Answer(False, f"no answer within {seconds:g} s")
        except OSError as error:
            return Answer(False, error.strerror or str(error))
        if done.returncode == 0:
            return Answer(True, done.stdout)
        return Answer(False, done.stderr or done.stdout or f"exit code {done.returncode}")
