"""The worker: one round after another of snapshot, admission, decisions, actions.

There is one worker, so admission is serialised. A round sees what the last round wrote, since the API server's answers
go into the cache before the next begins.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from kronos.api import API_VERSION
from kronos.api.base import Lenient
from kronos.api.status import TrainingJobStatus
from kronos.controller.api import Api, ApiError, Kind
from kronos.controller.cache import Cache, Store
from kronos.lifecycle import (
    Create,
    Decision,
    Delete,
    Event,
    JobView,
    decide,
    format_time,
    gist,
    lessons_learnt,
    queue_statuses,
    run_admission,
)

Json = Mapping[str, Any]

logger = logging.getLogger(__name__)

_QUIET = 0.02
"""Seconds to gather further news after the first, so that a burst of events costs one round."""
_AT_ONCE = 8
"""Requests in flight at once: few, so that the pods of one gang follow each other and are bound together."""
_REWORD = timedelta(seconds=30)
"""Between two sentences about one waiting job."""
_RECOUNT = timedelta(seconds=2)
"""Between two counts of one gang's members, and two reports of its progress."""
_RETRY = timedelta(seconds=2)
"""When to look again after the API server refused something."""


class Reconciler:
    """Turns news into rounds."""

    def __init__(
        self, api: Api, cache: Cache, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._api = api
        self._cache = cache
        self._clock = clock
        self._news = asyncio.Event()
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self.last_round: datetime | None = None
        # When the status of each job was stored last, by UID. Lost with the operator, which then stores a little more.
        self._stored: dict[str, datetime] = {}

    def notify(self) -> None:
        """Something changed: decide again soon."""
        self._news.set()

    async def run(self) -> None:
        """Run rounds until cancelled. An error in a round is logged and the round tried again."""
        wake: datetime | None = None
        while True:
            pause = None if wake is None else max(0.0, (wake - self._clock()).total_seconds())
            try:
                await asyncio.wait_for(self._news.wait(), timeout=pause)
                await asyncio.sleep(_QUIET)
            except TimeoutError:
                pass  # time alone may change a decision
            self._news.clear()
            try:
                wake = await self.round()
            except Exception:
                logger.exception("a round of decisions failed; trying again in %s", _RETRY)
                wake = self._clock() + _RETRY

    async def round(self) -> datetime | None:
        """Decide for every job on one snapshot and apply what was decided; returns when to look again."""
        snapshot = self._cache.snapshot(self._clock())
        # As of the same moment: a status is stored only on the version of the job that it was decided for.
        stored = dict(self._cache.jobs.raw)
        # In a thread, since planning a huge job takes seconds, in which watches and probes must go on.
        outcomes = await asyncio.to_thread(run_admission, snapshot)
        decided = []
        failed = False
        for key, job in sorted(snapshot.jobs.items()):
            try:
                decided.append((job, decide(job, snapshot, outcomes.get(key))))
            except Exception:
                # A job that nothing can be decided about must not stop the others.
                logger.exception("%s/%s: nothing could be decided; trying again in %s", *key, _RETRY)
                failed = True
        again = await asyncio.gather(
            *(self._apply(job, stored[job.key], decision) for job, decision in decided)
        )
        await self._tell_cluster("fabrics", self._cache.fabrics, lessons_learnt(snapshot))
        await self._tell_cluster("queues", self._cache.queues, queue_statuses(snapshot))
        self.last_round = snapshot.now
        wakes = [decision.look_again for _, decision in decided if decision.look_again is not None]
        wakes += [moment for moment in again if moment is not None]
        if failed:
            wakes.append(self._clock() + _RETRY)
        for uid in self._stored.keys() - {job.uid for job in snapshot.jobs.values()}:
            del self._stored[uid]
        return min(wakes, default=None)

    async def _tell_cluster(self, kind: Kind, store: Store[Any], statuses: Mapping[str, Lenient]) -> None:
        """Store what fabrics or queues should say; a refusal costs nothing, since the next round offers it again."""
        for name, status in statuses.items():
            stored = store.raw.get(("", name))
            if stored is None:
                continue
            body = {key: stored[key] for key in ("apiVersion", "kind", "metadata", "spec")}
            try:
                store.put(await self._api.replace_cluster_status(kind, {**body, "status": status.wire()}))
            except (ApiError, OSError) as error:
                logger.warning("the status of %s %s could not be stored: %s", kind, name, error)

    async def _apply(self, job: JobView, stored: Json, decision: Decision) -> datetime | None:
        """Write the status, then act; says when to try again what was refused, or to write what can wait."""
        again = None
        try:
            if decision.status != job.status:
                again = self._can_wait_until(job, decision.status)
                if again is None:
                    async with self._slots:
                        if not await self._store_status(stored, decision.status):
                            return self._clock() + _RETRY
                    self._stored[job.uid] = self._clock()
                    await self._tell(job, decision.events)
            await self._act(job, decision)
        except ApiError as error:
            self._problem(job, str(error))
            return self._clock() + _RETRY
        except OSError as error:
            logger.warning("%s/%s: %s", *job.key, error)
            return self._clock() + _RETRY
        if job.uid in self._cache.problems and decision.actions:
            del self._cache.problems[job.uid]
            self.notify()
        return again

    def _can_wait_until(self, job: JobView, status: TrainingJobStatus) -> datetime | None:
        """When a status that only words things anew is due; None for one that says something else.

        While many jobs start and end, the sentences of those that wait change with each, and so do the counts of members:
        the API server would do little else than store them.
        """
        last = self._stored.get(job.uid)
        if last is None or gist(job.status) != gist(status):
            return None
        due = last + (_REWORD if status.placement is None else _RECOUNT)
        return due if due > self._clock() else None

    async def _store_status(self, stored: Json, status: TrainingJobStatus) -> bool:
        body = {
            "apiVersion": API_VERSION,
            "kind": "KronosTrainingJob",
            "metadata": stored["metadata"],
            "spec": stored["spec"],
            "status": status.wire(),
        }
        try:
            self._cache.jobs.put(await self._api.replace_job_status(body), partial=True)
        except ApiError as error:
            if error.status in (404, 409):
                return False  # changed or deleted meanwhile: its event brings the next round
            raise
        self.notify()
        return True

    async def _act(self, job: JobView, decision: Decision) -> None:
        """Creations one kind after the other, as listed; within a kind, and deletions, at once."""
        creations = [action for action in decision.actions if isinstance(action, Create)]
        deletions = [action for action in decision.actions if isinstance(action, Delete)]
        for kind in dict.fromkeys(action.manifest["kind"] for action in creations):
            batch = [action for action in creations if action.manifest["kind"] == kind]
            await _all(*(self._create(job, action.manifest) for action in batch))
        await _all(*(self._delete(action) for action in deletions))

    async def _create(self, job: JobView, manifest: Mapping[str, Any]) -> None:
        metadata = manifest["metadata"]
        async with self._slots:
            partial = True
            try:
                created = await self._api.create(manifest)
            except ApiError as error:
                if error.status != 409:
                    raise
                created, partial = await self._existing(job, manifest), False
        if manifest["kind"] == "Pod" and self._cache.pods.put(created, partial=partial):
            logger.info("%s/%s: created pod %s", *job.key, metadata["name"])
            self.notify()

    async def _existing(self, job: JobView, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """What has the name already, if it is this job's; else an ApiError that says so."""
        metadata, kind = manifest["metadata"], manifest["kind"]
        plural = {"Pod": "pods", "Service": "services", "ConfigMap": "configmaps", "PodGroup": "podgroups"}[
            kind
        ]
        found = await self._api.get(plural, metadata["namespace"], metadata["name"])  # type: ignore[arg-type]
        owners = found["metadata"].get("ownerReferences") or ()
        if any(owner["uid"] == job.uid for owner in owners):
            return found
        if any((owner["kind"], owner["name"]) == ("KronosTrainingJob", job.name) for owner in owners):
            raise ApiError(409, f"waits until the {kind} of the deleted job of the same name is gone")
        raise ApiError(
            409,
            f"a {kind} named {metadata['name']} exists already and isn't this job's; delete it or rename the job",
        )

    async def _delete(self, action: Delete) -> None:
        async with self._slots:
            try:
                answer = await self._api.delete_pod(
                    action.namespace, action.pod, action.uid, force=action.force
                )
            except ApiError as error:
                if error.status not in (404, 409):
                    raise
                return
        if answer.get("kind") == "Pod" and not action.force:
            self._cache.pods.put(answer)

    def _problem(self, job: JobView, message: str) -> None:
        if self._cache.problems.get(job.uid) != message:
            logger.warning("%s/%s: the API server refused: %s", *job.key, message)
            self._cache.problems[job.uid] = message
            self.notify()

    async def _tell(self, job: JobView, events: tuple[Event, ...]) -> None:
        """Post events; one that is lost is only logged, since status says the same."""
        for event in events:
            logger.info("%s/%s: %s: %s", *job.key, event.reason, event.message)
            now = format_time(self._clock())
            manifest = {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"generateName": f"{job.name}.", "namespace": job.namespace},
                "involvedObject": {
                    "apiVersion": API_VERSION,
                    "kind": "KronosTrainingJob",
                    "namespace": job.namespace,
                    "name": job.name,
                    "uid": job.uid,
                },
                "type": event.type,
                "reason": event.reason,
                "message": event.message[:1024],
                "source": {"component": "kronos"},
                "firstTimestamp": now,
                "lastTimestamp": now,
                "count": 1,
            }
            try:
                async with self._slots:
                    await self._api.create(manifest)
            except (ApiError, OSError) as error:
                logger.warning("%s/%s: an event was lost: %s", *job.key, error)


async def _all(*calls: Any) -> None:
    """Wait for all, also when one fails, then raise the first failure."""
    for result in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
