"""A cluster of their own for tests that install and remove everything, CRDs included."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kronos.local import LocalCluster
from support.cluster import running_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster that has never heard of Kronos."""
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running
