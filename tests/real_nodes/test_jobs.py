"""Jobs in containers: images, cluster DNS, the restricted security level, failures as real kubelets report them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from kronos.local.demo.manifests import EXAMPLES, JOBS, text_folder
from kronos.local.kubelets.cluster import KubeletCluster
from support.cluster import running_cluster
from support.operators import Object, OperatorProcess
from support.real_nodes import NODE_GRACE_SECONDS, RealForge, claimed, patch_operator

pytestmark = [pytest.mark.timeout(400, func_only=True)]

CLEARLY_DOWN = 4.5
"""A loss well below that of an untrained model of bytes, ln 256 = 5.5."""


def test_the_two_demo_jobs_complete_in_containers_on_two_to_four_nodes(forge: RealForge):
    forge.claim("python", text_folder())
    manifests = []
    for name in JOBS:
        job = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text(encoding="utf-8"))
        job["metadata"]["namespace"] = forge.name
        job["spec"]["data"]["volume"] = claimed("python")
        manifests.append(job)
    forge.apply(*manifests)
    for name in JOBS:
        status = forge.wait_phase(name, "Complete", "Failed", seconds=200)
        assert status["phase"] == "Complete", status
        assert status["progress"]["loss"] < CLEARLY_DOWN
        nodes = {member["node"] for member in status["placement"]["members"]}
        assert 2 <= len(nodes) <= 4
    for pod in forge.list("pods"):
        spec = pod["spec"]
        environment = {item["name"]: item.get("value") for item in spec["containers"][0]["env"]}
        assert environment["KRONOS_MASTER"].endswith(f".{forge.name}.svc"), "ranks meet by name"
        assert not any("projected" in volume for volume in spec["volumes"]), "no token is mounted"
        assert pod["status"]["containerStatuses"][0]["imageID"]


HYBRID: dict[str, Any] = {
    "accelerators": {"min": 8, "max": 8},
    "strategy": {"tensorParallel": 2, "pipelineParallel": 2, "dataParallel": 2},
    "optimization": {"globalBatchSize": 8, "steps": 12},
}


def run_hybrid(forge: RealForge) -> Object:
    """A tensor x pipeline x data parallel job on four nodes, of which another tenant has half."""
    for rack in "ab":
        for index in (0, 1):
            forge.fill(f"tenant-{rack}-{index}", f"rack-{rack}-{index}", 2)
    forge.wait_until(lambda: forge.held() == {"": 4}, "the other tenant's pods are there", 60)
    forge.apply(forge.manifest("hybrid", **HYBRID))
    status = forge.wait_phase("hybrid", "Complete", "Failed", seconds=120)
    assert status["phase"] == "Complete", status
    return status


def test_a_hybrid_job_gives_the_same_weights_in_containers_and_on_process_nodes(
    forge: RealForge, text: Path, tmp_path: Path
):
    real = run_hybrid(forge)
    assert len(real["placement"]["members"]) == 4
    with running_cluster(tmp_path / "processes") as local:
        operator = OperatorProcess(local, tmp_path / "operator.log")
        operator.start()
        try:
            process = run_hybrid(RealForge(local, "forge", text, tmp_path / "local-checkpoints"))
        finally:
            operator.stop()
    assert process["strategy"]["summary"] == real["strategy"]["summary"]
    assert process["placement"]["members"] == real["placement"]["members"]
    assert process["placement"]["rankMap"] == real["placement"]["rankMap"]
    assert process["progress"]["digest"] == real["progress"]["digest"]
    assert process["progress"]["loss"] == real["progress"]["loss"]


def test_a_lost_node_sends_its_gang_elsewhere_to_go_on_from_its_checkpoint(
    forge: RealForge, installed: KubeletCluster
):
    forge.apply(
        forge.manifest(
            "phoenix",
            accelerators={"min": 6, "max": 6},
            optimization={"globalBatchSize": 6, "steps": 300},
            checkpoint={"everySteps": 10, "volume": claimed("checkpoints")},
        )
    )
    status = forge.wait("phoenix", lambda status: status.get("progress", {}).get("checkpointStep", 0) >= 10)
    lost = status["placement"]["members"][0]["node"]
    began = time.time()
    installed.kill_node(lost)
    try:
        status = forge.wait("phoenix", lambda status: status.get("restarts"), seconds=60)
        detected = time.time() - began
        assert status["restarts"][0]["cause"] == "NodeLost"
        status = forge.wait(
            "phoenix", lambda status: status.get("attempt") == 2 and "placement" in status, seconds=120
        )
        placed = time.time() - began
        assert lost not in {member["node"] for member in status["placement"]["members"]}
        resumed = forge.wait(
            "phoenix", lambda status: status.get("progress", {}).get("attempt") == 2, seconds=120
        )
        stepped = time.time() - began
    finally:
        installed.start_node(lost)
    print(
        f"after the node's death: detected {detected:.1f} s (of which {NODE_GRACE_SECONDS:g} s are the cluster's "
        f"grace), placed elsewhere {placed:.1f} s, first step seen {stepped:.1f} s at {resumed['progress']['step']}"
    )
    assert resumed["progress"]["step"] >= 10, "it began again from nothing"
    status = forge.wait_phase("phoenix", "Complete", "Failed", seconds=120)
    assert (status["phase"], status["failures"]) == ("Complete", 0)
    forge.wait_until(lambda: not forge.held(), "nothing is held any more, on the node that came back too", 60)


def test_an_upgrade_of_the_operator_disturbs_no_running_job(forge: RealForge, installed: KubeletCluster):
    # It has more steps than any machine takes within the test.
    forge.apply(forge.manifest("steady", optimization={"globalBatchSize": 8, "steps": 1_000_000}))
    forge.wait("steady", lambda status: status.get("progress", {}).get("step", 0) >= 2)
    before = {pod["metadata"]["uid"] for pod in forge.list("pods")}
    newer = [
        {
            "op": "add",
            "path": "/spec/template/metadata/annotations",
            "value": {"kronos.dev/upgraded": str(time.time())},
        }
    ]
    patch_operator(installed, newer)
    step = forge.status("steady")["progress"]["step"]
    status = forge.wait("steady", lambda status: status["progress"]["step"] > step, seconds=60)
    assert (status["phase"], status["attempt"]) == ("Running", 1)
    pods = forge.list("pods")
    assert {pod["metadata"]["uid"] for pod in pods} == before
    assert all(pod["status"]["containerStatuses"][0]["restartCount"] == 0 for pod in pods)
    forge.apply(forge.manifest("next", optimization={"globalBatchSize": 8, "steps": 5}))
    assert forge.wait_phase("next", "Complete", "Failed", seconds=120)["phase"] == "Complete"
