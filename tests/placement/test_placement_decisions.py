"""Where gangs go, case by case."""

from __future__ import annotations

import pytest

from kronos.api.job import NodeExpression, NodeTerm, Toleration
from kronos.placement import (
    GangRequest,
    Node,
    NoFit,
    Placement,
    Taint,
    Topology,
    Usage,
    place,
    reserve,
    usage_of,
)
from support.gangs import SLOT, fabric, gang, node, racks, taken

FABRIC = fabric("block", "rack")


def placed(nodes: list[Node], request: GangRequest, usage: Usage | None = None) -> Placement:
    outcome = place(Topology.build(nodes, FABRIC), usage or {}, request)
    assert isinstance(outcome, Placement), outcome
    return outcome


def refused(nodes: list[Node], request: GangRequest, usage: Usage | None = None) -> NoFit:
    outcome = place(Topology.build(nodes, FABRIC), usage or {}, request)
    assert isinstance(outcome, NoFit), outcome
    return outcome


def members(placement: Placement) -> dict[str, int]:
    return {member.node: member.ranks for member in placement.members}


DEMO = racks(2, 2)


@pytest.mark.parametrize(
    ("nodes", "usage", "request_", "expected"),
    [
        pytest.param(DEMO, {}, gang(dp=4), {"n0": 4}, id="one node holds it"),
        pytest.param(DEMO, {}, gang(dp=8), {"n0": 4, "n1": 4}, id="one rack holds it"),
        pytest.param(DEMO, {}, gang(dp=10), {"n0": 4, "n1": 4, "n2": 2}, id="the rest goes to one node"),
        pytest.param(
            DEMO, taken(n0=1), gang(dp=8), {"n2": 4, "n3": 4}, id="a whole rack before two broken ones"
        ),
        pytest.param(DEMO, taken(n3=2), gang(dp=2), {"n3": 2}, id="the tightest node"),
        pytest.param(DEMO, taken(n3=3), gang(dp=4), {"n2": 4}, id="a whole node in the tightest rack"),
        pytest.param(
            racks(3, 3),
            taken(n0=4),
            gang(dp=8),
            {"n1": 4, "n2": 4},
            id="the tightest rack, so that others stay whole",
        ),
        pytest.param(
            racks(1, 12, 1), {}, gang(dp=11), {f"n{at}": 1 for at in range(11)}, id="10 comes after 9"
        ),
        pytest.param(
            [node("a", 3, rack="r0"), node("b", 3, rack="r0"), node("c", 2, rack="r1")],
            {},
            gang(tp=2, dp=2),
            {"a": 2, "b": 2},
            id="tensor pairs leave odd slots alone",
        ),
        pytest.param(
            [
                node("a", 3, rack="r0"),
                node("b", 1, rack="r0"),
                node("c", 2, rack="r1"),
                node("d", 2, rack="r2"),
            ],
            {},
            gang(tp=4),
            {"a": 3, "b": 1},
            id="a tensor group over two nodes stays in one rack",
        ),
        pytest.param(
            [node("a", 3, rack="r0"), node("b", 3, rack="r0"), node("c", 2, rack="r0")],
            {},
            gang(tp=2, dp=4),
            {"c": 2, "a": 3, "b": 3},
            id="whole tensor groups are numbered first, so that one is cut instead of two",
        ),
        pytest.param(
            [node("a", 4, block="b1", rack="r1"), node("b", 4, block="b2", rack="r1"), *racks(1, 2, 3)],
            {},
            gang(dp=6),
            {"n0": 3, "n1": 3},
            id="equal rack labels under two blocks are two racks",
        ),
        pytest.param(DEMO, {}, gang(dp=6, preferred="rack"), {"n0": 4, "n1": 2}, id="preferred and possible"),
        pytest.param(
            DEMO,
            {},
            gang(dp=10, preferred="rack"),
            {"n0": 4, "n1": 4, "n2": 2},
            id="preferred and not possible",
        ),
        pytest.param(
            [*racks(1, 2, 3), node("x", 4, block="b1", rack="x"), node("y", 4, block="b2", rack="y")],
            {},
            gang(tp=2, dp=3, preferred="rack"),
            {"n0": 3, "n1": 3},
            id="a preferred rack matters more than tensor groups in one node",
        ),
        pytest.param(
            [*racks(1, 2, 3), node("x", 4, block="b1", rack="x"), node("y", 4, block="b2", rack="y")],
            {},
            gang(tp=2, dp=3),
            {"n0": 2, "x": 4},
            id="tensor groups in one node matter more than few racks",
        ),
        pytest.param(
            [node("whole", 4, rack="r0"), node("stray", 4), *racks(1, 1, 2)],
            taken(whole=2),
            gang(dp=4),
            {"stray": 4},
            id="a node without labels serves where levels don't matter",
        ),
        pytest.param(
            [node("stray-1", 4, block="b0"), node("stray-2", 4, block="b0"), *racks(2, 1)],
            taken(n1=1),
            gang(dp=6, required="block"),
            {"n0": 4, "n1": 2},
            id="nodes without a rack count as racks of their own",
        ),
        pytest.param(
            [node("a", 4, rack="r0"), node("b", 4, rack="r0")],
            {},
            gang(dp=8, required="rack"),
            {"a": 4, "b": 4},
            id="a level that no node is labelled with is left out",
        ),
    ],
)
def test_chosen_nodes(nodes, usage, request_, expected):
    placement = placed(nodes, request_, usage)
    assert list(members(placement).items()) == list(expected.items())


