"""Gangs are whole or nothing on the real scheduler, whoever else takes nodes at the same time.

KRONOS_RACES is how many interleavings to run, KRONOS_SEED the first one's seed (fresh unless given; it is printed).
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator

import pytest

from support.cluster import Kube, KubeError, running_cluster
from support.hollow import HollowNodes, hollow_node
from support.operators import OperatorProcess
from support.races import JOBS, NODES, SLOTS, Race, clear

COUNT = int(os.environ.get("KRONOS_RACES", "8"))
SEED = int(os.environ.get("KRONOS_SEED") or random.randrange(10**6))

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120 + 60 * COUNT)]


@pytest.fixture
def kube(tmp_path) -> Iterator[Kube]:
    """A control plane with an operator and hollow nodes in two racks."""
    # Nobody sends heartbeats for hollow nodes.
    with running_cluster(tmp_path / "cluster", nodes=[], node_grace_seconds=86_400) as cluster:
        kube = Kube(cluster)
        labels = [{"kronos.dev/rack": f"rack-{at // 5}"} for at in range(NODES)]
        nodes = HollowNodes(kube, [hollow_node(f"n{at}", labels[at], SLOTS) for at in range(NODES)])
        operator = OperatorProcess(cluster, tmp_path / "operator.log")
        operator.start()
        cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        _await_storage(kube)
        yield kube
        assert operator.stop() == 0
        nodes.stop()
        assert "Traceback" not in operator.log.read_text(encoding="utf-8")


def _await_storage(kube: Kube) -> None:
    """A resource is known a moment before it can be stored."""
    deadline = time.monotonic() + 60
    while True:
        try:
            kube.request("GET", "/apis/training.kronos.dev/v1alpha1/kronostrainingjobs")
            return
        except KubeError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_two_jobs_and_a_tenant_never_deadlock_or_half_hold_nodes_for_long(kube: Kube):
    print(f"{COUNT} interleavings from seed {SEED}")
    namespace = "races"
    kube.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    kube.wait(f"/api/v1/namespaces/{namespace}/serviceaccounts/default", bool)
    # Undisturbed first: from then on the operator runs, and the control plane's garbage collector knows its resources.
    Race(0, dict.fromkeys(JOBS, 0.0), dict.fromkeys(JOBS, 0.2)).run(kube, namespace)
    clear(kube, namespace)
    races = []
    for seed in range(SEED, SEED + COUNT):
        race = Race.draw(seed)
        race.run(kube, namespace)
        clear(kube, namespace)
        races.append(race)
    longest = max((held for race in races for held in race.half_held.values()), default=0.0)
    lost = sum(race.lost for race in races)
    print(f"longest half-held: {longest:.2f} s; places lost to tenants: {lost}")
