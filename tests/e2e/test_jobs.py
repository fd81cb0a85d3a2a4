"""From `kubectl apply` to the end, on real API server, scheduler and garbage collector, with real training."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from support.operators import Forge, OperatorProcess, ended, processes_with

pytestmark = [pytest.mark.cluster, pytest.mark.training, pytest.mark.timeout(240)]

BIG = {"resource": "kronos.dev/accelerator", "min": 10, "max": 10}
WHOLE_BATCH = {"globalBatchSize": 10, "steps": 3}


def conditions(status: dict) -> dict[str, str]:
    return {item["type"]: item["status"] for item in status["conditions"]}


def slots_taken(gangs: dict[str, list[dict]]) -> int:
    return sum(
        int(pod["spec"]["containers"][0]["resources"]["limits"]["kronos.dev/accelerator"])
        for pods in gangs.values()
        for pod in pods
        if not ended(pod)
    )


def test_a_job_trains_to_completion_and_says_how_it_went(forge: Forge, operator: OperatorProcess):
    forge.apply(forge.manifest("burner"))
    status = forge.wait_phase("burner", "Complete", "Failed")
    assert status["phase"] == "Complete", status
    assert status["progress"]["step"] == 3
    assert 0 < status["progress"]["loss"] < 7
    assert len(status["progress"]["digest"]) == 64
    assert status["observedGeneration"] == 1
    truths = conditions(status)
    assert (truths["Complete"], truths["Failed"], truths["Ready"]) == ("True", "False", "True")
    forge.cluster.kubectl("-n", forge.name, "wait", "--for=condition=Complete", "ktj/burner", "--timeout=5s")


def test_what_a_job_measured_is_kept_in_the_fabrics_status_and_shown_as_an_error(
    forge: Forge, operator: OperatorProcess
):
    forge.apply(forge.manifest("measured", optimization={"globalBatchSize": 8, "steps": 60}))
    status = forge.wait_phase("measured", "Complete", "Failed")
    assert status["phase"] == "Complete", status
    assert status["progress"]["predictionError"].endswith("%")
    uid = json.loads(forge.cluster.kubectl("-n", forge.name, "get", "ktj", "measured", "-o", "json"))[
        "metadata"
    ]["uid"]

    def lessons() -> list[dict]:
        fabric = json.loads(forge.cluster.kubectl("get", "kronosfabric", "default", "-o", "json"))
        return fabric.get("status", {}).get("calibrations", [])

    forge.wait_until(
        lambda: any(sample["uid"] == uid for item in lessons() for sample in item["samples"]),
        "the fabric remembers what the job measured",
        20,
    )
    (calibration,) = lessons()
    assert calibration["resource"] == "kronos.dev/accelerator"
    assert calibration["factor"] > 0


def test_two_jobs_that_need_sixty_percent_each_run_one_after_the_other(
    forge: Forge, operator: OperatorProcess
):
    sections = {"accelerators": BIG, "optimization": WHOLE_BATCH}
    forge.apply(forge.manifest("first", **sections), forge.manifest("second", **sections))
    waited = False
    while True:
        # Pods first: a status read later can only be further on.
        gangs = forge.gangs()
        statuses = {name: forge.status(name) for name in ("first", "second")}
        # A gang whose first members have ended makes room for the other; before that there is none for both.
        in_full = [name for name, pods in gangs.items() if not any(ended(pod) for pod in pods)]
        assert len(in_full) <= 1, "both hold a part"
        assert slots_taken(gangs) <= 16
        phases = {name: status.get("phase") for name, status in statuses.items()}
        assert "Failed" not in phases.values(), statuses
        for name, other in (("first", "second"), ("second", "first")):
            if phases[name] == "Queued" and phases[other] in ("Starting", "Running"):
                waited = True
                assert "free" in statuses[name]["reason"]
                assert "placement" not in statuses[name]
        if set(phases.values()) == {"Complete"}:
            break
        time.sleep(0.3)
    assert waited, "one of the two had to wait"


def test_deleting_a_running_job_leaves_nothing(forge: Forge, operator: OperatorProcess):
    optimization = {"globalBatchSize": 8, "steps": 100_000}
    mark = f"endless of {forge.name}"
    template = {"env": [{"name": "MARK", "value": mark}]}
    forge.apply(forge.manifest("endless", optimization=optimization, template=template))
    forge.wait("endless", lambda status: status.get("progress", {}).get("step", 0) >= 2)
    assert processes_with(mark)
    forge.delete("endless")
    forge.wait_until(lambda: not forge.names("pods"), "the pods are gone", 60)
    forge.wait_until(lambda: not forge.names("services"), "the Service is gone")
    forge.wait_until(lambda: forge.names("configmaps") <= {"kube-root-ca.crt"}, "the plan is gone")
    forge.wait_until(lambda: not processes_with(mark), "the processes are gone")


def test_a_killed_rank_ends_in_a_clear_state(forge: Forge, operator: OperatorProcess):
    mark = f"victim of {forge.name}"
    forge.apply(
        forge.manifest(
            "victim",
            optimization={"globalBatchSize": 8, "steps": 100_000},
            restart={"backoffLimit": 0},
            template={"env": [{"name": "MARK", "value": mark}]},
        )
    )
    forge.wait("victim", lambda status: status.get("progress", {}).get("step", 0) >= 2)
    ranks = processes_with(mark)
    assert ranks
    for process in ranks:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    status = forge.wait_phase("victim", "Failed")
    assert "member 0 on" in status["reason"]
    assert "signal 9" in status["reason"] or "killed" in status["reason"].lower()
    assert conditions(status)["Failed"] == "True"
    forge.wait_until(lambda: not forge.held(), "nothing is held any more", 70)


def test_a_gang_that_lost_a_pod_goes_on_from_its_checkpoint_to_the_same_weights(
    forge: Forge, operator: OperatorProcess, tmp_path: Path
):
    (tmp_path / "shared").mkdir()
    sections = {
        "optimization": {"globalBatchSize": 8, "steps": 400},
        "checkpoint": {"everySteps": 20, "volume": {"hostPath": {"path": str(tmp_path / "shared")}}},
        "strategy": {"shardedDataParallel": 2},
    }
    forge.apply(forge.manifest("calm", **sections), forge.manifest("phoenix", **sections))
    forge.wait("phoenix", lambda status: status.get("progress", {}).get("checkpointStep", 0) >= 20)
    forge.cluster.kubectl("-n", forge.name, "delete", "pod", "phoenix-1-0", "--wait=false")
    forge.wait("phoenix", lambda status: status.get("attempt") == 2)
    resumed = forge.wait("phoenix", lambda status: status["progress"]["attempt"] == 2)["progress"]["step"]
    assert resumed >= 20, "it began again from nothing"
    status = forge.wait_phase("phoenix", "Complete", "Failed")
    assert status["phase"] == "Complete", status
    assert (status["attempt"], status["failures"]) == (2, 0)
    assert status["restarts"][0]["cause"] in ("PodLost", "Stopped")
    assert status["progress"]["digest"] == forge.wait_phase("calm", "Complete")["progress"]["digest"]


def test_missing_data_fails_the_job_at_once_with_the_sentence(forge: Forge, operator: OperatorProcess):
    data = {"include": ["*.nothing"]}
    forge.apply(forge.manifest("hungry", data=data))
    status = forge.wait_phase("hungry", "Failed", "Complete")
    assert status["phase"] == "Failed"
    assert status["attempt"] == 1
    assert "*.nothing" in status["reason"]


def test_an_operator_killed_while_placing_ends_where_an_undisturbed_one_does(
    forge: Forge, operator: OperatorProcess
):
    forge.apply(forge.manifest("calm"))
    calm = forge.wait_phase("calm", "Complete", "Failed")
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for index in range(3):
        name = f"disturbed-{index}"
        forge.apply(forge.manifest(name))
        if index == 0:  # the place is on record, and little more
            forge.wait(name, lambda status: "placement" in status, pause=0)
        elif index == 1:
            forge.wait_until(lambda name=name: forge.held().get(name), "a pod exists")
        else:
            time.sleep(draw.uniform(0, 1.5))
        operator.kill()
        time.sleep(draw.uniform(0, 1.0))
        operator.start()
        status = forge.wait_phase(name, "Complete", "Failed")
        for field in ("phase", "attempt", "failures", "strategy", "ready"):
            assert status[field] == calm[field], field
        assert status["progress"]["digest"] == calm["progress"]["digest"]
        assert status["placement"]["rankMap"] == calm["placement"]["rankMap"]
        assert "restarts" not in status or status["restarts"] == []


def test_killing_the_operator_leaves_running_jobs_running(forge: Forge, operator: OperatorProcess):
    forge.apply(forge.manifest("steady", optimization={"globalBatchSize": 8, "steps": 600}))
    forge.wait("steady", lambda status: status.get("progress", {}).get("step", 0) >= 2)
    operator.kill()
    pods = {pod["metadata"]["uid"] for pod in forge.list("pods")}
    forge.wait_until(
        lambda: all(pod["status"]["phase"] == "Succeeded" for pod in forge.list("pods")),
        "training goes on",
        90,
    )
    assert {pod["metadata"]["uid"] for pod in forge.list("pods")} == pods
    operator.start()
    status = forge.wait_phase("steady", "Complete")
    assert (status["attempt"], status["progress"]["step"]) == (1, 600)


def test_a_gang_that_cannot_be_whole_gives_its_place_back_and_says_why(
    forge: Forge, operator: OperatorProcess
):
    stuck = {
        "accelerators": BIG,
        "optimization": WHOLE_BATCH,
        "template": {"serviceAccountName": "nobody"},
        "scheduling": {"startTimeout": "4s"},
    }
    forge.apply(forge.manifest("stuck", **stuck))
    status = forge.wait("stuck", lambda status: "serviceaccount" in status.get("reason", ""))
    assert status["phase"] == "Starting"
    forge.apply(forge.manifest("patient", accelerators=BIG, optimization=WHOLE_BATCH))
    status = forge.wait("stuck", lambda status: status.get("restarts"))
    assert "placement" not in status
    assert status["restarts"][0]["cause"] == "StartTimeout"
    assert status["failures"] == 0
    assert forge.wait_phase("patient", "Complete", "Failed")["phase"] == "Complete"


def test_a_suspended_job_lets_go_of_its_slots_and_goes_on_later(forge: Forge, operator: OperatorProcess):
    forge.apply(forge.manifest("nap", optimization={"globalBatchSize": 8, "steps": 100_000}))
    forge.wait("nap", lambda status: status.get("progress", {}).get("step", 0) >= 2)
    patch = '{"spec": {"scheduling": {"suspend": %s}}}'
    forge.cluster.kubectl("-n", forge.name, "patch", "ktj", "nap", "--type=merge", "-p", patch % "true")
    forge.wait_phase("nap", "Suspended")
    forge.wait_until(lambda: not forge.held(), "nothing is held any more", 70)
    forge.cluster.kubectl("-n", forge.name, "patch", "ktj", "nap", "--type=merge", "-p", patch % "false")
    status = forge.wait("nap", lambda status: status.get("progress", {}).get("attempt") == 2)
    assert (status["phase"], status["attempt"], status["failures"]) == ("Running", 2, 0)


def test_a_finished_job_stays_finished_without_its_pods_and_under_a_new_operator(
    forge: Forge, operator: OperatorProcess
):
    forge.apply(forge.manifest("done"))
    before = forge.wait_phase("done", "Complete")
    forge.cluster.kubectl("-n", forge.name, "delete", "pods", "--all")
    assert operator.stop() == 0
    operator.start()
    time.sleep(3)
    assert forge.status("done") == before
    assert forge.names("pods") == set()


def test_a_name_that_is_taken_by_somebody_else_is_named_and_left_alone(
    forge: Forge, operator: OperatorProcess
):
    forge.cluster.kubectl("-n", forge.name, "create", "configmap", "taken-1-plan")
    forge.apply(forge.manifest("taken"))
    forge.wait(
        "taken", lambda status: "a ConfigMap named taken-1-plan exists already" in status.get("reason", "")
    )
    assert forge.names("pods") == set()
    forge.cluster.kubectl("-n", forge.name, "delete", "configmap", "taken-1-plan")
    assert forge.wait_phase("taken", "Complete", "Failed")["phase"] == "Complete"


def test_what_is_left_of_a_deleted_job_of_the_same_name_is_waited_for(
    forge: Forge, operator: OperatorProcess
):
    forge.cluster.kubectl("-n", forge.name, "create", "configmap", "again-1-plan")
    gone = {
        "apiVersion": "training.kronos.dev/v1alpha1",
        "kind": "KronosTrainingJob",
        "name": "again",
        "uid": "00000000-0000-0000-0000-000000000000",
    }
    # The job it names doesn't exist, so the control plane deletes it; a finalizer holds that up as long as the test wants.
    patch = {"metadata": {"finalizers": ["kronos.test/later"], "ownerReferences": [gone]}}
    forge.cluster.kubectl(
        "-n", forge.name, "patch", "configmap", "again-1-plan", "--type=merge", "-p", json.dumps(patch)
    )
    forge.apply(forge.manifest("again"))
    waits = "waits until the ConfigMap of the deleted job of the same name is gone"
    forge.wait("again", lambda status: waits in status.get("reason", ""))
    release = '{"metadata": {"finalizers": null}}'
    forge.cluster.kubectl(
        "-n", forge.name, "patch", "configmap", "again-1-plan", "--type=merge", "-p", release
    )
    status = forge.wait_phase("again", "Complete", "Failed")
    assert (status["phase"], status["attempt"]) == ("Complete", 1)
