"""Nodes as placement sees them, and which of them a gang may use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kronos.api.job import NodeExpression, NodeTerm, Toleration

PODS = "pods"
"""The resource of which every pod takes one."""

_KEEPS_PODS_AWAY = ("NoSchedule", "NoExecute")
_DIGITS = re.compile(r"([0-9]+)")


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint on a node, as in Kubernetes."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class Node:
    """A Kubernetes node.

    Amounts in `allocatable` are whole numbers in base units: cpu in millicores, memory in bytes, `pods` and extended
    resources in units.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, int] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    ready: bool = True
    schedulable: bool = True


def tolerates(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    """Whether one of the tolerations covers the taint, by the rules of Kubernetes."""
    return any(
        (toleration.effect is None or toleration.effect == taint.effect)
        and (not toleration.key or toleration.key == taint.key)
        and (toleration.operator == "Exists" or (toleration.value or "") == taint.value)
        for toleration in tolerations
    )


def matches(node: Node, term: NodeTerm) -> bool:
    """Whether all conditions of a term hold for the node's labels, by the rules of Kubernetes."""
    return all(_holds(node.labels.get(item.key), item) for item in term.match_expressions)


def _holds(value: str | None, condition: NodeExpression) -> bool:
    match condition.operator:
        case "In":
            return value in condition.values
        case "NotIn":
            return value not in condition.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            if value is None or not value.removeprefix("-").isdecimal():
                return False
            number, bound = int(value), int(condition.values[0])
            return number > bound if condition.operator == "Gt" else number < bound


def why_unusable(
    node: Node,
    selector: Mapping[str, str],
    tolerations: Iterable[Toleration],
    affinity: Sequence[NodeTerm] = (),
) -> str | None:
    """Why pods with this selector, these tolerations and this affinity can't go to the node, or None when they can.

    The answer describes the node, such as "not ready". Taints that merely ask to be avoided
    (PreferNoSchedule) don't count.
    """
    if not node.ready:
        return "not ready"
    if not node.schedulable:
        return "cordoned"
    for key, value in sorted(selector.items()):
        if node.labels.get(key) != value:
            return f"without the label {key}={value}"
    if affinity and not any(matches(node, term) for term in affinity):
        return "outside the node affinity"
    for taint in node.taints:
        if taint.effect in _KEEPS_PODS_AWAY and not tolerates(tolerations, taint):
            return f"with the taint {taint.key}{'=' if taint.value else ''}{taint.value}:{taint.effect}"
    return None


NaturalKey = tuple[tuple[str | int, ...], str]


def natural_key(text: str) -> NaturalKey:
    """Sort key by which numbers inside names compare as numbers: node-9 comes before node-10."""
    # Splitting by a captured group alternates text and digits, so equal positions always hold equal types.
    parts = _DIGITS.split(text)
    return tuple(int(part) if index % 2 else part for index, part in enumerate(parts)), text
