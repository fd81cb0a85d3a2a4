"""One real node: a containerd and a kubelet with everything that several on one machine must not share."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kronos.local.api import STRATEGIC_MERGE_PATCH, ApiClient, ApiError
from kronos.local.controlplane import ControlPlane
from kronos.local.kubelets import cgroups, containerd, sandbox
from kronos.local.pki import write_kubeconfig
from kronos.local.processes import GuardedProcess, last_lines, spawn
from kronos.local.topology import LocalNode

REGISTRATION_SECONDS = 60.0
POLL_SECONDS = 0.1
KUBELET_PORT = 10250
# Whatever its root folder, a kubelet has the socket of device plugins here.
FIXED = Path("/var/lib/kubelet")
# Below /run, which is this cluster's own: the paths of sockets are short and vanish with it.
RUN = Path("/run/kronos")


class NodeError(Exception):
    """A node did not come up."""


@dataclass(frozen=True)
class Ground:
    """What all nodes of a cluster stand on."""

    plane: ControlPlane
    admin: ApiClient
    folder: Path
    programs: Path
    store: Path
    group_prefix: str
    lease_seconds: int


class KubeletNode:
    """Runs one node."""

    def __init__(self, node: LocalNode, index: int, ground: Ground) -> None:
        """Prepare a node; ``index`` tells its addresses from those of others."""
        self.node = node
        self.index = index
        self.ground = ground
        self.address = sandbox.node_address(index)
        self.folder = ground.folder / node.name
        self.run = RUN / node.name
        self.group = f"{ground.group_prefix}{index}"
        self.processes: list[GuardedProcess] = []

    async def start(self) -> None:
        """Bring the node up from nothing; returns when it has registered with its accelerators."""
        await asyncio.to_thread(self._prepare)
        log = self.folder / "containerd.log"
        runtime = containerd.start(self.folder / "containerd.toml", self.ground.programs, log)
        self.processes.append(runtime)
        await containerd.wait_ready(runtime, self.run, self.ground.programs, log)
        self.processes.append(self._start_kubelet())
        await self._wait_registered()

    async def kill(self) -> None:
        """Let the node vanish with all that runs on it; the API server is told nothing."""
        for process in reversed(self.processes):
            process.kill()
        for process in self.processes:
            await process.wait()
        self.processes.clear()
        await asyncio.to_thread(self._clear)

    def _clear(self) -> None:
        for folder in (self.folder, self.run):
            sandbox.unmount_below(folder)
        shutil.rmtree(self.run, ignore_errors=True)
        shutil.rmtree(self.folder / "containerd", ignore_errors=True)
        shutil.rmtree(self.folder / "kubelet", ignore_errors=True)
        cgroups.remove(self.group)

    def _prepare(self) -> None:
        """Write everything that the two programs read."""
        self._clear()
        for folder in (self.folder, self.run, self.folder / "network", self.folder / "pods"):
            folder.mkdir(parents=True, exist_ok=True)
        cgroups.create(self.group)
        sandbox.share_mounts(self.folder / "kubelet")
        containerd.clone(self.ground.store, self.folder / "containerd")
        network = self.folder / "network"
        (network / "10-kronos.conflist").write_text(
            json.dumps(network_settings(self.index, self.run / "addresses"))
        )
        text = containerd.settings(self.folder / "containerd", self.run, self.ground.programs, network)
        (self.folder / "containerd.toml").write_text(text)
        plane = self.ground.plane
        pair = plane.node_identity(self.node.name, self.address)
        user = f"system:node:{self.node.name}"
        write_kubeconfig(self.folder / "kubeconfig", plane.server, plane.authority.certificate, user, pair)
        # An empty one, so that pods see the cluster's names and not the machine's.
        (self.folder / "resolv.conf").write_text("")
        config = kubelet_settings(self.folder, self.address, self.group, containerd.socket_of(self.run))
        config |= {
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(plane.authority.certificate)},
            },
            "tlsCertFile": str(pair.certificate),
            "tlsPrivateKeyFile": str(pair.key),
            "nodeLeaseDurationSeconds": self.ground.lease_seconds,
            "registerWithTaints": [dict(taint) for taint in self.node.taints],
        }
        (self.folder / "kubelet.yaml").write_text(yaml.safe_dump(config))

    def _start_kubelet(self) -> GuardedProcess:
        labels = ",".join(f"{name}={value}" for name, value in self.node.labels.items())
        command = [
            *sandbox.with_own(FIXED, self.folder / "fixed"),
            str(self.ground.programs / "kubelet"),
            f"--config={self.folder / 'kubelet.yaml'}",
            f"--kubeconfig={self.folder / 'kubeconfig'}",
            f"--hostname-override={self.node.name}",
            f"--node-ip={self.address}",
            f"--node-labels={labels}",
            f"--root-dir={self.folder / 'kubelet'}",
        ]
        path = f"{self.ground.programs}:/usr/sbin:/usr/bin:/sbin:/bin"
        with (self.folder / "kubelet.log").open("ab") as output:
            return spawn(
                command, env={"PATH": path, "HOME": "/root"}, stdout=output.fileno(), stderr=output.fileno()
            )

    async def _wait_registered(self) -> None:
        """Wait for the node's object, and give it the resources that no kubelet finds by itself."""
        deadline = time.monotonic() + REGISTRATION_SECONDS
        path = f"/api/v1/nodes/{self.node.name}"
        log = self.folder / "kubelet.log"
        while time.monotonic() < deadline and self.processes[-1].running:
            try:
                node = await self.ground.admin.request("GET", path)
            except ApiError as error:
                if error.status != 404:
                    raise
            else:
                if is_fresh(node, self.address):
                    await self._advertise(path)
                    return
            await asyncio.sleep(POLL_SECONDS)
        raise NodeError(f"node {self.node.name} has not registered; the end of {log}:\n{last_lines(log)}")

    async def _advertise(self, path: str) -> None:
        capacity = dict(self.node.capacity)
        patch = {"status": {"capacity": capacity, "allocatable": capacity}}
        await self.ground.admin.request("PATCH", f"{path}/status", patch, content_type=STRATEGIC_MERGE_PATCH)


