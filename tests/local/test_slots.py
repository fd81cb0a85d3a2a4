"""Clusters side by side share no port and no address."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from kronos.local import slots


def test_ports_of_different_slots_do_not_overlap_and_stay_below_outgoing_ones() -> None:
    ports = [port for number in slots.SLOTS for port in slots.ports_of(number)]
    assert len(set(ports)) == len(ports)
    assert min(ports) > 1024
    assert max(ports) < 32768


def test_a_slot_is_held_by_one_cluster_until_it_is_given_back(tmp_path: Path) -> None:
    first = slots.claim_first(tmp_path, [7, 8])
    second = slots.claim_first(tmp_path, [7, 8])
    assert (first.number, second.number) == (7, 8)
    with pytest.raises(slots.NoSlotError, match="stop one"):
        slots.claim_first(tmp_path, [7, 8])
    first.close()
    third = slots.claim_first(tmp_path, [7, 8])
    assert third.number == 7
    for slot in (second, third):
        slot.close()


def test_a_port_somebody_else_uses_is_skipped(tmp_path: Path) -> None:
    slot = slots.claim_first(tmp_path, [9])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", slots.ports_of(9)[0]))
        taken.listen()
        assert slot.port() == slots.ports_of(9)[1]
    slot.close()


def test_addresses_are_unique_and_used_again_late() -> None:
    pool = slots.AddressPool(3)
    first = pool.take()
    assert first == "127.3.0.1"
    pool.release(first)
    taken = {pool.take() for _ in range(600)}
    assert len(taken) == 600
    assert first not in taken
    assert all(address.rsplit(".", 1)[1] not in ("0", "255") for address in taken)
