"""A reserved place looked at again: whether a member that isn't bound yet still has the room that it was promised."""

from __future__ import annotations

from kronos.api.job import TrainingJobSpec
from kronos.api.plan import GangMember
from kronos.lifecycle.objects import member_amounts
from kronos.lifecycle.snapshot import Snapshot
from kronos.placement import PODS
from kronos.placement.nodes import why_unusable


def why_place_is_lost(snapshot: Snapshot, spec: TrainingJobSpec, member: GangMember) -> str | None:
    """Why the member's pod can't be bound to its node any more; None while it can, or where its node isn't there.

    Pods that are on their way out don't count, since they leave before the scheduler's next try or soon after.
    """
    node = snapshot.node(member.node)
    if node is None:
        return None
    wanted = spec.template
    unusable = why_unusable(node, wanted.node_selector, wanted.tolerations, wanted.node_affinity)
    if unusable is not None:
        return f"the node is now {unusable}"
    needed = {**member_amounts(spec, member), PODS: 1}
    free = {resource: node.allocatable.get(resource, 0) for resource in needed}
    for pod in snapshot.bound_to(member.node):
        if pod.terminal or pod.deleting:
            continue
        free[PODS] -= 1
        for resource in needed:
            free[resource] -= pod.requests.get(resource, 0)
    for resource, amount in needed.items():
        if free[resource] < amount:
            return f"others took its {resource}: {max(0, free[resource])} left of {amount}"
    return None
