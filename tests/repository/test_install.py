"""manifests/base on a real API server: it installs, and the operator may do what it must and no more."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from kronos.local import LocalCluster
from kronos.local.install import BASE, install, with_token

pytestmark = pytest.mark.cluster
OPERATOR = "system:serviceaccount:kronos-system:kronos"


@pytest.fixture(scope="module")
def identity(shared_cluster: LocalCluster) -> Path:
    """The operator's kubeconfig, after an install of everything but the Deployment."""
    return install(shared_cluster.kubectl, shared_cluster.kubeconfig)


@pytest.fixture
def installed(identity: Path, shared_cluster: LocalCluster) -> LocalCluster:
    return shared_cluster


def test_everything_in_the_base_is_accepted(installed: LocalCluster):
    said = installed.kubectl("apply", "-k", str(BASE), "--dry-run=server", "-o", "name")
    assert sorted(line.partition("/")[0].partition(".")[0] for line in said.splitlines()) == [
        "clusterrole",
        "clusterrolebinding",
        "deployment",
        "namespace",
        "serviceaccount",
    ]


@pytest.mark.parametrize(
    ("answer", "verb", "resource"),
    [
        ("yes", "watch", "kronostrainingjobs.training.kronos.dev"),
        ("yes", "update", "kronostrainingjobs.training.kronos.dev/status"),
        ("yes", "create", "pods"),
        ("yes", "delete", "pods"),
        ("yes", "list", "nodes"),
        ("yes", "create", "configmaps"),
        ("no", "update", "kronostrainingjobs.training.kronos.dev"),
        ("no", "delete", "kronostrainingjobs.training.kronos.dev"),
        ("yes", "get", "services"),
        ("no", "list", "configmaps"),
        ("no", "delete", "services"),
        ("no", "get", "secrets"),
        ("no", "update", "nodes"),
        ("no", "create", "pods/exec"),
        ("no", "create", "clusterrolebindings.rbac.authorization.k8s.io"),
    ],
)
def test_what_the_operator_may_do(installed: LocalCluster, answer: str, verb: str, resource: str):
    resource, _, subresource = resource.partition("/")
    attributes = {"verb": verb, "namespace": "forge", "subresource": subresource}
    attributes["resource"], _, attributes["group"] = resource.partition(".")
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": OPERATOR, "resourceAttributes": attributes},
    }
    said = installed.kubectl(
        "create", "-f", "-", "-o", "jsonpath={.status.allowed}", stdin=yaml.safe_dump(review)
    )
    assert ("yes" if said == "true" else "no") == answer


def test_the_local_operator_gets_the_identity_of_the_service_account(installed: LocalCluster, identity: Path):
    who = installed.kubectl(
        "--kubeconfig", str(identity), "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"
    )
    assert who == OPERATOR


def test_a_token_replaces_every_other_login():
    admin = "users:\n- name: admin\n  user: {client-key-data: secret}\nclusters: []\n"
    assert yaml.safe_load(with_token(admin, "abc")) == {
        "users": [{"name": "admin", "user": {"token": "abc"}}],
        "clusters": [],
    }
