"""Names of pods behind headless Services, kept up to date in the hosts file of every pod of the cluster."""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import replace
from pathlib import Path

from kronos.local.api import ApiClient, Object, follow
from kronos.local.node.hosts import HeadlessService, Peer, addresses, hosts_text
from kronos.local.tasks import background

SETTLE_SECONDS = 0.01


class Names:
    """Knows all pods of the cluster's nodes, follows the Services, and rewrites hosts files in place."""

    def __init__(self, host_file: Path = Path("/etc/hosts")) -> None:
        """Start with no pods and no Services."""
        self.peers: dict[str, Peer] = {}
        self.files: dict[str, Path] = {}
        self.services: dict[tuple[str, str], HeadlessService] = {}
        self.changed = asyncio.Condition()
        self._scheduled: asyncio.TimerHandle | None = None
        self._notifications: set[asyncio.Task[None]] = set()
        try:
            self.host_lines = host_file.read_text().splitlines()
        except OSError:
            self.host_lines = []

    async def follow_services(self, client: ApiClient) -> None:
        """Keep up with the Services for ever."""

        def on_list(services: list[Object]) -> None:
            self.services.clear()
            for service in services:
                on_event("ADDED", service)

        def on_event(kind: str, service: Object) -> None:
            key = (service["metadata"]["namespace"], service["metadata"]["name"])
            headless = HeadlessService.from_object(service)
            before = self.services.pop(key, None)
            if headless is not None and kind != "DELETED":
                self.services[key] = headless
            if self.services.get(key) != before:
                self._schedule()

        await follow(client, "/api/v1/services", {}, on_list, on_event)

    def announce(self, uid: str, peer: Peer, file: Path) -> None:
        """Add a pod or change what is known of it; its hosts file is complete when this returns."""
        if self.peers.get(uid) != peer or uid not in self.files:
            self.peers[uid] = peer
            self.files[uid] = file
            self._rewrite(uid)
            self._schedule()

    def withdraw(self, uid: str) -> None:
        """Forget a pod that has ended."""
        if self.peers.pop(uid, None) is not None:
            self.files.pop(uid)
            self._schedule()

    def lookup(self, namespace: str) -> dict[str, str]:
        """Every name that can be looked up in a namespace, with the first address it has."""
        found: dict[str, str] = {}
        # Whoever replaces names before a program starts cannot wait until its peers are ready, too.
        services = [replace(service, publish_not_ready=True) for service in self.services.values()]
        for name, address in addresses(namespace, services, list(self.peers.values())):
            found.setdefault(name, address)
        return found

    def _schedule(self) -> None:
        # Pods of a gang come within milliseconds of each other; one pass serves them all.
        if self._scheduled is None:
            self._scheduled = asyncio.get_running_loop().call_later(SETTLE_SECONDS, self._rewrite_all)

    def _rewrite_all(self) -> None:
        self._scheduled = None
        for uid in self.files:
            self._rewrite(uid)
        task = background(self._notify())
        self._notifications.add(task)
        task.add_done_callback(self._notifications.discard)

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    def _rewrite(self, uid: str) -> None:
        text = hosts_text(self.peers[uid], self.services.values(), list(self.peers.values()), self.host_lines)
        with contextlib.suppress(FileNotFoundError):
            rewrite_in_place(self.files[uid], text)


def rewrite_in_place(path: Path, text: str) -> None:
    """Replace a file's content but not the file, which running containers have mounted."""
    content = text.encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(descriptor, content, 0)
        os.ftruncate(descriptor, len(content))
    finally:
        os.close(descriptor)
