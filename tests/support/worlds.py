"""Small clusters and jobs as snapshots, for tests of decisions."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from kronos.api.fabric import FabricSpec, FabricStatus
from kronos.api.job import TrainingJobSpec
from kronos.api.plan import LastWords, Progress
from kronos.api.status import TrainingJobStatus
from kronos.lifecycle import (
    Decision,
    JobView,
    PodView,
    PriorityClass,
    QueueView,
    Snapshot,
    decide,
    run_admission,
)
from kronos.lifecycle.objects import pod_name
from kronos.placement import Node

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SLOT = "kronos.dev/accelerator"

FABRIC = FabricSpec.model_validate(
    {
        "levels": [
            {
                "name": "rack",
                "nodeLabel": "kronos.dev/rack",
                "bandwidthGigabytesPerSecond": 10,
                "latencyMicroseconds": 10,
            }
        ],
        "node": {"bandwidthGigabytesPerSecond": 100, "latencyMicroseconds": 1},
        "accelerators": [
            {"resource": SLOT, "model": "CPU", "memoryGiB": 4, "peakTflops": {"fp32": 0.1, "bf16": 0.1}}
        ],
    }
)


def node(name: str, rack: str, slots: int = 4, **changes: Any) -> Node:
    labels = {"kronos.dev/rack": rack, "kubernetes.io/hostname": name}
    fields: dict[str, Any] = {
        "name": name,
        "labels": labels,
        "allocatable": {SLOT: slots, "cpu": 64_000, "memory": 2**38, "pods": 110},
        "taints": (),
        "ready": True,
        "schedulable": True,
    }
    return Node(**(fields | changes))


def racks(count: int = 2, nodes_per_rack: int = 2, slots: int = 4) -> tuple[Node, ...]:
    return tuple(
        node(f"{letter}{index}", f"rack-{letter}", slots)
        for letter in "abcdefgh"[:count]
        for index in range(nodes_per_rack)
    )


def spec(**sections: Any) -> TrainingJobSpec:
    document: dict[str, Any] = {
        "model": {"layers": 4, "hiddenSize": 64, "attentionHeads": 4, "sequenceLength": 64},
        "data": {"path": "/data"},
        "optimization": {"globalBatchSize": 48, "steps": 100},
        "accelerators": {"resource": SLOT, "min": 12, "max": 12},
    }
    for name, value in sections.items():
        document[name] = {**document[name], **value} if name in document else value
    return TrainingJobSpec.model_validate(document)


def job(name: str, created: int = 0, **sections: Any) -> JobView:
    return JobView(
        namespace="forge",
        name=name,
        uid=f"uid-{name}",
        generation=1,
        created=(START + timedelta(seconds=created)).strftime("%Y-%m-%dT%H:%M:%SZ"),
        spec=spec(**sections),
        status=TrainingJobStatus(),
    )


class World:
    """A cluster in which decisions are carried out at once and nothing else moves unless the test says so."""

    def __init__(self, *jobs: JobView, nodes: tuple[Node, ...] | None = None) -> None:
        self.now = START
        self.jobs = {item.key: item for item in jobs}
        self.nodes = {item.name: item for item in (racks() if nodes is None else nodes)}
        self.pods: dict[str, PodView] = {}
        self.manifests: list[dict[str, Any]] = []
        self.progress: dict[tuple[str, int], Progress] = {}
        self.problems: dict[str, str] = {}
        self.lessons: dict[str, FabricStatus] = {}
        self.queues: dict[str, QueueView] = {}
        self.priorities: dict[str, PriorityClass] = {}
        self.events: list[tuple[str, str]] = []
        self.serial = 0

    def snapshot(self) -> Snapshot:
        return Snapshot(
            now=self.now,
            jobs=dict(self.jobs),
            pods=tuple(self.pods.values()),
            nodes=tuple(self.nodes.values()),
            fabrics={"default": FABRIC},
            lessons=dict(self.lessons),
            queues=dict(self.queues),
            priorities=dict(self.priorities),
            progress=dict(self.progress),
            problems=dict(self.problems),
        )

    def round(self) -> dict[str, Decision]:
        """One round of the worker, with its actions applied."""
        snapshot = self.snapshot()
        outcomes = run_admission(snapshot)
        decisions = {
            key: decide(item, snapshot, outcomes.get(key)) for key, item in sorted(self.jobs.items())
        }
        for key, decision in decisions.items():
            self.apply(key, decision)
        return {name: decision for (_, name), decision in decisions.items()}

    def apply(self, key: tuple[str, str], decision: Decision) -> None:
        self.jobs[key] = replace(self.jobs[key], status=decision.status)
        self.events += [(key[1], event.reason) for event in decision.events]
        for action in decision.actions:
            if hasattr(action, "manifest"):
                self.manifests.append(dict(action.manifest))
                if action.manifest["kind"] == "Pod":
                    self.create_pod(dict(action.manifest))
            elif action.force or self.pods[action.pod].terminal:
                self.pods.pop(action.pod)
            else:
                self.pods[action.pod] = replace(self.pods[action.pod], deleting=True)

    def create_pod(self, manifest: dict[str, Any]) -> None:
        self.serial += 1
        metadata, container = manifest["metadata"], manifest["spec"]["containers"][0]
        labels = metadata["labels"]
        assert metadata["name"] not in self.pods, "a pod's name is used once"
        self.pods[metadata["name"]] = PodView(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=f"pod-{self.serial}",
            phase="Pending",
            node="",
            requests={SLOT: int(container["resources"]["requests"][SLOT])},
            owner_uid=metadata["ownerReferences"][0]["uid"],
            attempt=int(labels["training.kronos.dev/attempt"]),
            member=int(labels["training.kronos.dev/member"]),
        )

    def settle(self, rounds: int = 10) -> None:
        """Rounds until nothing changes any more."""
        for _ in range(rounds):
            before = (dict(self.jobs), dict(self.pods))
            self.round()
            if before == (self.jobs, self.pods):
                return
        raise AssertionError(f"still changing after {rounds} rounds")

    def status(self, name: str) -> TrainingJobStatus:
        return self.jobs["forge", name].status

    def gang(self, name: str) -> list[PodView]:
        """The pods of the job's current attempt, by member."""
        item = self.jobs["forge", name]
        pods = [pod for pod in self.pods.values() if pod.owner_uid == item.uid]
        return sorted((pod for pod in pods if pod.attempt == item.status.attempt), key=lambda pod: pod.member)

    def edit(self, name: str, **changes: Any) -> None:
        """Change what is observed of a pod."""
        self.pods[name] = replace(self.pods[name], **changes)

    def start(self, name: str, *members: int) -> None:
        """Bind and start pods of the gang, all where none are named, as the scheduler and the kubelets would."""
        placement = self.status(name).placement
        assert placement is not None
        for pod in self.gang(name):
            if members and pod.member not in members:
                continue
            self.edit(pod.name, phase="Running", node=placement.members[pod.member].node, ip="10.0.0.1")

    def finish(self, name: str, **progress: Any) -> None:
        """Let every pod of the gang succeed."""
        for pod in self.gang(name):
            words = LastWords(outcome="Complete", progress=Progress(**progress) if pod.member == 0 else None)
            self.edit(pod.name, phase="Succeeded", exit_code=0, finished=self.now, last_words=words)

    def fail(self, name: str, member: int, **changes: Any) -> None:
        """Let one pod fail."""
        pod = pod_name(name, self.status(name).attempt, member)
        fields: dict[str, Any] = {
            "phase": "Failed",
            "exit_code": 1,
            "exit_reason": "Error",
            "finished": self.now,
        }
        self.edit(pod, **(fields | changes))

    def report(self, name: str, **progress: Any) -> None:
        """Let the gang report how far it is."""
        item = self.jobs["forge", name]
        self.progress[item.uid, item.status.attempt] = Progress(**progress)

    def lose(self, name: str) -> None:
        """Let a node fall silent."""
        self.nodes[name] = replace(self.nodes[name], ready=False)

    def find(self, name: str) -> None:
        """Let it answer again."""
        self.nodes[name] = replace(self.nodes[name], ready=True)

    def reap(self) -> None:
        """Let pods that are being deleted go."""
        self.pods = {name: pod for name, pod in self.pods.items() if not pod.deleting}

    def later(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
