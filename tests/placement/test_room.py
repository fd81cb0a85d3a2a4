"""Room that follows pods as they come and go is the room that there is."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from kronos.placement import PODS, GangRequest, Node, Room, Topology, Usage, usage_of
from kronos.placement.room import NOW, Assuming
from support.gangs import SLOT, fabric, gang, small_clusters, small_gangs

FABRIC = fabric("block", "rack")
ASSUMPTIONS = [
    NOW,
    Assuming(without=PODS),
    Assuming(without="cpu"),
    Assuming(empty=True),
    Assuming(avoiding=False),
]


@st.composite
def histories(
    draw: st.DrawFn,
) -> tuple[list[Node], list[GangRequest], list[tuple[bool, str, dict[str, int]]]]:
    """A cluster, some gangs that ask, and pods that come (True) and go."""
    nodes = draw(small_clusters())
    nodes = [
        replace(item, allocatable={**item.allocatable, "cpu": 8, PODS: draw(st.integers(1, 3))})
        for item in nodes
    ]
    requests = [
        replace(draw(small_gangs()), per_rank={"cpu": cpu}, avoid_nodes=frozenset(avoid))
        for cpu, avoid in draw(
            st.lists(
                st.tuples(st.integers(0, 3), st.sets(st.sampled_from([n.name for n in nodes]), max_size=1)),
                min_size=1,
                max_size=3,
            )
        )
    ]
    here: list[tuple[str, dict[str, int]]] = []
    history = []
    for _ in range(draw(st.integers(0, 8))):
        if here and draw(st.booleans()):
            name, amounts = here.pop(draw(st.integers(0, len(here) - 1)))
            history.append((False, name, amounts))
        else:
            name = draw(st.sampled_from([item.name for item in nodes] + ["nowhere"]))
            amounts = {SLOT: draw(st.integers(0, 3)), "cpu": draw(st.integers(0, 4)), PODS: 1}
            here.append((name, amounts))
            history.append((True, name, amounts))
    return nodes, requests, history


def ask(room: Room, request: GangRequest) -> list[object]:
    group = request.degrees.tensor_parallel
    depths = range(len(room.topology.levels) + 1)
    splits = [((depth, group),) for depth in depths]
    splits += [((wide, 2 * group), (narrow, group)) for narrow in depths for wide in range(narrow)]
    return [
        (
            list(room.slots(request, assuming)),
            [list(room.offers(request, split, assuming)) for split in splits],
            list(room.offers(request, (), assuming)),
        )
        for assuming in ASSUMPTIONS
    ]


@given(histories(), st.data())
@settings(deadline=None, max_examples=200)
def test_room_that_follows_changes_equals_room_made_anew(case, data):
    nodes, requests, history = case
    topology = Topology.build(nodes, FABRIC)
    room = Room(topology, {})
    before: list[tuple[str, dict[str, int]]] = []
    for comes, name, amounts in history:
        if data.draw(st.booleans(), label="asked in between"):
            ask(room, requests[0])
        (room.take if comes else room.give_back)(name, amounts)
        if comes:
            before.append((name, amounts))
        else:
            before.remove((name, amounts))
    usage: Usage = usage_of(
        (name, {key: value for key, value in held.items() if key != PODS}) for name, held in before
    )
    for request in requests:
        assert ask(room, request) == ask(Room(topology, usage), request)


@given(histories())
@settings(deadline=None, max_examples=100)
def test_a_copy_goes_its_own_way(case):
    nodes, requests, history = case
    topology = Topology.build(nodes, FABRIC)
    room = Room(topology, {})
    first = [ask(room, request) for request in requests]
    other = room.copy()
    for comes, name, amounts in history:
        (other.take if comes else other.give_back)(name, amounts)
    assert [ask(room, request) for request in requests] == first


def test_the_usage_that_was_given_stays_as_it_is():
    nodes = [Node("a", {}, {SLOT: 4, PODS: 10})]
    usage = {"a": {SLOT: 1, PODS: 1}}
    room = Room(Topology.build(nodes, FABRIC), usage)
    room.take("a", {SLOT: 2, PODS: 1})
    assert usage == {"a": {SLOT: 1, PODS: 1}}
    assert room.slots(gang()) == [1]


@given(small_clusters(), st.data())
@settings(deadline=None, max_examples=100)
def test_a_topology_with_changed_nodes_equals_one_made_anew(nodes, data):
    topology = Topology.build(nodes, FABRIC)
    changed = [
        replace(
            item, ready=data.draw(st.booleans()), allocatable={SLOT: data.draw(st.integers(0, 4)), PODS: 3}
        )
        for item in nodes
    ]
    again = topology.with_nodes(changed)
    assert again == Topology.build(changed, FABRIC)
    assert again is not None
    assert again.usable({}, ()) == [item.ready for item in again.nodes]
    moved = [replace(changed[0], labels={"net/block": "elsewhere"}), *changed[1:]]
    assert topology.with_nodes(moved) is None or moved[0].labels == changed[0].labels
    assert topology.with_nodes(changed[1:]) is None
