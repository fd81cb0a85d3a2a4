"""Asks running gangs how far they are.

The operator asks the first pod of each gang over the pod network; so training pods need no credentials for anything,
and a cluster that forbids the connection loses the numbers in status and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import aiohttp

from kronos.api.plan import PROGRESS_PORT, Progress
from kronos.controller.cache import Cache
from kronos.lifecycle import JobView, PodView

logger = logging.getLogger(__name__)
_AT_ONCE = 32
_LARGEST_ANSWER = 16 * 1024


class ProgressPoller:
    """Polls each running gang's first pod and puts what it learns into the cache."""

    def __init__(self, cache: Cache, interval: float, news: Callable[[], None]) -> None:
        self._cache = cache
        self._interval = interval
        self._news = news

    async def run(self) -> None:
        """Poll until cancelled."""
        timeout = aiohttp.ClientTimeout(total=max(1.0, min(self._interval, 5.0)))
        connector = aiohttp.TCPConnector(limit=_AT_ONCE)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            while True:
                await asyncio.sleep(self._interval)
                asked = [self._ask(session, job, pod) for job, pod in self._first_pods()]
                if any(await asyncio.gather(*asked)):
                    self._news()

    def _first_pods(self) -> list[tuple[JobView, PodView]]:
        jobs = {job.uid: job for job in self._cache.jobs.views.values() if job.status.phase == "Running"}
        return [
            (jobs[pod.owner_uid], pod)
            for pod in self._cache.pods.views.values()
            if pod.member == 0
            and pod.phase == "Running"
            and pod.ip
            and pod.owner_uid in jobs
            and pod.attempt == jobs[pod.owner_uid].status.attempt
        ]

    async def _ask(self, session: aiohttp.ClientSession, job: JobView, pod: PodView) -> bool:
        host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
        try:
            async with session.get(
                f"http://{host}:{PROGRESS_PORT}/progress", allow_redirects=False
            ) as answer:
                if answer.status != 200:
                    return False
                progress = Progress.model_validate_json(await answer.content.read(_LARGEST_ANSWER))
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            logger.debug("%s/%s gave no progress: %s", *job.key, error)
            return False
        key = (job.uid, pod.attempt)
        known = self._cache.progress.get(key)
        self._cache.progress[key] = progress
        return known is None or known.step != progress.step
