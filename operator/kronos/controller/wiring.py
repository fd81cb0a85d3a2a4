"""Hangs the worker on kopf: watches, start-up, shutdown, probes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import kopf

from kronos.api import GROUP, VERSION
from kronos.controller.api import Api, ApiError, Kind, NoClusterError
from kronos.controller.cache import Cache, Store
from kronos.controller.progress import ProgressPoller
from kronos.controller.reconciler import Reconciler

logger = logging.getLogger(__name__)

_RESYNC_FIRST = 5.0
"""Seconds after the start: covers deletions between our first list and the start of the watches."""
_RESYNC = 300.0
"""Seconds between full lists: a watch that lost a deletion is put right by the next one."""


@dataclass
class Operator:
    """One operator's state while it runs."""

    progress_interval: float
    cache: Cache = field(default_factory=Cache)
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    reconciler: Reconciler | None = None
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def stores(self) -> dict[Kind, Store[Any]]:
        """The cache's stores by the kind of object that they hold."""
        cache = self.cache
        return {"nodes": cache.nodes, "fabrics": cache.fabrics, "pods": cache.pods, "jobs": cache.jobs}

    async def start(self) -> None:
        """List everything, then start the worker: its first decision sees the whole cluster."""
        api = await self.stack.enter_async_context(Api.connect())
        await self._wait_for_server(api)
        self.reconciler = Reconciler(api, self.cache)
        poller = ProgressPoller(self.cache, self.progress_interval, self.reconciler.notify)
        self.reconciler.notify()
        self.tasks = [
            asyncio.create_task(_crash_loudly(work), name=name)
            for name, work in (
                ("reconciler", self.reconciler.run()),
                ("progress", poller.run()),
                ("resync", self._resync_forever(api)),
            )
        ]

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
            items, version = await api.list_all(kind)
            if store.replace(items, version) and self.reconciler is not None:
                self.reconciler.notify()

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

    def observe(self, kind: Kind, event: kopf.RawEvent) -> None:
        """Take in one watch event."""
        store = self.stores()[kind]
        raw = event["object"]
        news = store.remove(raw) if event["type"] == "DELETED" else store.put(raw)
        if news and self.reconciler is not None:
            self.reconciler.notify()


async def preflight() -> None:
    """Raise NoClusterError, with a sentence that says what to change, when the operator can't do its work at all.

    An API server that doesn't answer is no such case: it may only be late, and the operator waits for it.
    """
    async with Api.connect() as api:
        for kind in ("jobs", "fabrics", "pods", "nodes"):
            try:
                await api.list_all(kind, limit=1)
            except ApiError as error:
                if error.status == 404:
                    raise NoClusterError(
                        f"the cluster doesn't know Kronos's resources; run `kubectl apply -f crds/` first ({error})"
                    ) from error
                if error.status in (401, 403):
                    raise NoClusterError(
                        f"the API server lets the operator not list {kind}: {error}"
                    ) from error
                logger.warning("the API server isn't ready: %s", error)
            except OSError as error:
                logger.warning("%s", error)
                return


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
        return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

    @kopf.on.startup(registry=registry)
    async def startup(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = False  # events are the worker's own
        settings.batching.idle_timeout = 1.0
        settings.watching.server_timeout = 300
        await operator.start()

    @kopf.on.cleanup(registry=registry)
    async def cleanup(**_: Any) -> None:
        await operator.stop()

    @kopf.on.probe(registry=registry, id="lastRound")
    def last_round(**_: Any) -> str:
        when = operator.reconciler.last_round if operator.reconciler is not None else None
        return (when or datetime.fromtimestamp(0, UTC)).isoformat()

    watched: dict[Kind, tuple[str, ...]] = {
        "jobs": (GROUP, VERSION, "kronostrainingjobs"),
        "fabrics": (GROUP, VERSION, "kronosfabrics"),
        "pods": ("", "v1", "pods"),
        "nodes": ("", "v1", "nodes"),
    }
    for kind, selector in watched.items():
        _watch(registry, operator, kind, selector)
    return registry


def _watch(
    registry: kopf.OperatorRegistry, operator: Operator, kind: Kind, selector: tuple[str, ...]
) -> None:
    @kopf.on.event(*selector, registry=registry, id=f"observe-{kind}")
    def observe(event: kopf.RawEvent, **_: Any) -> None:
        operator.observe(kind, event)
