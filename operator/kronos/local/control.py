"""What the supervisor process and those who use it say to each other."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kronos.local.topology import LocalNode

COMMAND_SECONDS = 60.0
LONGEST_SOCKET_PATH = 100


class ControlError(Exception):
    """The supervisor refused a command, or there is none."""


@dataclass(frozen=True)
class ExtraProcess:
    """A program that runs beside the cluster and is started again when it ends; it gets ``KUBECONFIG``."""

    name: str
    argv: list[str]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """Everything that a supervisor needs to know."""

    state: Path
    binaries: Path
    owner: int
    nodes: Sequence[LocalNode]
    node_grace_seconds: float
    pod_env: Mapping[str, str]
    processes: Sequence[ExtraProcess]

    def to_json(self) -> str:
        """A form for the supervisor's standard input."""
        return json.dumps(
            {
                "state": str(self.state),
                "binaries": str(self.binaries),
                "owner": self.owner,
                "nodes": [node.as_dict() for node in self.nodes],
                "node_grace_seconds": self.node_grace_seconds,
                "pod_env": dict(self.pod_env),
                "processes": [vars(process) | {"env": dict(process.env)} for process in self.processes],
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """The inverse of ``to_json``."""
        content = json.loads(text)
        return cls(
            Path(content["state"]),
            Path(content["binaries"]),
            content["owner"],
            [LocalNode.from_dict(node) for node in content["nodes"]],
            content["node_grace_seconds"],
            content["pod_env"],
            [ExtraProcess(**process) for process in content["processes"]],
        )


def socket_address(state: Path) -> str:
    """The address of the supervisor's socket, which also works for folders with long names."""
    path = str(state / "control.sock")
    if len(path) <= LONGEST_SOCKET_PATH:
        return path
    # The descriptor stays open for as long as the process, of which each serves or asks few clusters.
    return f"/proc/self/fd/{os.open(state, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)}/control.sock"


@contextlib.contextmanager
def _connection(state: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(COMMAND_SECONDS)
        folder = os.open(state, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            connection.connect(f"/proc/self/fd/{folder}/control.sock")
        finally:
            os.close(folder)
        yield connection


def stop(state: Path) -> None:
    """Stop the cluster in a folder; returns when its supervisor has ended, the last of its processes."""
    supervisor = os.pidfd_open(ask(state, "status")["pid"])
    try:
        ask(state, "stop")
        poll = select.poll()
        poll.register(supervisor, select.POLLIN)
        if not poll.poll(COMMAND_SECONDS * 1000):
            raise ControlError(
                f"the cluster in {state} has not stopped in {COMMAND_SECONDS:g} s; see its log"
            )
    finally:
        os.close(supervisor)


def ask(state: Path, command: str, **arguments: str) -> dict[str, Any]:
    """Send a command to the supervisor of the cluster in a folder and return its answer."""
    try:
        with _connection(state) as connection, connection.makefile("rw") as stream:
            stream.write(json.dumps({"command": command, **arguments}) + "\n")
            stream.flush()
            answer: dict[str, Any] = json.loads(stream.readline() or '{"error": "the cluster has stopped"}')
    except OSError as error:
        raise ControlError(f"no cluster runs in {state} ({error.strerror or error})") from None
    if "error" in answer:
        raise ControlError(answer["error"])
    return answer
