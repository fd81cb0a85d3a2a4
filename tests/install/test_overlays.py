"""`kubectl apply -k` of an overlay is the whole install, `kubectl delete -k` the whole removal, and both are exact."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from kronos.api.plan import PROGRESS_PORT
from kronos.local import LocalCluster
from kronos.local.install import CLUSTER, CRDS, FABRIC, NAMESPACED, ROOT
from support.cluster import Kube
from support.health import free_port, wait_until
from support.isolation import require_namespaces
from support.permissions import EVERY_ACCOUNT, EVERYWHERE, JOBS, NEVER, OPERATOR, Table, allowed, can, may
from support.worlds import World, job

pytestmark = pytest.mark.cluster

EXAMPLES = FABRIC.parent
JOB = "kronostrainingjobs.training.kronos.dev"

GRANTED: dict[Path, dict[str, Table]] = {
    CLUSTER: dict.fromkeys(("forge", "other", "kube-system"), EVERY_ACCOUNT | EVERYWHERE | JOBS),
    NAMESPACED: {
        "forge": EVERY_ACCOUNT | EVERYWHERE | JOBS,
        **dict.fromkeys(("other", "kube-system", "kronos-system"), EVERY_ACCOUNT | EVERYWHERE),
    },
}
"""By overlay and namespace: everything that the operator may do there."""


def inventory(cluster: LocalCluster) -> set[str]:
    """Every object in the cluster, apart from what the control plane writes for itself."""
    kinds = set(cluster.kubectl("api-resources", "--verbs=list", "-o", "name").split())
    kinds -= {"events", "events.events.k8s.io", "leases.coordination.k8s.io", "componentstatuses"}
    columns = "custom-columns=A:.kind,B:.metadata.namespace,C:.metadata.name"
    said = cluster.kubectl("get", ",".join(sorted(kinds)), "-A", "--no-headers", "-o", columns)
    found = [tuple(line.split()) for line in said.splitlines()]
    return {" ".join(item) for item in found if item[1] != "kube-system"}


@pytest.fixture(scope="module", params=[CLUSTER, NAMESPACED], ids=lambda path: path.name)
def overlay(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


@pytest.fixture(scope="module")
def namespaces(cluster: LocalCluster) -> None:
    """Where people train: the namespace that the narrow overlay names, and another."""
    kube = Kube(cluster)
    for name in ("forge", "other"):
        cluster.kubectl("create", "namespace", name)
        # What a namespace gets by itself belongs to the inventory before the install.
        kube.wait(f"/api/v1/namespaces/{name}/serviceaccounts/default", bool)
        kube.wait(f"/api/v1/namespaces/{name}/configmaps/kube-root-ca.crt", bool)


@pytest.fixture(scope="module")
def installed(cluster: LocalCluster, namespaces: None, overlay: Path) -> Iterator[LocalCluster]:
    """The cluster with an overlay applied, once for each; afterwards nothing of it may be left."""
    before = inventory(cluster)
    said = cluster.kubectl("apply", "-k", str(overlay), "--warnings-as-errors")
    assert {line.rsplit(" ", 1)[1] for line in said.splitlines()} == {"created"}
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", str(CRDS))
    yield cluster
    cluster.kubectl("delete", "-k", str(overlay), "--timeout=60s")
    wait_until(lambda: inventory(cluster) <= before)


def test_applying_it_again_changes_nothing(installed: LocalCluster, overlay: Path):
    said = installed.kubectl("apply", "-k", str(overlay))
    assert {line.rsplit(" ", 1)[1] for line in said.splitlines()} == {"unchanged"}
    assert installed.kubectl("diff", "-k", str(overlay)) == ""


def test_the_crds_alone_are_the_same_ones(installed: LocalCluster):
    said = installed.kubectl("apply", "-f", str(CRDS))
    assert {line.rsplit(" ", 1)[1] for line in said.splitlines()} == {"unchanged"}


def test_the_operator_may_do_what_the_table_says_and_nothing_more(installed: LocalCluster, overlay: Path):
    for namespace, granted in GRANTED[overlay].items():
        assert may(installed, OPERATOR, namespace) == granted, namespace


def test_what_the_operator_may_do_nowhere(installed: LocalCluster):
    places = ("", "forge", "other", "kube-system", "kronos-system")
    wishes = [(verb, resource, place) for verb, resource in NEVER for place in places]
    assert allowed(installed, OPERATOR, wishes) == []


def test_an_operator_of_one_namespace_writes_there_alone(installed: LocalCluster, overlay: Path):
    for verb, resource in (("create", "pods"), ("list", JOB), ("update", f"{JOB}/status")):
        assert can(installed, OPERATOR, verb, resource, "forge")
        assert can(installed, OPERATOR, verb, resource, "other") == (overlay == CLUSTER)


@pytest.mark.parametrize(
    ("role", "verbs"),
    [
        ("view", {"get", "list", "watch"}),
        ("edit", {"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}),
        ("admin", {"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}),
    ],
)
def test_who_may_use_a_namespace_may_use_its_jobs_likewise(
    installed: LocalCluster, role: str, verbs: set[str]
):
    user, here = f"user-{role}", ("-n", "forge")
    installed.kubectl(*here, "create", "rolebinding", user, f"--clusterrole={role}", f"--user={user}")
    try:
        # The roles are put together by a controller, a moment after they were applied.
        wait_until(lambda: can(installed, user, "get", JOB, "forge"))
        wait_until(lambda: may(installed, user, "forge").get(JOB) == verbs)
        assert may(installed, user, "forge").get(f"{JOB}/status") == {"get", "list", "watch"}
        assert JOB not in may(installed, user, "other")
        assert not can(installed, user, "create", "kronosfabrics.training.kronos.dev")
    finally:
        installed.kubectl(*here, "delete", "rolebinding", user)


def test_a_viewer_is_refused_a_job_that_an_editor_may_create(installed: LocalCluster):
    job = (EXAMPLES / "burner.yaml").read_text(encoding="utf-8")
    for role in ("view", "edit"):
        installed.kubectl(
            "-n", "forge", "create", "rolebinding", role, f"--clusterrole={role}", f"--user={role}"
        )
    try:
        wait_until(lambda: can(installed, "edit", "create", JOB, "forge"))
        with pytest.raises(Exception, match='User "view" cannot create resource "kronostrainingjobs"'):
            installed.kubectl("create", "-f", "-", "--as=view", "--dry-run=server", stdin=job)
        assert "created" in installed.kubectl("create", "-f", "-", "--as=edit", "--dry-run=server", stdin=job)
    finally:
        installed.kubectl("-n", "forge", "delete", "rolebinding", "view", "edit")


def test_the_operators_pod_passes_the_restricted_level_without_a_warning(
    installed: LocalCluster, overlay: Path
):
    installed.kubectl("apply", "-k", str(overlay), "--dry-run=server", "--warnings-as-errors")
    careless = installed.kubectl(
        "create", "deployment", "careless", "--image=x", "--dry-run=client", "-o", "yaml"
    )
    with pytest.raises(Exception, match='violate PodSecurity "restricted'):
        installed.kubectl(
            *("-n", "kronos-system", "apply", "-f", "-", "--dry-run=server", "--warnings-as-errors"),
            stdin=careless,
        )


def test_pods_of_gangs_are_admitted_where_the_restricted_level_is_enforced(installed: LocalCluster):
    claim = {"persistent_volume_claim": {"claim_name": "corpus"}}
    world = World(job("burner", data={"volume": claim}, checkpoint={"every_steps": 5, "volume": claim}))
    world.settle()
    assert {manifest["kind"] for manifest in world.manifests} == {"Service", "ConfigMap", "Pod"}
    everything = yaml.safe_dump_all(world.manifests)
    with restricted(installed, "forge"):
        installed.kubectl("create", "-f", "-", "--dry-run=server", "--warnings-as-errors", stdin=everything)


@contextmanager
def restricted(cluster: LocalCluster, namespace: str) -> Iterator[None]:
    """Enforce the restricted Pod Security level in a namespace for as long as the block runs."""
    label = "pod-security.kubernetes.io/enforce"
    cluster.kubectl("label", "namespace", namespace, f"{label}=restricted")
    yield
    cluster.kubectl("label", "namespace", namespace, f"{label}-")


def test_the_deployment_becomes_available(installed: LocalCluster, tmp_path: Path):
    """As a process on a local node: with the pod's own account, settings and probe, but without its image."""
    require_namespaces(tmp_path)
    here = ("-n", "kronos-system")
    port = free_port()  # the Deployment's own may be taken on this machine
    container = "/spec/template/spec/containers/0"
    patch = [
        {"op": "replace", "path": f"{container}/args/0", "value": f"--health-port={port}"},
        {"op": "replace", "path": f"{container}/ports/0/containerPort", "value": port},
    ]
    installed.kubectl(*here, "patch", "deployment", "kronos", "--type=json", "-p", json.dumps(patch))
    installed.kubectl(*here, "rollout", "status", "deployment/kronos", "--timeout=60s", timeout=70.0)
    log = installed.kubectl(*here, "logs", "deployment/kronos")
    assert not re.search("forbidden|refused|Traceback|ERROR", log), log


def test_the_policy_for_gangs_in_the_documentation_is_one(installed: LocalCluster):
    text = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (policy,) = (block for block in blocks if "kind: NetworkPolicy" in block)
    installed.kubectl("apply", "-f", "-", "--dry-run=server", "--warnings-as-errors", stdin=policy)
    assert f"port: {PROGRESS_PORT}" in policy
