"""What placement answers: a place for the whole gang, or why there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kronos.api.plan import GangMember


@dataclass(frozen=True, slots=True)
class Placement:
    """A place for a whole gang."""

    members: tuple[GangMember, ...]
    """One pod per node, in the order in which ranks are numbered through."""
    rank_map: tuple[int, ...]
    """`rank_map[position]` is the global rank at that position of the flattened (pp, dp, fsdp, tp) mesh."""
    domains: Mapping[str, int]
    """Domains used at each level that nodes are labelled with, widest first; nodes last."""
    tensor_level: str
    """Narrowest level whose domains hold each tensor group; `cluster` when groups cross even the widest one."""
    summary: str
    """For people, such as `3 nodes in 2 racks in 1 block; each tensor group inside one node`."""
    cost: float | None
    """Bytes times link cost of the rank map relative to a lower bound; None when traffic isn't known."""
    node_domains: tuple[Mapping[str, str], ...]
    """For each member the domain of its node at each level that the node is labelled with, widest first."""
    paths: tuple[tuple[int, ...], ...] = ()
    """For each member the domains that hold it, widest level first and its node last; equal numbers are equal domains."""


@dataclass(frozen=True, slots=True)
class NoFit:
    """Why a gang has no place."""

    reason: str
    """Code in CamelCase: UnknownLevel, UnlabelledLevel, NoSuchResource, NoUsableNode, ExceedsCapacity, NodesAvoided or
    InsufficientCapacity."""
    message: str
    """What is asked for and what there is, in one sentence without a full stop."""
    change: str
    """The smallest change that would make it fit, to complete a sentence that begins with "waits for"."""
    possible: bool
    """False when it wouldn't fit even if nothing else ran on the cluster as it is now."""
    missing: int = 0
    """Ranks for which room is missing, to compare requests by; 0 where no number of ranks would help."""


def count(number: int, noun: str) -> str:
    """A number with its noun, such as `1 rack`, `2 racks`, `2 switches`."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}{'es' if noun.endswith(('s', 'x', 'ch', 'sh')) else 's'}"
