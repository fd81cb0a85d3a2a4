"""etcd, the API server, the scheduler and the controller manager of one cluster."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from kronos.local.pki import (
    KUBELET_CLIENT,
    Authority,
    Pair,
    service_account_keys,
    write_kubeconfig,
)
from kronos.local.processes import GuardedProcess, last_lines, spawn

READY_SECONDS = 60.0
POLL_SECONDS = 0.05
SERVICE_NETWORK = "10.96.0.0/16"
# Where pods find the API server: the first address of the Services' network.
SERVICE_ADDRESS = "10.96.0.1"
# Nobody asks for certificates or cloud resources.
UNNEEDED_CONTROLLERS = (
    "certificatesigningrequest-approving-controller",
    "certificatesigningrequest-signing-controller",
    "certificatesigningrequest-cleaner-controller",
    "persistentvolume-attach-detach-controller",
    "persistentvolume-expander-controller",
)
# Pods of process nodes have loopback addresses, which the API server refuses in endpoints; these nodes know
# the names of pods behind headless Services without them.
ENDPOINT_CONTROLLERS = (
    "endpoints-controller",
    "endpointslice-controller",
    "endpointslice-mirroring-controller",
)


class ControlPlaneError(Exception):
    """A component did not start."""


@dataclass(frozen=True)
class Component:
    """A process of the control plane and the URL that tells whether it is ready."""

    name: str
    arguments: list[str]
    ready_url: str


class ControlPlane:
    """The four processes, their certificates and the administrator's kubeconfig, below one folder."""

    def __init__(
        self,
        folder: Path,
        binaries: Path,
        port: Callable[[], int],
        *,
        node_grace_seconds: float,
        progress: Callable[[str], None],
        endpoints: bool = False,
    ) -> None:
        """Prepare certificates and settings; nothing runs yet.

        ``endpoints`` says whether pods have addresses that may stand behind a Service.
        """
        self.disabled = UNNEEDED_CONTROLLERS + (() if endpoints else ENDPOINT_CONTROLLERS)
        self.folder = folder
        self.binaries = binaries
        self.node_grace_seconds = node_grace_seconds
        self.progress = progress
        self.processes: dict[str, GuardedProcess] = {}
        self.logs = folder / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.pki = folder / "pki"
        self.authority = Authority(self.pki, "ca")
        self.etcd_authority = Authority(self.pki, "etcd-ca")
        self.port = port
        self.api_port = port()
        self.server = f"https://127.0.0.1:{self.api_port}"
        self.admin = self.authority.issue("admin", "kronos-local-admin", group="system:masters")
        self.kubeconfig = self.write_kubeconfig("kubeconfig", "kronos-local-admin", self.admin)

    def write_kubeconfig(self, name: str, user: str, pair: Pair) -> Path:
        """Write a kubeconfig of that name for one user of this cluster."""
        return write_kubeconfig(self.folder / name, self.server, self.authority.certificate, user, pair)

    def node_identity(self, name: str, address: str = "127.0.0.1") -> Pair:
        """A certificate with which a node both calls the API server and answers its log requests."""
        return self.authority.issue(
            f"node-{name}", f"system:node:{name}", group="system:nodes", hosts=(name, address)
        )

    async def start(self) -> None:
        """Start everything in order and return when all of it is ready."""
        etcd_port = self.port()
        await self._start(self._etcd(etcd_port, self.port()))
        await self._start(self._apiserver(etcd_port))
        await asyncio.gather(self._start(self._scheduler()), self._start(self._controller_manager()))

    async def stop(self) -> None:
        """Stop everything, in the reverse order so that nobody waits for a server that is gone."""
        for name in reversed(list(self.processes)):
            process = self.processes.pop(name)
            if name in ("etcd", "kube-apiserver"):
                # Their state is thrown away: waiting for open watches to drain would gain nothing.
                process.kill()
                await process.wait()
            else:
                await process.stop(2.0)

    async def _start(self, component: Component) -> None:
        self.progress(f"starting {component.name}")
        log = self.logs / f"{component.name}.log"
        with log.open("ab") as output:
            process = spawn(
                [str(self.binaries / component.name), *component.arguments],
                # A little less memory, for a little more processor time.
                env={"PATH": os.defpath, "HOME": str(self.folder), "GOGC": "75"},
                cwd=str(self.folder),
                stdout=output.fileno(),
                stderr=output.fileno(),
            )
        self.processes[component.name] = process
        await self._wait_ready(component, process, log)

    async def _wait_ready(self, component: Component, process: GuardedProcess, log: Path) -> None:
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        context.load_verify_locations(str(self.etcd_authority.certificate))
        pair = self.etcd_client if component.name == "etcd" else self.admin
        context.load_cert_chain(pair.certificate, pair.key)
        deadline = time.monotonic() + READY_SECONDS
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
            while process.running and time.monotonic() < deadline:
                try:
                    async with session.get(component.ready_url, ssl=context) as response:
                        if response.status == 200:
                            return
                except (aiohttp.ClientError, TimeoutError):
                    pass
                await asyncio.sleep(POLL_SECONDS)
        what = "was not ready in time" if process.running else "ended at once"
        raise ControlPlaneError(f"{component.name} {what}; the end of {log}:\n{last_lines(log)}")

    def _etcd(self, port: int, peer_port: int) -> Component:
        server = self.etcd_authority.issue("etcd", "etcd", hosts=("127.0.0.1", "localhost"))
        self.etcd_client = self.etcd_authority.issue("etcd-client", "kube-apiserver")
        url, peer_url = f"https://127.0.0.1:{port}", f"https://127.0.0.1:{peer_port}"
        arguments = [
            "--name=local",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}",
            f"--listen-peer-urls={peer_url}",
            f"--initial-advertise-peer-urls={peer_url}",
            f"--initial-cluster=local={peer_url}",
            "--client-cert-auth",
            "--peer-client-cert-auth",
            # The state is thrown away with the cluster, so nothing is lost by not waiting for the disk.
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]
        for prefix in ("", "peer-"):
            arguments += [
                f"--{prefix}cert-file={server.certificate}",
                f"--{prefix}key-file={server.key}",
                f"--{prefix}trusted-ca-file={self.etcd_authority.certificate}",
            ]
        return Component("etcd", arguments, f"{url}/health")

    def _apiserver(self, etcd_port: int) -> Component:
        serving = self.authority.issue(
            "apiserver",
            "kube-apiserver",
            hosts=(
                "127.0.0.1",
                SERVICE_ADDRESS,
                "localhost",
                "kubernetes",
                "kubernetes.default",
                "kubernetes.default.svc",
            ),
        )
        kubelet = self.authority.issue("apiserver-kubelet-client", KUBELET_CLIENT, group="system:masters")
        self.signing = service_account_keys(self.pki)
        arguments = [
            f"--etcd-servers=https://127.0.0.1:{etcd_port}",
            f"--etcd-cafile={self.etcd_authority.certificate}",
            f"--etcd-certfile={self.etcd_client.certificate}",
            f"--etcd-keyfile={self.etcd_client.key}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self.api_port}",
            # A loopback address may not be an endpoint of the Service "kubernetes"; pods get it by name.
            "--endpoint-reconciler-type=none",
            f"--service-cluster-ip-range={SERVICE_NETWORK}",
            "--authorization-mode=Node,RBAC",
            f"--client-ca-file={self.authority.certificate}",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--kubelet-certificate-authority={self.authority.certificate}",
            f"--kubelet-client-certificate={kubelet.certificate}",
            f"--kubelet-client-key={kubelet.key}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--service-account-issuer={self.server}",
            f"--service-account-key-file={self.signing.certificate}",
            f"--service-account-signing-key-file={self.signing.key}",
            "--profiling=false",
        ]
        return Component("kube-apiserver", arguments, f"{self.server}/readyz")

    def _scheduler(self) -> Component:
        user = "system:kube-scheduler"
        config = self.write_kubeconfig("scheduler.kubeconfig", user, self.authority.issue("scheduler", user))
        return self._client("kube-scheduler", config, [])

    def _controller_manager(self) -> Component:
        user = "system:kube-controller-manager"
        pair = self.authority.issue("controller-manager", user)
        config = self.write_kubeconfig("controller-manager.kubeconfig", user, pair)
        grace = self.node_grace_seconds
        arguments = [
            "--controllers=*," + ",".join(f"-{name}" for name in self.disabled),
            "--use-service-account-credentials",
            f"--service-account-private-key-file={self.signing.key}",
            f"--root-ca-file={self.authority.certificate}",
            f"--node-monitor-grace-period={grace}s",
            f"--node-monitor-period={min(5.0, grace / 4)}s",
        ]
        return self._client("kube-controller-manager", config, arguments)

    def _client(self, name: str, config: Path, arguments: list[str]) -> Component:
        """The settings that the scheduler and the controller manager share."""
        port = self.port()
        serving = self.authority.issue(f"{name}-serving", name, hosts=("127.0.0.1",))
        return Component(
            name,
            [
                f"--kubeconfig={config}",
                f"--authentication-kubeconfig={config}",
                f"--authorization-kubeconfig={config}",
                "--bind-address=127.0.0.1",
                f"--secure-port={port}",
                f"--tls-cert-file={serving.certificate}",
                f"--tls-private-key-file={serving.key}",
                "--leader-elect=false",
                "--kube-api-qps=500",
                "--kube-api-burst=1000",
                *arguments,
            ],
            f"https://127.0.0.1:{port}/healthz",
        )
