"""No process outlives its owner, whatever it does and however the owner dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kronos.local.node.rootfs import plan
from kronos.local.processes import GuardedProcess, Isolation, spawn

ENV = {"PATH": f"{Path(sys.executable).parent}:{os.defpath}"}
DAEMON = (
    "import os, sys, time\n"
    "if os.fork(): time.sleep(100)\n"
    "os.setsid()\n"
    "if os.fork(): os._exit(0)\n"
    "while True:\n"
    "    open(sys.argv[1], 'w').write(str(time.time())); time.sleep(0.02)\n"
)


def start(argv: list[str], isolation: Isolation | None = None) -> GuardedProcess:
    null = subprocess.DEVNULL
    return spawn(argv, env=ENV, stdout=null, stderr=null, isolation=isolation, report=True)


def reports(process: GuardedProcess) -> list[dict]:
    assert process.report is not None
    with os.fdopen(process.report) as file:
        said = [json.loads(line) for line in file]
    process.popen.wait(10)
    return said


def eventually(holds: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it has not come to hold"
        time.sleep(0.02)


def is_silent(beat: Path) -> bool:
    """Whether a daemon has stopped writing."""
    before = beat.read_text()
    time.sleep(0.15)
    return beat.read_text() == before


@pytest.fixture(params=["plain", "isolated"])
def isolation(request: pytest.FixtureRequest, tmp_path: Path) -> Isolation | None:
    if request.param == "plain":
        return None
    (tmp_path / "root").mkdir()
    return Isolation("inside", str(tmp_path / "root"), plan([]))


@pytest.mark.parametrize(
    ("script", "code", "number"),
    [("pass", 0, 0), ("raise SystemExit(7)", 7, 0), ("import os; os.kill(os.getpid(), 15)", 143, 15)],
)
def test_the_end_of_a_program_is_reported(
    isolation: Isolation | None, script: str, code: int, number: int
) -> None:
    said = reports(start(["python", "-c", script], isolation))
    assert said == [{"event": "started"}, {"event": "exited", "code": code, "signal": number}]


def test_a_program_that_cannot_start_is_reported(isolation: Isolation | None) -> None:
    said = reports(start(["no-such-program"], isolation))
    assert said == [{"event": "failed", "message": 'exec: "no-such-program": executable file not found'}]


def test_sigterm_reaches_the_program(isolation: Isolation | None, tmp_path: Path) -> None:
    script = (
        "import signal, sys, time\n"
        "signal.signal(15, lambda *_: sys.exit(5)); open(sys.argv[1], 'w').close(); time.sleep(100)"
    )
    process = start(["python", "-c", script, str(tmp_path / "ready")], isolation)
    eventually((tmp_path / "ready").exists)
    process.terminate()
    assert reports(process)[-1]["code"] == 5


def test_killing_takes_daemons_along(isolation: Isolation | None, tmp_path: Path) -> None:
    beat = tmp_path / "beat"
    process = start(["python", "-c", DAEMON, str(beat)], isolation)
    eventually(beat.exists)
    process.kill()
    reports(process)
    assert is_silent(beat)


def test_sigkill_of_the_owner_takes_everything_along(isolation: Isolation | None, tmp_path: Path) -> None:
    beat = tmp_path / "beat"
    arguments = {"hostname": "x", "root": isolation.root, "steps": isolation.steps} if isolation else None
    owner_script = (
        "import json, sys, threading, time\n"
        "from kronos.local.processes import Isolation, spawn\n"
        "argv, env, isolation = json.loads(sys.argv[1])\n"
        "def begin(): spawn(argv, env=env, stdout=2, stderr=2, isolation=isolation and Isolation(**isolation))\n"
        "thread = threading.Thread(target=begin); thread.start(); thread.join(); time.sleep(100)"
    )
    content = json.dumps([["python", "-c", DAEMON, str(beat)], ENV, arguments])
    operator = Path(__file__).parents[2] / "operator"
    owner = subprocess.Popen(
        [sys.executable, "-c", owner_script, content], env=os.environ | {"PYTHONPATH": str(operator)}
    )
    try:
        eventually(beat.exists)
        # The thread that started the program has ended long since; only the process counts.
        assert not is_silent(beat)
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    eventually(lambda: is_silent(beat))


def test_sigkill_of_the_guard_takes_the_program_along(isolation: Isolation | None, tmp_path: Path) -> None:
    beat = tmp_path / "beat"
    script = "import sys, time\nwhile True: open(sys.argv[1], 'w').write(str(time.time())); time.sleep(0.02)"
    process = start(["python", "-c", script, str(beat)], isolation)
    eventually(beat.exists)
    process.popen.kill()
    reports(process)
    eventually(lambda: is_silent(beat))


def test_a_container_sees_only_its_own_processes_and_host_name(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    script = "import os, socket, sys; open(sys.argv[1], 'w').write(f'{socket.gethostname()} {os.getpid()}')"
    argv = ["python", "-c", script, str(tmp_path / "out")]
    reports(start(argv, Isolation("inside", str(tmp_path / "root"), plan([]))))
    assert (tmp_path / "out").read_text() == "inside 2"
