"""Nodes come and go as machines do."""

from __future__ import annotations

import time

import pytest

from kronos.local import ClusterError, LocalCluster
from support.cluster import Kube, Namespace, first_state, new_namespace

pytestmark = pytest.mark.cluster

NODE = "rack-b-1"


def is_ready(node: dict | None) -> bool:
    conditions = (node or {}).get("status", {}).get("conditions", [])
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def test_nodes_carry_labels_and_accelerator_slots(cluster: LocalCluster, kube: Kube) -> None:
    nodes = {item["metadata"]["name"]: item for item in kube.request("GET", "/api/v1/nodes")["items"]}
    assert sorted(nodes) == ["rack-a-0", "rack-a-1", "rack-b-0", "rack-b-1"]
    node = nodes[NODE]
    assert node["metadata"]["labels"]["kronos.dev/rack"] == "rack-b"
    assert node["metadata"]["labels"]["kubernetes.io/hostname"] == NODE
    assert node["status"]["allocatable"]["kronos.dev/accelerator"] == "4"


def test_the_scheduler_never_promises_a_slot_twice(namespace: Namespace) -> None:
    container = {"resources": {"limits": {"kronos.dev/accelerator": "3"}}}
    for index in range(5):
        namespace.run(f"pod-{index}", "import time; time.sleep(100)", container=container)
    path = f"/api/v1/namespaces/{namespace.name}/pods"
    pods = namespace.kube.wait(
        path, lambda found: sum(pod["status"]["phase"] == "Running" for pod in found["items"]) == 4
    )["items"]
    assert len({pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")}) == 4


def test_a_killed_node_turns_not_ready_and_comes_back_without_its_pods(
    translating_cluster: LocalCluster, translating_kube: Kube
) -> None:
    space = new_namespace(translating_cluster, translating_kube)
    for name, policy in (("never", "Never"), ("always", "Always")):
        space.run(name, "import time; time.sleep(100)", nodeName=NODE, restartPolicy=policy)
        space.phase(name, "Running")
    translating_cluster.kill_node(NODE)
    path = f"/api/v1/nodes/{NODE}"
    translating_kube.wait(path, lambda node: not is_ready(node), seconds=25)
    with pytest.raises(ClusterError, match="does not run; start it first"):
        translating_cluster.kill_node(NODE)
    translating_cluster.start_node(NODE)
    translating_kube.wait(path, is_ready)
    lost = first_state(space.phase("never", "Failed"))["terminated"]
    assert (lost["exitCode"], lost["reason"]) == (137, "ContainerStatusUnknown")
    again = translating_kube.wait(
        space.path("always"),
        lambda pod: (
            pod
            and pod["status"]["containerStatuses"][0]["restartCount"] == 1
            and "running" in first_state(pod)
        ),
    )
    assert again["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 137


@pytest.mark.parametrize("phase", ["Running", "Failed"])
def test_a_pod_deleted_while_its_node_is_away_goes_when_the_node_returns(
    translating_cluster: LocalCluster, translating_kube: Kube, phase: str
) -> None:
    space = new_namespace(translating_cluster, translating_kube)
    space.run("stays", "import time; time.sleep(100)", nodeName="rack-b-0")
    space.phase("stays", "Running")
    translating_cluster.kill_node("rack-b-0")
    space.delete("stays", grace=1)
    pod = translating_kube.get(space.path("stays"))
    assert pod is not None
    assert pod["metadata"]["deletionTimestamp"]
    # As when the node had reported the end, but was lost before it could remove the pod.
    patch = {"status": {"phase": phase}}
    translating_kube.request("PATCH", space.path("stays") + "/status", patch, "application/merge-patch+json")
    translating_cluster.start_node("rack-b-0")
    space.gone("stays")
    folder = translating_cluster.state / "nodes" / "rack-b-0"
    home = folder / pod["metadata"]["uid"] / "home"
    # The object goes first: until it has, its logs can be asked for.
    deadline = time.monotonic() + 10
    while home.exists():
        assert time.monotonic() < deadline, "the pod's folder stays"
        time.sleep(0.05)