def is_fresh(node: Mapping[str, Any], address: str) -> bool:
    """Whether the kubelet has written the node's status."""
    addresses = (node.get("status") or {}).get("addresses") or ()
    return any(item["address"] == address for item in addresses)


def network_settings(index: int, data: Path) -> dict[str, Any]:
    """The CNI configuration: one bridge for all nodes, a range of addresses for each."""
    first, last = sandbox.pod_range(index)
    span = {"subnet": sandbox.POD_NETWORK, "rangeStart": first, "rangeEnd": last, "gateway": sandbox.GATEWAY}
    bridge = {
        "type": "bridge",
        "bridge": sandbox.BRIDGE,
        "isGateway": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[span]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": str(data),
        },
    }
    return {"cniVersion": "1.0.0", "name": "kronos", "plugins": [bridge]}


def kubelet_settings(folder: Path, address: str, group: str, runtime: Path) -> dict[str, Any]:
    """What is particular to kubelets that share a machine; everything else is as usual."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": address,
        "port": KUBELET_PORT,
        "healthzPort": 0,
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{group}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "enforceNodeAllocatable": [],
        "localStorageCapacityIsolation": False,
        # The disk and the memory are the machine's, whose owner decides how full they may be.
        "evictionHard": dict.fromkeys(
            ("memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available"), "0%"
        ),
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "clusterDNS": [sandbox.GATEWAY],
        "clusterDomain": "cluster.local",
        "resolvConf": str(folder / "resolv.conf"),
        "containerRuntimeEndpoint": f"unix://{runtime}",
        "podLogsDir": str(folder / "pods"),
        "volumePluginDir": str(folder / "plugins"),
        "makeIPTablesUtilChains": False,
        "nodeStatusUpdateFrequency": "5s",
    }
