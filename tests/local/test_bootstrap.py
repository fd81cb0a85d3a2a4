"""The set-up of .venv, as far as it can be tried without installing anything."""

from __future__ import annotations

import fcntl
import io
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kronos.local import bootstrap
from kronos.local.bootstrap import Environment, PipProgress, SetupError

CONSTRAINTS = "# versions\nrich==15.0.0\ntorch==2.13.0\nPyYAML==6.0.4\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Environment:
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    (tmp_path / "constraints.txt").write_text(CONSTRAINTS)
    return Environment(tmp_path)


def stamped(environment: Environment) -> Environment:
    environment.python.parent.mkdir(parents=True)
    environment.python.symlink_to(sys.executable)
    environment.stamp.write_text(environment.fingerprint())
    return environment


def test_a_stamped_environment_is_current(checkout):
    assert not checkout.current()
    assert stamped(checkout).current()


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_change_of_what_it_depends_on_makes_it_stale(checkout, name):
    stamped(checkout)
    (checkout.root / name).write_text("something else")
    assert not checkout.current()


def test_a_checkout_that_was_moved_is_stale(checkout, tmp_path_factory):
    stamped(checkout)
    moved = tmp_path_factory.mktemp("elsewhere") / "checkout"
    checkout.root.rename(moved)
    assert not Environment(moved).current()


def test_an_unfinished_set_up_is_neither_current_nor_usable(checkout):
    stamped(checkout).unfinished.touch()
    assert not checkout.current()
    assert not checkout.usable()


def test_an_interpreter_that_is_gone_makes_it_stale(checkout):
    stamped(checkout).python.unlink()
    assert not checkout.current()
    assert not checkout.usable()


def test_clearing_keeps_the_lock(checkout):
    stamped(checkout).lock.touch()
    checkout.clear()
    assert list(checkout.folder.iterdir()) == [checkout.lock]


