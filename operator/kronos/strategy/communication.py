"""What moving bytes costs: the network as a row of ever wider domains, and collectives on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from kronos.api.fabric import NODE_LEVEL, FabricSpec
from kronos.api.plan import Degrees

DEFAULT_NODE_SLOTS = 8
"""Accelerators of a node when nobody says: what most accelerator servers have."""
DEFAULT_FAN_OUT = 8
"""Domains of a level inside one domain of the next wider level when nobody says."""


@dataclass(frozen=True, slots=True)
class Wire:
    """A link as the alpha-beta model sees it: a message of n bytes takes latency + n x seconds_per_byte."""

    latency: float
    seconds_per_byte: float

    def send(self, size: float) -> float:
        """Seconds to send `size` bytes to a neighbour."""
        return self.latency + size * self.seconds_per_byte

    def all_gather(self, size: float, ranks: int) -> float:
        """Seconds until each of `ranks` has all `size` bytes of which each held an equal part; a ring.

        (p - 1) x latency + (p - 1) / p x size x seconds per byte: Thakur, Rabenseifner and Gropp 2005, section 4.1.
        A ring reduce-scatter costs the same.
        """
        return (ranks - 1) * (self.latency + size / ranks * self.seconds_per_byte)

    def all_reduce(self, size: float, ranks: int) -> float:
        """Seconds to sum `size` bytes over `ranks`: a ring reduce-scatter, then a ring all-gather (ibid., 4.5)."""
        return 2 * self.all_gather(size, ranks)


@dataclass(frozen=True, slots=True)
class Network:
    """Domains from the narrowest (the node) to the widest: accelerators in each, and the wire between them."""

    domains: tuple[tuple[int, Wire], ...]

    @classmethod
    def of(cls, fabric: FabricSpec, slots_per_domain: Mapping[str, int] | None = None) -> Self:
        """The fabric's levels with the sizes of their domains.

        `slots_per_domain` says by level name (and `node`) how many accelerators a domain has; a level it leaves out
        gets 8 for a node and 8 times the next narrower level otherwise. A message through a wide level also passes the
        narrow ones, so a level's wire is never faster than those inside it. ValueError for a level that the fabric
        lacks or a size below one.
        """
        sizes = dict(slots_per_domain or {})
        for name, size in sizes.items():
            if name not in fabric.level_names:
                known = ", ".join(fabric.level_names)
                raise ValueError(f"the fabric has no level {name}; its levels are {known}")
            if size < 1:
                raise ValueError(f"a domain of level {name} can't have {size} accelerators; give at least 1")
        slots = sizes.get(NODE_LEVEL, DEFAULT_NODE_SLOTS)
        wire = _wire(fabric.node.latency_microseconds, fabric.node.bandwidth_gigabytes_per_second)
        domains = [(slots, wire)]
        for level in reversed(fabric.levels):
            slots = max(slots, sizes.get(level.name, DEFAULT_FAN_OUT * slots))
            own = _wire(level.latency_microseconds, level.bandwidth_gigabytes_per_second)
            wire = Wire(max(wire.latency, own.latency), max(wire.seconds_per_byte, own.seconds_per_byte))
            domains.append((slots, wire))
        return cls(tuple(domains))

    def spanning(self, ranks: int) -> Wire:
        """The wire of the narrowest domain that holds `ranks` accelerators; of the widest when none does."""
        return next((wire for slots, wire in self.domains if slots >= ranks), self.domains[-1][1])


def _wire(microseconds: float, gigabytes_per_second: float) -> Wire:
    return Wire(microseconds * 1e-6, 1 / (gigabytes_per_second * 1e9))


@dataclass(frozen=True, slots=True)
class AxisTraffic:
    """Bytes that a rank of the busiest stage sends per step along each axis; placement weighs links with it."""

    tensor: float
    pipeline: float
    sharded_data: float
    data: float


@dataclass(frozen=True, slots=True)
class AxisWires:
    """The wire that each axis' groups cross."""

    tensor: Wire
    pipeline: Wire
    sharded_data: Wire
    data: Wire


def nest(network: Network, degrees: Degrees, traffic: AxisTraffic) -> AxisWires:
    """Give each axis the wire it crosses when ranks are laid out with the heaviest traffic innermost.

    Tensor groups are innermost always, because their collectives stop the arithmetic; the other axes follow by bytes
    per rank, pipeline before sharded data before data where equal. A group of an axis spans all axes inside it.
    """
    axes = [
        ("pipeline", degrees.pipeline_parallel, traffic.pipeline),
        ("sharded_data", degrees.sharded_data_parallel, traffic.sharded_data),
        ("data", degrees.data_parallel, traffic.data),
    ]
    axes.sort(key=lambda axis: -axis[2])
    span = degrees.tensor_parallel
    wires = {"tensor": network.spanning(span)}
    for name, degree, _ in axes:
        span *= degree
        wires[name] = network.spanning(span)
    return AxisWires(**wires)
