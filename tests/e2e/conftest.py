"""The whole path on a real control plane: one operator, a namespace for each test."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from kronos.local import LocalCluster
from support.operators import Forge, OperatorProcess

_numbers = count(1)


@pytest.fixture(scope="module")
def operator(
    shared_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """A running operator."""
    process = OperatorProcess(shared_cluster, tmp_path_factory.mktemp("operator") / "operator.log")
    process.start()
    yield process
    code = process.stop() if process.process is not None else 0
    log = process.log.read_text(encoding="utf-8")
    assert code == 0, log
    assert "Traceback" not in log, log


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a little text to train on."""
    folder = tmp_path_factory.mktemp("text")
    for index in range(4):
        words = " ".join(f"the {number} fox jumps over the lazy dog" for number in range(200))
        (folder / f"part-{index}.txt").write_text(words, encoding="utf-8")
    return folder


@pytest.fixture
def forge(shared_cluster: LocalCluster, text: Path) -> Iterator[Forge]:
    """A namespace for one test; its jobs are deleted afterwards."""
    place = Forge(shared_cluster, f"forge-{next(_numbers)}", text)
    yield place
    place.cluster.kubectl("-n", place.name, "delete", "ktj", "--all")
    place.wait_until(lambda: not place.held(), "pods of deleted jobs hold nothing", 90)
