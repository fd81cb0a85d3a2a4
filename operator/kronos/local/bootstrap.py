"""Makes `.venv` in the checkout, or finds it current: `python3 -I operator/kronos/local/bootstrap.py`.

This runs before anything is installed, so it uses the standard library alone, and it still says what is wrong under a
Python that is too old for the rest. A stamp holds a hash of what decides the environment's content: while it matches,
a call costs a few milliseconds. A set-up that was cut short is started over, since nobody knows what it left behind;
what pip had downloaded comes from pip's cache then.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

OLDEST = (3, 11)
CANDIDATES = ("python3.11", "python3.12", "python3.13", "python3.14", sys.executable, "python3")
EXTRAS = "operator,trainer,cli,dev"
TYPICAL_SECONDS = 120
"""What a first set-up takes on two cores with a quick network: the estimate until there is something to measure."""
WEIGHTS = {"torch": 25.0, "kubernetes": 4.0, "mypy": 3.0, "numpy": 2.0, "sympy": 4.0, "ruff": 2.0}
"""Packages that take much longer than the others, as a multiple of a small one."""
SECONDS_BETWEEN_LINES = 10.0
LOG_LINES_SHOWN = 25


class SetupError(Exception):
    """The environment can't be made; the message is for people."""


class StepError(SetupError):
    """A command that makes the environment failed; the log says why."""


class Environment:
    """Where the pieces of a checkout's environment are, and whether they are current."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / ".venv"
        self.python = self.folder / "bin" / "python"
        self.log = self.folder / "setup.log"
        self.lock = self.folder / "setup.lock"
        self.stamp = self.folder / "setup.stamp"
        self.unfinished = self.folder / "setup.unfinished"

    def fingerprint(self) -> str:
        """A hash over everything that decides what the environment should hold."""
        digest = hashlib.sha256(str(self.root).encode())
        for name in ("pyproject.toml", "constraints.txt"):
            digest.update((self.root / name).read_bytes())
        return digest.hexdigest()

    def current(self) -> bool:
        """Whether the last set-up finished and nothing that it depends on has changed since."""
        try:
            stamped = self.stamp.read_text(encoding="utf-8")
        except OSError:
            return False
        return stamped == self.fingerprint() and self.python.exists() and not self.unfinished.exists()

    def usable(self) -> bool:
        """Whether a set-up can go on from what is there instead of starting over."""
        return not self.unfinished.exists() and self.python.exists() and not refusal(str(self.python))

    def clear(self) -> None:
        """Remove everything but the lock, which another call may be waiting for."""
        for entry in self.folder.iterdir():
            if entry == self.lock:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()


def refusal(python: str) -> str:
    """Why an interpreter can't be used, as the end of a sentence about it; empty when it can."""
    probe = "import sys; print(sys.version_info[:2] >= (3, 11)); import ensurepip, venv"
    try:
        result = subprocess.run([python, "-I", "-c", probe], capture_output=True, text=True, check=False)
    except OSError:
        return "can't be started"
    if not result.stdout.startswith("True"):
        return "is too old"
    if result.returncode:
        return "comes without the modules venv and ensurepip (on Debian and Ubuntu: apt install python3-venv)"
    return ""


def find_python(candidates: Sequence[str] = CANDIDATES) -> str:
    """The first interpreter that will do; SetupError with what to do about it when none does."""
    reasons = []
    found = (shutil.which(candidate) for candidate in candidates)
    for path in dict.fromkeys(path for path in found if path):
        reason = refusal(path)
        if not reason:
            return path
        reasons.append(f"{path} {reason}")
    needed = ".".join(map(str, OLDEST))
    raise SetupError(
        f"Kronos needs Python {needed} or newer; {'; '.join(reasons) or 'none was found on PATH'}."
    )


