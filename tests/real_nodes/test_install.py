"""What the operator and the pods of gangs may do, in the cluster in which they really run."""

from __future__ import annotations

import json

import pytest

from kronos.local.kubelets.cluster import KubeletCluster
from support.permissions import EVERY_ACCOUNT, EVERYWHERE, JOBS, NEVER, OPERATOR, allowed, may
from support.real_nodes import RealForge

pytestmark = [pytest.mark.timeout(240, func_only=True)]

TOKEN = "/var/run/secrets/kubernetes.io"


def test_the_operators_pod_runs_with_its_own_account_under_the_restricted_level(installed: KubeletCluster):
    namespace = json.loads(installed.kubectl("get", "namespace", "kronos-system", "-o", "json"))
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    (pod,) = json.loads(installed.kubectl("-n", "kronos-system", "get", "pods", "-o", "json"))["items"]
    assert pod["spec"]["serviceAccountName"] == "kronos"
    assert pod["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["status"]["containerStatuses"][0]["ready"] is True


@pytest.mark.parametrize("namespace", ["default", "kube-system", "kronos-system"])
def test_the_operators_account_may_do_what_the_table_says_and_nothing_more(
    installed: KubeletCluster, namespace: str
):
    assert may(installed, OPERATOR, namespace) == EVERY_ACCOUNT | EVERYWHERE | JOBS
    assert allowed(installed, OPERATOR, [(verb, resource, namespace) for verb, resource in NEVER]) == []


def test_training_pods_have_no_token_run_as_nobody_and_cannot_write_their_root(forge: RealForge):
    forge.apply(forge.manifest("bare", optimization={"globalBatchSize": 8, "steps": 100_000}))
    forge.wait("bare", lambda status: status.get("progress", {}).get("step", 0) >= 1)

    def inside(script: str) -> str:
        said: str = forge.cluster.kubectl("-n", forge.name, "exec", "bare-1-0", "--", "sh", "-c", script)
        return said.strip()

    assert inside(f"test -e {TOKEN} && echo token || echo none") == "none"
    assert inside("id -u") == "65532"
    assert inside("touch /opt/x 2>/dev/null && echo written || echo refused") == "refused"
    assert inside("grep -c ^NoNewPrivs:.1 /proc/1/status") == "1"
    assert inside("sed -n 's/^CapEff:.//p;s/^Seccomp:.//p' /proc/1/status").split() == [
        "0000000000000000",
        "2",
    ]
