"""The supervisor process of a local cluster: control plane, nodes, and whatever else was asked for.

It is a process of its own, so that a cluster behaves the same under a test, a demo and ``make up``. It dies
with whoever started it, unless told to detach, and everything it started dies with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from kronos.local import slots
from kronos.local.api import ApiClient, ApiError, Object
from kronos.local.control import Settings, socket_address
from kronos.local.controlplane import ControlPlane
from kronos.local.node.agent import NodeAgent, is_ready
from kronos.local.node.context import NodeContext
from kronos.local.node.isolation import (
    CHOICE,
    Isolator,
    NamespaceIsolator,
    TranslatingIsolator,
    namespaces_work,
)
from kronos.local.node.names import Names
from kronos.local.processes import GuardedProcess, spawn
from kronos.local.tasks import background
from kronos.local.versions import Platform

log = logging.getLogger(__name__)

OWN_ENTRIES = ("etcd", "pki", "logs", "nodes", "kubectl", "kubeconfig", "control.sock")
LEAST_LEASE_SECONDS = 1.0
RESTART_SECONDS, LONGEST_RESTART_SECONDS = 1.0, 30.0
PASSED_ON = ("PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "TZ")


class HostError(Exception):
    """The supervisor cannot do what it was asked."""


class Agent(Protocol):
    """What runs one node."""

    async def start(self) -> None:
        """Bring the node up; returns when it has registered."""

    async def kill(self) -> None:
        """Let the node vanish with all that runs on it."""


class Host:
    """One running cluster."""

    def __init__(self, settings: Settings) -> None:
        """Prepare a cluster from its settings."""
        self.settings = settings
        self.folder = settings.state
        self.slot = slots.claim(slots.lock_folder())
        self.agents: dict[str, Agent] = {}
        self.nodes = {node.name: node for node in settings.nodes}
        self.extra: dict[str, asyncio.Task[None]] = {}
        self.tasks: list[asyncio.Task[None]] = []
        self.stopping = asyncio.Event()
        self.owner: int | None = None
        self.ready = False
        self.plane: ControlPlane | None = None
        self.server: asyncio.Server | None = None
        self.admin: ApiClient | None = None

    # Living.

    async def run(self) -> None:
        """Start everything, serve until told to stop, and stop everything."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self.stopping.set)
        self._watch_owner()
        starting = asyncio.create_task(self.start())
        stopped = asyncio.create_task(self.stopping.wait())
        try:
            await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                self.ready = True
                say(ready=True)
                await stopped
        finally:
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await starting
            await self.stop()

    def _watch_owner(self) -> None:
        """Stop when the process that started this one ends, however it ends."""
        try:
            self.owner = os.pidfd_open(self.settings.owner)
        except ProcessLookupError:
            self.stopping.set()
            return
        if os.getppid() != self.settings.owner:
            self.stopping.set()
        asyncio.get_running_loop().add_reader(self.owner, self.stopping.set)

    def _detach(self) -> None:
        if self.owner is not None:
            asyncio.get_running_loop().remove_reader(self.owner)
            os.close(self.owner)
            self.owner = None

    async def start(self) -> None:
        """Start everything; returns when pods can be created."""
        for name in OWN_ENTRIES:
            remove(self.folder / name)
        self.plane = self.make_control_plane()
        self.server = await asyncio.start_unix_server(self._serve, path=socket_address(self.folder))
        await self.plane.start()
        say(progress=f"starting {len(self.nodes)} node{'s' if len(self.nodes) != 1 else ''}")
        self.admin = ApiClient(self.plane.server, self.plane.authority.certificate, self.plane.admin)
        await self.admin.__aenter__()
        await self.prepare_nodes(self.plane, self.admin)
        await asyncio.gather(*(self._start_node(name) for name in self.nodes))
        await self._wait_usable(self.admin)
        for process in self.settings.processes:
            work = self._keep_running(process.name, process.argv, process.env)
            self.extra[process.name] = background(work)

    def make_control_plane(self) -> ControlPlane:
        """The control plane of this cluster, before it runs."""
        return ControlPlane(
            self.folder,
            self.settings.binaries,
            self.slot.port,
            node_grace_seconds=self.settings.node_grace_seconds,
            progress=lambda text: say(progress=text),
        )

    async def prepare_nodes(self, plane: ControlPlane, admin: ApiClient) -> None:
        """Make whatever nodes share, once the control plane runs."""
        self.context = self._node_context(plane)
        self.tasks.append(background(self.context.names.follow_services(admin)))

    def make_agent(self, name: str) -> Agent:
        """What runs one of the nodes, before it runs."""
        assert self.plane is not None
        return NodeAgent(self.nodes[name], self.context, self.plane.node_identity(name))

    def is_usable(self, node: Object) -> bool:
        """Whether a node takes pods."""
        return is_ready(node) and not has_lifecycle_taint(node)

    def _node_context(self, plane: ControlPlane) -> NodeContext:
        names = Names()
        folder = self.folder / "nodes"
        folder.mkdir(parents=True, exist_ok=True)
        platform = Platform.of("Linux", os.uname().machine)
        env = pod_environment(os.environ, plane.api_port) | dict(self.settings.pod_env)
        return NodeContext(
            server=plane.server,
            authority=plane.authority.certificate,
            folder=folder,
            addresses=self.slot.addresses,
            names=names,
            isolator=choose_isolator(os.environ.get(CHOICE, ""), folder, names),
            base_env=env,
            # A node has a few chances to renew its lease before it counts as lost.
            lease_seconds=max(LEAST_LEASE_SECONDS, min(40.0, self.settings.node_grace_seconds)),
            architecture=platform.architecture,
        )

    async def _wait_usable(self, admin: ApiClient) -> None:
        """Wait until pods can be created and every node takes them."""
        while True:
            try:
                await admin.request("GET", "/api/v1/namespaces/default/serviceaccounts/default")
                items = (await admin.request("GET", "/api/v1/nodes"))["items"]
                if sum(map(self.is_usable, items)) == len(self.nodes):
                    return
            except ApiError as error:
                if error.status != 404:
                    raise
            await asyncio.sleep(0.05)

    async def stop(self) -> None:
        """Stop everything that was started."""
        if self.server is not None:
            self.server.close()
        for task in (*self.extra.values(), *self.tasks):
            task.cancel()
        # Cancelling a supervised process stops it, which may take a moment.
        await asyncio.gather(*self.extra.values(), *self.tasks, return_exceptions=True)
        kills = (agent.kill() for agent in self.agents.values())
        for problem in await asyncio.gather(*kills, return_exceptions=True):
            if problem is not None:
                log.error("a node has left something behind", exc_info=problem)
        if self.admin is not None:
            await self.admin.__aexit__()
        if self.plane is not None:
            await self.plane.stop()
        remove(self.folder / "control.sock")

    # Nodes and other processes.

    async def _start_node(self, name: str) -> None:
        if name not in self.nodes:
            raise HostError(f"there is no node {name}; the nodes are {', '.join(self.nodes)}")
        if name in self.agents:
            raise HostError(f"node {name} runs already; kill it first")
        agent = self.make_agent(name)
        self.agents[name] = agent
        try:
            await agent.start()
        except BaseException:
            # Unless it has been killed meanwhile.
            if self.agents.pop(name, None) is agent:
                await agent.kill()
            raise

    async def _kill_node(self, name: str) -> None:
        agent = self.agents.pop(name, None)
        if agent is None:
            raise HostError(f"node {name} does not run; start it first")
        await agent.kill()

    async def _keep_running(self, name: str, argv: list[str], env: Mapping[str, str]) -> None:
        """Run a process for as long as the cluster, starting it again when it ends."""
        assert self.plane is not None
        pause = RESTART_SECONDS
        variables = {**os.environ, "KUBECONFIG": str(self.plane.kubeconfig), **env}
        with (self.folder / "logs" / f"{name}.log").open("ab") as output:
            while True:
                process: GuardedProcess | None = None
                began = asyncio.get_running_loop().time()
                try:
                    process = spawn(
                        argv,
                        env=variables,
                        cwd=str(Path.cwd()),
                        stdout=output.fileno(),
                        stderr=output.fileno(),
                    )
                    await process.wait()
                except asyncio.CancelledError:
                    if process is not None:
                        await process.stop(5.0)
                    raise
                log.warning("%s ended; starting it again", name)
                if asyncio.get_running_loop().time() - began > LONGEST_RESTART_SECONDS:
                    pause = RESTART_SECONDS
                await asyncio.sleep(pause)
                pause = min(LONGEST_RESTART_SECONDS, pause * 2)

    # Commands.

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one command."""
        answer: dict[str, Any]
        try:
            answer = await self._command(json.loads(await reader.readline()))
        except HostError as error:
            answer = {"error": str(error)}
        except Exception as error:
            log.exception("command failed")
            answer = {"error": f"{type(error).__name__}: {error}"}
        with contextlib.suppress(OSError):
            writer.write((json.dumps(answer) + "\n").encode())
            await writer.drain()
            writer.close()

    async def _command(self, request: Mapping[str, Any]) -> dict[str, Any]:
        match request:
            case {"command": "status"}:
                nodes = {name: name in self.agents for name in self.nodes}
                return {
                    "ready": self.ready,
                    "nodes": nodes,
                    "pid": os.getpid(),
                    "processes": list(self.extra),
                }
            case {"command": "stop"}:
                self.stopping.set()
            case {"command": "detach"}:
                self._detach()
            case {"command": "kill-node", "name": str(name)}:
                await self._kill_node(name)
            case {"command": "start-node", "name": str(name)}:
                await self._start_node(name)
            case _:
                raise HostError(f"there is no command {request.get('command')}")
        return {}


def say(**fields: object) -> None:
    """Tell the owner something; one that no longer listens is no error."""
    with contextlib.suppress(OSError):
        os.write(sys.stdout.fileno(), (json.dumps(fields) + "\n").encode())


def remove(path: Path) -> None:
    """Delete a file or folder if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def has_lifecycle_taint(node: Mapping[str, Any]) -> bool:
    """Whether the control plane still keeps pods off a node."""
    taints = node["spec"].get("taints") or ()
    return any(taint["key"].startswith("node.kubernetes.io/") for taint in taints)


