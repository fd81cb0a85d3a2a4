"""Hangs the worker on kopf: watches, start-up, shutdown."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import kopf

from kronos.api import GROUP, VERSION
from kronos.controller.api import Api, ApiError, Kind, plural_of, runs_in_cluster, service_url
from kronos.controller.cache import Cache, Store
from kronos.controller.health import answering
from kronos.controller.progress import ProgressPoller
from kronos.controller.reconciler import Reconciler
from kronos.controller.warnings import WarningPoller

Json = Mapping[str, Any]

logger = logging.getLogger(__name__)

HOT: tuple[Kind, ...] = ("nodes", "pods", "jobs")
"""Kinds that change all the time. kopf looks for what a handler might have missed in each event, by several copies of the
object, which takes longer than all that Kronos does with it; so these are watched without it. It also watches either one
namespace or all, where jobs may be those of one and pods must be all.
"""
_RESYNC_FIRST = 5.0
"""Seconds after the start: covers deletions between our first list and the start of the watches."""
_RESYNC = 300.0
"""Seconds between full lists: a watch that lost a deletion is put right by the next one."""
_REWATCH = 1.0
"""Seconds between the starts of two watches, so that a proxy that ends each at once costs no more than that."""
_BLIND = 3 * _RESYNC
"""Seconds without a full list after which the operator says that it isn't ready."""


