"""Small clusters and gangs for tests of placement and admission, and checks that hold for every placement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
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
        pp=draw(st.integers(1, 2)),
        tp=draw(st.sampled_from([1, 1, 2, 3, 4])),
        required=draw(level),
        preferred=draw(level),
        tensor_parallel_within=draw(level),
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

    def holds(self, chosen: Sequence[Node], need: int, group: int, level: str | None) -> bool:
        """Whether the nodes have room for the ranks in whole groups per domain of the level (None: anywhere)."""
        room: dict[tuple[str, ...], int] = {}
        for item in chosen:
            key = self.domain(item, level) if level else ()
            room[key] = room.get(key, 0) + self.free[item.name]
        return sum(slots - slots % group for slots in room.values()) >= need

    def anchored(self, chosen: Sequence[Node], level: str | None) -> bool:
        """Whether the nodes lie in one known domain of the level."""
        if level is None:
            return True
        return all(self.known(item, level) for item in chosen) and (
            len({self.domain(item, level) for item in chosen}) == 1
        )

    def best(self, request: GangRequest) -> tuple[str | None, tuple[int, ...]] | None:
        """Narrowest tensor level and fewest domains per present level, by trying every set of nodes."""
        need, group = request.degrees.world_size, request.degrees.tensor_parallel
        names = self.present()
        if request.required is not None and request.required not in names:
            return None
        order = (*self.levels, "node")
        widest = order.index(request.tensor_parallel_within) if request.tensor_parallel_within else 0
        tensor_levels: list[str | None] = [name for name in reversed(names) if order.index(name) >= widest]
        if request.tensor_parallel_within is None:
            tensor_levels.append(None)
        elif request.required is not None and order.index(request.required) >= widest:
            tensor_levels.append(request.required)
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
                fitting = [chosen for chosen in inside if self.holds(chosen, need, group, level)]
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
        if request.tensor_parallel_within is not None and len({item.name for item in hosts}) > 1:
            level = request.tensor_parallel_within
            assert len({truth.domain(item, level) for item in hosts}) == 1
    assert tuple(placement.domains.values()) == truth.counts(chosen)
    assert list(placement.domains) == truth.present()
