"""How the members of a gang meet, and leave notes for each other while they run."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from datetime import timedelta
from hashlib import sha256

from torch.distributed import DistError, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from kronos.api.plan import RENDEZVOUS_PORT, Plan
from kronos_trainer.exits import InputError
from kronos_trainer.inputs import Settings
from kronos_trainer.messages import Failure

_POLL_SECONDS = 0.1
_STORE_TIMEOUT = timedelta(seconds=30)


class RendezvousError(Exception):
    """Not every member arrived in time; the message names those that are missing."""


class Meeting:
    """The gang's shared store, on member 0's launcher: it outlives every rank, so the first cause can be told."""

    def __init__(self, settings: Settings, plan: Plan, store: Store, address: str) -> None:
        self._settings = settings
        self._plan = plan
        self._store = store
        self.address = address
        """Address of member 0."""

    def note_failure(self, failure: Failure) -> None:
        """Leave the note of a first cause, unless there is one already."""
        self._store.compare_set("failure", "", failure.model_dump_json())

    def failure(self) -> Failure | None:
        """The note that a member left, if any; RuntimeError when member 0 is gone."""
        if not self._store.check(["failure"]):
            return None
        return Failure.model_validate_json(self._store.get("failure"))

    def leave(self, linger_seconds: float) -> None:
        """Say that this member has ended; member 0 waits a little, so that the others can still read the note."""
        try:
            self._store.set(f"ended/{self._settings.member}", "")
            if self._settings.member == 0:
                keys = [f"ended/{member}" for member in range(len(self._plan.members))]
                deadline = time.monotonic() + linger_seconds
                while time.monotonic() < deadline and not self._store.check(keys):
                    time.sleep(_POLL_SECONDS)
        except RuntimeError:
            pass  # Member 0 has ended already: there is nobody left to tell.


def meet(settings: Settings, plan: Plan, deadline: float, interrupt: Callable[[], None]) -> Meeting:
    """Wait until every member of the gang has arrived.

    deadline: on the monotonic clock. interrupt: called often; may raise to give up. Raises RendezvousError, or
    InputError when the members don't hold the same plan.
    """
    if settings.member == 0:
        address, store = _host_store(settings)
    else:
        address, store = _reach_store(settings, plan, deadline, interrupt)
    # A late pod of an earlier attempt must not count as a member of this one.
    store = PrefixStore(f"attempt/{plan.attempt}", store)
    fingerprint = sha256(plan.model_dump_json().encode()).hexdigest()
    missing = [member for member in range(len(plan.members)) if member != settings.member]
    try:
        store.set(f"member/{settings.member}", fingerprint)
        while missing := [member for member in missing if not store.check([f"member/{member}"])]:
            if time.monotonic() > deadline:
                raise _timeout(plan, missing)
            interrupt()
            time.sleep(_POLL_SECONDS)
        fingerprints = [store.get(f"member/{member}").decode() for member in range(len(plan.members))]
    except DistError as error:
        meanwhile = f" while {_names(plan, missing)} had not arrived" if missing else ""
        raise RendezvousError(f"{_names(plan, [0])} has left{meanwhile}") from error
    for member, other in enumerate(fingerprints):
        if other != fingerprint:
            raise InputError(f"Member {member} was given another plan than member {settings.member}.")
    return Meeting(settings, plan, store, address)


def rank_store(address: str, attempt: int, timeout_seconds: int) -> Store:
    """A rank's own connection to the store, to be opened in its process."""
    store = TCPStore(address, RENDEZVOUS_PORT, is_master=False, timeout=timedelta(seconds=timeout_seconds))
    return PrefixStore(f"ranks/{attempt}", store)


def _host_store(settings: Settings) -> tuple[str, Store]:
    family = socket.AF_INET6 if settings.pod_ip and ":" in settings.pod_ip else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.pod_ip or "", RENDEZVOUS_PORT))
        listener.listen(1024)
    except OSError as error:
        raise OSError(f"port {RENDEZVOUS_PORT}, where the gang meets, can't be opened: {error}") from error
    address = settings.pod_ip or "127.0.0.1"
    # The store would listen on every address; given the socket, it serves this pod's alone (and owns it from now on).
    store = TCPStore(
        address,
        RENDEZVOUS_PORT,
        is_master=True,
        wait_for_workers=False,
        timeout=_STORE_TIMEOUT,
        master_listen_fd=listener.detach(),
    )
    return address, store


def _reach_store(
    settings: Settings, plan: Plan, deadline: float, interrupt: Callable[[], None]
) -> tuple[str, Store]:
    """Find member 0, whose name may take a while to be known and whose store may not be there yet."""
    while True:
        interrupt()
        try:
            with socket.create_connection((settings.master, RENDEZVOUS_PORT), timeout=1.0) as probe:
                address = probe.getpeername()[0]
            store = TCPStore(address, RENDEZVOUS_PORT, is_master=False, timeout=_STORE_TIMEOUT)
            return address, store
        except (OSError, DistError):
            if time.monotonic() > deadline:
                raise _timeout(plan, [0]) from None
            time.sleep(_POLL_SECONDS)


def _timeout(plan: Plan, missing: list[int]) -> RendezvousError:
    verb = "has" if len(missing) == 1 else "have"
    return RendezvousError(
        f"after {plan.rendezvous_timeout_seconds} s {_names(plan, missing)} of {len(plan.members)} "
        f"{verb} not arrived"
    )


def _names(plan: Plan, members: list[int]) -> str:
    names = ", ".join(f"{member} (node {plan.members[member].node})" for member in members)
    return f"member {names}" if len(members) == 1 else f"members {names}"
