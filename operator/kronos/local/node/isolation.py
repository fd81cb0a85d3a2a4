"""How a container comes to see its volumes and the names of other pods.

Where the kernel allows it, each container gets mount, PID and host name namespaces of its own. Where it
does not, paths and names in the container's command and environment are replaced by real ones.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kronos.local.node.names import Names
from kronos.local.node.rootfs import Mount, plan, program_folders
from kronos.local.processes import Isolation, spawn

PEER_SECONDS = 15.0
CHOICE = "KRONOS_LOCAL_ISOLATION"


@dataclass(frozen=True)
class ContainerPlan:
    """A container as its specification has it, before isolation."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    mounts: list[Mount]
    hosts: Path
    root: Path
    hostname: str
    namespace: str


@dataclass(frozen=True)
class Launch:
    """What is really started."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    isolation: Isolation | None


class Isolator(Protocol):
    """One way to give containers their view of the world."""

    name: str

    async def launch(self, container: ContainerPlan) -> Launch:
        """Work out what to start for a container."""
        ...


class NamespaceIsolator:
    """Bind mounts in namespaces of the container's own."""

    name = "namespaces"

    async def launch(self, container: ContainerPlan) -> Launch:
        """Put volumes and the hosts file in their places in a new root."""
        container.root.mkdir(parents=True, exist_ok=True)
        mounts = [Mount(container.hosts, "/etc/hosts"), *container.mounts]
        isolation = Isolation(container.hostname, str(container.root), plan(mounts, program_folders()))
        return Launch(container.argv, container.env, container.cwd, isolation)


class TranslatingIsolator:
    """Real paths and addresses put in place of mount paths and names."""

    name = "translate"

    def __init__(self, names: Names) -> None:
        """Look names of pods up in ``names``."""
        self.names = names

    async def launch(self, container: ContainerPlan) -> Launch:
        """Replace what the container could not use, once the pods that it names have addresses."""
        words = [*container.argv, *container.env.values()]
        await self._wait_for_peers(container.namespace, words)
        addresses = self.names.lookup(container.namespace)
        paths = {mount.target: str(mount.source) for mount in container.mounts}

        def translated(text: str) -> str:
            return replace_names(replace_paths(text, paths), addresses)

        # PATH and the like name folders of the host, whatever is mounted there in other containers.
        env = {
            name: value if name in ("PATH", "PYTHONPATH", "HOME") else translated(value)
            for name, value in container.env.items()
        }
        argv = [translated(word) for word in container.argv]
        return Launch(argv, env, replace_paths(container.cwd, paths), None)

    async def _wait_for_peers(self, namespace: str, words: Sequence[str]) -> None:
        def all_known() -> bool:
            services = [key[1] for key in self.names.services if key[0] == namespace]
            return mentioned_peers(words, services) <= self.names.lookup(namespace).keys()

        try:
            async with self.names.changed:
                await asyncio.wait_for(self.names.changed.wait_for(all_known), PEER_SECONDS)
        except TimeoutError:
            # A name may never get an address, and the program may know what to do about that.
            return


def replace_paths(text: str, paths: Mapping[str, str]) -> str:
    """Replace mount paths, longest first, where they stand as whole path components."""
    for target in sorted(paths, key=len, reverse=True):
        pattern = rf"(?<![\w./-]){re.escape(target.rstrip('/'))}(?=$|[^\w.-])"
        text = re.sub(pattern, paths[target].replace("\\", r"\\"), text)
    return text


def replace_names(text: str, addresses: Mapping[str, str]) -> str:
    """Replace the names of pods and Services by addresses, longest first; bare words stay as they are."""
    for name in sorted(addresses, key=len, reverse=True):
        if "." in name:
            pattern = rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)"
            text = re.sub(pattern, addresses[name], text)
        elif text == name or re.fullmatch(rf"(\w+://)?{re.escape(name)}(:\d+.*)?", text):
            text = text.replace(name, addresses[name])
    return text


def mentioned_peers(words: Sequence[str], services: Sequence[str]) -> set[str]:
    """The ``hostname.service`` names of pods that occur in a command or environment."""
    found = set()
    for service in services:
        pattern = re.compile(rf"(?<![\w.-])([a-z0-9]([a-z0-9-]*[a-z0-9])?\.{re.escape(service)})(?![\w-])")
        for word in words:
            found |= {match[1] for match in pattern.finditer(word)}
    return found


def namespaces_work(folder: Path) -> str:
    """Try the namespaces once; returns why they cannot be used, or nothing when they can."""
    root = folder / "isolation-check"
    root.mkdir(parents=True, exist_ok=True)
    process = spawn(
        ["true"],
        env={"PATH": os.defpath},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        isolation=Isolation("check", str(root), plan([])),
        report=True,
    )
    assert process.report is not None
    with os.fdopen(process.report) as reports:
        said = reports.read()
    process.popen.wait()
    return "" if '"code": 0' in said else said.strip() or "the kernel refused"
