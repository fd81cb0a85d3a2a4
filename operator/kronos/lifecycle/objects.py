"""The Kubernetes objects of a gang, rendered from a job and its reserved place. Same input, same objects."""

from __future__ import annotations

import json
from typing import Any

from kronos.api import API_VERSION, GROUP
from kronos.api.base import parse_duration
from kronos.api.job import TrainingJobSpec
from kronos.api.plan import PLAN_MOUNT, RENDEZVOUS_PORT, CheckpointPlan, GangMember, Plan
from kronos.api.quantity import parse_quantity
from kronos.api.status import PlacementStatus, StrategyStatus, decode_ranks
from kronos.lifecycle.delegation import marked, pod_group
from kronos.lifecycle.snapshot import JobView

Manifest = dict[str, Any]

LABEL_JOB = f"{GROUP}/job"
LABEL_ATTEMPT = f"{GROUP}/attempt"
LABEL_MEMBER = f"{GROUP}/member"
LABEL_ROLE = f"{GROUP}/role"

CHECKPOINT_MOUNT = "/kronos/checkpoints"
_GRACE_SECONDS = 60
"""Time for the ranks to finish a step and save after SIGTERM."""


def pod_name(job: str, attempt: int, member: int) -> str:
    """Name of a member's pod; also its host name behind the job's Service."""
    return f"{job}-{attempt}-{member}"


def plan_name(job: str, attempt: int) -> str:
    """Name of the ConfigMap that holds an attempt's plan."""
    return f"{job}-{attempt}-plan"


def plan_of(
    job: JobView, spec: TrainingJobSpec, strategy: StrategyStatus, placement: PlacementStatus
) -> Plan:
    """The trainer's plan for the job's current attempt."""
    checkpoint = None
    if spec.checkpoint is not None:
        checkpoint = CheckpointPlan(
            path=f"{CHECKPOINT_MOUNT}/{job.namespace}/{job.name}/{job.uid}",
            every_steps=spec.checkpoint.every_steps,
            keep=spec.checkpoint.keep,
        )
    return Plan(
        namespace=job.namespace,
        job=job.name,
        attempt=job.status.attempt,
        model=spec.model,
        data=spec.data,
        optimization=spec.optimization,
        reproducibility=spec.reproducibility,
        degrees=strategy.degrees,
        schedule=strategy.schedule,
        microbatch_sequences=strategy.microbatch_sequences,
        microbatches=strategy.microbatches,
        activation_checkpointing=strategy.activation_checkpointing,
        stage_layers=strategy.stage_layers,
        members=placement.members,
        rank_map=decode_ranks(placement.rank_map),
        checkpoint=checkpoint,
        rendezvous_timeout_seconds=int(parse_duration(spec.scheduling.start_timeout).total_seconds()),
    )


def gang_objects(
    job: JobView, spec: TrainingJobSpec, strategy: StrategyStatus, placement: PlacementStatus
) -> tuple[tuple[Manifest, ...], tuple[Manifest, ...]]:
    """What the pods need, and the pods: the Service by which several find each other, and the plan's ConfigMap.

    A gang whose admission is left to another system has no plan before its nodes are known; its pods wait for it.
    """
    pods = tuple(_pod(job, spec, index, member) for index, member in enumerate(placement.members))
    needed: list[Manifest] = []
    # A member alone has nobody to find, and the control plane keeps two more objects for each Service.
    if len(pods) > 1:
        needed.append(_service(job, spec))
    if placement.left_to is not None:
        pods = tuple(marked(pod, job, spec, placement) for pod in pods)
        if placement.left_to.by == "PodGroup":
            needed.append(pod_group(job, placement, _metadata(job, spec, "")))
    if placement.bound:
        needed.append(_config_map(job, spec, plan_of(job, spec, strategy, placement)))
    return tuple(needed), pods


def _metadata(job: JobView, spec: TrainingJobSpec, name: str, **labels: str) -> Manifest:
    role = {LABEL_ROLE: spec.role} if spec.role else {}
    return {
        "name": name,
        "namespace": job.namespace,
        "labels": {"app.kubernetes.io/managed-by": "kronos", LABEL_JOB: job.name, **role, **labels},
        "ownerReferences": [
            {
                "apiVersion": API_VERSION,
                "kind": "KronosTrainingJob",
                "name": job.name,
                "uid": job.uid,
                "controller": True,
                "blockOwnerDeletion": False,
            }
        ],
    }


