"""Two jobs that need 60% each and a tenant who doesn't ask, racing for the same nodes on the real scheduler."""

from __future__ import annotations

import contextlib
import random
import time
from dataclasses import dataclass, field
from typing import Any

from support.cluster import Kube, KubeError
from support.hollow import SECONDS, SLOT

Object = dict[str, Any]
NODES, SLOTS = 10, 8
JOBS = ("first", "second")
MEMBERS = 6
"""Of each job, each on a whole node: 60% of the nodes."""
START_TIMEOUT = 20.0
LONGEST = 240.0
"""Seconds for one race; a deadlock is what never ends."""
LABEL_JOB = "training.kronos.dev/job"


@dataclass
class Tenant:
    """Somebody whose pods take nodes without asking Kronos."""

    at: float
    slots: int
    seconds: float
    aims_at: str | None
    """A job, of whose gang it tries to take a node before its pod is bound; None for any node."""
    done: bool = False


@dataclass
class Race:
    """One interleaving, drawn from its seed: who comes when, how long it runs, and what the tenants aim at."""

    seed: int
    arrivals: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    tenants: list[Tenant] = field(default_factory=list)
    half_held: dict[str, float] = field(default_factory=dict)
    """By job, the longest time for which some of its members but not all held nodes."""
    lost: int = 0
    """Places that were lost to a tenant."""
    _since: dict[str, float] = field(default_factory=dict)

    @classmethod
    def draw(cls, seed: int) -> Race:
        """The same race for the same seed."""
        dice = random.Random(seed)
        race = cls(seed)
        for job in JOBS:
            race.arrivals[job] = dice.choice([0.0, dice.uniform(0, 0.5), dice.uniform(0, 2)])
            race.seconds[job] = dice.uniform(0.2, 1.5)
        for _ in range(dice.randint(1, 8)):
            # At any time; or while a job that just arrived gets its place; or at the first of its pods that isn't bound.
            job = dice.choice(JOBS)
            at = dice.choice([dice.uniform(0, 2.5), race.arrivals[job] + dice.uniform(0, 0.4)])
            aims_at = dice.choice([None, None, job])
            race.tenants.append(Tenant(at, dice.choice([1, 4, 8, 8]), dice.uniform(0.2, 3), aims_at))
        return race

    def run(self, kube: Kube, namespace: str) -> None:
        """Let everything happen; AssertionError, with the seed, where a promise is broken."""
        began = time.monotonic()
        waiting = dict(self.arrivals)
        while True:
            now = time.monotonic() - began
            for job in [job for job, at in waiting.items() if at <= now]:
                del waiting[job]
                kube.request("POST", _jobs(namespace), self._manifest(job, namespace))
            pods = kube.request("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
            self._watch(pods, now)
            for number, tenant in enumerate(self.tenants):
                if not tenant.done and tenant.at <= now:
                    self._strike(kube, namespace, number, tenant, pods)
            found = kube.request("GET", _jobs(namespace))["items"]
            phases = {item["metadata"]["name"]: item.get("status", {}).get("phase") for item in found}
            assert "Failed" not in phases.values(), f"seed {self.seed}: {found}"
            if not waiting and set(phases.values()) == {"Complete"}:
                self.lost = sum(
                    record["cause"] == "PlaceLost"
                    for item in found
                    for record in item["status"].get("restarts", ())
                )
                return
            assert now < LONGEST, f"seed {self.seed}: not over after {now:.0f} s: {found} {pods}"
            time.sleep(0.01)

    def _watch(self, pods: list[Object], now: float) -> None:
        for job in JOBS:
            own = [pod for pod in pods if pod["metadata"]["labels"].get(LABEL_JOB) == job]
            bound = sum(bool(pod["spec"].get("nodeName")) for pod in own)
            if 0 < bound < MEMBERS:
                since = self._since.setdefault(job, now)
                self.half_held[job] = max(self.half_held.get(job, 0.0), now - since)
                assert now - since <= START_TIMEOUT, (
                    f"seed {self.seed}: {job} half-held for {now - since:.1f} s"
                )
            else:
                self._since.pop(job, None)

    def _strike(self, kube: Kube, namespace: str, number: int, tenant: Tenant, pods: list[Object]) -> None:
        node = None
        if tenant.aims_at is not None:
            gang = [pod for pod in pods if pod["metadata"]["labels"].get(LABEL_JOB) == tenant.aims_at]
            unbound = [_pinned_node(pod) for pod in gang if not pod["spec"].get("nodeName")]
            # Before there is something to aim at it waits, though not for ever.
            if not unbound and len(gang) < MEMBERS:
                return
            node = unbound[0] if unbound else None
        tenant.done = True
        pod = _tenant_pod(f"tenant-{number}", tenant)
        if node is not None:
            pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
        kube.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod)

    def _manifest(self, name: str, namespace: str) -> Object:
        accelerators = MEMBERS * SLOTS
        return {
            "apiVersion": "training.kronos.dev/v1alpha1",
            "kind": "KronosTrainingJob",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "model": {"layers": 2, "hiddenSize": 64, "attentionHeads": 8, "sequenceLength": 64},
                "data": {"path": "/data"},
                "optimization": {"globalBatchSize": accelerators, "steps": 10},
                "accelerators": {"resource": SLOT, "min": accelerators, "max": accelerators},
                "strategy": {"mode": "Fixed", "dataParallel": MEMBERS, "tensorParallel": SLOTS},
                "placement": {"tensorParallelWithin": "node"},
                "scheduling": {"startTimeout": f"{START_TIMEOUT:.0f}s"},
                "template": {"annotations": {SECONDS: str(self.seconds[name])}},
            },
        }


def clear(kube: Kube, namespace: str) -> None:
    """Delete what a race left, and wait until nothing is held."""
    for name in JOBS:
        with contextlib.suppress(KubeError):
            kube.request("DELETE", f"{_jobs(namespace)}/{name}")
    kube.request("DELETE", f"/api/v1/namespaces/{namespace}/pods", {"gracePeriodSeconds": 0})
    core = f"/api/v1/namespaces/{namespace}"
    for path in (_jobs(namespace), f"{core}/pods", f"{core}/services"):
        kube.wait(path, lambda found: found is not None and not found["items"], 60)


def _jobs(namespace: str) -> str:
    return f"/apis/training.kronos.dev/v1alpha1/namespaces/{namespace}/kronostrainingjobs"


def _pinned_node(pod: Object) -> str:
    """The node that a member's pod waits for."""
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = required["nodeSelectorTerms"]
    (name,) = term["matchFields"][0]["values"]
    return str(name)


def _tenant_pod(name: str, tenant: Tenant) -> Object:
    container = {
        "name": "main",
        "image": "hollow",
        "resources": {"limits": {SLOT: str(tenant.slots)}},
    }
    metadata = {"name": name, "labels": {"tenant": "yes"}, "annotations": {SECONDS: str(tenant.seconds)}}
    spec = {"restartPolicy": "Never", "containers": [container], "terminationGracePeriodSeconds": 0}
    return {"metadata": metadata, "spec": spec}
