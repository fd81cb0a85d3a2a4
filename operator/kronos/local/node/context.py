"""What the nodes of one cluster share."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kronos.local.node.isolation import Isolator
from kronos.local.node.logs import timestamp
from kronos.local.node.names import Names
from kronos.local.slots import AddressPool

NODE_ADDRESS = "127.0.0.1"


@dataclass(frozen=True)
class NodeContext:
    """The cluster as its nodes see it."""

    server: str
    authority: Path
    folder: Path
    addresses: AddressPool
    names: Names
    isolator: Isolator
    base_env: Mapping[str, str]
    lease_seconds: float = 40.0
    architecture: str = field(default="amd64")


def now() -> str:
    """The present, as Kubernetes writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def micro_now() -> str:
    """The present with microseconds, for leases."""
    return timestamp(time.time_ns())[:-4] + "Z"
