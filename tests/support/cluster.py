"""A local cluster for tests, and short ways to say what is in it."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kronos.local import LocalCluster, default_topology

Object = dict[str, Any]
STRATEGIC = "application/strategic-merge-patch+json"


class KubeError(Exception):
    """The API server refused a request."""

    def __init__(self, status: int, answer: Object) -> None:
        super().__init__(answer.get("message", str(answer)))
        self.status = status


class Kube:
    """Blocking requests to a cluster's API server, as its administrator."""

    def __init__(self, cluster: LocalCluster) -> None:
        pki = cluster.state / "pki"
        self.context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        self.context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        server = cluster.kubectl("config", "view", "-o", "jsonpath={.clusters[0].cluster.server}")
        self.address = server.removeprefix("https://")

    def request(self, method: str, path: str, body: object = None, kind: str = "application/json") -> Object:
        connection = http.client.HTTPSConnection(self.address, context=self.context, timeout=30)
        try:
            headers = {"Content-Type": kind, "Accept": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
            if response.status >= 400:
                raise KubeError(response.status, answer)
            return answer
        finally:
            connection.close()

    def get(self, path: str) -> Object | None:
        """An object, or None when there is none."""
        try:
            return self.request("GET", path)
        except KubeError as error:
            if error.status == 404:
                return None
            raise

    def wait(self, path: str, holds: Callable[[Object | None], object], seconds: float = 15.0) -> Object:
        """Read an object until something holds for it."""
        deadline = time.monotonic() + seconds
        while True:
            found = self.get(path)
            if holds(found):
                return found or {}
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"{path} has not come to hold in {seconds} s:\n{json.dumps(found, indent=1)}"
                )
            time.sleep(0.03)


class Namespace:
    """One namespace of its own for one test."""

    def __init__(self, cluster: LocalCluster, kube: Kube, name: str) -> None:
        self.cluster, self.kube, self.name = cluster, kube, name

    def create(self, plural: str, name: str, **content: Any) -> Object:
        body = {"metadata": {"name": name}, **content}
        return self.kube.request("POST", f"/api/v1/namespaces/{self.name}/{plural}", body)

    def run(self, name: str, script: str, *, container: Object | None = None, **spec: Any) -> Object:
        """Create a pod that runs a Python script; ``container`` and further arguments change its spec."""
        program = {"name": "main", "image": "ignored", "command": ["python", "-c", script]} | (
            container or {}
        )
        labels = spec.pop("labels", {})
        metadata = {"name": name, "labels": labels, "annotations": spec.pop("annotations", {})}
        full = {"restartPolicy": "Never", "containers": [program]} | spec
        return self.create("pods", name, metadata=metadata, spec=full)

    def path(self, pod: str) -> str:
        return f"/api/v1/namespaces/{self.name}/pods/{pod}"

    def phase(self, pod: str, *wanted: str, seconds: float = 15.0) -> Object:
        """Wait until a pod is in one of the phases; returns the pod."""
        return self.kube.wait(self.path(pod), lambda found: found and phase_of(found) in wanted, seconds)

    def gone(self, pod: str, seconds: float = 15.0) -> None:
        """Wait until a pod is gone."""
        self.kube.wait(self.path(pod), lambda found: found is None, seconds)

    def delete(self, pod: str, grace: int | None = None) -> None:
        body = {} if grace is None else {"gracePeriodSeconds": grace}
        self.kube.request("DELETE", self.path(pod), body)

    def clear(self) -> None:
        """Delete all pods at once."""
        path = f"/api/v1/namespaces/{self.name}/pods"
        self.kube.request("DELETE", path, {"gracePeriodSeconds": 0})

    def logs(self, pod: str, *options: str) -> str:
        return self.cluster.kubectl("logs", "-n", self.name, pod, *options)


def phase_of(pod: Object) -> str:
    """A pod's phase."""
    return str(pod.get("status", {}).get("phase"))


def first_state(pod: Object) -> Object:
    """The state of a pod's first container."""
    statuses = pod["status"].get("containerStatuses") or [{}]
    state: Object = statuses[0].get("state", {})
    return state


@contextmanager
def running_cluster(folder: Path, **options: Any) -> Iterator[LocalCluster]:
    """A cluster of two racks with two nodes of four accelerator slots each, for as long as the block runs."""
    options.setdefault("nodes", default_topology())
    with LocalCluster(folder, progress=print, **options) as cluster:
        yield cluster


_made = 0


def new_namespace(cluster: LocalCluster, kube: Kube) -> Namespace:
    """Create a namespace in which pods can be created at once."""
    global _made
    _made += 1
    name = f"test-{_made}"
    kube.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    # Both come from the controller manager, in any order; a pod needs the account and mounts the certificate.
    kube.wait(f"/api/v1/namespaces/{name}/serviceaccounts/default", bool)
    kube.wait(f"/api/v1/namespaces/{name}/configmaps/kube-root-ca.crt", bool)
    return Namespace(cluster, kube, name)