def pip_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for pip: the caller's settings, the extra folder of wheels, nothing that redirects the install."""
    redirecting = {
        "PYTHONPATH",
        "PYTHONHOME",
        "PIP_USER",
        "PIP_TARGET",
        "PIP_PREFIX",
        "PIP_REQUIRE_VIRTUALENV",
    }
    result = {name: value for name, value in environment.items() if name not in redirecting}
    folders = [environment.get("PIP_FIND_LINKS", ""), environment.get("KRONOS_WHEELS", "")]
    if any(folders):
        result["PIP_FIND_LINKS"] = " ".join(filter(None, folders))
    result["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    return result


class PipProgress:
    """Follows pip's output and the packages appearing on disk, and tells how far it is.

    Two halves of equal weight: finding and fetching each package, then installing it.
    """

    def __init__(self, constraints: str, installed: frozenset[str]) -> None:
        self._expected = {_key(line.split("==")[0]) for line in constraints.splitlines() if "==" in line}
        self._present = installed
        self._found: set[str] = set()
        self._done: set[str] = set()
        self._installing = False
        self.doing = "starting pip"

    def line(self, text: str) -> None:
        """Take in one line of pip's output."""
        if match := re.match(r"Collecting ([A-Za-z0-9._-]+)", text):
            self._installing = False
            self._found.add(_key(match[1]))
            self.doing = f"fetching {match[1]}"
        elif match := re.match(r"\s+(?:Downloading|Using cached) (\S+?)-\d\S* \(([^)]+)\)", text):
            self.doing = f"fetching {Path(match[1]).name} ({match[2]})"
        elif match := re.match(r"Requirement already satisfied: ([A-Za-z0-9._-]+)", text):
            self._found.add(_key(match[1]))
            self._done.add(_key(match[1]))
        elif text.startswith("Installing collected packages:"):
            self._installing = True
            names = {_key(name) for name in text.partition(":")[2].split(",")}
            self._expected |= names
            self._found |= names

    def installed(self, names: frozenset[str]) -> None:
        """Take in which packages are on disk now."""
        if self._installing:
            self._done |= names - self._present
            left = self._weight(self._expected - self._done)
            self.doing = f"installing {len(self._expected & self._done)} of {len(self._expected)} packages"
            if "torch" in self._expected - self._done and left < 2 * WEIGHTS["torch"]:
                self.doing += " (torch is the largest)"

    @property
    def fraction(self) -> float:
        """How much of the work is done, from 0 to 1."""
        whole = self._weight(self._expected) or 1.0
        return (self._weight(self._expected & self._found) + self._weight(self._expected & self._done)) / (
            2 * whole
        )

    def _weight(self, names: set[str]) -> float:
        return sum(WEIGHTS.get(name, 1.0) for name in names)


def _key(name: str) -> str:
    """A package's name in its canonical form."""
    return re.sub(r"[-_.]+", "-", name).strip().lower()


def packages_on_disk(folder: Path) -> frozenset[str]:
    """Canonical names of the packages whose installation has finished."""
    return frozenset(
        _key(path.parent.name.split("-")[0]) for path in folder.glob("lib/*/site-packages/*.dist-info/RECORD")
    )


def seconds_left(elapsed: float, fraction: float) -> float:
    """Estimated seconds to the end: the usual time at first, what was measured more and more."""
    usual = TYPICAL_SECONDS * (1 - fraction)
    measured = elapsed / fraction - elapsed if fraction > 0 else usual
    return (1 - fraction) * usual + fraction * measured


def in_words(seconds: float) -> str:
    """A length of time, as exact as an estimate deserves."""
    if seconds < 10:
        return "a few seconds"
    return f"about {round(seconds, -1):.0f} s" if seconds < 90 else f"about {seconds / 60:.0f} min"


class Display:
    """One line that is drawn over again on a terminal, a line now and then elsewhere."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._started = time.monotonic()
        self._last = float("-inf")

    def show(self, doing: str, fraction: float) -> None:
        """Say what is being done and how long the rest may take."""
        now = time.monotonic()
        if not self._live and now - self._last < SECONDS_BETWEEN_LINES:
            return
        self._last = now
        elapsed = now - self._started
        minutes, seconds = divmod(int(elapsed), 60)
        left = in_words(seconds_left(elapsed, fraction))
        text = f"  {minutes}:{seconds:02} {doing}; {left} left"
        if self._live:
            width = shutil.get_terminal_size().columns
            self._stream.write(f"\r\x1b[K{text[: width - 1]}")
        else:
            self._stream.write(f"{text}\n")
        self._stream.flush()

    def end(self, text: str) -> None:
        """Replace the line by a last word."""
        self._stream.write(f"\r\x1b[K{text}\n" if self._live else f"{text}\n")
        self._stream.flush()

    @property
    def elapsed(self) -> float:
        """Seconds since this display began."""
        return time.monotonic() - self._started


@contextlib.contextmanager
def locked(path: Path, stream: IO[str]) -> Iterator[None]:
    """Hold the lock of a checkout's environment; it is freed however this process ends."""
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another call is setting up .venv; waiting for it.", file=stream, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run_logged(
    command: Sequence[str], environment: Environment, progress: PipProgress, display: Display
) -> None:
    """Run one command with its output in the log; StepError when it fails. It never outlives this call."""
    with environment.log.open("a", encoding="utf-8") as log:
        log.write(f"$ {' '.join(command)}\n")
        log.flush()
        # A session of its own: a Ctrl-C reaches this process alone, which then ends pip and whatever pip started.
        process = subprocess.Popen(
            command,
            cwd=environment.root,
            env=pip_environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

        def read() -> None:
            assert process.stdout is not None
            with process.stdout as output:
                for line in output:
                    lines.put(line)
            lines.put(None)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            while True:
                with contextlib.suppress(queue.Empty):
                    line = lines.get(timeout=0.5)
                    if line is None:
                        break
                    log.write(line)
                    progress.line(line)
                progress.installed(packages_on_disk(environment.folder))
                display.show(progress.doing, progress.fraction)
            code = process.wait()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        finally:
            reader.join(1.0)
    if code:
        raise StepError(f"{Path(command[0]).name} {' '.join(command[1:4])} failed with exit code {code}.")


def set_up(environment: Environment, stream: IO[str]) -> None:
    """Create or refresh the environment; the caller holds the lock."""
    python = find_python()
    fresh = not environment.usable()
    if fresh:
        environment.clear()
        print("Setting up .venv: Kronos, PyTorch and the tools (once per checkout).", file=stream, flush=True)
    else:
        print("Refreshing .venv: pyproject.toml or constraints.txt has changed.", file=stream, flush=True)
    display = Display(stream)
    environment.stamp.unlink(missing_ok=True)
    environment.unfinished.touch()
    environment.log.write_text("", encoding="utf-8")
    wanted = environment.fingerprint()
    constraints = (environment.root / "constraints.txt").read_text(encoding="utf-8")
    progress = PipProgress(constraints, packages_on_disk(environment.folder))
    if fresh:
        progress.doing = "creating the virtual environment"
        run_logged([python, "-I", "-m", "venv", str(environment.folder)], environment, progress, display)
    pip = [
        str(environment.python),
        "-m",
        "pip",
        "install",
        "--no-input",
        "--progress-bar=off",
        "-c",
        "constraints.txt",
    ]
    # The pinned setuptools builds Kronos itself, so pip need not fetch an unpinned one for that.
    run_logged([*pip, "setuptools"], environment, progress, display)
    run_logged([*pip, "--no-build-isolation", "-e", f".[{EXTRAS}]"], environment, progress, display)
    environment.stamp.write_text(wanted, encoding="utf-8")
    environment.unfinished.unlink()
    display.end(f"  .venv is ready after {in_words(display.elapsed)}.")


def main() -> int:
    """Make sure that the checkout's environment is current; the exit code says whether it is."""
    environment = Environment(Path(__file__).resolve().parents[3])
    if environment.current():
        return 0
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    try:
        with locked(environment.lock, sys.stderr):
            if not environment.current():
                set_up(environment, sys.stderr)
    except KeyboardInterrupt:
        print("\nInterrupted; the next call sets .venv up again.", file=sys.stderr)
        return 130
    except StepError as error:
        tail = environment.log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES_SHOWN:]
        print("", error, *(f"  {line}" for line in tail), sep="\n", file=sys.stderr)
        print(f"The whole log is in {environment.log}.", file=sys.stderr)
        return 1
    except SetupError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
