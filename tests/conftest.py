"""Fixtures that several folders of tests share."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from kronos.local import LocalCluster, binaries
from support.cluster import running_cluster

# A shell that runs tests in the background has them ignore Ctrl-C, which their children would inherit: then a test that
# interrupts a command would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Obtain the control plane's programs before the clock of a test runs: building them takes minutes."""
    fixtures = {name for item in items if isinstance(item, pytest.Function) for name in item.fixturenames}
    if any("cluster" in name for name in fixtures):
        binaries.ensure(print)


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One cluster for all tests that leave nothing behind in it: two racks, two nodes each, four slots each."""
    with running_cluster(tmp_path_factory.mktemp("shared-cluster"), node_grace_seconds=8.0) as running:
        yield running
