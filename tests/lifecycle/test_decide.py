"""A job's way through its life, decided from snapshots alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kronos.api.job import TrainingJobSpec
from kronos.api.plan import LastWords, Progress
from kronos.api.status import TrainingJobStatus
from kronos.lifecycle import PodView
from kronos.placement import Taint
from support.worlds import SLOT, World, job, node, racks


def running_world(**sections: object) -> World:
    world = World(job("burner", **sections))
    world.settle()
    world.start("burner")
    world.settle()
    assert world.status("burner").phase == "Running"
    return world


def node_of(world: World, member: int) -> str:
    placement = world.status("burner").placement
    assert placement is not None
    return placement.members[member].node


def condition(world: World, kind: str, name: str = "burner") -> tuple[str, str]:
    found = {item.type: item for item in world.status(name).conditions}[kind]
    return found.status, found.reason


def test_the_place_is_on_record_before_the_first_pod_exists():
    world = World(job("burner"))
    decision = world.round()["burner"]
    assert decision.actions == ()
    placement = world.status("burner").placement
    assert placement is not None
    assert sum(member.ranks for member in placement.members) == 12
    world.round()
    assert [pod.name for pod in world.gang("burner")] == ["burner-1-0", "burner-1-1", "burner-1-2"]


def test_service_and_plan_are_created_before_the_pods():
    world = World(job("burner"))
    world.settle()
    assert [item["kind"] for item in world.manifests] == ["Service", "ConfigMap", "Pod", "Pod", "Pod"]


def test_a_member_alone_needs_no_name_and_no_service():
    world = World(job("burner", accelerators={"resource": SLOT, "min": 2, "max": 2}))
    world.settle()
    assert [item["kind"] for item in world.manifests] == ["ConfigMap", "Pod"]
    (container,) = world.manifests[1]["spec"]["containers"]
    assert "KRONOS_MASTER" not in {item["name"] for item in container["env"]}


def test_pods_are_pinned_to_their_reserved_nodes_and_ask_for_their_slots():
    world = World(job("burner"))
    world.settle()
    placement = world.status("burner").placement
    assert placement is not None
    for manifest, member in zip(world.manifests[2:], placement.members, strict=True):
        terms = manifest["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        (field,) = terms["nodeSelectorTerms"][0]["matchFields"]
        assert field == {"key": "metadata.name", "operator": "In", "values": [member.node]}
        resources = manifest["spec"]["containers"][0]["resources"]
        assert resources["limits"] == {SLOT: str(member.ranks)}


def test_training_pods_get_no_credentials():
    world = World(job("burner"))
    world.settle()
    assert all(
        item["spec"]["automountServiceAccountToken"] is False
        for item in world.manifests
        if item["kind"] == "Pod"
    )


def test_two_jobs_that_need_sixty_percent_each_never_hold_half_each():
    world = World(job("breeder", 0), job("burner", 1))
    world.settle()
    assert world.status("breeder").placement is not None
    assert world.status("burner").placement is None
    assert world.gang("burner") == []
    assert "free" in world.status("burner").reason
    assert world.status("burner").phase == "Queued"
    world.start("breeder")
    world.settle()
    world.finish("breeder", step=100, loss=2.0)
    world.settle()
    assert world.status("breeder").phase == "Complete"
    assert world.status("burner").phase == "Starting"


def test_a_gang_runs_once_all_its_members_do():
    world = World(job("burner"))
    world.settle()
    world.start("burner", 1, 2)
    world.settle()
    assert world.status("burner").phase == "Starting"
    assert world.status("burner").reason == "2 of 3 members are running"
    assert condition(world, "PodsReady")[0] == "False"
    world.start("burner", 0)
    world.settle()
    assert world.status("burner").phase == "Running"
    assert world.status("burner").ready == "3/3"
    assert condition(world, "PodsReady") == ("True", "AllMembersRunning")


def test_ready_waits_for_the_trainer_to_report():
    world = running_world()
    assert condition(world, "Ready")[0] == "False"
    world.progress["uid-burner", 1] = Progress(step=3, loss=4.2, step_seconds=2.0, tokens_per_second=10.0)
    world.settle()
    assert condition(world, "Ready") == ("True", "Training")
    progress = world.status("burner").progress
    assert progress is not None
    assert (progress.step, progress.loss, progress.time_left) == (3, 4.2, "3m14s")


def test_a_complete_job_keeps_the_trainers_last_word():
    world = running_world()
    world.finish("burner", step=100, loss=1.5, digest="abc")
    world.settle()
    status = world.status("burner")
    assert status.phase == "Complete"
    assert status.progress is not None
    assert (status.progress.step, status.progress.loss, status.progress.digest) == (100, 1.5, "abc")
    assert condition(world, "Complete")[0] == "True"
    assert condition(world, "Ready")[0] == "True"


def test_a_finished_job_stays_finished_when_its_pods_disappear():
    world = running_world()
    world.finish("burner", step=100)
    world.settle()
    world.pods.clear()
    world.settle()
    assert world.status("burner").phase == "Complete"
    assert world.pods == {}


def test_the_first_failing_rank_and_its_last_words_are_the_reason():
    world = running_world(restart={"backoffLimit": 0})
    echo = LastWords(outcome="Failed", rank=2, error="connection closed by peer", secondary=True)
    world.fail("burner", 0, last_words=echo)
    world.later(1)
    words = LastWords(outcome="Failed", rank=5, step=7, error="ZeroDivisionError: division by zero")
    world.fail("burner", 1, last_words=words)
    world.settle()
    status = world.status("burner")
    assert status.phase == "Failed"
    where = f"member 1 on {node_of(world, 1)}"
    assert status.reason == f"rank 5 ({where}) failed at step 7: ZeroDivisionError: division by zero"
    assert condition(world, "Failed") == ("True", "TrainingFailed")


ECHO = LastWords(outcome="Failed", rank=2, error="closed", secondary=True)


def test_an_end_without_a_word_waits_for_the_cause_to_show_up():
    world = running_world(restart={"backoffLimit": 0})
    world.fail("burner", 0, exit_code=1)
    decision = world.round()["burner"]
    assert decision.status.phase == "Running"
    assert decision.look_again is not None
    world.now = decision.look_again
    world.round()
    assert world.status("burner").phase == "Failed"


def test_echoes_of_all_members_end_the_attempt_at_once():
    world = running_world(restart={"backoffLimit": 0})
    for member in range(3):
        world.fail("burner", member, last_words=ECHO)
    world.round()
    assert world.status("burner").phase == "Failed"


def test_echoes_of_a_member_that_fell_silent_are_no_failure_of_the_job():
    world = running_world(restart={"backoffLimit": 0})
    where = node_of(world, 1)
    for member in (0, 2):
        world.fail("burner", member, last_words=ECHO)
    world.later(60)
    decision = world.round()["burner"]
    assert decision.status.phase == "Running", "its node may be found lost"
    assert decision.look_again is not None
    world.now = decision.look_again
    world.round()
    status = world.status("burner")
    assert (status.phase, status.failures, status.restarts[0].cause) == ("Restarting", 0, "NodeLost")
    assert f"member 1 on {where} fell silent" in status.restarts[0].message


def test_a_node_that_is_found_lost_explains_the_echoes_of_the_others():
    world = running_world()
    lost = node_of(world, 1)
    world.fail("burner", 0, last_words=ECHO)
    world.later(20)
    world.nodes[lost] = replace(world.nodes[lost], ready=False)
    world.settle()
    (record,) = world.status("burner").restarts
    assert (record.cause, record.node) == ("NodeLost", lost)


def test_a_failed_gang_releases_the_slots_of_the_members_that_still_run():
    world = running_world(restart={"backoffLimit": 0})
    world.fail("burner", 1, last_words=LastWords(outcome="Failed", rank=5, error="boom"))
    world.settle()
    assert [pod.deleting for pod in world.gang("burner")] == [True, False, True]


def test_a_failed_attempt_is_on_record_before_its_pods_go_and_then_starts_again():
    world = running_world()
    world.fail("burner", 1, last_words=LastWords(outcome="Failed", rank=5, step=7, error="boom"))
    world.settle()
    status = world.status("burner")
    assert (status.phase, status.placement, status.failures) == ("Restarting", None, 1)
    assert "boom" in status.reason
    assert status.restarts[0].cause == "TrainingFailed"
    world.later(60)
    world.settle()
    assert world.status("burner").placement is None, "pods of the failed attempt still hold their slots"
    world.reap()
    world.settle()
    assert world.status("burner").attempt == 2
    assert [pod.name for pod in world.gang("burner")] == ["burner-2-0", "burner-2-1", "burner-2-2"]


def test_the_next_attempt_waits_for_the_back_off():
    world = running_world()
    world.fail("burner", 1, last_words=LastWords(outcome="Failed", rank=5, error="boom"))
    world.settle()
    world.reap()
    decision = world.round()["burner"]
    assert decision.status.placement is None
    assert decision.look_again is not None
    world.now = decision.look_again
    world.settle()
    assert world.status("burner").attempt == 2


def test_the_limit_of_failures_ends_the_job():
    world = running_world(restart={"backoffLimit": 1})
    for _ in range(2):
        world.fail("burner", 1, last_words=LastWords(outcome="Failed", rank=5, error="boom"))
        world.settle()
        world.reap()
        world.later(30)
        world.settle()
        if world.status("burner").phase == "Failed":
            break
        world.start("burner")
        world.settle()
    status = world.status("burner")
    assert (status.phase, status.failures, status.attempt) == ("Failed", 2, 2)
    assert status.reason.endswith("boom (2 failures, the limit allows no more)")


def test_bad_input_is_not_tried_again():
    world = running_world()
    words = LastWords(outcome="Failed", error="the folder /data holds no file that data.include matches")
    world.fail("burner", 0, exit_code=2, last_words=words)
    world.settle()
    assert world.status("burner").phase == "Failed"
    assert "holds no file" in world.status("burner").reason


CAUSES = {
    "killed": ({"exit_code": 137}, "TrainingFailed", "was killed by signal 9"),
    "out of memory": ({"exit_code": 137, "exit_reason": "OOMKilled"}, "TrainingFailed", "ran out of memory"),
    "evicted": (
        {"exit_code": None, "exit_reason": "Evicted", "raw_message": "the node was low on memory"},
        "Evicted",
        "was evicted: the node was low on memory",
    ),
    "an exit without a word": (
        {"exit_code": 3, "raw_message": "one\ntwo\n"},
        "TrainingFailed",
        "ended with exit code 3: two",
    ),
    "stopped by somebody": (
        {"exit_code": 143, "last_words": LastWords(outcome="Stopped")},
        "Stopped",
        "was asked to stop",
    ),
    "members that didn't meet": (
        {"exit_code": 4, "last_words": LastWords(outcome="Failed", error="member 2 never came")},
        "StartTimeout",
        "member 2 never came",
    ),
}


@pytest.mark.parametrize("name", CAUSES)
def test_causes_are_told_apart(name):
    facts, cause, sentence = CAUSES[name]
    world = running_world()
    where = node_of(world, 1)
    world.fail("burner", 1, **facts)
    world.later(6)
    world.settle()
    (record,) = world.status("burner").restarts
    assert record.cause == cause
    assert sentence in record.message
    assert record.node == where
    assert world.status("burner").failures == (1 if cause == "TrainingFailed" else 0)


def test_a_deleted_pod_restarts_the_gang_without_counting_as_a_failure():
    world = running_world()
    del world.pods["burner-1-1"]
    world.settle()
    status = world.status("burner")
    assert (status.phase, status.failures, status.restarts[0].cause) == ("Restarting", 0, "PodLost")


def test_a_node_that_does_not_answer_restarts_the_gang_elsewhere():
    world = World(job("burner", accelerators={"resource": SLOT, "min": 8, "max": 8}))
    world.settle()
    world.start("burner")
    world.settle()
    lost = world.gang("burner")[0].node
    world.nodes[lost] = replace(world.nodes[lost], ready=False)
    world.settle()
    assert world.status("burner").restarts[0].cause == "NodeLost"
    assert all(pod.node != lost for pod in world.pods.values()), (
        "its pods are forced off, since it can't confirm"
    )
    world.reap()
    world.later(10)
    world.settle()
    placement = world.status("burner").placement
    assert placement is not None
    assert lost not in {member.node for member in placement.members}


def test_a_gang_that_does_not_start_in_time_gives_its_place_back():
    world = World(job("burner", scheduling={"startTimeout": "1m"}))
    world.settle()
    world.edit("burner-1-2", waiting="ErrImagePull", waiting_message="no such image")
    decision = world.round()["burner"]
    assert "can't be pulled: no such image" in decision.status.reason
    assert decision.look_again is not None
    world.now = decision.look_again
    world.settle()
    status = world.status("burner")
    assert (status.placement, status.failures, status.restarts[0].cause) == (None, 0, "StartTimeout")
    assert all(pod.deleting for pod in world.gang("burner"))
    assert "no such image" in status.reason


def test_a_place_that_somebody_else_took_is_given_back_soon():
    world = World(job("burner"))
    world.settle()
    world.edit("burner-1-0", unschedulable="0/4 nodes are available", unschedulable_since=world.now)
    decision = world.round()["burner"]
    assert decision.look_again is not None
    world.now = decision.look_again
    world.settle()
    assert "lost its place" in world.status("burner").restarts[0].message


def foreign(node: str, slots: int, **facts: Any) -> PodView:
    return PodView("other", f"tenant-{node}", node, "Pending", node, {SLOT: slots}, **facts)


LOSSES = {
    "filled": ({}, [2], "others took its kronos.dev/accelerator: 2 left of 4"),
    "filled by several": ({}, [1, 1], "others took its kronos.dev/accelerator: 2 left of 4"),
    "cordoned": ({"schedulable": False}, [], "the node is now cordoned"),
    "tainted": (
        {"taints": (Taint("repair", "", "NoSchedule"),)},
        [],
        "the node is now with the taint repair:NoSchedule",
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_place_that_went_before_its_member_was_bound_is_left_at_once_for_another(name):
    changes, slots, why = LOSSES[name]
    world = World(job("burner"), nodes=racks())
    world.settle()
    world.start("burner", 0)
    lost = node_of(world, 1)
    world.nodes[lost] = replace(world.nodes[lost], **changes)
    for at, count in enumerate(slots):
        world.pods[f"tenant-{at}"] = replace(foreign(lost, count), name=f"tenant-{at}", uid=f"tenant-{at}")
    world.settle()
    status = world.status("burner")
    (record,) = status.restarts
    assert (record.cause, record.node, status.failures) == ("PlaceLost", None, 0)
    assert record.message == f"member 1 on {lost} wasn't bound yet when its place went: {why}"
    assert all(pod.deleting for pod in world.gang("burner"))
    world.reap()
    world.later(4)
    world.settle()
    placement = world.status("burner").placement
    assert placement is not None
    assert lost not in {member.node for member in placement.members}


def test_what_a_pod_on_its_way_out_holds_is_waited_for():
    world = World(job("burner"), nodes=racks())
    world.settle()
    world.pods["tenant"] = foreign(node_of(world, 1), 4, deleting=True)
    world.settle()
    assert world.status("burner").phase == "Starting"


def test_a_member_that_is_bound_keeps_its_place_whatever_happens_to_the_node():
    world = World(job("burner"), nodes=racks())
    world.settle()
    world.start("burner")
    where = node_of(world, 1)
    world.nodes[where] = replace(world.nodes[where], schedulable=False)
    world.settle()
    assert world.status("burner").restarts == ()


def test_foreign_pods_count_against_what_is_free():
    world = World(job("burner"), nodes=racks())
    for name in ("a0", "b0"):
        world.pods[f"tenant-{name}"] = PodView("other", f"tenant-{name}", name, "Running", name, {SLOT: 1})
    world.settle()
    placement = world.status("burner").placement
    assert placement is not None
    ranks = {member.node: member.ranks for member in placement.members}
    assert all(ranks.get(name, 0) <= 3 for name in ("a0", "b0"))


def test_a_suspended_job_takes_no_place_and_goes_on_when_told():
    world = World(job("burner", scheduling={"suspend": True}))
    world.settle()
    assert (world.status("burner").phase, world.pods) == ("Suspended", {})
    resume(world)
    world.settle()
    assert world.status("burner").phase == "Starting"


def test_suspending_a_running_job_releases_its_place_and_resuming_starts_a_new_attempt():
    world = running_world()
    item = world.jobs["forge", "burner"]
    assert item.spec is not None
    document = item.spec.wire() | {"scheduling": {"suspend": True}}
    world.jobs["forge", "burner"] = replace(item, spec=TrainingJobSpec.model_validate(document))
    world.settle()
    assert world.status("burner").phase == "Suspended"
    assert all(pod.deleting for pod in world.gang("burner"))
    world.reap()
    resume(world)
    world.settle()
    assert (world.status("burner").phase, world.status("burner").attempt) == ("Starting", 2)


def resume(world: World) -> None:
    item = world.jobs["forge", "burner"]
    assert item.spec is not None
    document = item.spec.wire() | {"scheduling": {"suspend": False}}
    world.jobs["forge", "burner"] = replace(item, spec=TrainingJobSpec.model_validate(document))


def test_a_job_that_can_never_fit_says_so_and_holds_nobody_back():
    world = World(job("giant", 0, accelerators={"resource": SLOT, "min": 48, "max": 48}), job("burner", 1))
    world.settle()
    assert condition(world, "Stalled", "giant")[0] == "True"
    assert "48" in world.status("giant").reason
    assert world.status("burner").phase == "Starting"


WAITS = {
    "an unknown fabric": ({"placement": {"fabric": "moon"}}, "KronosFabric moon doesn't exist"),
    "an unknown level": ({"placement": {"required": "galaxy"}}, "has rack, node; name one of those"),
    "an unknown accelerator": (
        {"accelerators": {"resource": "example.com/tpu", "min": 1, "max": 1}},
        "example.com/tpu",
    ),
}


@pytest.mark.parametrize("name", WAITS)
def test_a_job_that_refers_to_what_does_not_exist_waits_with_the_reason(name):
    sections, sentence = WAITS[name]
    world = World(job("burner", **sections))
    world.settle()
    assert world.status("burner").phase == "Queued"
    assert sentence in world.status("burner").reason
    assert condition(world, "Stalled")[0] == "True"


def test_an_unreadable_spec_is_reported_and_nothing_is_done():
    world = World(replace(job("burner"), spec=None, invalid="the spec isn't valid: model.layers: too many"))
    world.settle()
    assert (world.status("burner").reason, world.pods) == ("the spec isn't valid: model.layers: too many", {})


def test_a_job_whose_status_cannot_be_read_is_left_as_it_is():
    world = World(replace(job("burner"), spec=None, invalid="the status isn't one", opaque=True))
    decision = world.round()["burner"]
    assert (decision.status, decision.actions) == (world.jobs["forge", "burner"].status, ())
    assert decision.status.observed_generation == 0, "nothing was written"


def test_a_gang_that_is_done_when_it_is_suspended_is_done():
    world = running_world()
    world.finish("burner", step=100)
    item = world.jobs["forge", "burner"]
    assert item.spec is not None
    document = item.spec.wire() | {"scheduling": {"suspend": True}}
    world.jobs["forge", "burner"] = replace(item, spec=TrainingJobSpec.model_validate(document))
    world.settle()
    assert world.status("burner").phase == "Complete"


def test_a_refused_creation_shows_in_the_reason():
    world = World(job("burner"))
    world.round()
    world.problems["uid-burner"] = "pods is forbidden: exceeded quota"
    world.round()
    assert world.status("burner").reason == "pods is forbidden: exceeded quota"


def test_a_node_too_small_is_left_out():
    nodes = (*racks(), node("c0", "rack-c", 4, schedulable=False))
    world = World(job("burner", accelerators={"resource": SLOT, "min": 16, "max": 16}), nodes=nodes)
    world.settle()
    placement = world.status("burner").placement
    assert placement is not None
    assert {member.node for member in placement.members} == {"a0", "a1", "b0", "b1"}


def test_a_job_being_deleted_is_left_to_the_garbage_collector():
    world = running_world()
    item = world.jobs["forge", "burner"]
    world.jobs["forge", "burner"] = replace(item, deleting=True)
    world.pods.clear()
    world.settle()
    assert world.pods == {}


def test_events_tell_each_change_once():
    world = running_world()
    for _ in range(3):
        world.round()
    world.finish("burner", step=100)
    world.settle()
    assert world.events == [("burner", "Admitted"), ("burner", "Complete")]


def test_what_a_newer_version_wrote_into_a_status_is_written_back():
    world = World(job("burner"))
    item = world.jobs["forge", "burner"]
    world.jobs["forge", "burner"] = replace(
        item, status=TrainingJobStatus.model_validate({"weather": {"wind": 3}})
    )
    world.settle()
    assert world.status("burner").phase == "Starting"
    assert world.status("burner").wire()["weather"] == {"wind": 3}
