"""Gangs that Kueue or a scheduler with PodGroups admits: Kronos splits them, marks their pods, and maps their ranks."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from kronos.api.plan import Degrees
from kronos.api.queue import QueueSpec, QueueStatus
from kronos.api.status import decode_ranks
from kronos.lifecycle import PodView, QueueView
from kronos.lifecycle.delegation import members_of
from kronos.lifecycle.queues import queue_statuses
from support.worlds import SLOT, World, job, racks

KUEUE = {"admission": {"by": "Kueue", "localQueue": "team-a"}}
POD_GROUP = {"admission": {"by": "PodGroup", "schedulerName": "gang-scheduler"}}
FIXED = {"mode": "Fixed", "dataParallel": 2, "tensorParallel": 4}
EIGHT = {"resource": SLOT, "min": 8, "max": 8}


def world_with(scheduling: dict[str, Any], **sections: Any) -> World:
    burner = job("burner", scheduling=scheduling, accelerators=EIGHT, strategy=FIXED, **sections)
    return World(burner, nodes=racks())


def made(world: World, kind: str) -> list[dict[str, Any]]:
    return [item for item in world.manifests if item["kind"] == kind]


def bind(world: World, *nodes: str) -> None:
    for pod, node in zip(world.gang("burner"), nodes, strict=True):
        world.edit(pod.name, node=node)


def test_pods_are_a_group_of_kueue_and_on_no_node_of_ours():
    world = world_with(KUEUE, placement={"required": "rack"})
    world.settle()
    status = world.status("burner")
    assert (status.phase, status.attempt) == ("Queued", 1)
    assert status.reason == "waits for Kueue's LocalQueue team-a: 0 of 2 pods are bound"
    assert status.strategy is not None
    assert status.strategy.summary == "dp2·tp4"
    pods = made(world, "Pod")
    assert len(pods) == 2
    for index, pod in enumerate(pods):
        labels, annotations = pod["metadata"]["labels"], pod["metadata"]["annotations"]
        assert labels["kueue.x-k8s.io/queue-name"] == "team-a"
        assert labels["kueue.x-k8s.io/pod-group-name"] == "burner-1"
        assert labels["kueue.x-k8s.io/pod-group-pod-index"] == str(index)
        assert annotations["kueue.x-k8s.io/pod-group-total-count"] == "2"
        assert annotations["kueue.x-k8s.io/podset-required-topology"] == "kronos.dev/rack"
        assert "affinity" not in pod["spec"]
        assert "schedulerName" not in pod["spec"]
    assert made(world, "ConfigMap") == [], "there is no plan before the nodes are known"


def test_a_scheduler_with_pod_groups_gets_one_before_the_pods():
    world = world_with(POD_GROUP)
    world.settle()
    kinds = [item["kind"] for item in world.manifests]
    assert kinds.index("PodGroup") < kinds.index("Pod")
    (group,) = made(world, "PodGroup")
    assert (group["metadata"]["name"], group["spec"]) == ("burner-1", {"minMember": 2})
    for pod in made(world, "Pod"):
        assert pod["spec"]["schedulerName"] == "gang-scheduler"
        assert pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == "burner-1"


def test_half_a_gang_has_no_place_and_may_wait_for_long():
    world = world_with(KUEUE)
    world.settle()
    first, _ = world.gang("burner")
    world.edit(first.name, node="a0", phase="Running")
    world.later(3600)
    world.settle()
    status = world.status("burner")
    assert status.reason.endswith("1 of 2 pods are bound")
    assert (status.phase, status.restarts) == ("Queued", ())


def test_where_the_other_system_put_the_pods_the_ranks_follow():
    small = {**KUEUE["admission"], "acceleratorsPerMember": 2}
    world = world_with({"admission": small}, optimization={"globalBatchSize": 48, "steps": 100})
    world.settle()
    # Four pods of two ranks; tensor groups are four: members 0 and 3, and 1 and 2, are beside each other.
    bind(world, "a0", "b1", "b1", "a0")
    world.settle()
    status = world.status("burner")
    assert status.placement is not None
    assert status.phase == "Starting"
    assert [member.node for member in status.placement.members] == ["a0", "b1", "b1", "a0"]
    ranks = decode_ranks(status.placement.rank_map)
    assert sorted(map(sorted, (ranks[:4], ranks[4:]))) == [[0, 1, 6, 7], [2, 3, 4, 5]]
    (plan,) = {item["data"]["plan.json"] for item in made(world, "ConfigMap")}
    assert json.loads(plan)["rankMap"] == list(ranks)
    assert status.placement.summary == "2 nodes in 2 racks; each tensor group inside one node"


def test_then_it_is_a_gang_as_any_other():
    world = world_with(KUEUE)
    world.settle()
    bind(world, "a0", "b0")
    world.settle()
    world.start("burner")
    world.settle()
    assert world.status("burner").phase == "Running"
    world.finish("burner", step=100, loss=1.0)
    world.settle()
    assert world.status("burner").phase == "Complete"


def test_pods_that_the_other_system_takes_back_become_another_group():
    world = world_with(KUEUE)
    world.settle()
    bind(world, "a0", "b0")
    world.settle()
    first, _ = world.gang("burner")
    world.edit(first.name, deleting=True)
    world.settle()
    assert world.status("burner").phase == "Restarting"
    world.reap()
    world.later(5)
    world.settle()
    status = world.status("burner")
    assert (status.phase, status.attempt, status.failures) == ("Queued", 2, 0)
    assert made(world, "Pod")[-1]["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"] == "burner-2"


def test_a_bound_pod_that_vanished_before_the_start_is_not_created_again_alone():
    world = world_with(KUEUE)
    world.settle()
    bind(world, "a0", "b0")
    world.settle()
    del world.pods["burner-1-1"]
    world.settle()
    assert world.status("burner").restarts[0].cause == "PodLost"


def test_what_others_admit_takes_room_from_ours_only_once_it_is_bound():
    world = world_with(KUEUE)
    ours = job("ours", 1, accelerators={"resource": SLOT, "min": 12, "max": 12})
    world.jobs[ours.key] = ours
    world.settle()
    assert world.status("ours").phase == "Starting"


def test_a_queue_can_leave_all_its_jobs_to_kueue_and_a_job_can_differ():
    rules = QueueSpec.model_validate({"admission": {"by": "Kueue"}})
    theirs = job("theirs", scheduling={"queue": "shared"}, accelerators=EIGHT)
    ours = job("ours", scheduling={"queue": "shared", "admission": {"by": "Kronos"}}, accelerators=EIGHT)
    world = World(theirs, ours, nodes=racks())
    world.queues["shared"] = QueueView("shared", 1, rules, QueueStatus())
    world.settle()
    assert world.status("theirs").reason.startswith("waits for Kueue's LocalQueue shared")
    assert world.status("ours").phase == "Starting"
    status = queue_statuses(world.snapshot())["shared"]
    assert (status.running, status.waiting) == (1, 1)


def test_a_gang_of_theirs_is_never_stopped_for_one_of_ours():
    world = world_with(KUEUE)
    world.settle()
    bind(world, "a0", "a1")
    world.settle()
    world.start("burner")
    ours = job("ours", 1, accelerators={"resource": SLOT, "min": 12, "max": 12})
    world.jobs[ours.key] = ours
    world.settle()
    assert world.status("ours").phase == "Queued"
    assert world.status("burner").phase == "Running"


@pytest.mark.parametrize(
    ("degrees", "most", "expected"),
    [
        pytest.param(Degrees(data_parallel=8), 4, [4, 4], id="as large as a node holds"),
        pytest.param(Degrees(data_parallel=6), 4, [3, 3], id="equal members"),
        pytest.param(Degrees(tensor_parallel=2, data_parallel=3), 4, [2, 2, 2], id="whole tensor groups"),
        pytest.param(Degrees(tensor_parallel=8), 4, [4, 4], id="a tensor group wider than a node"),
        pytest.param(Degrees(data_parallel=7), 4, [1] * 7, id="a prime"),
    ],
)
def test_members_are_equal_and_cut_no_tensor_group_needlessly(degrees, most, expected):
    assert [member.ranks for member in members_of(degrees, most)] == expected


def test_a_node_that_went_while_the_last_pod_was_bound_begins_a_new_group():
    world = world_with(KUEUE)
    world.settle()
    bind(world, "a0", "b0")
    del world.nodes["b0"]
    world.settle()
    assert world.status("burner").restarts[0].cause == "NodeLost"


def test_foreign_pods_do_not_matter_to_a_gang_that_others_admit():
    world = world_with(KUEUE)
    world.settle()
    for name in world.nodes:
        world.pods[f"tenant-{name}"] = PodView("other", f"tenant-{name}", name, "Running", name, {SLOT: 4})
    world.nodes["a0"] = replace(world.nodes["a0"], schedulable=False)
    world.settle()
    assert world.status("burner").restarts == ()
