"""Kubernetes quantities as exact numbers, and what a pod asks for in them."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

_SUFFIXES = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}


def exact(text: str) -> Decimal:
    """The number that a quantity stands for; ValueError when the text isn't a quantity."""
    number, factor = text, Decimal(1)
    for length in (2, 1):
        suffix = text[-length:]
        if suffix in _SUFFIXES and len(text) > length:
            number, factor = text[:-length], _SUFFIXES[suffix]
            break
    try:
        return Decimal(number) * factor
    except InvalidOperation:
        raise ValueError(f"{text!r} is not a Kubernetes quantity such as 4, 500m or 16Gi") from None


def parse_quantity(text: str, resource: str, *, round_up: bool = True) -> int:
    """The amount in base units: millicores for `cpu`, bytes or pieces for the rest.

    Requests round up and what a node offers rounds down (`round_up=False`), so that fractions never promise too
    much. Raises ValueError on text that isn't a quantity.
    """
    amount = exact(text) * (1000 if resource == "cpu" else 1)
    whole = int(amount)
    return whole + 1 if round_up and amount > whole else whole


def pod_requests(spec: Mapping[str, Any]) -> dict[str, int]:
    """What a pod takes of its node, in base units, as the scheduler counts it.

    The containers' sum, or an init container's where that is more; sidecars (init containers that always restart)
    add to both; the pod's overhead on top.
    https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers
    """
    total: dict[str, int] = {}
    for container in spec.get("containers") or ():
        _add(total, _requests(container))
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in spec.get("initContainers") or ():
        wanted = _requests(container)
        if container.get("restartPolicy") == "Always":
            _add(sidecars, wanted)
            wanted = {}
        for name in {*wanted, *sidecars}:
            peak[name] = max(peak.get(name, 0), wanted.get(name, 0) + sidecars.get(name, 0))
    _add(total, sidecars)
    for name, amount in peak.items():
        total[name] = max(total.get(name, 0), amount)
    _add(total, {name: parse_quantity(text, name) for name, text in (spec.get("overhead") or {}).items()})
    return total


def _requests(container: Mapping[str, Any]) -> dict[str, int]:
    resources = container.get("resources") or {}
    wanted = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: parse_quantity(str(text), name) for name, text in wanted.items()}


def _add(total: dict[str, int], amounts: Mapping[str, int]) -> None:
    for name, amount in amounts.items():
        total[name] = total.get(name, 0) + amount
