"""The operator may start before the API server has taken in all that was applied together with it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kronos.controller.api import NoClusterError
from kronos.controller.preflight import preflight
from kronos.local import LocalCluster
from kronos.local.install import CLUSTER, CRDS, with_token
from support.health import answer_of, free_port, wait_until

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def kubeconfig(cluster: LocalCluster) -> Path:
    """The operator's identity without any permission, in a cluster without Kronos's resources."""
    cluster.kubectl("create", "namespace", "kronos-system")
    here = ("-n", "kronos-system")
    cluster.kubectl(*here, "create", "serviceaccount", "kronos")
    token = cluster.kubectl(*here, "create", "token", "kronos").strip()
    path = cluster.state / "operator.kubeconfig"
    path.write_text(with_token(cluster.kubeconfig.read_text(encoding="utf-8"), token), encoding="utf-8")
    return path


async def test_without_the_crds_it_says_what_to_apply(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    with pytest.raises(
        NoClusterError, match=r"doesn't know Kronos's resources .*run `kubectl apply -f crds/`"
    ):
        await preflight(patience=0)


async def test_credentials_that_nobody_knows_are_not_waited_for(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "kubeconfig"
    path.write_text(with_token(cluster.kubeconfig.read_text(encoding="utf-8"), "stale"), encoding="utf-8")
    monkeypatch.setenv("KUBECONFIG", str(path))
    with pytest.raises(NoClusterError, match="doesn't accept the operator's credentials"):
        await preflight(patience=60)


def test_it_waits_for_crds_and_permissions_and_becomes_ready(
    cluster: LocalCluster, kubeconfig: Path, tmp_path: Path
):
    log, port = tmp_path / "operator.log", free_port()
    command = [
        sys.executable,
        "-m",
        "kronos.controller",
        f"--kubeconfig={kubeconfig}",
        f"--health-port={port}",
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        wait_until(
            lambda: re.search("doesn't know Kronos's resources.*; waiting", log.read_text(encoding="utf-8"))
        )
        cluster.kubectl("apply", "-f", str(CRDS))
        wait_until(lambda: re.search("operator not list .*; waiting", log.read_text(encoding="utf-8")))
        cluster.kubectl("apply", "-k", str(CLUSTER), "-l", "app.kubernetes.io/component!=operator")
        wait_until(lambda: answer_of(port, "/readyz") == (200, "ok"))
        assert answer_of(port, "/healthz") == (200, "ok")
    finally:
        process.terminate()
    assert process.wait(20) == 0, log.read_text(encoding="utf-8")
