"""Environment and command of containers, worked out as a kubelet does."""

from __future__ import annotations

import base64

import pytest

from kronos.local.node.environment import (
    ConfigError,
    Sources,
    build,
    command_line,
    entries,
    expand,
    field_value,
    references,
)

POD = {
    "metadata": {
        "name": "p",
        "namespace": "n",
        "uid": "u",
        "labels": {"app": "x", "a": 'q"'},
        "annotations": {"example.com/k": "v"},
    },
    "spec": {"nodeName": "node", "serviceAccountName": "sa", "containers": []},
}
SOURCES = Sources(
    {("ConfigMap", "c"): {"A": b"1", "B": b"2"}, ("Secret", "s"): {"word": b"hush"}},
    node_ip="127.0.0.1",
    pod_ip="127.9.0.1",
    allocatable={"cpu": "8", "memory": "16Gi"},
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("$(A)", "1"),
        ("x$(A)y$(B)", "x1y2"),
        ("$(UNKNOWN)", "$(UNKNOWN)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A ${A} $", "$A ${A} $"),
        ("$(A", "$(A"),
        ("$(A)$(A)", "11"),
    ],
)
def test_references_to_variables_are_expanded(text: str, expected: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("metadata.name", "p"),
        ("metadata.namespace", "n"),
        ("metadata.uid", "u"),
        ("metadata.labels['app']", "x"),
        ("metadata.labels['none']", ""),
        ("metadata.annotations['example.com/k']", "v"),
        ("metadata.labels", 'a="q\\""\napp="x"'),
        ("spec.nodeName", "node"),
        ("spec.serviceAccountName", "sa"),
        ("status.podIP", "127.9.0.1"),
        ("status.hostIP", "127.0.0.1"),
    ],
)
def test_fields_of_the_pod_are_looked_up(path: str, expected: str) -> None:
    assert field_value(POD, path, SOURCES) == expected


def test_an_unknown_field_is_named() -> None:
    with pytest.raises(ConfigError, match=r"do not know the field status\.moonPhase"):
        field_value(POD, "status.moonPhase", SOURCES)


def test_later_variables_build_on_earlier_ones_and_on_the_base() -> None:
    container = {
        "envFrom": [{"configMapRef": {"name": "c"}, "prefix": "P_"}],
        "env": [{"name": "X", "value": "$(P_A)$(HOME)"}, {"name": "Y", "value": "$(X)!"}, {"name": "Z"}],
    }
    env = build(POD, container, {"HOME": "/h"}, SOURCES)
    assert env == {"HOME": "/h", "P_A": "1", "P_B": "2", "X": "1/h", "Y": "1/h!", "Z": ""}


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ({"configMapKeyRef": {"name": "missing", "key": "A"}}, 'configmap "missing" not found'),
        ({"configMapKeyRef": {"name": "c", "key": "nope"}}, "couldn't find key nope in ConfigMap c"),
        ({"secretKeyRef": {"name": "missing", "key": "A"}}, 'secret "missing" not found'),
    ],
)
def test_what_is_missing_is_named_unless_it_is_optional(reference: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(POD, {"env": [{"name": "X", "valueFrom": reference}]}, {}, SOURCES)
    optional = {key: {**value, "optional": True} for key, value in reference.items()}
    assert build(POD, {"env": [{"name": "X", "valueFrom": optional}]}, {}, SOURCES) == {}


@pytest.mark.parametrize(
    ("resource", "divisor", "expected"),
    [
        ("limits.cpu", None, "2"),
        ("limits.cpu", "1m", "1500"),
        ("requests.memory", "1Mi", "1024"),
        ("limits.memory", "1Gi", "16"),
        ("requests.cpu", None, "0"),
    ],
)
def test_resources_are_divided_and_rounded_up(resource: str, divisor: str | None, expected: str) -> None:
    reference = {"resource": resource} | ({"divisor": divisor} if divisor else {})
    container = {
        "name": "c",
        "resources": {"limits": {"cpu": "1500m"}, "requests": {"memory": "1Gi"}},
        "env": [{"name": "X", "valueFrom": {"resourceFieldRef": reference}}],
    }
    assert build(POD, container, {}, SOURCES) == {"X": expected}


def test_command_and_arguments_are_one_expanded_line() -> None:
    container = {"name": "c", "command": ["run", "$(A)"], "args": ["--x=$(B)"]}
    assert command_line(container, {"A": "1", "B": "2"}) == ["run", "1", "--x=2"]


def test_a_container_without_a_command_is_told_to_have_one() -> None:
    with pytest.raises(ConfigError, match="local nodes ignore images; set its command"):
        command_line({"name": "c", "args": ["x"]}, {})


def test_references_name_every_object_that_the_environment_needs() -> None:
    container = {
        "envFrom": [{"configMapRef": {"name": "a"}}, {"secretRef": {"name": "b"}}],
        "env": [
            {"name": "X", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
            {"name": "Y", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
    }
    assert references(container) == {("ConfigMap", "a"), ("Secret", "b"), ("ConfigMap", "c")}


def test_entries_are_decoded_to_bytes() -> None:
    encoded = base64.b64encode(b"\xff").decode()
    assert entries("Secret", {"data": {"k": encoded}}) == {"k": b"\xff"}
    assert entries("ConfigMap", {"data": {"t": "ü"}, "binaryData": {"b": encoded}}) == {
        "t": "ü".encode(),
        "b": b"\xff",
    }
