"""What the two ways of removing Kronos leave behind while a job trains."""

from __future__ import annotations

import pytest
import yaml

from kronos.api import API_VERSION
from kronos.local import LocalCluster
from kronos.local.install import CLUSTER
from support.health import wait_until
from support.operators import Forge, OperatorProcess

pytestmark = [pytest.mark.cluster, pytest.mark.training, pytest.mark.timeout(240)]

OWNED = "pods,services,configmaps"
OF_JOBS = "training.kronos.dev/job"


@pytest.fixture(scope="module")
def forge(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Forge:
    """A namespace with a job that trains, after its operator has gone."""
    text = tmp_path_factory.mktemp("text")
    (text / "part.txt").write_text("the quick brown fox jumps over the lazy dog " * 500, encoding="utf-8")
    operator = OperatorProcess(cluster, tmp_path_factory.mktemp("operator") / "operator.log")
    operator.start()
    forge = Forge(cluster, "forge", text)
    forge.apply(forge.manifest("endless", optimization={"steps": 1_000_000}))
    forge.wait_phase("endless", "Running")
    operator.stop()
    return forge


def owned(forge: Forge) -> list[str]:
    """What the job has, in all that is running or not."""
    return forge.cluster.kubectl("-n", "forge", "get", OWNED, "-l", OF_JOBS, "-o", "name").split()


def test_removing_all_but_the_crds_leaves_jobs_and_what_they_do(forge: Forge):
    before = owned(forge)
    assert len(before) == 2, "the pod and its plan"
    forge.cluster.kubectl(
        "delete",
        "-k",
        str(CLUSTER),
        "-l",
        "app.kubernetes.io/name=kronos",
        "--timeout=60s",
        "--ignore-not-found",
    )
    assert forge.status("endless")["phase"] == "Running"
    assert owned(forge) == before
    (pod,) = forge.list("pods")
    assert pod["status"]["phase"] == "Running"
    left = forge.cluster.kubectl("get", "clusterroles,clusterrolebindings,namespaces", "-o", "name")
    assert "kronos" not in left


def test_removing_everything_removes_the_jobs_and_what_they_have(forge: Forge):
    wait_for_garbage_collector(forge)
    forge.cluster.kubectl("delete", "-k", str(CLUSTER), "--timeout=60s", "--ignore-not-found")
    assert "kronos" not in forge.cluster.kubectl("api-resources", "-o", "name")
    wait_until(lambda: not owned(forge), 90)


def wait_for_garbage_collector(forge: Forge) -> None:
    """It looks for new kinds of owners every half a minute. What belongs to a job that isn't there shows that it has."""
    owner = {"apiVersion": API_VERSION, "kind": "KronosTrainingJob", "name": "nobody", "uid": "nobody"}
    orphan = {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {"name": "orphan", "ownerReferences": [owner]},
    }
    forge.cluster.kubectl("-n", "forge", "create", "-f", "-", stdin=yaml.safe_dump(orphan))
    wait_until(lambda: "orphan" not in forge.names("configmaps"), 90)
