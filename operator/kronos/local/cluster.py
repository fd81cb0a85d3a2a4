"""A local cluster as a Python object, for tests and demos."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kronos.local import binaries
from kronos.local.control import ControlError, ExtraProcess, Settings, ask
from kronos.local.processes import last_lines
from kronos.local.topology import LocalNode

STOP_SECONDS = 20.0
DEFAULT_NODE_GRACE_SECONDS = 40.0


class ClusterError(Exception):
    """The local cluster did not do what was asked."""


def silent(_: str) -> None:
    """Show no progress."""


class LocalCluster:
    """A control plane with nodes, in a supervisor process that ends together with this one."""

    def __init__(
        self,
        state_dir: Path,
        nodes: Sequence[LocalNode],
        *,
        node_grace_seconds: float = DEFAULT_NODE_GRACE_SECONDS,
        pod_env: Mapping[str, str] | None = None,
        processes: Sequence[ExtraProcess] = (),
        progress: Callable[[str], None] = silent,
    ) -> None:
        """Describe a cluster whose state lies in ``state_dir``; earlier state there is thrown away.

        ``node_grace_seconds`` is how long a silent node counts as alive. ``pod_env`` is added to the
        environment of every pod. ``processes`` run beside the cluster for as long as it does.
        """
        self.state = state_dir.absolute()
        self.nodes = list(nodes)
        self.node_grace_seconds = node_grace_seconds
        self.pod_env = dict(pod_env or {})
        self.processes = list(processes)
        self.progress = progress
        self.supervisor: subprocess.Popen[str] | None = None
        self.binaries: Path | None = None

    def __enter__(self) -> LocalCluster:
        """Start the cluster."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the cluster."""
        self.stop()

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.state / "kubeconfig"

    @property
    def log_file(self) -> Path:
        """The log of the supervisor, which holds the nodes."""
        return self.state / "supervisor.log"

    def start(self) -> None:
        """Start everything; returns when pods can be created and every node is ready."""
        if self.supervisor is not None:
            raise ClusterError("the cluster runs already")
        self.binaries = binaries.ensure(self.progress)
        # Volumes with secrets lie in it.
        self.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        settings = Settings(
            self.state,
            self.binaries,
            os.getpid(),
            self.nodes,
            self.node_grace_seconds,
            self.pod_env,
            self.processes,
        )
        try:
            with self.log_file.open("ab") as output:
                self.supervisor = subprocess.Popen(
                    self.supervisor_command(),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=output,
                    text=True,
                    env=os.environ | {"PYTHONPATH": os.pathsep.join(import_path())},
                    start_new_session=True,
                )
            self._await_ready(self.supervisor, settings)
        except BaseException:
            self.stop()
            raise

    def supervisor_command(self) -> list[str]:
        """The program that runs the cluster; it reads its settings from standard input."""
        return [sys.executable, "-m", "kronos.local.host"]

    def _await_ready(self, supervisor: subprocess.Popen[str], settings: Settings) -> None:
        assert supervisor.stdin is not None
        assert supervisor.stdout is not None
        with contextlib.suppress(BrokenPipeError), supervisor.stdin:
            supervisor.stdin.write(settings.to_json())
        for line in supervisor.stdout:
            said = json.loads(line)
            if "progress" in said:
                self.progress(said["progress"])
            if "error" in said:
                raise ClusterError(said["error"])
            if said.get("ready"):
                return
        raise ClusterError(
            f"the cluster's supervisor ended; the end of its log:\n{last_lines(self.log_file)}"
        )

    def stop(self) -> None:
        """Stop everything; a cluster that does not run is no error."""
        supervisor, self.supervisor = self.supervisor, None
        if supervisor is None:
            return
        supervisor.send_signal(signal.SIGTERM)
        try:
            supervisor.wait(STOP_SECONDS)
        except BaseException as error:
            # Its guards see that it is gone and take everything else along.
            supervisor.kill()
            supervisor.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
        finally:
            if supervisor.stdout is not None:
                supervisor.stdout.close()

    def detach(self) -> None:
        """Let the cluster go on after this process has ended; stop it with ``down``."""
        self._ask("detach")
        self.supervisor = None

    def kill_node(self, name: str) -> None:
        """Let a node vanish, with all its processes, as if it had lost power."""
        self._ask("kill-node", name=name)

    def start_node(self, name: str) -> None:
        """Start a killed node again."""
        self._ask("start-node", name=name)

    def _ask(self, command: str, **arguments: str) -> dict[str, Any]:
        try:
            return ask(self.state, command, **arguments)
        except ControlError as error:
            raise ClusterError(str(error)) from None

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout: float = 60.0) -> str:
        """Run kubectl as administrator and return what it prints; raise with its message when it fails."""
        if self.binaries is None:
            raise ClusterError("the cluster does not run; start it first")
        done = subprocess.run(
            [
                str(self.binaries / "kubectl"),
                f"--kubeconfig={self.kubeconfig}",
                f"--cache-dir={self.state / 'kubectl'}",
                *arguments,
            ],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if done.returncode != 0:
            raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout


def import_path() -> list[str]:
    """Where the supervisor must look for modules: here first, then wherever PYTHONPATH says."""
    here = str(Path(__file__).parents[2])
    inherited = [
        str(Path(folder).absolute())
        for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if folder
    ]
    return [here, *(folder for folder in inherited if folder != here)]
