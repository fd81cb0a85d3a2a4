"""Planning, remembered: the same questions are asked each round for each waiting job, and again for jobs that are alike."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from kronos.api.fabric import NODE_LEVEL, FabricSpec
from kronos.api.job import Restart, Scheduling, Template, TrainingJobSpec
from kronos.placement import Node, Topology
from kronos.strategy import Alternative, Search, advised, alternatives, scaling, stops_paying


def domain_slots(nodes: Iterable[Node], fabric: FabricSpec, resource: str) -> tuple[tuple[str, int], ...]:
    """Accelerators in the largest domain of each level, by level name: what an axis may span on that level's links.

    Empty where no node offers the resource. Counts what nodes offer, not what is free now, so that a strategy doesn't
    change with every pod that comes and goes.
    """
    sizes: dict[str, dict[tuple[str, ...], int]] = {}
    for node in nodes:
        slots = node.allocatable.get(resource, 0)
        if not slots:
            continue
        sizes.setdefault(NODE_LEVEL, {})[node.name,] = slots
        path: tuple[str, ...] = ()
        for level in fabric.levels:
            if level.node_label not in node.labels:
                break
            path = (*path, node.labels[level.node_label])
            domains = sizes.setdefault(level.name, {})
            domains[path] = domains.get(path, 0) + slots
    return tuple((name, max(sizes[name].values())) for name in fabric.level_names if name in sizes)


@dataclass(frozen=True, slots=True)
class Question:
    """What a search depends on, as text that can be remembered by: it is asked again each round for each waiting job."""

    spec: str
    fabric: str
    slots: tuple[tuple[str, int], ...]

    def parts(self) -> tuple[TrainingJobSpec, FabricSpec, dict[str, int] | None]:
        """The question in the planner's terms."""
        spec, fabric = (
            TrainingJobSpec.model_validate_json(self.spec),
            FabricSpec.model_validate_json(self.fabric),
        )
        return spec, fabric, dict(self.slots) or None


def planned(spec: TrainingJobSpec) -> str:
    """The part of a spec that planning looks at, as text; equal for jobs that differ only in what their pods are called."""
    other = {"template": Template(), "scheduling": Scheduling(), "restart": Restart(), "role": None}
    return spec.model_copy(update=other).model_dump_json(by_alias=True)


@lru_cache(maxsize=4096)
def answer_to(question: Question) -> Search:
    """The strategies."""
    return advised(*question.parts())


@lru_cache(maxsize=4096)
def beside(question: Question, index: int) -> tuple[Alternative, ...]:
    """What one would think of beside the candidate of that index."""
    spec, fabric, slots = question.parts()
    return alternatives(spec, fabric, answer_to(question).candidates[index], slots)


@lru_cache(maxsize=4096)
def pays_up_to(question: Question) -> int | None:
    """Accelerators beyond which more would bring less than half of their share; None where that can't be said."""
    found = answer_to(question)
    # Candidates that need the least memory aren't the fastest, and say nothing about speed.
    return None if found.objective == "Memory" else stops_paying(scaling(found.candidates))


_topologies: OrderedDict[str, Topology] = OrderedDict()
"""The last tree of each fabric. Nodes change often and move rarely, so that the next one is mostly the same."""
_MOST_TOPOLOGIES = 8


def topology_over(nodes: tuple[Node, ...], fabric: FabricSpec) -> Topology:
    """The fabric's tree over these nodes."""
    key = fabric.model_dump_json(by_alias=True)
    known = _topologies.pop(key, None)
    found = (known and known.with_nodes(nodes)) or Topology.build(nodes, fabric)
    _topologies[key] = found
    if len(_topologies) > _MOST_TOPOLOGIES:
        _topologies.popitem(last=False)
    return found
