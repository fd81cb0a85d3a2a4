"""What the API server says, as decisions see it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kronos.api.plan import LastWords
from kronos.controller.views import job_view, node_view, pod_view
from support.worlds import World, job


def container(**requests: str) -> dict[str, Any]:
    return {"resources": {"requests": requests}}


def raw_pod(status: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": "forge",
            "name": "burner-1-0",
            "uid": "pod",
            "labels": {"training.kronos.dev/attempt": "1", "training.kronos.dev/member": "0"},
            "ownerReferences": [{"kind": "KronosTrainingJob", "uid": "job", "controller": True}],
            **metadata,
        },
        "spec": {"nodeName": "a0", "containers": [container(cpu="1")]},
        "status": status,
    }


def test_the_trainers_last_words_are_read_from_the_termination_message():
    words = LastWords(outcome="Failed", rank=3, step=7, error="boom")
    ended = {
        "exitCode": 1,
        "reason": "Error",
        "finishedAt": "2026-03-01T12:00:00Z",
        "message": json.dumps(words.wire()),
    }
    view = pod_view(raw_pod({"phase": "Failed", "containerStatuses": [{"state": {"terminated": ended}}]}))
    assert (view.last_words, view.exit_code, view.member, view.owner_uid) == (words, 1, 0, "job")


@pytest.mark.parametrize("message", ["Traceback ...", "[]", "{}", '{"outcome": "Unheard"}', ""])
def test_any_other_termination_message_is_kept_as_text(message):
    ended = {"exitCode": 1, "reason": "Error", "message": message}
    view = pod_view(raw_pod({"phase": "Failed", "containerStatuses": [{"state": {"terminated": ended}}]}))
    assert (view.last_words, view.raw_message) == (None, message)


def test_a_container_that_cannot_start_says_why():
    waiting = {"reason": "ErrImagePull", "message": "no such image"}
    view = pod_view(raw_pod({"phase": "Pending", "containerStatuses": [{"state": {"waiting": waiting}}]}))
    assert (view.waiting, view.waiting_message) == ("ErrImagePull", "no such image")


def test_a_container_that_is_being_created_is_no_news():
    waiting = {"reason": "ContainerCreating"}
    view = pod_view(raw_pod({"phase": "Pending", "containerStatuses": [{"state": {"waiting": waiting}}]}))
    assert view.waiting == ""


def test_an_unschedulable_pod_says_why_and_since_when():
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "message": "0/4 nodes are available",
        "lastTransitionTime": "2026-03-01T12:00:00Z",
    }
    view = pod_view(raw_pod({"phase": "Pending", "conditions": [condition]}))
    assert view.unschedulable == "0/4 nodes are available"
    assert view.unschedulable_since is not None


def test_a_node_offers_what_is_allocatable_and_is_ready_only_when_it_says_so():
    raw = {
        "metadata": {"name": "a0", "labels": {"rack": "a"}},
        "spec": {"unschedulable": True, "taints": [{"key": "gpu", "effect": "NoSchedule"}]},
        "status": {
            "allocatable": {"cpu": "3920m", "kronos.dev/accelerator": "4"},
            "conditions": [{"type": "Ready", "status": "Unknown"}],
        },
    }
    node = node_view(raw)
    assert dict(node.allocatable) == {"cpu": 3920, "kronos.dev/accelerator": 4}
    assert (node.ready, node.schedulable) == (False, False)


def raw_job(**parts: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": "forge",
            "name": "burner",
            "uid": "job",
            "generation": 2,
            "creationTimestamp": "2026-03-01T12:00:00Z",
        },
        "spec": {
            "model": {"layers": 2, "hiddenSize": 8, "attentionHeads": 2, "sequenceLength": 4},
            "data": {"path": "/data"},
            "optimization": {"globalBatchSize": 4, "steps": 2},
            "accelerators": {"max": 1},
        },
        **parts,
    }


def test_a_spec_that_cannot_be_read_is_named_and_never_raises():
    view = job_view(raw_job(spec={"model": {"layers": "many"}}))
    assert view.spec is None
    assert "the spec isn't valid: model.layers" in view.invalid


def test_a_status_that_cannot_be_read_makes_the_job_opaque():
    view = job_view(raw_job(status={"phase": "Done"}))
    assert (view.spec, view.opaque) == (None, True)
    assert "the status isn't one that this operator can read: phase" in view.invalid


def test_fields_that_a_newer_operator_added_to_the_status_are_ignored():
    view = job_view(raw_job(status={"phase": "Running", "attempt": 2, "mood": "sunny"}))
    assert (view.status.phase, view.status.attempt) == ("Running", 2)


HOSTILE = {
    "brackets without end": "[" * 4090,
    "half a character": '{"outcome":"Failed","error":"\\ud800"}',
    "an endless step": '{"outcome":"Failed","error":"x","progress":{"step":1,"stepSeconds":1e400}}',
    "a loss that is no number": '{"outcome":"Failed","error":"x","progress":{"step":1,"loss":NaN}}',
    "a step beyond all numbers": '{"outcome":"Failed","error":"x","progress":{"step":' + "9" * 400 + "}}",
    "lines and colours": '{"outcome":"Failed","error":"one\\ntwo\\u001b[31m\\u0000x"}',
    "bytes": "".join(map(chr, range(256))) * 16,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_that_a_pod_says_can_stop_the_others(name):
    world = World(job("hostile", accelerators={"min": 2, "max": 2}))
    world.settle()
    world.start("hostile")
    ended = {"exitCode": 3, "reason": "Error", "message": HOSTILE[name]}
    view = pod_view(raw_pod({"phase": "Failed", "containerStatuses": [{"state": {"terminated": ended}}]}))
    (pod,) = world.gang("hostile")
    world.edit(
        pod.name,
        phase="Failed",
        exit_code=3,
        exit_reason="Error",
        finished=world.now,
        last_words=view.last_words,
        raw_message=view.raw_message,
    )
    world.settle()
    status = world.status("hostile")
    assert status.phase in ("Restarting", "Failed", "Queued", "Starting")
    written = json.dumps(status.wire(), allow_nan=False)
    written.encode("utf-8")
    said = status.reason + "".join(record.message for record in status.restarts)
    assert said.isprintable()
    assert len(said) < 5000
