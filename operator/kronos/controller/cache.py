"""What the API server was last known to hold, and snapshots of it.

Three sources fill it: full lists, watch events, and the answers to our own writes. The answers matter: a decision must
see what the decision before it wrote, also when the watch is late. A resource version older than the one that is known
never replaces it, and an object that is gone never comes back by an answer that was slower than the watch.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from kronos.api.fabric import FabricSpec, FabricStatus
from kronos.api.plan import Progress
from kronos.controller.views import job_view, node_view, pod_view, priority_view, queue_view
from kronos.lifecycle import JobView, PodView, PodWarning, PriorityClass, QueueView, Snapshot
from kronos.placement import Node

View = TypeVar("View")
Json = Mapping[str, Any]
ObjectKey = tuple[str, str]

logger = logging.getLogger(__name__)

_REMEMBERED_DELETIONS = 10_000
"""Far more than can be on their way in answers at once."""


class Store(Generic[View]):
    """The objects of one kind: as received, and as seen by decisions."""

    def __init__(self, translate: Callable[[Json], View]) -> None:
        self._translate = translate
        self.raw: dict[ObjectKey, Json] = {}
        self.views: dict[ObjectKey, View] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._partial: set[ObjectKey] = set()

    def put(self, raw: Json, *, partial: bool = False) -> bool:
        """Take in an object unless a newer version of it is known; says whether decisions see anything new in it.

        Nodes tell every few seconds that they are there, which changes the object and no decision. `partial`: it is what
        we wrote, without what the API server or its webhooks added; the same version will come in full.
        """
        key = _key(raw)
        known = self.raw.get(key)
        if raw["metadata"]["uid"] in self._gone:
            return False
        if known is not None:
            fuller = key in self._partial and not partial and _version(known) == _version(raw)
            if not fuller and _version(known) >= _version(raw):
                return False
        before = self.views.pop(key, None)
        try:
            self.views[key] = self._translate(raw)
        except Exception:
            # One object that makes no sense must not stop the others.
            logger.exception("%s/%s is ignored since it can't be understood", *key)
        self.raw[key] = raw
        (self._partial.add if partial else self._partial.discard)(key)
        return self.views.get(key) != before

    def remove(self, raw: Json) -> bool:
        """Forget an object that was deleted, unless another of the same name has followed it."""
        key = _key(raw)
        self._bury(raw)
        known = self.raw.get(key)
        if known is None or known["metadata"]["uid"] != raw["metadata"]["uid"]:
            return False
        self._drop(key)
        return True

    def _drop(self, key: ObjectKey) -> Json:
        self.views.pop(key, None)
        self._partial.discard(key)
        return self.raw.pop(key)

    def _bury(self, raw: Json) -> None:
        self._gone[raw["metadata"]["uid"]] = None
        if len(self._gone) > _REMEMBERED_DELETIONS:
            self._gone.popitem(last=False)

    def replace(self, items: Iterable[Json], version: int) -> bool:
        """Make the store equal to a full list of that resource version; newer knowledge stays."""
        listed = {_key(item): item for item in items}
        gone = [key for key, raw in self.raw.items() if key not in listed and _version(raw) <= version]
        for key in gone:
            self._bury(self._drop(key))
        news = [self.put(item) for item in listed.values()]
        return bool(gone) or any(news)


def _key(raw: Json) -> ObjectKey:
    metadata = raw["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _version(raw: Json) -> int:
    return int(raw["metadata"]["resourceVersion"])


def _fabric(raw: Json) -> tuple[FabricSpec, FabricStatus]:
    try:
        status = FabricStatus.model_validate(raw.get("status") or {})
    except ValidationError as error:
        # What was learnt is worth less than the fabric, without which no job could start.
        logger.warning(
            "what the status of fabric %s says can't be read and counts as nothing: %s",
            raw["metadata"]["name"],
            error,
        )
        status = FabricStatus()
    return FabricSpec.model_validate(raw["spec"]), status


class Cache:
    """All that decisions look at."""

    def __init__(self) -> None:
        self.jobs: Store[JobView] = Store(job_view)
        self.pods: Store[PodView] = Store(pod_view)
        self.nodes: Store[Node] = Store(node_view)
        self.fabrics: Store[tuple[FabricSpec, FabricStatus]] = Store(_fabric)
        self.queues: Store[QueueView] = Store(queue_view)
        self.priorities: Store[PriorityClass] = Store(priority_view)
        self.progress: dict[tuple[str, int], Progress] = {}
        self.problems: dict[str, str] = {}
        self.warnings: dict[str, PodWarning] = {}

    def snapshot(self, now: datetime) -> Snapshot:
        """Everything as of now."""
        jobs = dict(self.jobs.views)
        alive = {job.uid for job in jobs.values()}
        for uid, attempt in [key for key in self.progress if key[0] not in alive]:
            del self.progress[uid, attempt]
        for uid in [uid for uid in self.problems if uid not in alive]:
            del self.problems[uid]
        return Snapshot(
            now=now,
            jobs=jobs,
            pods=tuple(self.pods.views.values()),
            nodes=tuple(self.nodes.views.values()),
            fabrics={name: spec for (_, name), (spec, _) in self.fabrics.views.items()},
            lessons={name: status for (_, name), (_, status) in self.fabrics.views.items()},
            queues={view.name: view for view in self.queues.views.values()},
            priorities={view.name: view for view in self.priorities.views.values()},
            progress=dict(self.progress),
            problems=dict(self.problems),
            warnings=dict(self.warnings),
        )
