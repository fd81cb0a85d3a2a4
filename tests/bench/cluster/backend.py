"""How a job of a trace becomes a KronosTrainingJob, for a harness that replays traces on simulated nodes.

The nodes' agent, and who measures, look at the label `kronos.test/gang` and the annotation `kronos.test/duration` of the pods.
"""

from __future__ import annotations

from typing import Any

API_VERSION = "training.kronos.dev/v1alpha1"
JOBS = f"/apis/{API_VERSION}/namespaces/default/kronostrainingjobs"
FABRIC: dict[str, Any] = {
    "apiVersion": API_VERSION,
    "kind": "KronosFabric",
    "metadata": {"name": "default"},
    "spec": {
        "levels": [
            {"name": "zone", "nodeLabel": "topology.kubernetes.io/zone", "kind": "InfiniBand-NDR"},
            {"name": "block", "nodeLabel": "kronos.test/block", "kind": "InfiniBand-NDR"},
            {"name": "rack", "nodeLabel": "kronos.test/rack", "kind": "InfiniBand-NDR"},
        ],
        "node": {"kind": "NVLink4"},
        "accelerators": [{"resource": "nvidia.com/gpu", "model": "H100-80GB"}],
    },
}


class Kronos:
    """A backend in the harness's terms."""

    name = "kronos"
    extra_watches: tuple[()] = ()

    def setup(self, api: Any, nodes: int) -> None:
        """What the cluster needs besides the CRDs: the fabric, and a priority class for each priority of the trace."""
        api.create(f"/apis/{API_VERSION}/kronosfabrics", FABRIC)
        for value in (0, 100, 1000):
            api.create(
                "/apis/scheduling.k8s.io/v1/priorityclasses",
                {
                    "apiVersion": "scheduling.k8s.io/v1",
                    "kind": "PriorityClass",
                    "metadata": {"name": f"p{value}"},
                    "value": value,
                    # As the other systems that traces are replayed with: nobody is stopped for anybody.
                    "preemptionPolicy": "Never",
                },
            )

    def objects(self, job: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        """The one object that a person would apply."""
        pods, gpus = job["pods"], job["gpus_per_pod"]
        placement = {} if job["topology_mode"] == "none" else {job["topology_mode"]: job["topology_level"]}
        spec = {
            "model": {"layers": 2, "hiddenSize": 64, "attentionHeads": 8, "sequenceLength": 64},
            "data": {"path": "/data"},
            "optimization": {"globalBatchSize": pods, "steps": 10},
            "accelerators": {"min": pods * gpus, "max": pods * gpus},
            "strategy": {"mode": "Fixed", "dataParallel": pods, "tensorParallel": gpus},
            "placement": {"tensorParallelWithin": "node", **placement},
            "scheduling": {"priorityClassName": f"p{job['priority']}"},
            "template": {
                "labels": {"kronos.test/gang": job["name"]},
                "annotations": {"kronos.test/duration": f"{job['duration_s']}s"},
                "perAccelerator": {"cpu": "1", "memory": "8Gi"},
            },
        }
        document = {
            "apiVersion": API_VERSION,
            "kind": "KronosTrainingJob",
            "metadata": {"name": job["name"], "namespace": "default"},
            "spec": spec,
        }
        return [(JOBS, document)]

    def delete(self, job: dict[str, Any]) -> list[str]:
        """Paths of what `objects` created."""
        return [f"{JOBS}/{job['name']}"]
