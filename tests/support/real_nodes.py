"""A cluster of real nodes with Kronos installed as users install it, and places for jobs that the restricted Pod
Security level allows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kronos.local import LocalCluster
from kronos.local.install import deploy
from support.operators import Forge, Object

NODE_GRACE_SECONDS = 12.0
UNREADABLE = "kronos.local/unreadable:1"
"""An image whose python is no program."""
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


def install_operator(cluster: LocalCluster) -> None:
    """Install Kronos, with progress read each second so that tests see it."""
    deploy(cluster.kubectl)
    quick = {
        "op": "add",
        "path": "/spec/template/spec/containers/0/args/-",
        "value": "--progress-interval=1",
    }
    patch_operator(cluster, [quick])


def patch_operator(cluster: LocalCluster, patch: list[Object]) -> None:
    """Change the Deployment and wait until it has rolled out."""
    cluster.kubectl(
        "-n", "kronos-system", "patch", "deployment", "kronos", "--type=json", "-p", json.dumps(patch)
    )
    cluster.kubectl(
        "-n", "kronos-system", "rollout", "status", "deployment/kronos", "--timeout=90s", timeout=100
    )


class RealForge(Forge):
    """One namespace that enforces the restricted level, with claims on folders of the machine."""

    def __init__(self, cluster: LocalCluster, name: str, data: Path, checkpoints: Path) -> None:
        super().__init__(cluster, name, data)
        labels = [f"{key}={value}" for key, value in RESTRICTED.items()]
        cluster.kubectl("label", "namespace", name, *labels)
        checkpoints.mkdir(parents=True, exist_ok=True)
        # The trainer's user is none of this machine's.
        checkpoints.chmod(0o777)
        self.volumes: list[str] = []
        self.claim("data", data)
        self.claim("checkpoints", checkpoints)

    def claim(self, name: str, folder: Path) -> None:
        """A PersistentVolumeClaim on a folder, which every node has since they share a machine."""
        volume = f"{self.name}-{name}"
        self.volumes.append(volume)
        common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        self.apply(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": volume},
                "spec": {
                    **common,
                    "capacity": {"storage": "1Gi"},
                    "persistentVolumeReclaimPolicy": "Retain",
                    "hostPath": {"path": str(folder), "type": "Directory"},
                    "claimRef": {"namespace": self.name, "name": name},
                },
            },
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": name, "namespace": self.name},
                "spec": {**common, "volumeName": volume, "resources": {"requests": {"storage": "1Gi"}}},
            },
        )

    def manifest(self, name: str, **sections: Any) -> Object:
        """A small deterministic job that reads its data from the claim."""
        data = {"path": "/data", "volume": claimed("data")}
        return super().manifest(name, **{**sections, "data": {**data, **sections.get("data", {})}})

    def fill(self, name: str, node: str, slots: int) -> None:
        """Another tenant's pod that takes slots of a node."""
        container = {
            "name": "main",
            "image": "kronos/trainer:0.1",
            "command": ["python", "-c", "import time; time.sleep(3600)"],
            "resources": {"limits": {"kronos.dev/accelerator": str(slots)}},
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
        spec = {
            "nodeName": node,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
        }
        metadata = {"name": name, "namespace": self.name, "labels": {"training.kronos.dev/job": ""}}
        self.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def close(self) -> None:
        """Delete everything, and wait until nothing is held."""
        self.cluster.kubectl("delete", "namespace", self.name, "--timeout=110s", timeout=120)
        self.cluster.kubectl("delete", "pv", *self.volumes)


def claimed(name: str) -> Object:
    """A volume that is a claim."""
    return {"persistentVolumeClaim": {"claimName": name}}