@dataclass
class Operator:
    """One operator's state while it runs."""

    progress_interval: float
    namespace: str = ""
    """The namespace whose jobs it looks after; empty for all."""
    listener: socket.socket | None = None
    """Where it answers probes, if anywhere."""
    cache: Cache = field(default_factory=Cache)
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    reconciler: Reconciler | None = None
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    listed: float | None = None
    """When everything was listed last, on the monotonic clock."""

    def stores(self) -> dict[Kind, Store[Any]]:
        """The cache's stores by the kind of object that they hold."""
        cache = self.cache
        return {
            "nodes": cache.nodes,
            "fabrics": cache.fabrics,
            "queues": cache.queues,
            "priorities": cache.priorities,
            "pods": cache.pods,
            "jobs": cache.jobs,
        }

    async def start(self) -> None:
        """List everything, then start the worker: its first decision sees the whole cluster."""
        if self.listener is not None:
            await self.stack.enter_async_context(answering(self.listener, self.not_ready))
        api = await self.stack.enter_async_context(Api.connect())
        await self._wait_for_server(api)
        self.reconciler = Reconciler(api, self.cache)
        poller = ProgressPoller(self.cache, self.progress_interval, self.reconciler.notify)
        self.reconciler.notify()
        parts = {
            "reconciler": self.reconciler.run(),
            "progress": poller.run(),
            "warnings": WarningPoller(api, self.cache, self.reconciler.notify).run(),
            "resync": self._resync_forever(api),
        }
        for kind in HOT:
            parts[kind] = self._watch(api, kind)
        self.tasks = [asyncio.create_task(_crash_loudly(work), name=name) for name, work in parts.items()]

    def not_ready(self) -> str:
        """Why decisions can't be trusted to come; empty when they can."""
        if self.listed is None or self.reconciler is None:
            return "the cluster isn't known yet: the first full list is under way"
        if self.reconciler.last_round is None:
            return "the first round of decisions isn't over"
        if time.monotonic() - self.listed > _BLIND:
            return f"the API server has given no full list for more than {_BLIND:.0f} s"
        return ""

    async def stop(self) -> None:
        """Stop between two requests; what was half done is found in the API by the next start."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.stack.aclose()

    async def _wait_for_server(self, api: Api) -> None:
        while True:
            try:
                await self._resync(api)
            except ApiError as error:
                logger.warning("the API server isn't ready: %s", error)
            except OSError as error:
                logger.warning("%s", error)
            else:
                return
            await asyncio.sleep(1.0)

    async def _resync(self, api: Api) -> None:
        for kind, store in self.stores().items():
            items, version = await api.list_all(kind, self._scope(kind))
            if store.replace(items, version) and self.reconciler is not None:
                self.reconciler.notify()
        self.listed = time.monotonic()

    def _scope(self, kind: Kind) -> str:
        """The only namespace in which objects of a kind matter; empty for all.

        What is free on a node depends on the pods of all namespaces, whoever's jobs the operator looks after.
        """
        return self.namespace if kind == "jobs" else ""

    async def _watch(self, api: Api, kind: Kind) -> None:
        """Watch the objects of a kind for ever.

        A watch that ended goes on where it was: a busy API server ends watches all the time, and lists are what it can
        afford least. Only when it can't, all objects are listed anew.
        """
        store, namespace = self.stores()[kind], self._scope(kind)
        version = 0
        while True:
            began = time.monotonic()
            try:
                if not version:
                    items, version = await api.list_all(kind, namespace)
                    if store.replace(items, version) and self.reconciler is not None:
                        self.reconciler.notify()
                async for event, item in api.watch(kind, namespace, version):
                    version = int(item["metadata"]["resourceVersion"])
                    if event != "BOOKMARK":
                        self.observe(kind, event, item)
            except ApiError as error:
                logger.warning("%s are listed and watched anew: %s", kind, error)
                version = 0
            except OSError as error:
                logger.warning("%s are watched anew: %s", kind, error)
            await asyncio.sleep(max(0.0, began + _REWATCH - time.monotonic()))

    async def _resync_forever(self, api: Api) -> None:
        pause = _RESYNC_FIRST
        while True:
            await asyncio.sleep(pause)
            pause = _RESYNC
            try:
                await self._resync(api)
            except (ApiError, OSError) as error:
                logger.warning("a full list failed and is tried again: %s", error)
                pause = _RESYNC_FIRST

    def observe(self, kind: Kind, event: str | None, raw: Json) -> None:
        """Take in one watch event."""
        store = self.stores()[kind]
        news = store.remove(raw) if event == "DELETED" else store.put(raw)
        if news and self.reconciler is not None:
            self.reconciler.notify()


async def _crash_loudly(work: Awaitable[None]) -> None:
    """A background task that ends by an error must not leave an operator that looks alive and does nothing."""
    try:
        await work
    except Exception:
        logger.critical("the operator stops: a part of it failed", exc_info=True)
        raise SystemExit(1) from None


def registry_of(operator: Operator) -> kopf.OperatorRegistry:
    """The kopf handlers of one operator."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        if not runs_in_cluster():
            return kopf.login_with_kubeconfig(**kwargs)
        account = kopf.login_with_service_account(**kwargs)
        # kopf takes the API server's name, our own requests its address: both should work, or neither.
        return account and replace(account, server=service_url())

    @kopf.on.startup(registry=registry)
    async def startup(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = False  # events are the worker's own
        settings.batching.idle_timeout = 1.0
        settings.watching.server_timeout = 300
        await operator.start()

    @kopf.on.cleanup(registry=registry)
    async def cleanup(**_: Any) -> None:
        await operator.stop()

    watched: dict[Kind, tuple[str, str]] = {
        "fabrics": (GROUP, VERSION),
        "queues": (GROUP, VERSION),
        "priorities": ("scheduling.k8s.io", "v1"),
    }
    for kind, (group, version) in watched.items():
        _watch(registry, operator, kind, (group, version, plural_of(kind)))
    return registry


def _watch(
    registry: kopf.OperatorRegistry, operator: Operator, kind: Kind, selector: tuple[str, ...]
) -> None:
    @kopf.on.event(*selector, registry=registry, id=f"observe-{kind}")
    async def observe(event: kopf.RawEvent, **_: Any) -> None:
        # A coroutine, since kopf runs plain functions in threads, and the cache belongs to the event loop's.
        operator.observe(kind, event["type"], event["object"])