def fake_python(folder: Path, name: str, script: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_the_first_interpreter_that_will_do_is_taken(tmp_path):
    old = fake_python(tmp_path, "old", "echo False")
    assert bootstrap.find_python(["no-such-python", old, sys.executable]) == sys.executable


def test_why_no_interpreter_will_do_is_said_for_each(tmp_path):
    old = fake_python(tmp_path, "old", "echo False")
    bare = fake_python(tmp_path, "bare", "echo True; exit 1")
    with pytest.raises(SetupError) as raised:
        bootstrap.find_python([old, bare])
    assert f"{old} is too old" in str(raised.value)
    assert f"{bare} comes without the modules venv and ensurepip" in str(raised.value)


def test_no_interpreter_at_all_is_one_clear_sentence():
    with pytest.raises(SetupError, match=r"^Kronos needs Python 3\.11 or newer; none was found on PATH\.$"):
        bootstrap.find_python(["no-such-python"])


def test_pip_gets_the_callers_folders_of_wheels_and_nothing_that_redirects_it():
    given = {
        "PIP_FIND_LINKS": "/one",
        "KRONOS_WHEELS": "/two",
        "PIP_USER": "1",
        "PYTHONPATH": "/x",
        "HOME": "/h",
    }
    assert bootstrap.pip_environment(given) == {
        "PIP_FIND_LINKS": "/one /two",
        "KRONOS_WHEELS": "/two",
        "HOME": "/h",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    assert "PIP_FIND_LINKS" not in bootstrap.pip_environment({"HOME": "/h"})


def test_progress_follows_pip_from_nothing_to_the_end():
    progress = PipProgress(CONSTRAINTS, frozenset())
    seen = [progress.fraction]
    for text in (
        "Collecting rich==15.0.0",
        "  Downloading rich-15.0.0-py3-none-any.whl (243 kB)",
        "Collecting torch",
    ):
        progress.line(text)
        seen.append(progress.fraction)
    assert progress.doing == "fetching torch"
    progress.line("Collecting PyYAML")
    progress.line("Installing collected packages: rich, PyYAML, torch, kronos")
    for names in ({"rich"}, {"rich", "pyyaml"}, {"rich", "pyyaml", "kronos", "torch"}):
        progress.installed(frozenset(names))
        seen.append(progress.fraction)
    assert progress.doing == "installing 4 of 4 packages"
    assert seen[0] == 0
    assert seen[-1] == pytest.approx(1)
    assert seen == sorted(seen)


def test_installing_the_build_tool_first_is_not_taken_for_the_whole():
    progress = PipProgress("setuptools==84.0\n" + CONSTRAINTS, frozenset())
    progress.line("Installing collected packages: setuptools")
    progress.installed(frozenset({"setuptools"}))
    assert progress.fraction < 0.1
    progress.line("Collecting rich")
    progress.installed(frozenset({"setuptools"}))
    assert progress.doing == "fetching rich"


def test_what_is_satisfied_already_counts():
    progress = PipProgress("rich==15.0.0\n", frozenset({"rich"}))
    progress.line("Requirement already satisfied: rich in ./lib (15.0.0)")
    assert progress.fraction == pytest.approx(1)


def test_the_estimate_moves_from_the_usual_time_to_what_is_measured():
    assert bootstrap.seconds_left(0, 0) == bootstrap.TYPICAL_SECONDS
    assert bootstrap.seconds_left(100, 1) == 0
    slow, quick = bootstrap.seconds_left(300, 0.5), bootstrap.seconds_left(10, 0.5)
    assert quick < bootstrap.TYPICAL_SECONDS / 2 < slow


@pytest.mark.parametrize(
    ("seconds", "words"), [(4, "a few seconds"), (44, "about 40 s"), (150, "about 2 min")]
)
def test_lengths_of_time_are_rounded(seconds, words):
    assert bootstrap.in_words(seconds) == words


def test_a_second_call_waits_for_the_first_and_says_so(tmp_path):
    lock = tmp_path / ".venv" / "setup.lock"
    lock.parent.mkdir()
    said = io.StringIO()
    code = f"""
import sys; sys.path.insert(0, {str(Path(bootstrap.__file__).parent)!r})
import bootstrap, pathlib
with bootstrap.locked(pathlib.Path({str(lock)!r}), sys.stdout):
    print("mine", flush=True)
"""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert other.stdout is not None
        assert "waiting for it" in other.stdout.readline()
        assert other.poll() is None
    assert other.communicate(timeout=20)[0] == "mine\n"
    with bootstrap.locked(lock, said):
        pass
    assert said.getvalue() == ""


def test_a_command_that_fails_is_told_and_logged(checkout):
    checkout.folder.mkdir()
    display = bootstrap.Display(io.StringIO())
    with pytest.raises(bootstrap.StepError, match="exit code 3"):
        bootstrap.run_logged(
            [sys.executable, "-c", "print('why it failed'); raise SystemExit(3)"],
            checkout,
            PipProgress(CONSTRAINTS, frozenset()),
            display,
        )
    assert "why it failed" in checkout.log.read_text()


def soon(holds: Callable[[], bool], seconds: float = 5.0) -> bool:
    """Whether something comes to hold."""
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    return holds()


def has_ended(pid: int) -> bool:
    """A process that nobody has collected yet has ended, too."""
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


def test_an_interrupted_command_is_killed_with_all_that_it_started(checkout):
    checkout.folder.mkdir()
    script = (
        "import subprocess, sys, time; child = subprocess.Popen(['sleep', '60']);"
        "print('Collecting', child.pid, flush=True); time.sleep(60)"
    )
    pids: list[int] = []

    class Interrupting(PipProgress):
        def line(self, text: str) -> None:
            pids.append(int(text.split()[1]))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bootstrap.run_logged(
            [sys.executable, "-c", script],
            checkout,
            Interrupting(CONSTRAINTS, frozenset()),
            bootstrap.Display(io.StringIO()),
        )
    # SIGKILL was sent before the interruption went on; dying of it takes a busy machine a moment.
    assert soon(lambda: has_ended(pids[0])), f"process {pids[0]} lives on"


def test_it_runs_without_any_installed_package(tmp_path):
    """As the Makefile runs it: a plain Python, no site-packages."""
    script = Path(bootstrap.__file__)
    code = f"import runpy; runpy.run_path({str(script)!r}, run_name='checked')"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, env=dict(os.environ), cwd=tmp_path)
