"""Hollow nodes: objects of a real API server whose pods only pretend to run, for as long as an annotation says.

Scheduling, binding, admission and the operator are real; what is missing is the kubelet.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from support.cluster import Kube, KubeError

Object = dict[str, Any]
SLOT = "kronos.dev/accelerator"
SECONDS = "kronos.test/seconds"
"""Annotation of a pod: how long it pretends to run."""
_PAUSE = 0.05


def hollow_node(name: str, labels: dict[str, str], slots: int) -> Object:
    """A node that is ready at once and stays so."""
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", SLOT: str(slots)}
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [
                {"type": "Ready", "status": "True", "reason": "Hollow", "lastHeartbeatTime": _now()}
            ],
        },
    }


class HollowNodes:
    """Nodes, and the thread that plays their pods. `ticks` are called after each look at the pods of a namespace."""

    def __init__(self, kube: Kube, nodes: Sequence[Object]) -> None:
        self._kube = kube
        self._ends: dict[str, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._play, daemon=True)
        self.failure: Exception | None = None
        for node in nodes:
            kube.request("POST", "/api/v1/nodes", node)
        # The API server creates every node with a taint, which the control plane lifts from nodes that are ready.
        kube.wait("/api/v1/nodes", lambda found: found and not any(map(_tainted, found["items"])), 60)
        self._thread.start()

    def stop(self) -> None:
        """Stop playing; an error of the player is raised here."""
        self._over.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _play(self) -> None:
        try:
            while not self._over.wait(_PAUSE):
                for pod in self._kube.request("GET", "/api/v1/pods")["items"]:
                    if pod["spec"].get("nodeName"):
                        with contextlib.suppress(
                            KubeError
                        ):  # changed or gone meanwhile: seen at the next look
                            self._step(pod)
        except Exception as error:
            self.failure = error

    def _step(self, pod: Object) -> None:
        metadata, phase = pod["metadata"], pod["status"]["phase"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        if "deletionTimestamp" in metadata:
            body = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
            self._kube.request("DELETE", path, body)
        elif phase == "Pending":
            self._ends[metadata["uid"]] = time.monotonic() + float(metadata["annotations"][SECONDS])
            self._report(path, "Running", {"running": {"startedAt": _now()}})
        elif phase == "Running" and time.monotonic() >= self._ends[metadata["uid"]]:
            ended = {"exitCode": 0, "reason": "Completed", "startedAt": _now(), "finishedAt": _now()}
            self._report(path, "Succeeded", {"terminated": ended})

    def _report(self, path: str, phase: str, state: Object) -> None:
        running = phase == "Running"
        container = {
            "name": "trainer",
            "image": "hollow",
            "imageID": "hollow",
            "ready": running,
            "restartCount": 0,
            "state": state,
        }
        status = {
            "phase": phase,
            "podIP": "10.0.0.1",
            "conditions": [{"type": "Ready", "status": str(running), "lastTransitionTime": _now()}],
            "containerStatuses": [container],
        }
        self._kube.request("PATCH", f"{path}/status", {"status": status}, "application/merge-patch+json")


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _tainted(node: Object) -> bool:
    return bool(node["spec"].get("taints"))
