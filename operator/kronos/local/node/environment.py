"""Environment, command and downward API of a container, from the pod and the objects it refers to."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kronos.api.quantity import exact

Object = Mapping[str, Any]
REFERENCE = re.compile(r"\$(?:(\$)|\(([^)]*)\))")
SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")


class ConfigError(Exception):
    """A container cannot be configured yet; the message is shown in the pod's status."""


@dataclass
class Sources:
    """ConfigMaps and Secrets by kind and name, as far as they exist, and what only the node knows."""

    data: dict[tuple[str, str], dict[str, bytes]] = field(default_factory=dict)
    node_ip: str = ""
    pod_ip: str = ""
    allocatable: Mapping[str, str] = field(default_factory=dict)

    def object(self, kind: str, name: str, optional: bool) -> dict[str, bytes]:
        """The entries of a ConfigMap or Secret."""
        found = self.data.get((kind, name))
        if found is None:
            if optional:
                return {}
            raise ConfigError(f'{kind.lower()} "{name}" not found')
        return found


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace ``$(NAME)``; ``$$`` stands for a dollar sign and unknown names stay as they are."""

    def replacement(match: re.Match[str]) -> str:
        if match[1]:
            return "$"
        return variables.get(match[2], match[0])

    return REFERENCE.sub(replacement, text)


def entries(kind: str, content: Object) -> dict[str, bytes]:
    """The entries of a ConfigMap or Secret object as bytes."""
    data = content.get("data") or {}
    if kind == "Secret":
        return {key: base64.b64decode(value or "") for key, value in data.items()}
    binary = {key: base64.b64decode(value) for key, value in (content.get("binaryData") or {}).items()}
    return {key: value.encode() for key, value in data.items()} | binary


def references(container: Object) -> set[tuple[str, str]]:
    """The ConfigMaps and Secrets that a container's environment needs."""
    found = set()
    for source in container.get("envFrom") or ():
        for key, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
            if source.get(key):
                found.add((kind, source[key]["name"]))
    for variable in container.get("env") or ():
        origin = variable.get("valueFrom") or {}
        for key, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
            if origin.get(key):
                found.add((kind, origin[key]["name"]))
    return found


def build(pod: Object, container: Object, base: Mapping[str, str], sources: Sources) -> dict[str, str]:
    """The environment of a container, on top of a base that its own variables may refer to."""
    result = dict(base)
    for source in container.get("envFrom") or ():
        for key, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
            if reference := source.get(key):
                found = sources.object(kind, reference["name"], bool(reference.get("optional")))
                prefix = source.get("prefix") or ""
                result |= {prefix + name: value.decode(errors="replace") for name, value in found.items()}
    for variable in container.get("env") or ():
        if origin := variable.get("valueFrom"):
            value = _value_from(pod, container, origin, sources)
        else:
            value = expand(variable.get("value") or "", result)
        if value is not None:
            result[variable["name"]] = value
    return result


def _value_from(pod: Object, container: Object, origin: Object, sources: Sources) -> str | None:
    if reference := origin.get("fieldRef"):
        return field_value(pod, reference["fieldPath"], sources)
    if reference := origin.get("resourceFieldRef"):
        return resource_value(pod, container, reference, sources)
    for key, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
        if reference := origin.get(key):
            optional = bool(reference.get("optional"))
            found = sources.object(kind, reference["name"], optional).get(reference["key"])
            if found is None and not optional:
                raise ConfigError(f"couldn't find key {reference['key']} in {kind} {reference['name']}")
            return None if found is None else found.decode(errors="replace")
    raise ConfigError(f"local nodes do not know the environment source {next(iter(origin), 'nothing')}")


def field_value(pod: Object, path: str, sources: Sources) -> str:
    """The value of a downward API field."""
    metadata, spec = pod["metadata"], pod["spec"]
    simple = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        "status.hostIP": sources.node_ip,
        "status.hostIPs": sources.node_ip,
        "status.podIP": sources.pod_ip,
        "status.podIPs": sources.pod_ip,
    }
    if path in simple:
        return str(simple[path])
    if match := SUBSCRIPT.fullmatch(path):
        return str((metadata.get(match[1]) or {}).get(match[2], ""))
    if path in ("metadata.labels", "metadata.annotations"):
        values = metadata.get(path.partition(".")[2]) or {}
        return "\n".join(f"{key}={json.dumps(value)}" for key, value in sorted(values.items()))
    raise ConfigError(f"local nodes do not know the field {path}")


def resource_value(pod: Object, container: Object, reference: Object, sources: Sources) -> str:
    """The value of a container's resource; a limit that is not set is what the node has."""
    if name := reference.get("containerName"):
        container = next(item for item in pod["spec"]["containers"] if item["name"] == name)
    kind, _, resource = reference["resource"].partition(".")
    resources = container.get("resources") or {}
    fallback = sources.allocatable.get(resource, "0") if kind == "limits" else "0"
    value = str((resources.get(kind) or {}).get(resource, fallback))
    # A divisor of zero means none, as for a kubelet.
    return str(math.ceil(exact(value) / (exact(str(reference.get("divisor") or "1")) or 1)))


def command_line(container: Object, variables: Mapping[str, str]) -> list[str]:
    """The program and its arguments; there is no image that could supply a default."""
    words: Sequence[str] = [*(container.get("command") or ()), *(container.get("args") or ())]
    if not container.get("command"):
        raise ConfigError(
            f"container {container['name']} has no command, and local nodes ignore images; set its command"
        )
    return [expand(word, variables) for word in words]
