"""Accelerators and links that Kronos knows by name, so that a fabric needs to say no more than their names.

Peaks and bandwidths are those of the vendors' data sheets, dense (without sparsity), for the SXM, OAM or passive server module.
Memory is not the vendor's figure: the GB of these data sheets turn out to be GiB, of which error correction and the driver keep a
part. It is what the vendor's tool reports in total, in GiB and rounded down. A fabric overrides any figure.

What a link carries of large collectives, and which share of its peak an accelerator reaches in large matrix products, is no
vendor's figure. The shares of A100 and NVLink3 fit published runs (tests/strategy/test_published_runs.py); the others are
assumptions, to be overridden, or corrected by what jobs measure. For comparison, the most that was measured elsewhere:

- rings over NVLink: about 230 of 300 GB/s on A100 and 370 of 450 on H100 (NVIDIA/nccl-tests, issues 149 and 212), 695 of 900 on
  B300 (NVIDIA/nccl, issue 2140); Infinity Fabric: 48 of 64 GB/s per link (ROCm blogs, "Understanding RCCL Bandwidth and xGMI
  Performance on AMD Instinct MI300X")
- the best bf16 product: A100 0.87, H100 0.80, MI300X 0.51 to 0.60 of the peak (stas00/ml-engineering, "Maximum Achievable Matmul
  FLOPS")

No source gives latencies as they are used here: all are assumptions.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KnownAccelerator:
    """One accelerator."""

    memory_gib: float
    """Memory in GiB (2^30 bytes)."""
    fp32_tflops: float
    """Peak of fp32 matrix products in 10^12 FLOP/s; not of TF32, which PyTorch takes for them only where it is told to."""
    bf16_tflops: float
    """Peak of bfloat16 matrix products in 10^12 FLOP/s."""
    memory_gigabytes_per_second: float
    """Bandwidth of its memory in 10^9 bytes per second."""
    matmul_efficiency: float
    """Share of the peak that the arithmetic of large matrix products reaches."""
    source: str


@dataclass(frozen=True, slots=True)
class KnownLink:
    """One kind of link, as one accelerator has it."""

    gigabytes_per_second: float
    """Line rate per direction in 10^9 bytes per second."""
    latency_microseconds: float
    """Time of a smallest message."""
    efficiency: float
    """Share of the line rate that large collectives reach."""
    source: str


ACCELERATORS = {
    "A100-40GB": KnownAccelerator(
        40, 19.5, 312, 1555, 0.85, "NVIDIA A100 Tensor Core GPU data sheet, SXM; nvidia-smi: 40960 MiB"
    ),
    "A100-80GB": KnownAccelerator(
        80, 19.5, 312, 2039, 0.85, "NVIDIA A100 Tensor Core GPU data sheet, SXM; nvidia-smi: 81920 MiB"
    ),
    "H100-80GB": KnownAccelerator(
        79.6,
        66.9,
        989.4,
        3350,
        0.72,
        "NVIDIA H100 Tensor Core GPU data sheet, SXM, and architecture white paper; nvidia-smi: 81559 MiB",
    ),
    "H200-141GB": KnownAccelerator(
        140.4,
        66.9,
        989.4,
        4800,
        0.72,
        "NVIDIA H200 Tensor Core GPU data sheet, SXM; the arithmetic is an H100's; nvidia-smi: 143771 MiB",
    ),
    "B200-180GB": KnownAccelerator(
        179,
        75,
        2250,
        8000,
        0.72,
        "NVIDIA HGX B200 data sheet, per GPU; nvidia-smi: 183359 MiB; the driver tells 7672 GB/s "
        "(pytorch/ao, pull request 4002)",
    ),
    "GB200-186GB": KnownAccelerator(
        185, 80, 2500, 8000, 0.72, "NVIDIA GB200 NVL72 data sheet, per GPU; nvidia-smi: 189471 MiB"
    ),
    "MI300X-192GB": KnownAccelerator(
        191.9,
        163.4,
        1307.4,
        5300,
        0.6,
        "AMD Instinct MI300X data sheet; fp32 matrix; rocm-smi: 206141652992 bytes",
    ),
    "L40S-48GB": KnownAccelerator(
        44.9, 91.6, 362, 864, 0.75, "NVIDIA L40S data sheet; nvidia-smi: 46068 MiB"
    ),
    "CPU": KnownAccelerator(
        4,
        0.05,
        0.02,
        10,
        0.6,
        "an assumption: one process on a core or two of a server's processor, without matrix units, so that "
        "bf16 is the slower one",
    ),
}
"""By the name that a fabric gives as an accelerator's model."""

LINKS = {
    "NVLink3": KnownLink(300, 3, 0.75, "NVIDIA A100 data sheet: 600 GB/s in both directions together"),
    "NVLink4": KnownLink(450, 3, 0.75, "NVIDIA H100 data sheet: 900 GB/s in both directions together"),
    "NVLink5": KnownLink(900, 3, 0.75, "NVIDIA HGX B200 data sheet: 1.8 TB/s in both directions together"),
    "InfinityFabric": KnownLink(
        448, 4, 0.7, "AMD Instinct MI300X data sheet: seven links of 64 GB/s per direction"
    ),
    "PCIe4-x16": KnownLink(31.5, 5, 0.75, "PCI Express 4.0: 16 GT/s x 16 lanes, 128b/130b"),
    "PCIe5-x16": KnownLink(63, 5, 0.75, "PCI Express 5.0: 32 GT/s x 16 lanes, 128b/130b"),
    "InfiniBand-HDR": KnownLink(25, 5, 0.8, "InfiniBand HDR, four lanes: 200 Gb/s per accelerator"),
    "InfiniBand-NDR": KnownLink(50, 5, 0.8, "InfiniBand NDR, four lanes: 400 Gb/s per accelerator"),
    "InfiniBand-XDR": KnownLink(100, 5, 0.8, "InfiniBand XDR, four lanes: 800 Gb/s per accelerator"),
    "Ethernet-25G": KnownLink(3.125, 15, 0.7, "25 Gb/s Ethernet"),
    "Ethernet-100G": KnownLink(12.5, 10, 0.7, "100 Gb/s Ethernet with RDMA"),
    "Ethernet-200G": KnownLink(25, 10, 0.7, "200 Gb/s Ethernet with RDMA"),
    "Ethernet-400G": KnownLink(50, 10, 0.7, "400 Gb/s Ethernet with RDMA"),
    "Loopback": KnownLink(2, 50, 0.5, "an assumption: processes of one machine over its loopback interface"),
}
"""By the kind that a fabric gives for a level or a node."""

BYTES_PER_FLOP = 0.0065
"""Memory bandwidth over bf16 peak of an accelerator about which nothing is said: that of an A100-80GB."""
UNKNOWN_MATMUL_EFFICIENCY = 0.75
"""Of an accelerator about which nothing is said."""
