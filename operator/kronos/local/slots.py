"""A share of the machine for one cluster: a block of loopback addresses and a block of ports.

Several clusters can run side by side, started by any user. Each holds the lock of one numbered slot for as
long as its supervisor lives, so neither addresses nor ports are promised twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

# 127.0.x.y belongs to the machine itself: localhost, and local name servers such as 127.0.0.53.
SLOTS = range(1, 255)
# Below the range from which Linux takes the local ports of outgoing connections.
FIRST_PORT = 20000
PORTS_PER_SLOT = 40


class NoSlotError(Exception):
    """No addresses or ports are left on this machine."""


class Slot:
    """The addresses and ports of one cluster, for as long as this object is not closed."""

    def __init__(self, number: int, lock: int) -> None:
        """Wrap a lock that is already held; use ``claim`` instead."""
        self.number = number
        self.lock = lock
        self.ports = deque(ports_of(number))
        self.addresses = AddressPool(number)

    def port(self) -> int:
        """A port of this slot on which nobody listens."""
        while self.ports:
            candidate = self.ports.popleft()
            if is_free(candidate):
                return candidate
        raise NoSlotError("all ports of this cluster are taken by other programs; stop some and start again")

    def close(self) -> None:
        """Give the slot back."""
        os.close(self.lock)


class AddressPool:
    """Pod addresses, each used again only after all the others."""

    def __init__(self, number: int) -> None:
        """The addresses 127.<number>.0.1 to 127.<number>.255.254."""
        self.number = number
        self.next = 0
        self.used: set[str] = set()

    def take(self) -> str:
        """An address that no pod has."""
        for _ in range(256 * 254):
            third, fourth = divmod(self.next, 254)
            self.next = (self.next + 1) % (256 * 254)
            address = f"127.{self.number}.{third}.{fourth + 1}"
            if address not in self.used:
                self.used.add(address)
                return address
        raise NoSlotError("all pod addresses of this cluster are in use; delete some pods")

    def reserve(self, address: str) -> None:
        """Note that an address is in use already."""
        self.used.add(address)

    def release(self, address: str) -> None:
        """Let an address be used again."""
        self.used.discard(address)


def ports_of(number: int) -> range:
    """The ports of a slot."""
    first = FIRST_PORT + number * PORTS_PER_SLOT
    return range(first, first + PORTS_PER_SLOT)


def is_free(port: int) -> bool:
    """Whether a server could listen on the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return True
    return False


def lock_folder() -> Path:
    """The folder of the locks, shared by all users of the machine."""
    folder = Path(tempfile.gettempdir()) / "kronos-local-slots"
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
        folder.chmod(0o1777)
    return folder


def claim(folder: Path, shuffle: Callable[[list[int]], None] = random.shuffle) -> Slot:
    """Take a slot that no other cluster holds."""
    numbers = list(SLOTS)
    shuffle(numbers)
    return claim_first(folder, numbers)


def open_lock(path: Path) -> int:
    """Open a lock file, which another user may have created: reading is enough to lock it."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)


def claim_first(folder: Path, numbers: Sequence[int]) -> Slot:
    """Take the first free slot of those given."""
    for number in numbers:
        descriptor = open_lock(folder / str(number))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        return Slot(number, descriptor)
    raise NoSlotError(
        "too many local clusters run on this machine; stop one with `python -m kronos.local down`"
    )
