"""Two clusters side by side, one for each way in which containers see their volumes and peers."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from kronos.local import LocalCluster
from support.cluster import Kube, Namespace, new_namespace, running_cluster

SHORT_NODE_GRACE_SECONDS = 5.0


@pytest.fixture(scope="session")
def cluster(shared_cluster: LocalCluster) -> LocalCluster:
    """A cluster as users get it."""
    return shared_cluster


@pytest.fixture(scope="session")
def translating_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster that makes do without namespaces, and notices lost nodes soon."""
    os.environ["KRONOS_LOCAL_ISOLATION"] = "translate"
    try:
        folder = tmp_path_factory.mktemp("translating")
        with running_cluster(folder, node_grace_seconds=SHORT_NODE_GRACE_SECONDS) as running:
            del os.environ["KRONOS_LOCAL_ISOLATION"]
            yield running
    finally:
        os.environ.pop("KRONOS_LOCAL_ISOLATION", None)


@pytest.fixture(scope="session")
def kube(cluster: LocalCluster) -> Kube:
    """The cluster's API."""
    return Kube(cluster)


@pytest.fixture(scope="session")
def translating_kube(translating_cluster: LocalCluster) -> Kube:
    """The other cluster's API."""
    return Kube(translating_cluster)


@pytest.fixture
def namespace(cluster: LocalCluster, kube: Kube) -> Iterator[Namespace]:
    """A fresh namespace, whose pods end with the test."""
    made = new_namespace(cluster, kube)
    yield made
    made.clear()


@pytest.fixture(params=["namespaces", "translate"])
def any_namespace(request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A fresh namespace, once for each kind of isolation."""
    prefix = "" if request.param == "namespaces" else "translating_"
    cluster, kube = (request.getfixturevalue(f"{prefix}{name}") for name in ("cluster", "kube"))
    made = new_namespace(cluster, kube)
    yield made
    made.clear()