def _service(job: JobView, spec: TrainingJobSpec) -> Manifest:
    """A headless Service that gives the members names; also before they are ready, since that is when they meet."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(job, spec, job.name),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {LABEL_JOB: job.name},
            "ports": [{"name": "rendezvous", "port": RENDEZVOUS_PORT}],
        },
    }


def _config_map(job: JobView, spec: TrainingJobSpec, plan: Plan) -> Manifest:
    attempt = job.status.attempt
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(job, spec, plan_name(job.name, attempt), **{LABEL_ATTEMPT: str(attempt)}),
        "immutable": True,
        "data": {
            "plan.json": json.dumps(plan.wire(), ensure_ascii=False, separators=(",", ":"), sort_keys=True)
        },
    }


def _pod(job: JobView, spec: TrainingJobSpec, index: int, member: GangMember) -> Manifest:
    attempt = job.status.attempt
    name = pod_name(job.name, attempt, index)
    template = spec.template
    labels = {LABEL_ATTEMPT: str(attempt), LABEL_MEMBER: str(index)}
    pod_spec: Manifest = {
        "hostname": name,
        "subdomain": job.name,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "affinity": _pinned_to(member.node),
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [_container(job, spec, index, member)],
        "volumes": _volumes(job, spec),
    }
    if template.node_selector:
        pod_spec["nodeSelector"] = dict(template.node_selector)
    if template.tolerations:
        pod_spec["tolerations"] = [item.wire() for item in template.tolerations]
    if spec.scheduling.priority_class_name:
        pod_spec["priorityClassName"] = spec.scheduling.priority_class_name
    if template.service_account_name:
        pod_spec["serviceAccountName"] = template.service_account_name
    metadata = _metadata(job, spec, name, **labels)
    # The API server refuses labels of the operator's own in the template.
    metadata["labels"] = {**template.labels, **metadata["labels"]}
    if template.annotations:
        metadata["annotations"] = dict(template.annotations)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": pod_spec,
    }


def _pinned_to(node: str) -> Manifest:
    """Affinity for exactly one node: the scheduler still binds, so it checks the node against all other tenants."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def _container(job: JobView, spec: TrainingJobSpec, index: int, member: GangMember) -> Manifest:
    template = spec.template
    assert job.status.placement is not None
    master = f"{pod_name(job.name, job.status.attempt, 0)}.{job.name}.{job.namespace}.svc"
    # A member alone meets itself, at its own address.
    others = [{"name": "KRONOS_MASTER", "value": master}] if len(job.status.placement.members) > 1 else []
    environment: list[Manifest] = [
        *({"name": item.name, "value": item.value} for item in template.env),
        {"name": "KRONOS_PLAN", "value": f"{PLAN_MOUNT}/plan.json"},
        {"name": "KRONOS_MEMBER", "value": str(index)},
        *others,
        {"name": "KRONOS_TERMINATION_LOG", "value": "/dev/termination-log"},
        {"name": "KRONOS_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]
    mounts: list[Manifest] = [
        {"name": "plan", "mountPath": PLAN_MOUNT, "readOnly": True},
        {"name": "tmp", "mountPath": "/tmp"},  # the container's own, since its root is read-only
    ]
    if spec.data.volume is not None:
        mounts.append({"name": "data", "mountPath": spec.data.path, "readOnly": True})
    if spec.checkpoint is not None:
        mounts.append({"name": "checkpoints", "mountPath": CHECKPOINT_MOUNT})
    quantities = member_quantities(spec, member.ranks)
    # Extended resources need limits equal to requests. Memory gets them so that a job which needs more than it said is
    # ended itself, and not a neighbour; a processor can be shared.
    limits = {name: quantity for name, quantity in quantities.items() if name != "cpu"}
    return {
        "name": "trainer",
        "image": template.image,
        "command": ["python", "-m", "kronos_trainer"],
        "env": environment,
        "resources": {"requests": quantities, "limits": limits},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }


def member_quantities(spec: TrainingJobSpec, ranks: int) -> dict[str, str]:
    """What a member with so many ranks requests, as Kubernetes quantities."""
    quantities = {spec.accelerators.resource: str(ranks)}
    for name, amount in per_rank_amounts(spec).items():
        # Base units, so that the sum is exact: millicores and bytes.
        quantities[name] = f"{amount * ranks}m" if name == "cpu" else str(amount * ranks)
    return quantities


def per_rank_amounts(spec: TrainingJobSpec) -> dict[str, int]:
    """CPU (millicores) and memory (bytes) that one rank asks for, where the job says so."""
    wanted = spec.template.per_accelerator
    if wanted is None:
        return {}
    given = {"cpu": wanted.cpu, "memory": wanted.memory}
    return {name: parse_quantity(text, name) for name, text in given.items() if text is not None}


def member_amounts(spec: TrainingJobSpec, member: GangMember) -> dict[str, int]:
    """What a member's pod requests, in base units."""
    amounts = {name: amount * member.ranks for name, amount in per_rank_amounts(spec).items()}
    return {spec.accelerators.resource: member.ranks, **amounts}


def _volumes(job: JobView, spec: TrainingJobSpec) -> list[Manifest]:
    volumes: list[Manifest] = [
        {"name": "plan", "configMap": {"name": plan_name(job.name, job.status.attempt)}},
        {"name": "tmp", "emptyDir": {}},
    ]
    if spec.data.volume is not None:
        volumes.append({"name": "data", **spec.data.volume.wire()})
    if spec.checkpoint is not None:
        volumes.append({"name": "checkpoints", **spec.checkpoint.volume.wire()})
    return volumes
