"""The agent of one node: what a kubelet is to a real one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import platform
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp

from kronos.api.quantity import parse_quantity, pod_requests
from kronos.local.api import MERGE_PATCH, STRATEGIC_MERGE_PATCH, ApiClient, ApiError, Object, follow
from kronos.local.node.context import NODE_ADDRESS, NodeContext, micro_now, now
from kronos.local.node.logs import ContainerLog
from kronos.local.node.pod import PodWorker
from kronos.local.node.server import LogNotFoundError, NodeServer
from kronos.local.node.status import Verdict
from kronos.local.pki import Pair
from kronos.local.tasks import background
from kronos.local.topology import LocalNode
from kronos.local.versions import KUBERNETES_VERSION

log = logging.getLogger(__name__)

TERMINAL = ("Succeeded", "Failed")
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
API_TROUBLE = (ApiError, aiohttp.ClientError, TimeoutError, OSError)


def requests_of(pod: Mapping[str, Any]) -> dict[str, int]:
    """What a pod takes of its node, in base units; each pod is also one of `pods`."""
    return {**pod_requests(pod["spec"]), "pods": 1}


class NodeAgent:
    """Registers a node, keeps it alive in the eyes of the control plane, and runs its pods."""

    def __init__(self, node: LocalNode, context: NodeContext, pair: Pair) -> None:
        """Prepare an agent; ``start`` brings the node up."""
        self.node = node
        self.context = context
        self.folder = context.folder / node.name
        self.capacity = node.all_capacity()
        self.boot_id = str(uuid.uuid4())
        self.client = ApiClient(context.server, context.authority, pair)
        self.server = NodeServer(self, context.authority, pair)
        self.workers: dict[str, PodWorker] = {}
        self.pods: dict[str, Object] = {}
        self.tasks: list[asyncio.Task[None]] = []
        self.forgetting: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Register the node and begin to run its pods."""
        await self.client.__aenter__()
        await self.server.start()
        await self._register()
        query = {"fieldSelector": f"spec.nodeName={self.node.name}"}
        self.tasks = [
            background(self._keep_alive()),
            background(follow(self.client, "/api/v1/pods", query, self._on_list, self._on_event)),
        ]

    async def kill(self) -> None:
        """Vanish, as a machine without power: processes die and the API server is told nothing."""
        for task in (*self.tasks, *self.forgetting):
            task.cancel()
        await asyncio.gather(*(worker.abort() for worker in self.workers.values()))
        await self.server.stop()
        await self.client.__aexit__()

    # The node itself.

    async def _register(self) -> None:
        metadata = {"name": self.node.name, "labels": self.node.all_labels(self.context.architecture)}
        node: dict[str, Any] = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
        node["spec"] = {"taints": [dict(taint) for taint in self.node.taints]}
        node["status"] = self._node_status()
        try:
            created = await self.client.request("POST", "/api/v1/nodes", node)
        except ApiError as error:
            if error.status != 409:
                raise
            created = await self.client.request(
                "PATCH", self._node_path, {"metadata": metadata}, content_type=STRATEGIC_MERGE_PATCH
            )
            await self._write_node_status()
        await self._renew_lease(created["metadata"]["uid"])

    @property
    def _node_path(self) -> str:
        return f"/api/v1/nodes/{self.node.name}"

    def _node_status(self) -> dict[str, Any]:
        healthy = {
            "MemoryPressure": ("False", "KubeletHasSufficientMemory"),
            "DiskPressure": ("False", "KubeletHasNoDiskPressure"),
            "PIDPressure": ("False", "KubeletHasSufficientPID"),
            "Ready": ("True", "KubeletReady"),
        }
        moment = now()
        return {
            "capacity": self.capacity,
            "allocatable": self.capacity,
            "addresses": [
                {"type": "InternalIP", "address": NODE_ADDRESS},
                {"type": "Hostname", "address": self.node.name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.server.port}},
            "conditions": [
                {
                    "type": kind,
                    "status": value,
                    "reason": reason,
                    "message": "Kronos's local node is running",
                    "lastHeartbeatTime": moment,
                    "lastTransitionTime": moment,
                }
                for kind, (value, reason) in healthy.items()
            ],
            "nodeInfo": {
                "architecture": self.context.architecture,
                "operatingSystem": "linux",
                "kernelVersion": platform.release(),
                "osImage": "the development machine",
                "containerRuntimeVersion": f"kronos-local://{self.context.isolator.name}",
                "kubeletVersion": KUBERNETES_VERSION,
                "kubeProxyVersion": "",
                "machineID": self.node.name,
                "systemUUID": self.node.name,
                "bootID": self.boot_id,
            },
        }

    async def _write_node_status(self) -> None:
        await self.client.request(
            "PATCH",
            f"{self._node_path}/status",
            {"status": self._node_status()},
            content_type=STRATEGIC_MERGE_PATCH,
        )

    async def _renew_lease(self, owner_uid: str) -> None:
        spec = {
            "holderIdentity": self.node.name,
            "leaseDurationSeconds": max(1, round(self.context.lease_seconds)),
            "renewTime": micro_now(),
        }
        owner = {"apiVersion": "v1", "kind": "Node", "name": self.node.name, "uid": owner_uid}
        lease = {"metadata": {"name": self.node.name, "ownerReferences": [owner]}, "spec": spec}
        try:
            await self.client.request("PATCH", f"{LEASES}/{self.node.name}", lease, content_type=MERGE_PATCH)
        except ApiError as error:
            if error.status != 404:
                raise
            await self.client.request("POST", LEASES, lease)

    async def _keep_alive(self) -> None:
        """Renew the lease, and correct the node's object when it was changed behind its back."""
        while True:
            await asyncio.sleep(self.context.lease_seconds / 4)
            try:
                current = await self.client.request("GET", self._node_path)
                await self._renew_lease(current["metadata"]["uid"])
                if not is_ready(current):
                    await self._write_node_status()
            except API_TROUBLE as error:
                if isinstance(error, ApiError) and error.status == 404:
                    with contextlib.suppress(*API_TROUBLE):
                        await self._register()
                else:
                    log.warning("node %s: %s", self.node.name, error)

    # Its pods.

    def _on_list(self, pods: list[Object]) -> None:
        listed = {pod["metadata"]["uid"] for pod in pods}
        for uid in [uid for uid in self.pods if uid not in listed]:
            self._forget(uid)
        self._remove_folders_of_others(listed)
        for pod in sorted(pods, key=lambda item: item["metadata"]["creationTimestamp"]):
            self._on_event("ADDED", pod)

    def _remove_folders_of_others(self, listed: set[str]) -> None:
        """Delete what is left of pods that were removed while this node was away."""
        if self.folder.is_dir():
            for folder in self.folder.iterdir():
                if folder.name not in listed and folder.name not in self.workers:
                    shutil.rmtree(folder, ignore_errors=True)

    def _on_event(self, kind: str, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        if kind == "DELETED":
            self._forget(uid)
            return
        self.pods[uid] = pod
        if uid in self.workers:
            self.workers[uid].update(pod)
        elif is_unfinished(pod):
            folder = self._pod_folder(uid)
            rejection = self._admit(pod)
            self.workers[uid] = PodWorker(pod, self.context, self.client, folder, self.capacity, rejection)

    def _pod_folder(self, uid: str) -> Path:
        return self.folder / uid

    def _forget(self, uid: str) -> None:
        self.pods.pop(uid, None)
        worker = self.workers.get(uid)
        if worker is None:
            shutil.rmtree(self._pod_folder(uid), ignore_errors=True)
            return
        worker.removed()

        async def finish() -> None:
            await worker.forget()
            self.workers.pop(uid, None)

        task = background(finish())
        self.forgetting.add(task)
        task.add_done_callback(self.forgetting.discard)

    def _admit(self, pod: Object) -> Verdict | None:
        """Refuse a pod that does not fit, as can happen to pods that no scheduler has placed."""
        used: dict[str, int] = {}
        for worker in self.workers.values():
            if worker.active:
                for name, amount in requests_of(worker.pod).items():
                    used[name] = used.get(name, 0) + amount
        for name, amount in sorted(requests_of(pod).items()):
            taken = used.get(name, 0)
            capacity = parse_quantity(self.capacity.get(name, "0"), name, round_up=False)
            if amount > 0 and taken + amount > capacity:
                return Verdict(
                    f"OutOf{name}",
                    f"Pod was rejected: Node didn't have enough resource: {name}, "
                    f"requested: {amount}, used: {taken}, capacity: {capacity}",
                )
        return None

    def find_log(
        self, namespace: str, pod: str, container: str, previous: bool
    ) -> tuple[Path, ContainerLog | None]:
        """The file of a container's log, and its writer while it still runs."""
        metadata = (known["metadata"] for known in self.pods.values())
        wanted_names = (namespace, pod)
        uid = next(
            (item["uid"] for item in metadata if (item["namespace"], item["name"]) == wanted_names), None
        )
        if uid is None:
            raise LogNotFoundError(f'pod "{pod}" does not exist on node {self.node.name}')
        folder = self._pod_folder(uid) / "logs" / container
        runs = sorted(folder.glob("*.log"), key=lambda path: int(path.stem))
        wanted = runs[-2:-1] if previous else runs[-1:]
        if not wanted:
            which = "previous terminated container" if previous else "log of container"
            raise LogNotFoundError(f'{which} "{container}" in pod "{pod}" not found')
        worker = self.workers.get(uid)
        run = worker.runs.get(container) if worker else None
        return wanted[0], run.log if run is not None and run.log.path == wanted[0] else None


def is_unfinished(pod: Object) -> bool:
    """Whether something is left to do for a pod: to run it, or to remove what an earlier life has ended."""
    ended = (pod.get("status") or {}).get("phase") in TERMINAL
    return not ended or "deletionTimestamp" in pod["metadata"]


def is_ready(node: Object) -> bool:
    """Whether a node's object says that it is ready."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
