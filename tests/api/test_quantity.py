"""Quantities, and what a pod asks for."""

from __future__ import annotations

from typing import Any

import pytest

from kronos.api.quantity import parse_quantity, pod_requests

QUANTITIES = {
    "cores": ("4", "cpu", True, 4000),
    "millicores": ("250m", "cpu", True, 250),
    "a sliver of a core rounds up as a request": ("1n", "cpu", True, 1),
    "a sliver of a core rounds down as an offer": ("1n", "cpu", False, 0),
    "binary bytes": ("16Gi", "memory", True, 16 * 2**30),
    "decimal bytes": ("1.5G", "memory", True, 1_500_000_000),
    "milli-bytes, which are legal": ("1500m", "memory", True, 2),
    "exponents, which are legal": ("1e3", "memory", True, 1000),
    "pieces": ("8", "nvidia.com/gpu", True, 8),
}


@pytest.mark.parametrize("name", QUANTITIES)
def test_quantities_are_exact_in_base_units(name):
    text, resource, round_up, amount = QUANTITIES[name]
    assert parse_quantity(text, resource, round_up=round_up) == amount


def test_a_text_that_is_no_quantity_is_refused_with_an_example():
    with pytest.raises(ValueError, match="such as 4, 500m or 16Gi"):
        parse_quantity("plenty", "memory")


def container(**requests: str) -> dict[str, Any]:
    return {"resources": {"requests": requests}}


REQUESTS = {
    "containers add up": (
        {"containers": [container(cpu="1", memory="1Gi"), container(cpu="500m")]},
        {"cpu": 1500, "memory": 2**30},
    ),
    "limits stand in for requests that are missing": (
        {
            "containers": [
                {"resources": {"limits": {"nvidia.com/gpu": "4", "cpu": "2"}, "requests": {"cpu": "1"}}}
            ]
        },
        {"nvidia.com/gpu": 4, "cpu": 1000},
    ),
    "an init container counts where it needs more": (
        {"containers": [container(cpu="1")], "initContainers": [container(cpu="3"), container(memory="1k")]},
        {"cpu": 3000, "memory": 1000},
    ),
    "a sidecar adds to the containers and to later init containers": (
        {
            "containers": [container(cpu="1")],
            "initContainers": [container(cpu="1") | {"restartPolicy": "Always"}, container(cpu="3")],
        },
        {"cpu": 4000},
    ),
    "overhead comes on top": (
        {"containers": [container(cpu="1")], "overhead": {"cpu": "100m"}},
        {"cpu": 1100},
    ),
    "nothing asked is nothing": ({"containers": [{}]}, {}),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_pods_requests_are_counted_as_the_scheduler_counts_them(name):
    spec, amounts = REQUESTS[name]
    assert pod_requests(spec) == amounts
