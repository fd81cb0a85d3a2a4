"""Accelerators and links that fabrics name, and what fabrics say themselves."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from kronos.api.catalog import ACCELERATORS, LINKS
from kronos.api.fabric import Accelerator, Level, Link


@pytest.mark.parametrize("name", ACCELERATORS)
def test_an_accelerator_of_the_catalog_needs_its_name_alone(name):
    known = ACCELERATORS[name]
    accelerator = Accelerator(resource="example.com/gpu", model=name)
    assert accelerator.memory == known.memory_gib
    assert accelerator.flops_per_second("fp32") == known.fp32_tflops * 1e12
    assert accelerator.flops_per_second("bf16") == known.bf16_tflops * 1e12
    assert accelerator.memory_bytes_per_second == known.memory_gigabytes_per_second * 1e9
    assert accelerator.matmul_share == known.matmul_efficiency


@pytest.mark.parametrize("name", ACCELERATORS)
def test_figures_of_an_accelerator_have_a_source_and_the_right_order_of_magnitude(name):
    known = ACCELERATORS[name]
    assert len(known.source) > 10
    assert 0.3 < known.matmul_efficiency <= 1
    if name != "CPU":
        assert known.bf16_tflops > 1.9 * known.fp32_tflops
        # What the name promises in GB, a tool reports in GiB.
        promised = float(name.rpartition("-")[2].removesuffix("GB"))
        assert promised * 1e9 / 2**30 <= known.memory_gib <= promised
        assert 0.002 < known.memory_gigabytes_per_second / known.bf16_tflops / 1000 < 0.007


@pytest.mark.parametrize("name", LINKS)
def test_a_link_of_the_catalog_needs_its_name_alone(name):
    known = LINKS[name]
    link = Link(kind=name)
    assert len(known.source) > 10
    assert link.seconds_per_byte == pytest.approx(1e-9 / known.gigabytes_per_second / known.efficiency)
    assert link.latency_seconds == pytest.approx(known.latency_microseconds * 1e-6)


def test_a_fabric_overrides_figures_of_the_catalog():
    link = Link(kind="NVLink4", bandwidth_gigabytes_per_second=200, latency_microseconds=9, efficiency=0.5)
    assert link.seconds_per_byte == pytest.approx(1e-9 / 100)
    assert link.latency_seconds == pytest.approx(9e-6)
    accelerator = Accelerator(
        resource="nvidia.com/gpu",
        model="H100-80GB",
        memoryGiB=94,
        memory_bandwidth_gigabytes_per_second=2400,
        matmul_efficiency=0.6,
    )
    assert (accelerator.memory, accelerator.matmul_share) == (94, 0.6)
    assert accelerator.memory_bytes_per_second == 2.4e12


def test_one_override_leaves_the_other_figures_of_the_catalog():
    known = LINKS["InfiniBand-NDR"]
    shared = Link(kind="InfiniBand-NDR", bandwidth_gigabytes_per_second=12.5)
    assert shared.seconds_per_byte == pytest.approx(1e-9 / 12.5 / known.efficiency)
    assert shared.latency_seconds == pytest.approx(known.latency_microseconds * 1e-6)
    instant = Link(kind="InfiniBand-NDR", latency_microseconds=0)
    assert instant.latency_seconds == 0
    assert instant.seconds_per_byte == Link(kind="InfiniBand-NDR").seconds_per_byte
    plain = Accelerator(resource="nvidia.com/gpu", model="H100-80GB", peak_tflops={"fp32": 67, "bf16": 989})
    assert (plain.flops_per_second("fp32"), plain.flops_per_second("bf16")) == (67e12, 989e12)
    assert plain.memory_bytes_per_second == ACCELERATORS["H100-80GB"].memory_gigabytes_per_second * 1e9


def test_a_bandwidth_without_a_kind_is_taken_as_measured():
    link = Link(bandwidth_gigabytes_per_second=10, latency_microseconds=0)
    assert (link.seconds_per_byte, link.latency_seconds) == (1e-10, 0)


def test_a_kind_that_kronos_does_not_know_is_a_name_for_people():
    link = Link(kind="Slingshot-11", bandwidth_gigabytes_per_second=25, latency_microseconds=4)
    assert link.seconds_per_byte == pytest.approx(1e-9 / 25)


def test_a_model_that_kronos_does_not_know_has_the_balance_of_an_a100():
    peaks = {"fp32": 156, "bf16": 312}
    accelerator = Accelerator(resource="example.com/gpu", model="H900", memoryGiB=64, peak_tflops=peaks)
    known = ACCELERATORS["A100-80GB"]
    assert accelerator.memory == 64
    assert accelerator.memory_bytes_per_second == pytest.approx(
        known.memory_gigabytes_per_second * 1e9, rel=0.01
    )
    assert 0.3 < accelerator.matmul_share <= 1


@pytest.mark.parametrize("share", [0, -0.1, 1.01])
def test_a_share_lies_between_nothing_and_all(share):
    with pytest.raises(ValidationError, match="efficiency"):
        Link(kind="NVLink4", efficiency=share)
    with pytest.raises(ValidationError, match="matmul_efficiency"):
        Accelerator(resource="nvidia.com/gpu", model="H100-80GB", matmul_efficiency=share)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        pytest.param(
            lambda: Link(), "give a kind that Kronos knows", id="a link about which nothing is said"
        ),
        pytest.param(lambda: Link(kind="NVLink9"), "NVLink5", id="an unknown kind"),
        pytest.param(
            lambda: Level(name="rack", node_label="rack", bandwidth_gigabytes_per_second=1),
            "bandwidthGigabytesPerSecond and latencyMicroseconds",
            id="half of the figures",
        ),
        pytest.param(
            lambda: Accelerator(resource="example.com/gpu", model="H900"),
            "Kronos knows A100-40GB, .*; for another model give memoryGiB and peakTflops",
            id="an unknown model",
        ),
    ],
)
def test_what_is_not_known_must_be_told(build, said):
    with pytest.raises(ValidationError, match=said):
        build()
