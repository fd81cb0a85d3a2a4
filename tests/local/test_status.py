"""Pod status, as a kubelet would report it."""

from __future__ import annotations

import pytest

from kronos.local.node.status import ContainerRecord, conditions, phase

NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:00:09Z"


def record(state: str | int, *, crashed: bool = False) -> ContainerRecord:
    """A container that waits, runs, or has ended with an exit code."""
    made = ContainerRecord("c", "image")
    if state == "running":
        made.started(NOW, "id")
        made.ready = True
    elif isinstance(state, int):
        made.started(NOW, "id")
        made.terminated(state, 0, "Completed" if state == 0 else "Error", "", NOW, LATER)
    if crashed:
        made.last_state = {"terminated": {"exitCode": 1}}
    return made


@pytest.mark.parametrize(
    ("policy", "init", "main", "expected"),
    [
        ("Never", [], ["waiting"], "Pending"),
        ("Never", [], ["running"], "Running"),
        ("Never", [], ["running", "waiting"], "Pending"),
        ("Never", [], ["running", 0], "Running"),
        ("Never", [], ["running", 1], "Running"),
        ("Never", [], [0, 0], "Succeeded"),
        ("Never", [], [0, 1], "Failed"),
        ("OnFailure", [], [0, 0], "Succeeded"),
        ("OnFailure", [], [0, 1], "Running"),
        ("Always", [], [0], "Running"),
        ("Never", ["running"], ["waiting"], "Pending"),
        ("Never", [0, "waiting"], ["waiting"], "Pending"),
        ("Never", [0], ["running"], "Running"),
        ("Never", [1], ["waiting"], "Failed"),
        ("OnFailure", [1], ["waiting"], "Pending"),
        ("Always", [1], ["waiting"], "Pending"),
        ("Always", [0], ["running"], "Running"),
    ],
)
def test_the_phase_follows_from_the_containers(policy: str, init: list, main: list, expected: str) -> None:
    assert phase(policy, [*map(record, init)], [*map(record, main)], stopped=False) == expected


@pytest.mark.parametrize(
    ("main", "expected"), [([0], "Succeeded"), ([143], "Failed"), (["waiting"], "Failed")]
)
def test_a_stopped_pod_has_an_end(main: list, expected: str) -> None:
    assert phase("Always", [], [*map(record, main)], stopped=True) == expected


def test_a_container_that_waits_to_run_again_keeps_the_pod_running() -> None:
    waiting = record(1)
    waiting.waiting("CrashLoopBackOff", "back-off")
    assert phase("OnFailure", [], [waiting], stopped=False) == "Running"
    assert waiting.as_status()["lastState"]["terminated"]["exitCode"] == 1


def test_conditions_keep_their_time_while_they_do_not_change() -> None:
    first = conditions("Running", [], [record("running")], True, [], NOW)
    second = conditions("Succeeded", [], [record(0)], True, first, LATER)
    times = {item["type"]: (item["status"], item["lastTransitionTime"]) for item in second}
    assert times["Initialized"] == ("True", NOW)
    assert times["Ready"] == ("False", LATER)
    assert {item["reason"] for item in second if item["type"] == "Ready"} == {"PodCompleted"}


def test_an_unready_container_is_named() -> None:
    shown = conditions("Running", [], [record("waiting")], True, [], NOW)
    ready = next(item for item in shown if item["type"] == "Ready")
    assert ready["message"] == "containers with unready status: [c]"


def test_a_container_lost_with_its_node_counts_as_killed() -> None:
    known = record("running").as_status()
    restored = ContainerRecord.restored({"name": "c"}, known, LATER)
    assert restored.exit_code == 137
    assert restored.state["terminated"]["reason"] == "ContainerStatusUnknown"
    ended = ContainerRecord.restored({"name": "c"}, record(3).as_status(), LATER)
    assert ended.exit_code == 3


def test_long_messages_are_cut() -> None:
    made = record("running")
    made.terminated(1, 9, "Error", "x" * 9000, NOW, LATER)
    assert len(made.state["terminated"]["message"]) == 4096
    assert made.state["terminated"]["signal"] == 9
