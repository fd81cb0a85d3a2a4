"""What tests need of the machine when pods must see their volumes at the paths that are built into programs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kronos.local.node.isolation import CHOICE, namespaces_work


def require_namespaces(folder: Path) -> None:
    """Skip the test where local nodes give containers no file system of their own."""
    chosen = os.environ.get(CHOICE) == "translate"
    problem = f"{CHOICE} is translate" if chosen else namespaces_work(folder)
    if problem:
        pytest.skip(f"the operator's pod can't see its token at /var/run/secrets: {problem}")
