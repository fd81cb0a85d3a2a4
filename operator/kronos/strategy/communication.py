"""What moving bytes costs: the network as a row of ever wider domains, and collectives over groups laid out in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, log2
from typing import Self

from kronos.api.fabric import NODE_LEVEL, FabricSpec, Link
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


@dataclass(frozen=True, slots=True)
class Route:
    """What the groups of one axis pay; every cost is linear in the bytes."""

    startup: float
    """Latencies of an all-gather."""
    seconds_per_byte: float
    """Of an all-gather, per byte of its result."""
    exchange_seconds_per_byte: float
    """Of an all-to-all, per byte that each rank has."""
    tree_startup: float
    """Latencies from the leaves of a tree to its root."""
    tree_seconds_per_byte: float
    """Of a tree, per byte that is summed, in one direction."""
    hop: Wire
    """The wire between the neighbours that are farthest apart."""

    def gather(self, size: float) -> float:
        """Seconds of an all-gather with a result of `size` bytes, or of a reduce-scatter of as many."""
        return self.startup + size * self.seconds_per_byte

    def all_reduce(self, size: float) -> float:
        """Seconds to sum `size` bytes over the group: by rings or by trees, whichever is faster.

        Rings do a reduce-scatter, then an all-gather. Trees pass everything up and down in pieces: every level costs as many
        latencies as the tree is deep, and all bytes (Sanders, Speck and Träff 2009, two-tree algorithm, as NCCL has it).
        """
        return 2 * min(self.gather(size), self.tree_startup + size * self.tree_seconds_per_byte)

    def exchange(self, size: float) -> float:
        """Seconds of an all-to-all in which each rank has `size` bytes, an equal part for each other rank.

        Each rank sends every other one its part, over the level that the two share: Thakur, Rabenseifner and Gropp 2005,
        section 4.2, the pairwise exchange.
        """
        return self.startup + size * self.exchange_seconds_per_byte

    def send(self, size: float) -> float:
        """Seconds to pass `size` bytes to a neighbour."""
        return self.hop.latency + size * self.hop.seconds_per_byte


@dataclass(frozen=True, slots=True)
class Network:
    """Domains from the narrowest (the node) to the widest: accelerators in each, and the wire between them."""

    domains: tuple[tuple[int, Wire], ...]
    names: tuple[str, ...] = ()
    """Of the levels, in the same order."""
    _routes: dict[tuple[int, int], Route] = field(default_factory=dict, compare=False, repr=False)

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
        wire = _wire(fabric.node)
        domains = [(slots, wire)]
        for level in reversed(fabric.levels):
            slots = max(slots, sizes.get(level.name, DEFAULT_FAN_OUT * slots))
            own = _wire(level)
            wire = Wire(max(wire.latency, own.latency), max(wire.seconds_per_byte, own.seconds_per_byte))
            domains.append((slots, wire))
        return cls(tuple(domains), tuple(reversed(fabric.level_names)))

    def slots_of(self, level: str | None) -> int | None:
        """Accelerators in a domain of a level; None for no level and for one that the network lacks."""
        return dict(zip(self.names, (slots for slots, _ in self.domains), strict=True)).get(level or "")

    def route(self, inner: int, degree: int) -> Route:
        """What a group of `degree` ranks pays when its neighbours are `inner` accelerators apart.

        Collectives go level by level: a ring inside the narrowest domain, then rings between domains, on what each
        rank has left of the bytes. A ring all-gather of n bytes over p ranks takes (p - 1) x latency + (p - 1) / p x n x
        seconds per byte (Thakur, Rabenseifner and Gropp 2005, section 4.1); a reduce-scatter takes the same. So a wide
        level carries n / (ranks inside) only. A group wider than the widest domain crosses the widest level's wire. It is
        dealt out evenly to the domains that it needs: eight ranks on nodes of seven are four and four.
        """
        known = self._routes.get((inner, degree))
        if known is None:
            reaches = [degree // ceil(degree / max(1, slots // inner)) for slots, _ in self.domains]
            known = self._routes[inner, degree] = self.route_over(degree, reaches)
        return known

    def route_over(self, degree: int, reaches: Sequence[int]) -> Route:
        """What a group of `degree` ranks pays of which `reaches` are inside one domain, for each level from the narrowest."""
        startup = per_byte = exchange = tree_startup = tree_per_byte = 0.0
        hop = self.domains[0][1]
        joined = 1
        for position, ((_, wire), inside) in enumerate(zip(self.domains, reaches, strict=True)):
            widest = position == len(self.domains) - 1
            reach = degree if widest else min(degree, max(joined, inside))
            if reach > joined:
                startup += (reach / joined - 1) * wire.latency
                per_byte += (1 / joined - 1 / reach) * wire.seconds_per_byte
                tree_startup += ceil(log2(reach / joined)) * wire.latency
                tree_per_byte += wire.seconds_per_byte / joined
                # Of all other ranks' parts, those beyond what is joined so far.
                exchange += (reach - joined) / degree * wire.seconds_per_byte
                hop = wire
                joined = reach
        return Route(startup, per_byte, exchange, tree_startup, tree_per_byte, hop)

    def crossed(self, inner: int, degree: int) -> str | None:
        """The widest level of which a group needs several domains; None when a node holds it."""
        crossed = None
        for name, (slots, _) in zip(self.names, self.domains, strict=True):
            if inner * degree > slots:
                crossed = name
        return crossed


def _wire(link: Link) -> Wire:
    return Wire(link.latency_seconds, link.seconds_per_byte)


@dataclass(frozen=True, slots=True)
class AxisTraffic:
    """Bytes that a rank of the busiest stage sends per step along each axis; placement weighs links with it."""

    tensor: float
    pipeline: float
    sharded_data: float
    """With what is dealt out to experts, who live along this axis."""
    data: float


@dataclass(frozen=True, slots=True)
class AxisRoutes:
    """What the groups of each axis pay."""

    tensor: Route
    context: Route
    pipeline: Route
    sharded_data: Route
    data: Route
    expert: Route
    """Exchanges among the ranks that hold different experts."""

    @property
    def of_the_model(self) -> tuple[Route, Route, Route, Route]:
        """All but those along which data is split."""
        return self.tensor, self.context, self.pipeline, self.expert


def nest(network: Network, degrees: Degrees, traffic: AxisTraffic) -> AxisRoutes:
    """The routes of the axes when ranks are laid out with the heaviest traffic innermost.

    Tensor groups are innermost always, because arithmetic waits for them many times per layer, then context groups, for
    which attention waits; the other axes follow by bytes per rank, pipeline before sharded data before data where equal.
    """
    axes = [
        ("pipeline", degrees.pipeline_parallel, traffic.pipeline),
        ("sharded_data", degrees.sharded_data_parallel, traffic.sharded_data),
        ("data", degrees.data_parallel, traffic.data),
    ]
    axes.sort(key=lambda axis: -axis[2])
    routes = {
        "tensor": network.route(1, degrees.tensor_parallel),
        "context": network.route(degrees.tensor_parallel, degrees.context_parallel),
    }
    inner = degrees.tensor_parallel * degrees.context_parallel
    for name, degree, _ in axes:
        routes[name] = network.route(inner, degree)
        if name == "sharded_data":
            routes["expert"] = network.route(inner, degrees.expert_parallel)
        inner *= degree
    return AxisRoutes(**routes)
