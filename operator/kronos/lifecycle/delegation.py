"""Gangs whose admission is left to another system: Kronos says how they are split, the other one says when and where.

Their pods are created at once, without a node, as a group that the other system knows. When all of them are bound, their
nodes become the gang's place, and only then comes the plan, which every pod waits for: it holds the rank map.
"""

from __future__ import annotations

from typing import Any

from kronos.api.fabric import NODE_LEVEL
from kronos.api.job import TrainingJobSpec
from kronos.api.plan import Degrees, GangMember
from kronos.api.status import LeftTo, PlacementStatus
from kronos.lifecycle.snapshot import JobView, Snapshot

Manifest = dict[str, Any]

_KUEUE = "kueue.x-k8s.io"
_HOST_LABEL = "kubernetes.io/hostname"
_POD_GROUP_LABEL = "scheduling.x-k8s.io/pod-group"


def left_to(job: JobView, snapshot: Snapshot) -> LeftTo | None:
    """Who else admits the job: as it says itself, else as its queue says; None when Kronos does."""
    assert job.spec is not None
    spec, queue = job.spec, snapshot.queues.get(job.spec.scheduling.queue)
    rules = spec.scheduling.admission or (queue.spec.admission if queue is not None else None)
    if rules is None or rules.by == "Kronos":
        return None
    fabric = snapshot.fabrics[spec.placement.fabric]
    labels = {level.name: level.node_label for level in fabric.levels} | {NODE_LEVEL: _HOST_LABEL}
    return LeftTo(
        by=rules.by,
        queue=(rules.local_queue or spec.scheduling.queue) if rules.by == "Kueue" else None,
        scheduler_name=rules.scheduler_name,
        required_topology=labels.get(spec.placement.required or ""),
        preferred_topology=labels.get(spec.placement.preferred or ""),
    )


def most_ranks(job: JobView, snapshot: Snapshot) -> int | None:
    """The most accelerators of one pod, where the job or its queue says so."""
    assert job.spec is not None
    queue = snapshot.queues.get(job.spec.scheduling.queue)
    rules = job.spec.scheduling.admission or (queue.spec.admission if queue is not None else None)
    return rules.accelerators_per_member if rules is not None else None


def members_of(degrees: Degrees, most: int) -> tuple[GangMember, ...]:
    """Equal members of at most so many ranks, on no node yet; tensor groups are cut only where that can't be helped."""
    world, group = degrees.world_size, degrees.tensor_parallel
    most = min(most, world)
    fitting = [ranks for ranks in range(1, most + 1) if world % ranks == 0]
    whole = [ranks for ranks in fitting if ranks % group == 0]
    ranks = (whole or fitting)[-1]
    return tuple(GangMember(node="", ranks=ranks) for _ in range(world // ranks))


def group_name(job: JobView) -> str:
    """The group of an attempt's pods, in the other system's terms."""
    return f"{job.name}-{job.status.attempt}"


def marked(pod: Manifest, job: JobView, spec: TrainingJobSpec, placement: PlacementStatus) -> Manifest:
    """The pod as the other system wants it: free to go to any node, and a member of its group."""
    rules = placement.left_to
    assert rules is not None
    pod_spec = {key: value for key, value in pod["spec"].items() if key != "affinity"}
    if spec.template.node_affinity:
        terms = [term.wire() for term in spec.template.node_affinity]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        pod_spec["affinity"] = {"nodeAffinity": required}
    metadata = dict(pod["metadata"])
    if rules.by == "PodGroup":
        assert rules.scheduler_name is not None
        pod_spec["schedulerName"] = rules.scheduler_name
        metadata["labels"] = {**metadata["labels"], _POD_GROUP_LABEL: group_name(job)}
    else:
        metadata["labels"] = {
            **metadata["labels"],
            f"{_KUEUE}/queue-name": rules.queue,
            f"{_KUEUE}/pod-group-name": group_name(job),
            f"{_KUEUE}/pod-group-pod-index": metadata["labels"]["training.kronos.dev/member"],
        }
        metadata["annotations"] = {
            **metadata.get("annotations", {}),
            f"{_KUEUE}/pod-group-total-count": str(len(placement.members)),
            f"{_KUEUE}/pod-group-pod-index-label": f"{_KUEUE}/pod-group-pod-index",
            # One member doesn't go on without the others: Kronos starts a new group.
            f"{_KUEUE}/retriable-in-group": "false",
            **_topology(rules),
        }
    return {**pod, "metadata": metadata, "spec": pod_spec}


def _topology(rules: LeftTo) -> Manifest:
    """The job's levels as Kueue reads them."""
    if rules.required_topology:
        return {f"{_KUEUE}/podset-required-topology": rules.required_topology}
    if rules.preferred_topology:
        return {f"{_KUEUE}/podset-preferred-topology": rules.preferred_topology}
    return {}


def pod_group(job: JobView, placement: PlacementStatus, metadata: Manifest) -> Manifest:
    """The PodGroup by which a scheduler knows that all members must be bound together."""
    return {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {**metadata, "name": group_name(job)},
        "spec": {"minMember": len(placement.members)},
    }
