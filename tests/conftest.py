"""Fixtures that several folders of tests share."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from kronos.local import LocalCluster
from support.cluster import running_cluster

# A shell that runs tests in the background has them ignore Ctrl-C, which their children would inherit: then a test that
# interrupts a command would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One cluster for all tests that leave nothing behind in it: two racks, two nodes each, four slots each."""
    with running_cluster(tmp_path_factory.mktemp("shared-cluster"), node_grace_seconds=8.0) as running:
        yield running