@pytest.mark.parametrize(
    ("fields", "request_", "fits"),
    [
        pytest.param({}, {}, True, id="plain"),
        pytest.param({"ready": False}, {}, False, id="not ready"),
        pytest.param({"schedulable": False}, {}, False, id="cordoned"),
        pytest.param({"taints": [Taint("k", "v", "NoSchedule")]}, {}, False, id="tainted"),
        pytest.param({"taints": [Taint("k", "v", "NoExecute")]}, {}, False, id="tainted NoExecute"),
        pytest.param({"taints": [Taint("k", "v", "PreferNoSchedule")]}, {}, True, id="soft taint"),
        pytest.param(
            {"taints": [Taint("k", "v", "NoSchedule")]},
            {"tolerations": (Toleration(key="k", value="v"),)},
            True,
            id="tolerated value",
        ),
        pytest.param(
            {"taints": [Taint("k", "v", "NoSchedule")]},
            {"tolerations": (Toleration(key="k", value="w"),)},
            False,
            id="another value tolerated",
        ),
        pytest.param(
            {"taints": [Taint("k", "", "NoSchedule")]},
            {"tolerations": (Toleration(key="k"),)},
            True,
            id="no value on either side",
        ),
        pytest.param(
            {"taints": [Taint("k", "v", "NoExecute")]},
            {"tolerations": (Toleration(key="k", operator="Exists", effect="NoSchedule"),)},
            False,
            id="another effect tolerated",
        ),
        pytest.param(
            {"taints": [Taint("k", "v", "NoExecute"), Taint("l", "w", "NoSchedule")]},
            {"tolerations": (Toleration(operator="Exists"),)},
            True,
            id="everything tolerated",
        ),
        pytest.param({"block": "b1"}, {"node_selector": {"net/block": "b1"}}, True, id="selected"),
        pytest.param({"block": "b2"}, {"node_selector": {"net/block": "b1"}}, False, id="not selected"),
        *(
            pytest.param(
                {"block": value} if value else {},
                {"node_affinity": (NodeTerm(match_expressions=(NodeExpression(key="net/block", **ask),)),)},
                fits,
                id=f"{ask['operator']} {' '.join(ask.get('values', ()))} {'holds' if fits else 'fails'} for {value}",
            )
            for ask, value, fits in (
                ({"operator": "In", "values": ("b1", "b2")}, "b2", True),
                ({"operator": "In", "values": ("b1",)}, "b2", False),
                ({"operator": "In", "values": ("b1",)}, "", False),
                ({"operator": "NotIn", "values": ("b1",)}, "b2", True),
                ({"operator": "NotIn", "values": ("b1",)}, "b1", False),
                ({"operator": "NotIn", "values": ("b1",)}, "", True),
                ({"operator": "Exists"}, "b1", True),
                ({"operator": "Exists"}, "", False),
                ({"operator": "DoesNotExist"}, "", True),
                ({"operator": "DoesNotExist"}, "b1", False),
                ({"operator": "Gt", "values": ("9",)}, "10", True),
                ({"operator": "Gt", "values": ("10",)}, "10", False),
                ({"operator": "Gt", "values": ("9",)}, "ten", False),
                ({"operator": "Gt", "values": ("9",)}, "", False),
                ({"operator": "Lt", "values": ("9",)}, "-10", True),
                ({"operator": "Lt", "values": ("9",)}, "9", False),
            )
        ),
        pytest.param(
            {"block": "b2"},
            {
                "node_affinity": tuple(
                    NodeTerm(
                        match_expressions=(NodeExpression(key="net/block", operator="In", values=(name,)),)
                    )
                    for name in ("b1", "b2")
                )
            },
            True,
            id="one of several terms is enough",
        ),
        pytest.param({}, {"avoid_nodes": frozenset({"a"})}, False, id="avoided"),
        pytest.param({"cpu": 8000}, {"per_rank": {"cpu": 2000}}, True, id="just enough cpu"),
        pytest.param({"cpu": 7999}, {"per_rank": {"cpu": 2000}}, False, id="too little cpu"),
        pytest.param({}, {"per_rank": {"memory": 1}}, False, id="memory that the node doesn't offer"),
        pytest.param({"pods": 0}, {}, False, id="no room for a pod"),
        pytest.param({"pods": 1}, {}, True, id="room for one pod, and one is enough"),
    ],
)
def test_usable_nodes(fields, request_, fits):
    outcome = place(Topology.build([node("a", 4, **fields)], FABRIC), {}, gang(dp=4, **request_))
    assert isinstance(outcome, Placement) == fits


