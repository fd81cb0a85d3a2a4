"""Fixtures of the trainer's tests."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.training_ranks import Ranks, rank_server


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with some real text in two files."""
    folder = tmp_path_factory.mktemp("text")
    source = Path(subprocess.__file__).read_bytes()
    (folder / "a.txt").write_bytes(source[:30_000])
    (folder / "b.txt").write_bytes(source[30_000:70_000])
    return folder


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Starts gangs of rank processes quickly."""
    with rank_server() as server:
        yield server
