"""Small clusters and gangs for tests of placement and admission, and checks that hold for every placement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

from hypothesis import strategies as st

from kronos.api.fabric import Accelerator, FabricSpec, Level, Link, PeakTflops
from kronos.api.plan import Degrees
from kronos.placement import GangRequest, Node, Placement, Taint, Usage

SLOT = "kronos.dev/accelerator"


def fabric(*levels: str) -> FabricSpec:
    """A fabric with these levels, widest first, each ten times as fast as the one around it; label keys are names."""
    return FabricSpec(
        levels=tuple(
            Level(
                name=name,
                node_label=f"net/{name}",
                bandwidth_gigabytes_per_second=10.0 * 10**at,
                latency_microseconds=5,
            )
            for at, name in enumerate(levels)
        ),
        node=Link(bandwidth_gigabytes_per_second=10.0 * 10 ** len(levels), latency_microseconds=1),
        accelerators=(
            Accelerator(resource=SLOT, model="slot", memory_gib=1, peak_tflops=PeakTflops(fp32=1, bf16=1)),
        ),
    )


def node(name: str, slots: int = 4, /, taints: Sequence[Taint] = (), **options: Any) -> Node:
    """A node with accelerator slots. Options are levels (block="b1"), other amounts (cpu=4000) and node fields."""
    fields = {key: options.pop(key) for key in ("ready", "schedulable") if key in options}
    labels = {f"net/{key}": value for key, value in options.items() if isinstance(value, str)}
    amounts = {key: value for key, value in options.items() if isinstance(value, int)}
    return Node(name, labels, {SLOT: slots, "pods": 110, **amounts}, tuple(taints), **fields)


def racks(count: int, nodes: int, slots: int = 4) -> list[Node]:
    """Racks r0, r1, ... of one block, each with the same number of equal nodes; node names are numbered through."""
    return [node(f"n{at}", slots, block="b0", rack=f"r{at // nodes}") for at in range(count * nodes)]


def gang(*, dp: int = 1, fsdp: int = 1, tp: int = 1, pp: int = 1, **fields: Any) -> GangRequest:
    """A request for accelerator slots."""
    degrees = Degrees(data_parallel=dp, sharded_data_parallel=fsdp, tensor_parallel=tp, pipeline_parallel=pp)
    return GangRequest(degrees=degrees, resource=SLOT, **fields)


def taken(**slots: int) -> Usage:
    """Usage of accelerator slots by node name."""
    return {name: {SLOT: count, "pods": 1} for name, count in slots.items()}


@st.composite
def small_clusters(draw: st.DrawFn, *, most_nodes: int = 8, labelled: bool = False) -> list[Node]:
    """Up to eight unequal nodes in a few racks and blocks; unless `labelled`, some lack labels."""
    blocks = ["b1", "b2"] if labelled else ["b1", "b2", ""]
    rack_names = ["r1", "r2", "r3"] if labelled else ["r1", "r2", "r3", ""]
    shapes = draw(
        st.lists(
            st.tuples(st.integers(0, 4), st.sampled_from(blocks), st.sampled_from(rack_names)),
            min_size=1,
            max_size=most_nodes,
        )
    )
    return [node(f"n{at}", slots, block=block, rack=rack) for at, (slots, block, rack) in enumerate(shapes)]


@st.composite
def small_gangs(draw: st.DrawFn) -> GangRequest:
    """Gangs of up to 16 ranks with any levels."""
    level = st.sampled_from([None, None, None, "block", "rack", "node"])
    return gang(
        dp=draw(st.integers(1, 3)),
        fsdp=draw(st.sampled_from([1, 1, 2])),
        pp=draw(st.integers(1, 2)),
        tp=draw(st.sampled_from([1, 1, 2, 3, 4])),
        required=draw(level),
        preferred=draw(level),
        tensor_parallel_within=draw(level),
        pipeline_parallel_within=draw(level),
        sharded_data_parallel_within=draw(level),
    )


def usages(nodes: Sequence[Node]) -> st.SearchStrategy[Usage]:
    """Any number of slots taken on each node."""
    return st.fixed_dictionaries(
        {item.name: st.fixed_dictionaries({SLOT: st.integers(0, item.allocatable[SLOT])}) for item in nodes}
    )


@dataclass(frozen=True)
class Truth:
    """An independent, slow account of what domains are: by label dictionaries and exhaustive search."""

    levels: tuple[str, ...]
    nodes: Sequence[Node]
    free: Mapping[str, int]

    def present(self) -> list[str]:
        """Levels that some node is labelled with, widest first, then the node."""
        return [level for level in self.levels if any(self.label(item, level) for item in self.nodes)] + [
            "node"
        ]

    @staticmethod
    def label(item: Node, level: str) -> str:
        return item.name if level == "node" else item.labels.get(f"net/{level}", "")

    def known(self, item: Node, level: str) -> bool:
        return bool(self.label(item, level))

    def domain(self, item: Node, level: str) -> tuple[str, ...]:
        """Identity of the node's domain. Without a label: that of the next narrower level that has one."""
        names = self.present()
        at = names.index(level)
        labels = [self.label(item, name) for name in names]
        path = []
        for depth in range(at + 1):
            narrower = next(later for later in range(depth, len(names)) if labels[later])
            path.append(f"{names[narrower]}={labels[narrower]}")
        return tuple(path)

    def room(self, chosen: Sequence[Node], groups: Sequence[tuple[int, str | None]]) -> int:
        """Ranks that the nodes have room for in whole groups, outermost first, per domain of a level (None: anywhere)."""
        if not groups:
            return sum(self.free[item.name] for item in chosen)
        (group, level), *inner = groups
        by_domain: dict[tuple[str, ...], list[Node]] = {}
        for item in chosen:
            by_domain.setdefault(self.domain(item, level) if level else (), []).append(item)
        rooms = [self.room(members, inner) for members in by_domain.values()]
        return sum(room - room % group for room in rooms)

    def present_level(self, level: str) -> str:
        """The level, or where no node is labelled with it, the next narrower one."""
        order = (*self.levels, "node")
        return next(name for name in order[order.index(level) :] if name in self.present())

    def anchored(self, chosen: Sequence[Node], level: str | None) -> bool:
        """Whether the nodes lie in one known domain of the level."""
        if level is None:
            return True
        return all(self.known(item, level) for item in chosen) and (
            len({self.domain(item, level) for item in chosen}) == 1
        )

    def best(self, request: GangRequest) -> tuple[str | None, tuple[int, ...]] | None:
        """Narrowest tensor level and fewest domains per present level, by trying every set of nodes."""
        degrees = request.degrees
        need, group = degrees.world_size, degrees.tensor_parallel
        pipeline = group * degrees.pipeline_parallel
        names = self.present()
        if request.required is not None and request.required not in names:
            return None
        order = (*self.levels, "node")
        copies, pipelines = request.sharded_data_parallel_within, request.pipeline_parallel_within
        limits = [level for level in (copies, pipelines, request.tensor_parallel_within) if level]
        widest = max((order.index(level) for level in limits), default=0)
        tensor_levels: list[str | None] = [name for name in reversed(names) if order.index(name) >= widest]
        if not limits:
            tensor_levels.append(None)
        outer: list[tuple[int, str | None]] = []
        if copies:
            outer.append((pipeline * degrees.sharded_data_parallel, self.present_level(copies)))
        if pipelines:
            within = max((level for level in (copies, pipelines) if level), key=order.index)
            outer.append((pipeline, self.present_level(within)))
        anchors = [request.required]
        if request.preferred in names:
            anchors.insert(0, request.preferred)
        usable = [item for item in self.nodes if self.free[item.name] > 0]
        sets = [chosen for size in range(1, len(usable) + 1) for chosen in combinations(usable, size)]
        for anchor in anchors:
            inside = [
                chosen
                for chosen in sets
                if self.anchored(chosen, anchor) and self.anchored(chosen, request.required)
            ]
            for level in tensor_levels:
                groups = [*outer, (group, level)]
                fitting = [chosen for chosen in inside if self.room(chosen, groups) >= need]
                if fitting:
                    return level, min(self.counts(chosen) for chosen in fitting)
        return None

    def counts(self, chosen: Sequence[Node]) -> tuple[int, ...]:
        """Domains that the nodes lie in, per present level, widest first."""
        return tuple(len({self.domain(item, level) for item in chosen}) for level in self.present())


