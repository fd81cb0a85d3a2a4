"""The local install gives the operator beside the cluster the identity that its pod would have."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from kronos.local import LocalCluster
from kronos.local.install import install, with_token

pytestmark = pytest.mark.cluster
OPERATOR = "system:serviceaccount:kronos-system:kronos"


@pytest.fixture(scope="module")
def identity(shared_cluster: LocalCluster) -> Path:
    """The operator's kubeconfig, after an install of everything but its pod."""
    return install(shared_cluster.kubectl, shared_cluster.kubeconfig)


def test_the_local_operator_gets_the_identity_of_the_service_account(
    shared_cluster: LocalCluster, identity: Path
):
    who = shared_cluster.kubectl(
        "--kubeconfig", str(identity), "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"
    )
    assert who == OPERATOR


def test_the_local_install_leaves_the_operators_pod_out(shared_cluster: LocalCluster, identity: Path):
    assert not shared_cluster.kubectl("-n", "kronos-system", "get", "deployments,services,pods", "-o", "name")


def test_a_token_replaces_every_other_login():
    admin = "users:\n- name: admin\n  user: {client-key-data: secret}\nclusters: []\n"
    assert yaml.safe_load(with_token(admin, "abc")) == {
        "users": [{"name": "admin", "user": {"token": "abc"}}],
        "clusters": [],
    }
