"""Quotas, priorities and preemption, on real API server and scheduler, with real training."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kronos.local import LocalCluster
from support.operators import Forge, OperatorProcess

pytestmark = [pytest.mark.cluster, pytest.mark.training, pytest.mark.timeout(240)]

SLOT = "kronos.dev/accelerator"


@pytest.fixture
def queue(forge: Forge) -> Iterator[str]:
    """A queue with a quota of 4 for the test's namespace."""
    name = f"queue-of-{forge.name}"
    document = {
        "apiVersion": "training.kronos.dev/v1alpha1",
        "kind": "KronosQueue",
        "metadata": {"name": name},
        "spec": {"namespaces": [forge.name], "quotas": [{"resource": SLOT, "nominal": 4}]},
    }
    priority = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": f"urgent-{forge.name}"},
        "value": 1000,
    }
    forge.apply(document, priority)
    yield name
    forge.cluster.kubectl("delete", "kronosqueue", name)
    forge.cluster.kubectl("delete", "priorityclass", f"urgent-{forge.name}")


def status_of(forge: Forge, queue: str) -> dict:
    return json.loads(forge.cluster.kubectl("get", "kronosqueue", queue, "-o", "json")).get("status", {})


def test_an_urgent_job_stops_one_of_its_queue_which_then_goes_on_from_its_checkpoint(
    forge: Forge, operator: OperatorProcess, queue: str, tmp_path: Path
):
    volume = {"hostPath": {"path": str(tmp_path)}}
    sections = {
        "accelerators": {"resource": SLOT, "min": 4, "max": 4},
        "optimization": {"globalBatchSize": 8, "steps": 4000},
        "checkpoint": {"everySteps": 1000, "volume": volume},
    }
    forge.apply(forge.manifest("slow", **sections, scheduling={"startTimeout": "2m", "queue": queue}))
    forge.wait("slow", lambda status: status.get("progress", {}).get("step", 0) > 20)
    forge.wait_until(lambda: status_of(forge, queue).get("running") == 1, "the queue knows its job")
    assert status_of(forge, queue)["use"] == [{"resource": SLOT, "used": 4, "borrowed": 0}]

    urgent = {"startTimeout": "2m", "queue": queue, "priorityClassName": f"urgent-{forge.name}"}
    forge.apply(forge.manifest("fast", scheduling=urgent))
    stopped = forge.wait("slow", lambda status: status.get("restarts"))
    assert stopped["restarts"][-1]["cause"] == "Preempted"
    assert stopped["reason"].startswith(f"stopped for {forge.name}/fast, whose priority is higher")
    assert forge.wait_phase("fast", "Complete", "Failed")["phase"] == "Complete"

    again = forge.wait("slow", lambda status: status.get("attempt") == 2 and status.get("phase") == "Running")
    assert again.get("failures", 0) == 0
    resumed = forge.wait(
        "slow",
        lambda status: (status.get("progress") or {}).get("attempt") == 2 and status["progress"]["step"] > 0,
    )
    assert resumed["progress"]["beganAtStep"] > 0
    forge.delete("slow")


def test_a_job_that_is_over_its_queues_quota_says_by_how_much_and_starts_when_there_is_some(
    forge: Forge, operator: OperatorProcess, queue: str
):
    scheduling = {"startTimeout": "2m", "queue": queue}
    sections = {
        "accelerators": {"resource": SLOT, "min": 3, "max": 3},
        "optimization": {"globalBatchSize": 9, "steps": 150},
    }
    forge.apply(forge.manifest("first", **sections, scheduling=scheduling))
    forge.wait_phase("first", "Running")
    forge.apply(forge.manifest("second", **sections, scheduling=scheduling))
    waiting = forge.wait("second", lambda status: status.get("reason"))
    assert (
        waiting["reason"]
        == f"needs 3 {SLOT}; the queue {queue} would be 2 over its quota, since it uses 3 of 4"
    )
    assert forge.wait_phase("second", "Complete", "Failed")["phase"] == "Complete"
    assert forge.status("first")["phase"] == "Complete"


@pytest.fixture
def pod_groups(shared_cluster: LocalCluster) -> Iterator[None]:
    """The cluster knows PodGroups, as with a scheduler that looks at them."""
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "podgroups.scheduling.x-k8s.io",
            "annotations": {"api-approved.kubernetes.io": "unapproved, stands in for the real one"},
        },
        "spec": {
            "group": "scheduling.x-k8s.io",
            "scope": "Namespaced",
            "names": {"plural": "podgroups", "singular": "podgroup", "kind": "PodGroup"},
            "versions": [
                {
                    "name": "v1alpha1",
                    "served": True,
                    "storage": True,
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "properties": {
                                "spec": {
                                    "type": "object",
                                    "properties": {"minMember": {"type": "integer"}},
                                }
                            },
                        }
                    },
                }
            ],
        },
    }
    shared_cluster.kubectl("apply", "-f", "-", stdin=json.dumps(definition))
    name = "crd/podgroups.scheduling.x-k8s.io"
    shared_cluster.kubectl("wait", "--for=condition=Established", name, "--timeout=30s")
    yield
    shared_cluster.kubectl("delete", name)


def test_a_job_that_is_left_to_another_scheduler_trains_where_that_one_puts_it(
    forge: Forge, operator: OperatorProcess, pod_groups: None
):
    scheduling = {
        "startTimeout": "2m",
        "admission": {"by": "PodGroup", "schedulerName": "default-scheduler", "acceleratorsPerMember": 2},
    }
    four = {"resource": SLOT, "min": 4, "max": 4}
    forge.apply(forge.manifest("theirs", accelerators=four, scheduling=scheduling))
    status = forge.wait(
        "theirs", lambda status: status.get("placement", {}).get("members", [{}])[0].get("node")
    )
    (group,) = forge.list("podgroups.scheduling.x-k8s.io")
    assert (group["metadata"]["name"], group["spec"]["minMember"]) == ("theirs-1", 2)
    pods = sorted(forge.list("pods"), key=lambda pod: pod["metadata"]["name"])
    assert [pod["spec"]["nodeName"] for pod in pods] == [
        member["node"] for member in status["placement"]["members"]
    ]
    assert forge.wait_phase("theirs", "Complete", "Failed")["phase"] == "Complete"
    forge.delete("theirs")
