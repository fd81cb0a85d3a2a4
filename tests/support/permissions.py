"""What an account may do, as the API server says it."""

from __future__ import annotations

import re
from collections.abc import Iterable

import yaml

from kronos.local import LocalCluster

Table = dict[str, set[str]]
"""Resource or URL -> verbs. Names of single objects follow the resource in brackets."""

Wish = tuple[str, str, str]
"""Verb, resource with group and subresource, namespace (empty for all)."""

OPERATOR = "system:serviceaccount:kronos-system:kronos"
EVERY_ACCOUNT: Table = {
    "selfsubjectaccessreviews.authorization.k8s.io": {"create"},
    "selfsubjectreviews.authentication.k8s.io": {"create"},
    "selfsubjectrulesreviews.authorization.k8s.io": {"create"},
    **{
        f"/{url}": {"get"}
        for url in (
            ".well-known/openid-configuration",
            ".well-known/openid-configuration/",
            "api",
            "api/*",
            "apis",
            "apis/*",
            "healthz",
            "livez",
            "openapi",
            "openapi/*",
            "openid/v1/jwks",
            "openid/v1/jwks/",
            "readyz",
            "version",
            "version/",
        )
    },
}
"""What Kubernetes grants to every service account there is."""
EVERYWHERE: Table = {
    "customresourcedefinitions.apiextensions.k8s.io": {"list", "watch"},
    "kronosfabrics.training.kronos.dev": {"list", "watch"},
    "kronosfabrics.training.kronos.dev/status": {"update"},
    "kronosqueues.training.kronos.dev": {"list", "watch"},
    "kronosqueues.training.kronos.dev/status": {"update"},
    "priorityclasses.scheduling.k8s.io": {"list", "watch"},
    "nodes": {"list", "watch"},
    "pods": {"list", "watch"},
}
JOBS: Table = {
    "configmaps": {"get", "create"},
    "events": {"create", "list"},
    "kronostrainingjobs.training.kronos.dev": {"list", "watch"},
    "kronostrainingjobs.training.kronos.dev/status": {"update"},
    "podgroups.scheduling.x-k8s.io": {"get", "create"},
    "pods": {"get", "create", "delete", *EVERYWHERE["pods"]},
    "services": {"get", "create"},
}
NEVER = [
    ("get", "secrets"),
    ("list", "secrets"),
    ("watch", "secrets"),
    ("create", "pods/exec"),
    ("get", "pods/log"),
    ("create", "pods/portforward"),
    ("create", "pods/eviction"),
    ("create", "pods/ephemeralcontainers"),
    ("patch", "pods"),
    ("create", "pods/binding"),
    ("get", "nodes/proxy"),
    ("create", "nodes/proxy"),
    ("update", "nodes"),
    ("create", "serviceaccounts/token"),
    ("escalate", "clusterroles.rbac.authorization.k8s.io"),
    ("bind", "clusterroles.rbac.authorization.k8s.io"),
    ("create", "rolebindings.rbac.authorization.k8s.io"),
    ("create", "clusterrolebindings.rbac.authorization.k8s.io"),
    ("impersonate", "users"),
    ("impersonate", "groups"),
    ("impersonate", "serviceaccounts"),
    ("create", "certificatesigningrequests.certificates.k8s.io"),
    ("update", "kronostrainingjobs.training.kronos.dev"),
    ("delete", "kronostrainingjobs.training.kronos.dev"),
    ("update", "kronosfabrics.training.kronos.dev"),
    ("update", "kronosqueues.training.kronos.dev"),
    ("update", "priorityclasses.scheduling.k8s.io"),
    ("update", "customresourcedefinitions.apiextensions.k8s.io"),
    ("list", "configmaps"),
    ("update", "configmaps"),
    ("delete", "services"),
]
"""What the operator may do nowhere, whatever it is installed for."""

_ROW = re.compile(r"(?P<resource>\S*)\s+\[(?P<urls>.*?)\]\s+\[(?P<names>.*?)\]\s+\[(?P<verbs>.*?)\]")


def may(cluster: LocalCluster, user: str, namespace: str) -> Table:
    """Everything that a user may do in a namespace and with what belongs to none: `kubectl auth can-i --list`."""
    said = cluster.kubectl("auth", "can-i", "--list", f"--as={user}", "-n", namespace)
    heading, *rows = said.splitlines()
    assert heading.split() == ["Resources", "Non-Resource", "URLs", "Resource", "Names", "Verbs"]
    table: Table = {}
    for row in rows:
        parts = _ROW.fullmatch(row)
        assert parts, row
        names = f"[{parts['names']}]" if parts["names"] else ""
        for key in filter(None, (parts["resource"] and parts["resource"] + names, *parts["urls"].split())):
            table.setdefault(key, set()).update(parts["verbs"].split())
    return table


def can(cluster: LocalCluster, user: str, verb: str, resource: str, namespace: str = "") -> bool:
    """Whether a user may do one thing in a namespace, or in all: `deployments.apps/scale` names a subresource."""
    return bool(allowed(cluster, user, [(verb, resource, namespace)]))


def allowed(cluster: LocalCluster, user: str, wishes: Iterable[Wish]) -> list[Wish]:
    """Those of many wishes that a user may have."""
    wishes = list(wishes)
    reviews = yaml.safe_dump_all(_review(user, *wish) for wish in wishes)
    said = cluster.kubectl("create", "-f", "-", "-o", "jsonpath={.status.allowed} ", stdin=reviews)
    return [wish for wish, answer in zip(wishes, said.split(), strict=True) if answer == "true"]


def _review(user: str, verb: str, resource: str, namespace: str) -> dict[str, object]:
    resource, _, subresource = resource.partition("/")
    resource, _, group = resource.partition(".")
    attributes = {
        "verb": verb,
        "group": group,
        "resource": resource,
        "subresource": subresource,
        "namespace": namespace,
    }
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "groups": groups_of(user), "resourceAttributes": attributes},
    }


def groups_of(user: str) -> list[str]:
    """The groups in which Kubernetes puts a user by itself."""
    account = re.fullmatch(r"system:serviceaccount:([^:]+):[^:]+", user)
    of_accounts = ["system:serviceaccounts", f"system:serviceaccounts:{account[1]}"] if account else []
    return ["system:authenticated", *of_accounts]
