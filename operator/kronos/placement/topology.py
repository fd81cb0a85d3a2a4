"""The fabric as an immutable tree: domains of each level, down to nodes.

Nodes are kept in the order of the tree, so every domain is a contiguous range of them, and what is free can be kept
in plain lists indexed like the nodes.

A domain is a *path* of labels: rack r1 of block b1 is not rack r1 of block b2. Where nodes lack a label:
- A level whose label no node carries is left out of the tree.
- A node without the label of a level that others carry is in no known domain of that level. The tree keeps it in a
  domain that is marked unknown and shared only by nodes that a narrower label shows to be together, so it counts as a
  domain of its own and never serves a required level.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby
from typing import Any

from kronos.api.fabric import NODE_LEVEL, FabricSpec
from kronos.api.job import NodeTerm, Toleration
from kronos.placement.nodes import NaturalKey, Node, natural_key, why_unusable

WHOLE = "cluster"
"""Stands for a level wider than all levels of the fabric: everything."""

MOST_REMEMBERED = 256
"""Answers about all nodes that a topology keeps: jobs ask much the same, but nobody promises that."""

_PathKey = tuple[int, int, NaturalKey]
"""Sorts the children of a domain: known ones first, then unknown ones by what they are known by."""


@dataclass(frozen=True, slots=True)
class Domain:
    """One domain, with its place in the tree. Depth 0 is the whole cluster, the greatest depth the nodes."""

    index: int
    depth: int
    name: str
    """Value of the level's label, or the node's name."""
    known: bool
    """False when its nodes lack the level's label."""
    children: tuple[int, ...]
    start: int
    """Position of its first node in `Topology.nodes`."""
    stop: int
    """Position after its last node."""


@dataclass(frozen=True, slots=True)
class Topology:
    """The domains of a fabric. Built by `build`; equal for equal nodes in any order."""

    levels: tuple[str, ...]
    """Names of the levels in the tree, widest first; the last is always `node`."""
    fabric_levels: tuple[str, ...]
    """Names of all levels of the fabric, also of those whose label no node carries."""
    nodes: tuple[Node, ...]
    domains: tuple[Domain, ...]
    """A domain's index is its position; every domain comes before those inside it."""
    at_depth: tuple[tuple[int, ...], ...]
    """Indexes of the domains at each depth, in the order of the tree."""
    paths: tuple[tuple[int, ...], ...]
    """For each node the domains that hold it, widest level first, without the whole cluster."""
    link_costs: tuple[float, ...]
    """Seconds per byte between two ranks whose narrowest common domain has this depth; never less when wider."""
    position: Mapping[str, int] = field(compare=False)
    """Where each node stands in `nodes`, by name."""
    memory: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)
    """What has been found out about the nodes, whatever runs on them. It follows from the rest, and is asked for often."""

    @staticmethod
    def build(nodes: Iterable[Node], fabric: FabricSpec) -> Topology:
        """Arrange nodes by the fabric's labels; ValueError when two nodes have one name."""
        nodes = list(nodes)
        if len({node.name for node in nodes}) != len(nodes):
            raise ValueError("two nodes have the same name")
        levels = [
            level for level in fabric.levels if any(node.labels.get(level.node_label) for node in nodes)
        ]
        paths_and_nodes = [
            (_path([node.labels.get(level.node_label, "") for level in levels], node.name), node)
            for node in nodes
        ]
        paths_and_nodes.sort(key=lambda pair: pair[0])
        domains = _domains([path for path, _ in paths_and_nodes])
        at_depth: list[list[int]] = [[] for _ in range(len(levels) + 2)]
        node_paths: list[list[int]] = [[] for _ in nodes]
        for domain in domains:
            at_depth[domain.depth].append(domain.index)
            if domain.depth:
                for position in range(domain.start, domain.stop):
                    node_paths[position].append(domain.index)
        ordered = tuple(node for _, node in paths_and_nodes)
        return Topology(
            levels=(*(level.name for level in levels), NODE_LEVEL),
            fabric_levels=fabric.level_names,
            nodes=ordered,
            domains=tuple(domains),
            at_depth=tuple(tuple(indexes) for indexes in at_depth),
            paths=tuple(tuple(path) for path in node_paths),
            link_costs=_link_costs(
                [*(level.seconds_per_byte for level in levels), fabric.node.seconds_per_byte]
            ),
            position={node.name: at for at, node in enumerate(ordered)},
        )

    def with_nodes(self, nodes: Sequence[Node]) -> Topology | None:
        """The topology once its nodes are as given, itself if they are the same; None if one came, went or moved.

        Nodes change far more often than they move: they are cordoned, tainted, fall silent.
        """
        if len(nodes) != len(self.nodes):
            return None
        ordered = list(self.nodes)
        changed = False
        for node in nodes:
            position = self.position.get(node.name)
            if position is None:
                return None
            known = ordered[position]
            if known is node:
                continue
            if known.labels != node.labels:
                return None
            changed = changed or known != node
            ordered[position] = node
        return replace(self, nodes=tuple(ordered), memory={}) if changed else self

    def usable(
        self,
        selector: Mapping[str, str],
        tolerations: tuple[Toleration, ...],
        affinity: tuple[NodeTerm, ...] = (),
    ) -> list[bool]:
        """For each node, whether pods that ask for such nodes may go there. A shared list: don't change it."""
        key = ("usable", tuple(sorted(selector.items())), tolerations, affinity)
        if key not in self.memory:
            usable = [why_unusable(node, selector, tolerations, affinity) is None for node in self.nodes]
            self.remember(key, usable)
        found: list[bool] = self.memory[key]
        return found

    def allocatable(self, resource: str) -> list[int]:
        """For each node, what it has of a resource, in base units. A shared list: don't change it."""
        key = ("allocatable", resource)
        if key not in self.memory:
            self.remember(key, [node.allocatable.get(resource, 0) for node in self.nodes])
        found: list[int] = self.memory[key]
        return found

    def remember(self, key: Hashable, value: object) -> None:
        """Keep something that was found out; everything is forgotten when it becomes much."""
        if len(self.memory) >= MOST_REMEMBERED:
            self.memory.clear()
        self.memory[key] = value

    def depth_of(self, level: str) -> int | None:
        """Depth of a level of the fabric, or None when no node carries its label."""
        return self.levels.index(level) + 1 if level in self.levels else None

    def level_name(self, depth: int) -> str:
        """Name of the level at a depth; `cluster` for depth 0."""
        return self.levels[depth - 1] if depth else WHOLE


