"""An operator that looks after one namespace, with the permissions of the narrow overlay and no others."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import yaml

from kronos.local import LocalCluster
from kronos.local.install import NAMESPACED
from support.operators import Forge, OperatorProcess

pytestmark = [pytest.mark.cluster, pytest.mark.training, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def namespaces(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Forge]:
    """The namespace that the overlay names, and another."""
    text = tmp_path_factory.mktemp("text")
    (text / "part.txt").write_text("the quick brown fox jumps over the lazy dog " * 500, encoding="utf-8")
    return {name: Forge(cluster, name, text) for name in ("forge", "other")}


@pytest.fixture(scope="module")
def operator(
    cluster: LocalCluster, namespaces: dict[str, Forge], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """A running operator; nothing that it asked for may have been refused."""
    log = tmp_path_factory.mktemp("operator") / "operator.log"
    process = OperatorProcess(cluster, log, NAMESPACED, ["--namespace=forge"])
    process.start()
    yield process
    code = process.stop()
    said = log.read_text(encoding="utf-8")
    assert code == 0, said
    assert not re.search("Traceback|forbidden|WARNING|ERROR", said), said


def test_it_trains_the_jobs_of_its_namespace_and_leaves_others_alone(
    namespaces: dict[str, Forge], operator: OperatorProcess
):
    forge, other = namespaces["forge"], namespaces["other"]
    other.apply(other.manifest("foreign"))
    forge.apply(forge.manifest("burner"))
    assert forge.wait_phase("burner", "Complete", "Failed")["phase"] == "Complete"
    assert other.status("foreign") == {}
    assert other.list("pods") == []


def test_it_sees_changes_of_its_jobs_and_their_end(namespaces: dict[str, Forge], operator: OperatorProcess):
    forge = namespaces["forge"]
    forge.apply(forge.manifest("moody", optimization={"steps": 100_000}))
    forge.wait_phase("moody", "Running")
    forge.apply(forge.manifest("moody", optimization={"steps": 100_000}, scheduling={"suspend": True}))
    forge.wait_phase("moody", "Suspended")
    forge.delete("moody")
    forge.wait_until(lambda: not forge.held(), "pods of deleted jobs hold nothing", 90)


def test_what_pods_of_other_namespaces_hold_is_not_free(
    namespaces: dict[str, Forge], operator: OperatorProcess
):
    forge, other = namespaces["forge"], namespaces["other"]
    other.cluster.kubectl("create", "-f", "-", stdin=yaml.safe_dump(tenant()))
    other.cluster.kubectl("-n", "other", "wait", "--for=condition=Ready", "pod/tenant", "--timeout=30s")
    forge.apply(
        forge.manifest("large", accelerators={"min": 16, "max": 16}, optimization={"globalBatchSize": 16})
    )
    status = forge.wait("large", lambda status: status.get("reason"))
    assert status["phase"] == "Queued"
    assert "free" in status["reason"]
    other.cluster.kubectl("-n", "other", "delete", "pod", "tenant", "--grace-period=1")
    assert forge.wait_phase("large", "Complete", "Failed")["phase"] == "Complete"


def tenant() -> dict[str, object]:
    """A pod of somebody else that holds one accelerator."""
    container = {
        "name": "main",
        "image": "ignored",
        "command": ["python", "-c", "import time; time.sleep(600)"],
        "resources": {"limits": {"kronos.dev/accelerator": "1"}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "tenant", "namespace": "other"},
        "spec": {"containers": [container], "restartPolicy": "Never"},
    }
