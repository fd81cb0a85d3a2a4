"""What lies between a snapshot and admission."""

from __future__ import annotations

import pytest

from kronos.lifecycle import planning
from kronos.lifecycle.holding import held
from kronos.lifecycle.planning import domain_slots
from kronos.strategy import search
from support.worlds import FABRIC, SLOT, World, job, node, racks


def test_domains_are_measured_by_what_their_nodes_offer():
    nodes = (*racks(2, 2, 4), node("c0", "rack-c", 12))
    assert domain_slots(nodes, FABRIC, SLOT) == (("rack", 12), ("node", 12))
    assert domain_slots(racks(2, 3, 4), FABRIC, SLOT) == (("rack", 12), ("node", 4))


def test_a_node_without_the_label_counts_as_a_node_only():
    bare = node("c0", "rack-c", 16, labels={})
    assert domain_slots((*racks(1, 2, 4), bare), FABRIC, SLOT) == (("rack", 8), ("node", 16))


def test_nothing_is_said_of_a_resource_that_no_node_offers():
    assert domain_slots(racks(), FABRIC, "example.com/tpu") == ()


def test_a_reserved_place_counts_once_before_and_after_its_pods_are_bound():
    world = World(job("burner"))
    world.settle()
    reserved = held(world.snapshot())
    assert sum(amounts[SLOT] for amounts in reserved.values()) == 12
    world.start("burner")
    assert held(world.snapshot()) == reserved


def test_a_finished_job_holds_nothing_although_its_place_stays_on_record():
    world = World(job("burner"))
    world.settle()
    world.start("burner")
    world.settle()
    world.finish("burner", step=100)
    world.settle()
    assert world.status("burner").placement is not None
    assert held(world.snapshot()) == {}


def test_an_error_about_one_job_is_told_to_its_owner_and_stops_nobody_else(monkeypatch: pytest.MonkeyPatch):
    def broken(spec, *rest):
        if spec.optimization.global_batch_size == 13:
            raise ZeroDivisionError("float division by zero")
        return search(spec, *rest)

    monkeypatch.setattr(planning, "advised", broken)
    planning.answer_to.cache_clear()
    unlucky = job("unlucky", optimization={"globalBatchSize": 13}, accelerators={"min": 1})
    world = World(unlucky, job("lucky", 1))
    world.settle()
    assert world.status("lucky").phase == "Starting"
    reason = world.status("unlucky").reason
    assert reason.startswith(
        "planning it ended in an error of Kronos itself (ZeroDivisionError: float division"
    )