def pod_environment(environ: Mapping[str, str], api_port: int) -> dict[str, str]:
    """What every pod's environment starts with: this Python first on PATH, and where the API server is."""
    passed = {name: environ[name] for name in PASSED_ON if name in environ}
    if "PYTHONPATH" in passed:
        folders = passed["PYTHONPATH"].split(os.pathsep)
        passed["PYTHONPATH"] = os.pathsep.join(str(Path(folder).absolute()) for folder in folders if folder)
    return {
        "PATH": f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(api_port),
        "KUBERNETES_SERVICE_PORT_HTTPS": str(api_port),
        **passed,
    }


def choose_isolator(choice: str, folder: Path, names: Names) -> Isolator:
    """Namespaces where they work, unless the user has chosen otherwise."""
    if choice not in ("", "namespaces", "translate"):
        raise HostError(f"{CHOICE} is {choice!r}; it may be namespaces or translate")
    if choice == "translate":
        return TranslatingIsolator(names)
    problem = namespaces_work(folder)
    if not problem:
        return NamespaceIsolator()
    if choice == "namespaces":
        raise HostError(f"{CHOICE} asks for namespaces, but they do not work here: {problem}")
    log.warning("namespaces do not work here (%s): paths and names in pods are translated instead", problem)
    return TranslatingIsolator(names)


@contextlib.contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Make sure that no other supervisor uses the state folder."""
    with (folder / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HostError(f"a cluster already runs in {folder}; stop it or choose another folder") from None
        yield


def serve(make: Callable[[Settings], Host]) -> int:
    """Run a cluster described by the settings on standard input."""
    settings = Settings.from_json(sys.stdin.read())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("aiohttp").setLevel(logging.WARNING)
    try:
        with only_one(settings.state):
            asyncio.run(make(settings).run())
    except Exception as error:
        log.exception("the cluster has stopped")
        say(error=str(error) or type(error).__name__)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(serve(Host))
