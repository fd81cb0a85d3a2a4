"""The supervisor of a cluster with real nodes: that of the local cluster, in a sandbox, with other nodes."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

from kronos.local.api import ApiClient, Object
from kronos.local.binaries import cache_folder
from kronos.local.control import Settings
from kronos.local.controlplane import SERVICE_ADDRESS, ControlPlane
from kronos.local.host import Agent, Host, HostError, say, serve
from kronos.local.kubelets import cgroups, containerd, sandbox
from kronos.local.kubelets.node import RUN, Ground, KubeletNode
from kronos.local.kubelets.relay import Relay
from kronos.local.processes import GuardedProcess, spawn
from kronos.local.topology import ACCELERATOR

SERVICE_PORT = 443
DNS_GRACE_SECONDS = 2.0
LEAST_LEASE_SECONDS = 4


class KubeletHost(Host):
    """One running cluster of real nodes."""

    def __init__(self, settings: Settings, programs: Path, images: list[Path]) -> None:
        """Take a share of the machine, and enter the sandbox; the images are archives that nodes begin with."""
        if len(settings.nodes) > sandbox.MOST_NODES:
            raise HostError(f"a cluster of real nodes has at most {sandbox.MOST_NODES}")
        super().__init__(settings)
        self.programs = programs
        self.images = images
        self.api_port = self.slot.port()
        # Made before the sandbox: this is how the outside reaches the API server in it.
        outside = socket.create_server(("127.0.0.1", self.api_port))
        self.relays = [Relay(outside, self.api_port)]
        sandbox.enter(settings.state)
        self.order = {node.name: index for index, node in enumerate(settings.nodes)}
        self.group_prefix = f"kronos-{self.slot.number}-"
        self.dns: GuardedProcess | None = None

    async def start(self) -> None:
        """Start everything; returns when pods can be created."""
        # The slot is ours, so groups of that name were left by somebody who was killed.
        for name in cgroups.names_with(self.group_prefix):
            cgroups.remove(name)
        addresses = [sandbox.node_address(index) for index in self.order.values()]
        await asyncio.to_thread(sandbox.build_network, [*addresses, SERVICE_ADDRESS])
        inside = socket.create_server((SERVICE_ADDRESS, SERVICE_PORT))
        self.relays.append(Relay(inside, self.api_port))
        for relay in self.relays:
            await relay.start()
        await super().start()

    def make_control_plane(self) -> ControlPlane:
        """The control plane, its API server on the port that the outside knows."""
        ports = [self.api_port]
        return ControlPlane(
            self.folder,
            self.settings.binaries,
            lambda: ports.pop() if ports else self.slot.port(),
            node_grace_seconds=self.settings.node_grace_seconds,
            progress=lambda text: say(progress=text),
            endpoints=True,
        )

    async def prepare_nodes(self, plane: ControlPlane, admin: ApiClient) -> None:
        """Import the images and start the name server."""
        cache = cache_folder(os.environ, Path.home())
        scratch = RUN / "import"
        scratch.mkdir(parents=True)
        store = await containerd.prepare_store(
            cache, self.programs, self.images, scratch, lambda text: say(progress=text)
        )
        self.dns = self._start_dns(plane)
        self.ground = Ground(
            plane=plane,
            admin=admin,
            folder=self.folder / "nodes",
            programs=self.programs,
            store=store,
            group_prefix=self.group_prefix,
            # A node has a few chances to renew its lease before it counts as lost.
            lease_seconds=max(LEAST_LEASE_SECONDS, min(40, int(self.settings.node_grace_seconds * 0.8))),
        )

    def make_agent(self, name: str) -> Agent:
        """What runs one of the nodes."""
        return KubeletNode(self.nodes[name], self.order[name], self.ground)

    def is_usable(self, node: Object) -> bool:
        """Whether a node takes pods and offers its accelerators."""
        wanted = self.nodes[node["metadata"]["name"]].capacity.get(ACCELERATOR)
        offered = node["status"].get("allocatable", {}).get(ACCELERATOR)
        return super().is_usable(node) and offered == wanted

    async def stop(self) -> None:
        """Stop everything that was started."""
        await super().stop()
        if self.dns is not None:
            await self.dns.stop(DNS_GRACE_SECONDS)
        for relay in self.relays:
            relay.stop()

    def _start_dns(self, plane: ControlPlane) -> GuardedProcess:
        """The name server of the pods: names of Services and of the pods behind them, and no others."""
        pair = plane.authority.issue("dns", "kronos-local-dns", group="system:masters")
        config = plane.write_kubeconfig("dns.kubeconfig", "kronos-local-dns", pair)
        corefile = self.folder / "Corefile"
        corefile.write_text(
            ".:53 {\n"
            f"    bind {sandbox.GATEWAY}\n"
            "    errors\n"
            "    kubernetes cluster.local in-addr.arpa {\n"
            f"        kubeconfig {config}\n"
            "    }\n"
            "}\n"
        )
        with (self.folder / "logs" / "coredns.log").open("ab") as output:
            return spawn(
                [str(self.programs / "coredns"), "-conf", str(corefile)],
                env={"PATH": os.defpath, "HOME": str(self.folder)},
                stdout=output.fileno(),
                stderr=output.fileno(),
            )


def main(arguments: list[str]) -> int:
    """Run a cluster: the folder of programs, then the archives of images; settings come on standard input."""
    programs, *images = (Path(argument) for argument in arguments)
    return serve(lambda settings: KubeletHost(settings, programs, images))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