def check_placement(truth: Truth, request: GangRequest, placement: Placement) -> None:
    """What must hold for every placement: whole gang, room on every node, levels, groups, ranks, counts."""
    need, group = request.degrees.world_size, request.degrees.tensor_parallel
    by_name = {item.name: item for item in truth.nodes}
    chosen = [by_name[member.node] for member in placement.members]
    assert sum(member.ranks for member in placement.members) == need
    assert len({member.node for member in placement.members}) == len(placement.members)
    assert all(member.ranks <= truth.free[member.node] for member in placement.members)
    assert truth.anchored(chosen, request.required)
    assert sorted(placement.rank_map) == list(range(need))
    host = [by_name[member.node] for member in placement.members for _ in range(member.ranks)]
    for start in range(0, need, group):
        hosts = [host[rank] for rank in placement.rank_map[start : start + group]]
        if placement.tensor_level != "cluster":
            assert len({truth.domain(item, placement.tensor_level) for item in hosts}) == 1
    degrees = request.degrees
    mesh = product(
        *(
            range(degree)
            for degree in (
                degrees.pipeline_parallel,
                degrees.data_parallel,
                degrees.sharded_data_parallel,
                degrees.tensor_parallel,
            )
        )
    )
    homes: dict[tuple[object, ...], set[tuple[str, ...]]] = {}
    for (stage, replica, shard, _), rank in zip(mesh, placement.rank_map, strict=True):
        for level, group in (
            (request.tensor_parallel_within, ("tensor group", stage, replica, shard)),
            (request.pipeline_parallel_within, ("pipeline", replica, shard)),
            (request.sharded_data_parallel_within, ("sharded copy", replica)),
        ):
            if level is not None:
                homes.setdefault(group, set()).add(truth.domain(host[rank], truth.present_level(level)))
    assert all(len(domains) == 1 for domains in homes.values())
    assert tuple(placement.domains.values()) == truth.counts(chosen)
    assert list(placement.domains) == truth.present()
