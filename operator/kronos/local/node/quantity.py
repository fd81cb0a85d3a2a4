"""Kubernetes quantities such as ``500m`` and ``16Gi``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

BINARY = {
    suffix: Decimal(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)
}
DECIMAL = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
}


def parse(text: str | int | float) -> Decimal:
    """The number that a quantity stands for."""
    text = str(text)
    for suffix, factor in (*BINARY.items(), *DECIMAL.items()):
        if text.endswith(suffix):
            return Decimal(text.removesuffix(suffix)) * factor
    return Decimal(text)


def divide(value: str, divisor: str | None) -> str:
    """A quantity in units of a divisor, rounded up, as the downward API shows it."""
    unit = parse(divisor or "1")
    return str(math.ceil(parse(value) / (unit or 1)))


def requests(pod: Mapping[str, Any]) -> dict[str, Decimal]:
    """What a pod asks of a node: the sum of its containers or its largest init container."""
    spec = pod["spec"]
    total = {"pods": Decimal(1)}
    for container in spec["containers"]:
        for name, amount in _requested(container):
            total[name] = total.get(name, Decimal(0)) + amount
    for container in spec.get("initContainers") or ():
        for name, amount in _requested(container):
            total[name] = max(total.get(name, Decimal(0)), amount)
    for name, text in (spec.get("overhead") or {}).items():
        total[name] = total.get(name, Decimal(0)) + parse(text)
    return total


def _requested(container: Mapping[str, Any]) -> Iterable[tuple[str, Decimal]]:
    resources = container.get("resources") or {}
    merged = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return [(name, parse(text)) for name, text in merged.items()]