@pytest.mark.parametrize(
    ("nodes", "usage", "request_", "reason", "message", "possible", "change"),
    [
        pytest.param(
            DEMO,
            {},
            gang(dp=12, required="rack"),
            "ExceedsCapacity",
            f"needs 12 free {SLOT} slots in one rack; the largest rack has 8 in all",
            False,
            f"nodes with 4 more {SLOT} slots in one rack",
            id="larger than a rack",
        ),
        pytest.param(
            DEMO,
            taken(n0=4),
            gang(dp=20),
            "ExceedsCapacity",
            f"needs 20 free {SLOT} slots; the usable nodes have 16 in all",
            False,
            f"nodes with 4 more {SLOT} slots",
            id="larger than the cluster",
        ),
        pytest.param(
            DEMO,
            taken(n0=4, n1=1, n2=3, n3=3),
            gang(dp=8, required="rack"),
            "InsufficientCapacity",
            f"needs 8 free {SLOT} slots in one rack; the best rack has 3 free of 8; "
            f"waits for 5 more free {SLOT} slots in one rack",
            True,
            f"5 more free {SLOT} slots in one rack",
            id="no rack is free enough",
        ),
        pytest.param(
            DEMO,
            taken(n0=1),
            gang(dp=16),
            "InsufficientCapacity",
            f"needs 16 free {SLOT} slots; the cluster has 15 free of 16; waits for 1 more free {SLOT} slot",
            True,
            f"1 more free {SLOT} slot",
            id="one slot short",
        ),
        pytest.param(
            [*racks(1, 2), node("small", 4, block="b0", rack="r9")],
            taken(n0=4, n1=4),
            gang(dp=6, required="rack"),
            "InsufficientCapacity",
            f"needs 6 free {SLOT} slots in one rack; the best rack has 0 free of 8; "
            f"waits for 6 more free {SLOT} slots in one rack",
            True,
            f"6 more free {SLOT} slots in one rack",
            id="the best rack is one that could hold it",
        ),
        pytest.param(
            DEMO,
            taken(n0=1, n1=1, n2=1, n3=1),
            gang(tp=2, dp=6, tensor_parallel_within="node"),
            "InsufficientCapacity",
            f"needs 12 free {SLOT} slots in tensor groups of 2, each inside one node; "
            f"the cluster has 8 free of 16 in whole groups; waits for 4 more free {SLOT} slots",
            True,
            f"4 more free {SLOT} slots",
            id="free slots that make no whole group",
        ),
        pytest.param(
            DEMO,
            taken(n0=3, n2=3),
            gang(tp=2, pp=3, dp=2, tensor_parallel_within="node", pipeline_parallel_within="rack"),
            "InsufficientCapacity",
            f"needs 12 free {SLOT} slots in tensor groups of 2, each inside one node, and pipelines of 6, each inside "
            f"one rack; the cluster has 0 free of 12 in whole groups; waits for 12 more free {SLOT} slots",
            True,
            f"12 more free {SLOT} slots",
            id="racks with room for tensor groups but for no whole pipeline",
        ),
        pytest.param(
            DEMO,
            {},
            gang(tp=8, tensor_parallel_within="node"),
            "ExceedsCapacity",
            f"needs 8 free {SLOT} slots in tensor groups of 8, each inside one node; "
            "the usable nodes have 0 in whole groups",
            False,
            f"nodes with 8 more {SLOT} slots",
            id="tensor group larger than a node",
        ),
        pytest.param(
            [node("a", 4, cpu=8000), node("b", 4, cpu=8000)],
            {"a": {"cpu": 6000}},
            gang(dp=8, per_rank={"cpu": 2000}),
            "InsufficientCapacity",
            f"needs 8 free {SLOT} slots; the cluster has room for 5 of them; waits for cpu for 3 more ranks",
            True,
            "cpu for 3 more ranks",
            id="cpu runs short",
        ),
        pytest.param(
            [node("a", 4, pods=1)],
            {"a": {"pods": 1}},
            gang(dp=4),
            "InsufficientCapacity",
            f"needs 4 free {SLOT} slots; the cluster has room for 0 of them; waits for pods for 4 more ranks",
            True,
            "pods for 4 more ranks",
            id="no more pods on the node",
        ),
        pytest.param(
            [node("a", 4, cpu=4000)],
            {},
            gang(dp=4, per_rank={"cpu": 2000}),
            "ExceedsCapacity",
            f"needs 4 free {SLOT} slots; the usable nodes have 2 in all because of cpu",
            False,
            f"nodes with 2 more {SLOT} slots",
            id="never enough cpu",
        ),
        pytest.param(
            [node("a", 0)],
            {},
            gang(dp=1),
            "NoSuchResource",
            f"needs 1 free {SLOT} slot; no node offers {SLOT}",
            False,
            f"nodes with {SLOT}",
            id="no accelerators",
        ),
        pytest.param(
            [
                node("a", 4, taints=[Taint("team", "x", "NoSchedule")]),
                node("b", 4, ready=False),
                node("c", 4, ready=False),
            ],
            {},
            gang(dp=2),
            "NoUsableNode",
            f"needs 2 free {SLOT} slots; no node with them is usable; 3 nodes are left out: 2 not ready, "
            "1 for other reasons",
            False,
            f"nodes with 2 more {SLOT} slots",
            id="nothing usable",
        ),
        pytest.param(
            [node("a", 4), node("b", 4, taints=[Taint("team", "x", "NoSchedule")])],
            {},
            gang(dp=8),
            "ExceedsCapacity",
            f"needs 8 free {SLOT} slots; the usable nodes have 4 in all; 1 node is left out: "
            "with the taint team=x:NoSchedule",
            False,
            f"nodes with 4 more {SLOT} slots",
            id="a taint takes the rest",
        ),
        pytest.param(
            DEMO,
            {},
            gang(dp=16, avoid_nodes=frozenset({"n3"})),
            "NodesAvoided",
            f"needs 16 free {SLOT} slots; they are only there with n3, avoided after a failure",
            True,
            "another node than n3",
            id="only with an avoided node",
        ),
        pytest.param(
            DEMO,
            {},
            gang(dp=2, required="pod"),
            "UnknownLevel",
            "the fabric has no level pod; its levels are block, rack, node",
            False,
            "a fabric with a level pod",
            id="unknown level",
        ),
        pytest.param(
            [node("a", 4, block="b0")],
            {},
            gang(dp=2, required="rack"),
            "UnlabelledLevel",
            "needs one rack, but no node carries the label of that level",
            False,
            "nodes labelled with their rack",
            id="unlabelled level",
        ),
        pytest.param(
            [],
            {},
            gang(dp=2),
            "NoSuchResource",
            f"needs 2 free {SLOT} slots; no node offers {SLOT}",
            False,
            f"nodes with {SLOT}",
            id="no nodes",
        ),
    ],
)
def test_refusals(nodes, usage, request_, reason, message, possible, change):
    refusal = refused(nodes, request_, usage)
    assert (refusal.reason, refusal.message, refusal.change, refusal.possible) == (
        reason,
        message,
        change,
        possible,
    )


