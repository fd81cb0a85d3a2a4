"""A cluster ends with whoever started it, at any moment and in any way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.cluster

OPERATOR = Path(__file__).parents[2] / "operator"
OWNER = (
    "import sys, time\n"
    "from pathlib import Path\n"
    "from kronos.local import LocalCluster, default_topology\n"
    "def tell(text): print(text, flush=True)\n"
    "with LocalCluster(Path(sys.argv[1]), default_topology(1, 1), progress=tell) as cluster:\n"
    "    tell('ready'); time.sleep(100)\n"
)
POD = (
    '{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "sleeper"}, "spec": {"containers":'
    ' [{"name": "main", "image": "x", "command": ["python", "-c", "import time; time.sleep(1000)", "STATE"]}]}}'
)


def processes_of(state: Path) -> list[str]:
    """The command lines that mention a state folder, or that were started below one that does."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            environment = (folder / "environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if int(folder.name) != os.getpid() and (str(state) in line or str(state) in environment):
            found.append(line)
    return found


def until_gone(state: Path) -> None:
    deadline = time.monotonic() + 15
    while left := processes_of(state):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    # The guards of control plane processes carry no path in their arguments, but they inherit this.
    yield os.environ | {"PYTHONPATH": str(OPERATOR), "KRONOS_TEST_STATE": str(tmp_path)}
    until_gone(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("moment", ["starting etcd", "starting kube-controller-manager"])
def test_a_signal_during_the_start_leaves_no_process(
    tmp_path: Path, environment: dict[str, str], number: signal.Signals, moment: str
) -> None:
    argv = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(argv, env=environment, stdout=-1, stderr=-3, text=True) as owner:
        assert owner.stdout is not None
        for line in owner.stdout:
            if line.strip() == moment:
                owner.send_signal(number)
    assert owner.returncode != 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_during_a_build_leaves_no_process(
    tmp_path: Path, environment: dict[str, str], number: signal.Signals
) -> None:
    compiler = tmp_path / "bin" / "go"
    compiler.parent.mkdir()
    compiler.write_text(
        '#!/bin/sh\nif [ "$1" = version ]; then echo go version go1.26.9; exit; fi\n'
        f'echo "$$" > {tmp_path}/building\nsleep 100 & sleep 100\n'
    )
    compiler.chmod(0o755)
    script = (
        "from kronos.local import binaries, download\n"
        "download.answers = lambda url: False\n"
        "binaries.ensure(print)\n"
    )
    path = {"PATH": f"{compiler.parent}:{os.environ['PATH']}", "KRONOS_CACHE": str(tmp_path / "cache")}
    with subprocess.Popen(
        [sys.executable, "-c", script], env=environment | path, stdout=-3, stderr=-3
    ) as owner:
        deadline = time.monotonic() + 20
        while not (tmp_path / "building").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        owner.send_signal(number)
    assert owner.returncode != 0


def test_up_detaches_a_cluster_and_down_ends_all_of_it(tmp_path: Path, environment: dict[str, str]) -> None:
    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "kronos.local", *arguments, "--state", str(tmp_path)]
        return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)

    ticker = f"ticker=sh -c 'echo $KUBECONFIG > {tmp_path}/ticked; sleep 100'"
    started = command("up", "--racks", "1", "--nodes-per-rack", "2", "--process", ticker)
    assert started.returncode == 0, started.stderr
    status = command("status").stdout
    assert "node rack-a-1: running" in status
    assert "process ticker" in status
    lines = command("env").stdout
    create = f"{lines}\necho '{POD.replace('STATE', str(tmp_path))}' | kubectl apply -f - && kubectl get nodes -o name"
    shell = subprocess.run(
        ["bash", "-c", create], env=environment, capture_output=True, text=True, check=True
    )
    assert "node/rack-a-0" in shell.stdout
    assert (tmp_path / "ticked").read_text().strip() == str(tmp_path / "kubeconfig")
    assert "already runs" in command("up").stderr
    assert command("down").returncode == 0
    assert processes_of(tmp_path) == []
    missing = command("env")
    assert missing.returncode == 1
    assert missing.stderr.startswith("error: no cluster runs in")


def test_sigkill_of_the_supervisor_leaves_no_process(tmp_path: Path, environment: dict[str, str]) -> None:
    argv = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(argv, env=environment, stdout=-1, stderr=-3, text=True) as owner:
        assert owner.stdout is not None
        assert any(line.strip() == "ready" for line in owner.stdout)
        found = subprocess.run(
            ["pgrep", "-P", str(owner.pid)], capture_output=True, text=True, check=True
        ).stdout.split()
        os.kill(int(found[0]), signal.SIGKILL)
        deadline = time.monotonic() + 10
        while len(processes_of(tmp_path)) > 1:
            assert time.monotonic() < deadline, processes_of(tmp_path)
            time.sleep(0.05)
        owner.kill()
