"""Asks what nodes say about pods whose containers aren't made yet.

A volume that can't be mounted shows in an event only, never in the pod's status. Events are many on a busy cluster, so
they aren't watched: those of a pod are read when it has been on its node for a while and still hasn't begun.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kronos.controller.api import Api, ApiError
from kronos.controller.cache import Cache
from kronos.lifecycle import PodView, PodWarning

logger = logging.getLogger(__name__)

_INTERVAL = 3.0
"""Seconds between two looks; a pod that begins within one is never asked about."""
_AT_ONCE = 16


class WarningPoller:
    """Puts the latest warning about each pod that should have begun into the cache."""

    def __init__(self, api: Api, cache: Cache, news: Callable[[], None]) -> None:
        self._api = api
        self._cache = cache
        self._news = news
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._last: set[str] = set()

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            began = time.monotonic()
            await self.look()
            await asyncio.sleep(max(0.0, began + _INTERVAL - time.monotonic()))

    async def look(self) -> None:
        """Ask about the pods that were late at the last look and still are."""
        late = {pod.uid: pod for pod in self._cache.pods.views.values() if is_late(pod)}
        for uid in self._cache.warnings.keys() - late.keys():
            del self._cache.warnings[uid]
        asked = [self._ask(pod) for uid, pod in late.items() if uid in self._last]
        self._last = set(late)
        if any(await asyncio.gather(*asked)):
            self._news()

    async def _ask(self, pod: PodView) -> bool:
        try:
            async with self._slots:
                events = await self._api.warnings_about(pod.namespace, pod.uid)
        except (ApiError, OSError) as error:
            logger.warning("no events of %s/%s: %s", pod.namespace, pod.name, error)
            return False
        found = latest(events)
        if found is None or self._cache.warnings.get(pod.uid) == found:
            return False
        self._cache.warnings[pod.uid] = found
        return True


def is_late(pod: PodView) -> bool:
    """Whether a member of a gang is on its node and neither runs nor says in its status what it waits for."""
    bound = pod.member >= 0 and bool(pod.node)
    return bound and pod.phase == "Pending" and not pod.waiting and not pod.deleting


def latest(events: Iterable[Mapping[str, Any]]) -> PodWarning | None:
    """The last of the warnings; those of the scheduler are over once a pod is bound."""
    seen = [event for event in events if event.get("reason") != "FailedScheduling"]
    if not seen:
        return None
    last = max(seen, key=_when)
    return PodWarning(last.get("reason") or "", last.get("message") or "")


def _when(event: Mapping[str, Any]) -> str:
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    # RFC 3339 in UTC sorts as text.
    return next((time for time in times if time), "")
