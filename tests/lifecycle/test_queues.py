"""Queues and priorities in the life of jobs: who may use them, who is stopped for whom, what their status says."""

from __future__ import annotations

from typing import Any

import pytest

from kronos.api.queue import QueueSpec, QueueStatus
from kronos.lifecycle import PriorityClass, QueueView, queue_statuses
from kronos.lifecycle.holding import running_jobs
from support.worlds import SLOT, World, job

EIGHT = {"accelerators": {"min": 8, "max": 8}}
URGENT = PriorityClass("urgent", 1000)


def queue(name: str, nominal: int = 8, **fields: Any) -> QueueView:
    document = {"quotas": [{"resource": SLOT, "nominal": nominal}], **fields}
    return QueueView(name, 1, QueueSpec.model_validate(document), QueueStatus())


def world(*jobs: Any, queues: tuple[QueueView, ...] = ()) -> World:
    made = World(*jobs)
    made.queues = {item.name: item for item in queues}
    made.priorities = {"urgent": URGENT}
    return made


@pytest.mark.parametrize(
    ("scheduling", "queues", "reason", "sentence"),
    [
        pytest.param(
            {"queue": "lab"},
            (),
            "NoQueue",
            "the KronosQueue lab doesn't exist (there is none yet); apply one, or name another in scheduling.queue",
            id="no such queue",
        ),
        pytest.param(
            {"queue": "lab"},
            (queue("lab", namespaces=["mars"]),),
            "QueueNotAllowed",
            "the queue lab isn't for the namespace forge (it is for mars); name another in scheduling.queue",
            id="not for this namespace",
        ),
        pytest.param(
            {"priorityClassName": "swift"},
            (),
            "NoPriorityClass",
            "the PriorityClass swift doesn't exist (urgent); create it, or name another in scheduling.priorityClassName",
            id="no such priority",
        ),
        pytest.param(
            {"queue": "lab"},
            (queue("lab", 4),),
            "ExceedsQuota",
            f"needs 8 {SLOT}, and the queue lab may never use more than 4",
            id="more than the quota",
        ),
    ],
)
def test_a_job_that_its_queue_cant_take_says_what_to_change(scheduling, queues, reason, sentence):
    made = world(job("a", scheduling=scheduling, **EIGHT), queues=queues)
    made.settle()
    status = made.status("a")
    assert (status.phase, status.reason) == ("Queued", sentence)
    stalled = next(item for item in status.conditions if item.type == "Stalled")
    assert (stalled.status, stalled.reason) == ("True", reason)
    assert made.pods == {}


def test_without_a_queue_of_that_name_the_default_queue_has_no_limits():
    made = world(job("a", **EIGHT))
    made.settle()
    assert made.status("a").phase == "Starting"


def test_a_job_waits_for_quota_and_starts_when_the_queue_has_some():
    scheduling = {"queue": "lab"}
    made = world(
        job("a", scheduling=scheduling, **EIGHT),
        job("b", 1, scheduling=scheduling, **EIGHT),
        queues=(queue("lab"),),
    )
    made.settle()
    assert made.status("a").phase == "Starting"
    assert made.status("b").reason == (
        f"needs 8 {SLOT}; the queue lab would be 8 over its quota, since it uses 8 of 8"
    )
    made.start("a")
    made.round()
    made.finish("a", step=100)
    made.settle()
    assert (made.status("a").phase, made.status("b").phase) == ("Complete", "Starting")


def test_an_urgent_job_stops_another_which_goes_on_later():
    made = world(job("slow"), job("fast", 60, scheduling={"priorityClassName": "urgent"}))
    fast = made.jobs.pop(("forge", "fast"))
    made.settle()
    made.start("slow")
    made.settle()
    made.jobs[fast.key] = fast
    made.round()
    status = made.status("slow")
    assert (status.phase, status.placement) == ("Restarting", None)
    assert status.reason == "stopped for forge/fast, whose priority is higher; goes on when there is room"
    assert status.restarts[-1].cause == "Preempted"
    assert status.failures == 0
    assert made.status("fast").reason == "waits for forge/slow to stop, of lower priority"
    made.settle()
    assert all(pod.deleting for pod in made.gang("slow"))
    assert made.gang("fast") == []
    made.reap()
    made.settle()
    assert made.status("fast").phase == "Starting"
    assert made.gang("fast")[0].requests
    assert made.status("slow").phase == "Restarting"
    made.start("fast")
    made.settle()
    made.finish("fast", step=100)
    made.settle()
    assert made.status("slow").phase == "Starting"
    assert made.status("slow").attempt == 2


def test_pods_are_of_the_jobs_priority_class():
    made = world(job("fast", scheduling={"priorityClassName": "urgent"}))
    made.settle()
    pods = [item for item in made.manifests if item["kind"] == "Pod"]
    assert {pod["spec"]["priorityClassName"] for pod in pods} == {"urgent"}


def test_a_queues_status_says_what_its_jobs_hold():
    scheduling = {"queue": "lab"}
    made = world(
        job("a", scheduling=scheduling, **EIGHT),
        job("b", 1, scheduling=scheduling, **EIGHT),
        job("c", 2, scheduling={"queue": "lab", "suspend": True}, **EIGHT),
        queues=(queue("lab", 6, cohort="campus"), queue("plant", 4, cohort="campus")),
    )
    made.settle()
    statuses = queue_statuses(made.snapshot())
    assert statuses["lab"].model_dump() == {
        "observed_generation": 1,
        "running": 1,
        "waiting": 1,
        "use": ({"resource": SLOT, "used": 8, "borrowed": 2},),
    }
    made.queues = {name: QueueView(name, 1, view.spec, statuses[name]) for name, view in made.queues.items()}
    assert queue_statuses(made.snapshot()) == {}


def test_what_jobs_hold_is_what_they_could_leave():
    made = world(job("a"))
    made.settle()
    made.start("a")
    made.settle()
    (running,) = running_jobs(made.snapshot())
    assert sum(amounts[SLOT] for amounts in running.holds.values()) == running.accelerators == 12
    assert not running.stopping
    made.edit(made.gang("a")[0].name, phase="Succeeded")
    (running,) = running_jobs(made.snapshot())
    assert sum(amounts[SLOT] for amounts in running.holds.values()) < 12


def test_the_end_of_a_job_is_predicted_from_its_pace_and_its_loss_from_its_last_checkpoint():
    made = world(job("a"))
    made.settle()
    made.start("a")
    made.settle()
    made.report("a", step=40, step_seconds=3.0, checkpoint_step=30)
    made.settle()
    (running,) = running_jobs(made.snapshot())
    assert running.ends == made.now.timestamp() + 60 * 3.0
    assert running.unsaved == 10 * 3.0
    assert running.lost_work == 10 * 3.0 * 12


def test_a_node_that_was_just_lost_is_left_alone_while_others_are_free():
    made = world(job("a", **EIGHT), job("b", 1, accelerators={"min": 4, "max": 4}))
    other = made.jobs.pop(("forge", "b"))
    made.settle()
    made.start("a")
    made.settle()
    lost = made.gang("a")[0].node
    made.lose(lost)
    made.settle()
    assert made.status("a").restarts[-1].cause == "NodeLost"
    made.find(lost)
    made.reap()
    made.later(10)
    made.jobs[other.key] = other
    made.settle()
    used = {member.node for name in ("a", "b") for member in made.status(name).placement.members}
    assert lost not in used