def _path(labels: list[str], name: str) -> tuple[_PathKey, ...]:
    """Sort key and identity of a node's place in the tree, one part per level."""
    values = [*labels, name]
    parts: list[_PathKey] = []
    for depth, value in enumerate(values):
        if value:
            parts.append((0, depth, natural_key(value)))
        else:
            # Unknown here: together only with nodes that share the next narrower level that is known, at last itself.
            narrower = next(later for later in range(depth + 1, len(values)) if values[later])
            parts.append((1, narrower, natural_key(values[narrower])))
    return tuple(parts)


def _domains(paths: list[tuple[_PathKey, ...]]) -> list[Domain]:
    """The tree over sorted paths, every domain before those inside it."""
    domains: list[Domain] = []

    def grow(depth: int, name: str, known: bool, start: int, stop: int) -> int:
        index = len(domains)
        domains.append(Domain(index, depth, name, known, (), start, stop))
        children: list[int] = []
        if paths and depth < len(paths[0]):
            for (unknown, _, (_, value)), group in groupby(range(start, stop), lambda at: paths[at][depth]):
                members = list(group)
                children.append(grow(depth + 1, value, not unknown, members[0], members[-1] + 1))
        domains[index] = Domain(index, depth, name, known, tuple(children), start, stop)
        return index

    grow(0, WHOLE, True, 0, len(paths))
    return domains


def _link_costs(seconds_per_byte: list[float]) -> tuple[float, ...]:
    """Seconds per byte by depth of the common domain, from those of the levels, widest first.

    A message that leaves a domain also crosses the links inside it, so wider is never cheaper. The fabric says
    nothing about links between domains of the widest level; they count as half as fast as those inside.
    """
    inside_out = list(accumulate(reversed(seconds_per_byte), max))
    return (2 * inside_out[-1], *reversed(inside_out))