@pytest.mark.parametrize(
    ("request_", "summary", "tensor_level"),
    [
        pytest.param(gang(dp=3), "1 node in 1 rack", "node", id="one node"),
        pytest.param(gang(dp=8), "2 nodes in 1 rack", "node", id="one rack"),
        pytest.param(gang(dp=12), "3 nodes in 2 racks in 1 block", "node", id="two racks"),
        pytest.param(
            gang(dp=4, tp=4),
            "4 nodes in 2 racks in 1 block; each tensor group inside one node",
            "node",
            id="tensor groups in nodes",
        ),
        pytest.param(
            gang(dp=2, tp=8),
            "4 nodes in 2 racks in 1 block; each tensor group inside one rack",
            "rack",
            id="tensor groups in racks",
        ),
    ],
)
def test_summary(request_, summary, tensor_level):
    placement = placed(DEMO, request_)
    assert (placement.summary, placement.tensor_level) == (summary, tensor_level)


def test_tensor_group_wider_than_every_level():
    nodes = [node("a", 4, block="b1"), node("b", 4, block="b2")]
    placement = placed(nodes, gang(tp=8))
    assert placement.tensor_level == "cluster"
    assert placement.summary.endswith("; tensor groups cross every level")


def test_node_domains_name_the_labels_that_are_there():
    placement = placed([node("a", 4, block="b1", rack="r1"), node("b", 4, rack="r2")], gang(dp=8))
    assert [dict(item) for item in placement.node_domains] == [
        {"block": "b1", "rack": "r1", "node": "a"},
        {"rack": "r2", "node": "b"},
    ]


def test_two_nodes_of_one_name_are_an_error():
    with pytest.raises(ValueError, match="two nodes have the same name"):
        Topology.build([node("a"), node("a")], FABRIC)


def test_reserve_adds_what_the_pods_take_and_leaves_the_old_usage_alone():
    request = gang(dp=6, per_rank={"cpu": 500})
    nodes = [node("a", 4, cpu=4000), node("b", 4, cpu=4000)]
    before = usage_of([("a", {"cpu": 100})])
    after = reserve(before, placed(nodes, request, before), request)
    assert before == {"a": {"cpu": 100, "pods": 1}}
    assert after == {
        "a": {SLOT: 4, "cpu": 2100, "pods": 2},
        "b": {SLOT: 2, "cpu": 1000, "pods": 1},
    }


def test_usage_counts_every_pod_once():
    assert usage_of([("a", {SLOT: 2}), ("a", {SLOT: 1, "pods": 7}), ("b", {})]) == {
        "a": {SLOT: 3, "pods": 2},
        "b": {"pods": 1},
    }
