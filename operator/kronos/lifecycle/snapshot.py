"""What is observed, as of one moment: the only input of every decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from kronos.api.fabric import FabricSpec, FabricStatus
from kronos.api.job import TrainingJobSpec
from kronos.api.plan import LastWords, Progress
from kronos.api.queue import QueueSpec, QueueStatus
from kronos.api.status import TrainingJobStatus
from kronos.placement import Node

JobKey = tuple[str, str]
"""Namespace and name of a job."""


@dataclass(frozen=True, slots=True)
class JobView:
    """A KronosTrainingJob as observed."""

    namespace: str
    name: str
    uid: str
    generation: int
    created: str
    spec: TrainingJobSpec | None
    """None when the stored spec isn't valid for this operator; `invalid` then says why."""
    status: TrainingJobStatus
    invalid: str = ""
    opaque: bool = False
    """The stored status can't be read, so what was decided before is unknown: the job is left as it is."""
    deleting: bool = False

    @property
    def key(self) -> JobKey:
        """Namespace and name."""
        return self.namespace, self.name


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod, of ours or not, as observed."""

    namespace: str
    name: str
    uid: str
    phase: str
    node: str
    """Node that it is bound to; empty before."""
    requests: Mapping[str, int]
    """Sum over its containers, in base units (millicores, bytes, pieces)."""
    owner_uid: str = ""
    """UID of its controlling owner; a job's for the members of a gang."""
    attempt: int = 0
    member: int = -1
    ip: str = ""
    deleting: bool = False
    unschedulable: str = ""
    """The scheduler's message when it can't bind the pod."""
    unschedulable_since: datetime | None = None
    waiting: str = ""
    """Why its container can't start: the kubelet's word, such as ErrImagePull."""
    waiting_message: str = ""
    """The kubelet's message to that word."""
    exit_code: int | None = None
    exit_reason: str = ""
    """The kubelet's or node's word for how the pod ended, such as OOMKilled or Evicted."""
    finished: datetime | None = None
    last_words: LastWords | None = None
    raw_message: str = ""
    """The termination message where it isn't the trainer's."""

    @property
    def terminal(self) -> bool:
        """Ended for good: holds no resources any more."""
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class PodWarning:
    """What a node says about a pod, in an event: its status doesn't tell that a volume can't be mounted."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class QueueView:
    """A KronosQueue as observed."""

    name: str
    generation: int
    spec: QueueSpec
    status: QueueStatus


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """A PriorityClass of the cluster as observed."""

    name: str
    value: int
    is_default: bool = False
    """Pods and jobs that name none are of this class."""
    preempts: bool = True
    """Whether others may be stopped for those of this class."""


@dataclass(frozen=True)
class Snapshot:
    """Everything a round of decisions looks at."""

    now: datetime
    jobs: Mapping[JobKey, JobView]
    pods: tuple[PodView, ...]
    nodes: tuple[Node, ...]
    fabrics: Mapping[str, FabricSpec]
    lessons: Mapping[str, FabricStatus] = field(default_factory=dict)
    """By fabric: what jobs have measured on it."""
    queues: Mapping[str, QueueView] = field(default_factory=dict)
    """By name."""
    priorities: Mapping[str, PriorityClass] = field(default_factory=dict)
    """By name."""
    progress: Mapping[tuple[str, int], Progress] = field(default_factory=dict)
    """Last progress that a gang reported, by job UID and attempt."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """By job UID: why the API server refused the last action for that job."""
    warnings: Mapping[str, PodWarning] = field(default_factory=dict)
    """By pod UID: the last warning about a pod whose containers aren't made yet."""

    def pods_of(self, job: JobView) -> tuple[PodView, ...]:
        """The job's own pods, by attempt and member."""
        own = [pod for pod in self._pods_by_owner.get(job.uid, ()) if pod.namespace == job.namespace]
        return tuple(sorted(own, key=lambda pod: (pod.attempt, pod.member, pod.name)))

    def bound_to(self, node: str) -> list[PodView]:
        """All pods that are bound to a node, anybody's."""
        return self._pods_by_node.get(node, [])

    def node(self, name: str) -> Node | None:
        """The node of that name, if it exists."""
        return self._nodes_by_name.get(name)

    @cached_property
    def _pods_by_owner(self) -> Mapping[str, list[PodView]]:
        index: dict[str, list[PodView]] = {}
        for pod in self.pods:
            index.setdefault(pod.owner_uid, []).append(pod)
        return index

    @cached_property
    def _pods_by_node(self) -> Mapping[str, list[PodView]]:
        index: dict[str, list[PodView]] = {}
        for pod in self.pods:
            if pod.node:
                index.setdefault(pod.node, []).append(pod)
        return index

    @cached_property
    def _nodes_by_name(self) -> Mapping[str, Node]:
        return {node.name: node for node in self.nodes}
