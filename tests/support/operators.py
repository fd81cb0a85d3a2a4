"""The operator as a process beside a test's cluster, and jobs for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from kronos.local import LocalCluster
from kronos.local.install import CLUSTER, FABRIC, install

Object = dict[str, Any]


class OperatorProcess:
    """`python -m kronos.controller` with the permissions that it has on a real cluster."""

    def __init__(
        self, cluster: LocalCluster, log: Path, overlay: Path = CLUSTER, options: Sequence[str] = ()
    ) -> None:
        self.kubeconfig = install(cluster.kubectl, cluster.kubeconfig, overlay)
        self.options = list(options)
        cluster.kubectl("apply", "-f", str(FABRIC))
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; it appends to the same log."""
        assert self.process is None
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "kronos.controller",
                    f"--kubeconfig={self.kubeconfig}",
                    "--progress-interval=0.5",
                    *self.options,
                ],
                stdout=output,
                stderr=output,
            )

    def kill(self) -> None:
        """End it as a power cut would."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process = None

    def stop(self) -> int:
        """Ask it to stop; returns its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(20)
        self.process = None
        return code


class Forge:
    """One namespace with jobs, and questions about them."""

    def __init__(self, cluster: LocalCluster, name: str, data: Path) -> None:
        self.cluster, self.name, self.data = cluster, name, data
        cluster.kubectl("create", "namespace", name)

    def manifest(self, name: str, **sections: Any) -> Object:
        """A small deterministic job on local slots; `sections` change parts of its spec."""
        spec: Object = {
            "model": {"layers": 2, "hiddenSize": 32, "attentionHeads": 4, "sequenceLength": 32},
            "data": {"path": str(self.data), "volume": {"hostPath": {"path": str(self.data)}}},
            "optimization": {"globalBatchSize": 8, "steps": 3},
            "accelerators": {"resource": "kronos.dev/accelerator", "min": 2, "max": 2},
            "reproducibility": {"mode": "Deterministic", "seed": 7},
            "scheduling": {"startTimeout": "2m"},
        }
        for section, value in sections.items():
            spec[section] = {**spec[section], **value} if section in spec else value
        return {
            "apiVersion": "training.kronos.dev/v1alpha1",
            "kind": "KronosTrainingJob",
            "metadata": {"name": name, "namespace": self.name},
            "spec": spec,
        }

    def apply(self, *manifests: Object) -> None:
        """`kubectl apply` all at once."""
        self.cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(manifests))

    def delete(self, name: str) -> None:
        """`kubectl delete` and wait until the job itself is gone."""
        self.cluster.kubectl("-n", self.name, "delete", "ktj", name)

    def list(self, kind: str) -> list[Object]:
        """All objects of a kind in the namespace."""
        items: list[Object] = json.loads(self.cluster.kubectl("-n", self.name, "get", kind, "-o", "json"))[
            "items"
        ]
        return items

    def names(self, kind: str) -> set[str]:
        """Names of all objects of a kind in the namespace."""
        return {item["metadata"]["name"] for item in self.list(kind)}

    def gangs(self) -> dict[str, list[Object]]:
        """All pods in the namespace, by job."""
        gangs: dict[str, list[Object]] = {}
        for pod in self.list("pods"):
            gangs.setdefault(pod["metadata"]["labels"]["training.kronos.dev/job"], []).append(pod)
        return gangs

    def held(self) -> dict[str, int]:
        """Number of pods that hold something, by job, of the jobs that have such."""
        counts = {job: sum(not ended(pod) for pod in pods) for job, pods in self.gangs().items()}
        return {job: count for job, count in counts.items() if count}

    def job(self, name: str) -> Object:
        """A job as stored."""
        found: Object = json.loads(self.cluster.kubectl("-n", self.name, "get", "ktj", name, "-o", "json"))
        return found

    def status(self, name: str) -> Object:
        """A job's status; empty before the operator has seen it."""
        status: Object = self.job(name).get("status", {})
        return status

    def wait(
        self, name: str, holds: Callable[[Object], object], seconds: float = 90.0, pause: float = 0.1
    ) -> Object:
        """Wait until something holds for a job's status; returns the status."""
        deadline = time.monotonic() + seconds
        while True:
            status = self.status(name)
            if holds(status):
                return status
            if time.monotonic() > deadline:
                logs = self.logs(name)
                raise AssertionError(f"{name} after {seconds} s: {json.dumps(status, indent=1)}\n{logs}")
            time.sleep(pause)

    def wait_phase(self, name: str, *phases: str, seconds: float = 90.0) -> Object:
        """Wait until a job is in one of the phases."""
        return self.wait(name, lambda status: status.get("phase") in phases, seconds)

    def logs(self, name: str) -> str:
        """The last lines of each of a job's pods."""
        try:
            return self.cluster.kubectl(
                "-n", self.name, "logs", "-l", f"training.kronos.dev/job={name}", "--prefix", "--tail=30"
            )
        except Exception as error:  # a pod without logs must not hide what is wrong
            return str(error)

    def wait_until(self, holds: Callable[[], object], what: str, seconds: float = 30.0) -> None:
        """Wait until something holds."""
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, f"not after {seconds} s: {what}"
            time.sleep(0.1)


def ended(pod: Object) -> bool:
    """Whether a pod holds nothing any more."""
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def processes_with(text: str) -> list[int]:
    """Processes of this machine whose environment or command line holds a text."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            try:
                content = (folder / "environ").read_bytes() + (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if text.encode() in content:
                found.append(int(folder.name))
    return found
