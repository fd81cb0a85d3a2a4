"""Pins, generated files and manifests agree with the code."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import pytest
import yaml

from kronos.api.catalog import ACCELERATORS, LINKS
from kronos.api.crd import documents
from kronos.api.fabric import FabricSpec
from kronos.api.job import TrainingJobSpec
from kronos.api.plan import PROGRESS_PORT
from kronos.api.queue import QueueSpec
from kronos.controller.api import _KIND_OF, plural_of
from kronos.lifecycle.objects import LABEL_JOB
from support.repository import ROOT, tracked_files

CONSTRAINTS = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
PINS = dict(line.split("==") for line in CONSTRAINTS if line and not line.startswith("#"))


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_constraints_hold_pins_and_no_address():
    assert all(re.fullmatch(r"[0-9][A-Za-z0-9.]*", version) for version in PINS.values()), "no local versions"
    assert not any("//" in line or "@" in line for line in CONSTRAINTS)


def test_every_direct_dependency_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    direct = [
        *project["dependencies"],
        *(item for extra in project["optional-dependencies"].values() for item in extra),
    ]
    names = {canonical(re.split(r"[><=\[ ]", requirement)[0]) for requirement in direct}
    assert names <= {canonical(name) for name in PINS}


def test_the_base_needs_pydantic_alone():
    """Everything that the trainer imports from kronos.api works with nothing else installed."""
    code = (
        "import sys\n"
        "import kronos.api.plan, kronos.api.training, kronos.api.job, kronos.api.fabric, kronos.api.status\n"
        "print(' '.join(sorted({name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names))))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    allowed = {
        "kronos",
        "pydantic",
        "pydantic_core",
        "annotated_types",
        "typing_extensions",
        "typing_inspection",
    }
    assert {name for name in loaded if not name.startswith("_")} <= allowed


def test_the_crds_match_the_models():
    for name, text in documents().items():
        assert (ROOT / "crds" / name).read_text(encoding="utf-8") == text, "run `make crds`"
    assert {path.name for path in (ROOT / "crds").glob("*.yaml")} == set(documents())


def test_an_overlay_that_includes_the_crds_includes_all_of_them():
    # Called otherwise, it would be taken for a resource by `kubectl apply -f crds/`.
    kustomization = yaml.safe_load((ROOT / "crds" / "Kustomization").read_text(encoding="utf-8"))
    assert set(kustomization["resources"]) == set(documents()), "list them in crds/Kustomization"


# Put together from parts, so that this file isn't one of those that it finds.
UNWANTED = [
    r"(?<![\w.])/wo" + r"rk/\w",
    r"/ro" + r"ot/(?!\.)\w",
    r"/ho" + r"me/(?!me/)\w+/",
    r"--(?:extra-)?index" + "-url",
    r"https?://[^\s\"')]*/simple" + r"\b",
    r"py" + r"pi\.org",
    r"pythonhosted" + r"\.org",
]


@pytest.mark.parametrize("pattern", UNWANTED)
def test_no_file_names_a_machine_or_a_package_index(pattern):
    found = []
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in re.finditer(pattern, text)]
    assert not found


def examples() -> list[dict]:
    files = sorted((ROOT / "manifests" / "examples").glob("*.yaml"))
    return [document for file in files for document in yaml.safe_load_all(file.read_text(encoding="utf-8"))]


def test_the_examples_are_valid():
    models = {"KronosTrainingJob": TrainingJobSpec, "KronosFabric": FabricSpec}
    kinds = [
        models[example["kind"]].model_validate(example["spec"]) and example["kind"] for example in examples()
    ]
    assert kinds.count("KronosTrainingJob") >= 2
    assert kinds.count("KronosFabric") == 1


def test_the_example_fabrics_are_valid():
    files = sorted((ROOT / "manifests" / "examples" / "fabrics").glob("*.yaml"))
    assert files
    for file in files:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
        assert document["kind"] == "KronosFabric"
        FabricSpec.model_validate(document["spec"])


def test_the_example_queues_are_valid():
    files = sorted((ROOT / "manifests" / "examples" / "queues").glob("*.yaml"))
    assert files
    for file in files:
        for document in yaml.safe_load_all(file.read_text(encoding="utf-8")):
            if document["kind"] == "KronosQueue":
                QueueSpec.model_validate(document["spec"])


def test_the_page_about_fabrics_shows_the_catalog():
    page = (ROOT / "docs" / "fabric.md").read_text(encoding="utf-8")
    for name, link in LINKS.items():
        row = f"{link.gigabytes_per_second:g} | {link.latency_microseconds:g} µs | {link.efficiency:g}"
        assert f"| `{name}` | {row} |" in page
    for name, known in ACCELERATORS.items():
        row = f"{known.memory_gib:g} GiB | {known.fp32_tflops:g} TFLOP/s | {known.bf16_tflops:g} TFLOP/s"
        row += f" | {known.memory_gigabytes_per_second:g} GB/s | {known.matmul_efficiency:g}"
        assert f"| `{name}` | {row} |" in page


def test_each_example_job_asks_for_more_than_half_of_the_demos_slots():
    jobs = [
        TrainingJobSpec.model_validate(item["spec"])
        for item in examples()
        if item["kind"] == "KronosTrainingJob"
    ]
    assert all(8 < job.accelerators.min <= job.accelerators.max <= 16 for job in jobs)


def base() -> dict[tuple[str, str], dict]:
    """The objects of manifests/base by kind and name."""
    folder = ROOT / "manifests" / "base"
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    return {
        (document["kind"], document["metadata"]["name"]): document
        for name in kustomization["resources"]
        for document in yaml.safe_load_all((folder / name).read_text(encoding="utf-8"))
    }


def rules() -> list[dict]:
    """All that the operator may do."""
    objects = base()
    return [
        rule
        for name in ("kronos-reader", "kronos-lessons", "kronos-jobs")
        for rule in objects["ClusterRole", name]["rules"]
    ]


def test_the_operators_roles_name_what_the_controller_uses():
    allowed = {
        (resource, verb) for rule in rules() for resource in rule["resources"] for verb in rule["verbs"]
    }
    for watched in ("pods", "nodes", plural_of("jobs"), plural_of("fabrics")):
        assert {(watched, "list"), (watched, "watch")} <= allowed
    for created in _KIND_OF.values():
        assert (created, "create") in allowed
    assert (f"{plural_of('jobs')}/status", "update") in allowed
    assert (f"{plural_of('fabrics')}/status", "update") in allowed
    assert ("pods", "delete") in allowed


def test_the_operators_roles_are_no_wider_than_they_must_be():
    words = {word for rule in rules() for part in rule.values() for word in part}
    assert not words & {"*", "secrets", "bind", "escalate", "impersonate"}
    assert not any(
        "update" in rule["verbs"] and "kronostrainingjobs" in rule["resources"] for rule in rules()
    )


def test_what_an_operator_reads_in_the_whole_cluster_it_only_reads():
    (reader,) = (role for key, role in base().items() if key == ("ClusterRole", "kronos-reader"))
    assert {verb for rule in reader["rules"] for verb in rule["verbs"]} == {"list", "watch"}


def test_the_deployment_runs_the_controller_as_its_service_account():
    deployment, account = base()["Deployment", "kronos"], base()["ServiceAccount", "kronos"]
    pod = deployment["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == account["metadata"]["name"]
    assert deployment["metadata"]["namespace"] == account["metadata"]["namespace"]
    assert pod["containers"][0]["command"] == ["python", "-m", "kronos.controller"]


def test_the_operator_may_reach_the_port_at_which_gangs_tell_their_progress():
    policy, deployment = base()["NetworkPolicy", "kronos"]["spec"], base()["Deployment", "kronos"]["spec"]
    (gangs,) = (rule for rule in policy["egress"] if "to" in rule)
    assert [port["port"] for port in gangs["ports"]] == [PROGRESS_PORT]
    (pods,) = (peer["podSelector"]["matchExpressions"] for peer in gangs["to"])
    assert pods == [{"key": LABEL_JOB, "operator": "Exists"}]
    assert policy["podSelector"] == deployment["selector"]


def test_the_manifests_name_the_version_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = (ROOT / "manifests" / "base" / "kustomization.yaml").read_text(encoding="utf-8")
    (labels,) = yaml.safe_load(text)["labels"]
    assert labels["pairs"]["app.kubernetes.io/version"] == project["version"]
