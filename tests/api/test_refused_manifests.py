"""Bad manifests are refused by the real API server with a sentence that says what to change."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from kronos.api import GROUP, VERSION
from kronos.api.fabric import FabricSpec
from kronos.api.job import TrainingJobSpec
from kronos.api.queue import QueueSpec
from kronos.local.install import install_crds

pytestmark = pytest.mark.cluster

Json = dict[str, Any]


@pytest.fixture(scope="module")
def server(shared_cluster: Any) -> Iterator[client.CustomObjectsApi]:
    install_crds(shared_cluster.kubectl)
    with config.new_client_from_config(str(shared_cluster.kubeconfig)) as connection:
        yield client.CustomObjectsApi(connection)


def good_job() -> Json:
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "KronosTrainingJob",
        "metadata": {"name": "burner-small", "namespace": "default"},
        "spec": {
            "model": {"layers": 12, "hiddenSize": 768, "attentionHeads": 12, "sequenceLength": 1024},
            "data": {"path": "/data/corpus"},
            "optimization": {"globalBatchSize": 64, "steps": 2000},
            "accelerators": {"max": 16},
        },
    }


def good_fabric() -> Json:
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "KronosFabric",
        "metadata": {"name": "default"},
        "spec": {
            "levels": [
                {
                    "name": "rack",
                    "nodeLabel": "kronos.dev/rack",
                    "bandwidthGigabytesPerSecond": 25,
                    "latencyMicroseconds": 10,
                }
            ],
            "node": {"bandwidthGigabytesPerSecond": 300, "latencyMicroseconds": 2},
            "accelerators": [
                {
                    "resource": "nvidia.com/gpu",
                    "model": "H100-80GB",
                    "memoryGiB": 79.1,
                    "peakTflops": {"fp32": 494, "bf16": 989},
                }
            ],
        },
    }


def good_queue() -> Json:
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "KronosQueue",
        "metadata": {"name": "research"},
        "spec": {
            "cohort": "campus",
            "namespaces": ["forge"],
            "quotas": [
                {"resource": "nvidia.com/gpu", "nominal": 64, "borrowingLimit": 8, "lendingLimit": 32}
            ],
        },
    }


def changed(document: Json, changes: Json) -> Json:
    """The document with values put at dotted paths; None removes a field."""
    document = copy.deepcopy(document)
    for path, value in changes.items():
        *parents, last = path.split(".")
        target = document
        for name in parents:
            target = target.setdefault(name, {})
        if value is None:
            target.pop(last)
        else:
            target[last] = value
    return document


def create(server: client.CustomObjectsApi, document: Json, *, dry_run: bool = True) -> Json:
    options: Json = {"field_validation": "Strict"}
    if dry_run:
        options["dry_run"] = "All"
    cluster_wide = {"KronosFabric": "kronosfabrics", "KronosQueue": "kronosqueues"}
    if plural := cluster_wide.get(document["kind"]):
        return server.create_cluster_custom_object(GROUP, VERSION, plural, document, **options)
    return server.create_namespaced_custom_object(
        GROUP, VERSION, "default", "kronostrainingjobs", document, **options
    )


HOST = {"hostPath": {"path": "/srv"}}
CLAIM = {"persistentVolumeClaim": {"claimName": "corpus"}}

BAD_JOBS: dict[str, tuple[Json, str]] = {
    "a name too long for pod names": ({"metadata.name": "b" * 49}, "must have at most 48 characters"),
    "a name with a dot": ({"metadata.name": "burner.small"}, "hold only a-z, 0-9 and '-'"),
    "a name that begins with a digit": ({"metadata.name": "7burner"}, "must begin with a letter"),
    "no model": ({"spec.model": None}, "spec.model: Required value"),
    "no data": ({"spec.data": None}, "spec.data: Required value"),
    "no accelerators.max": ({"spec.accelerators": {"min": 2}}, "spec.accelerators.max: Required value"),
    "a pod label of the operator's": (
        {"spec.template": {"labels": {"training.kronos.dev/job": "other"}}},
        "are set by the operator; choose another name in template.labels",
    ),
    "a misspelt field": ({"spec.accelerator": {"max": 4}}, 'unknown field "spec.accelerator"'),
    "an unknown architecture": (
        {"spec.model.architecture": "perceptron"},
        'spec.model.architecture: Unsupported value: "perceptron": supported values: "decoder"',
    ),
    "no layers": ({"spec.model.layers": 0}, "spec.model.layers in body should be greater than or equal to 1"),
    "a layer count in words": ({"spec.model.layers": "twelve"}, "must be of type integer"),
    "heads that don't divide the hidden size": (
        {"spec.model.attentionHeads": 10},
        "hiddenSize must be a multiple of attentionHeads; change one of them",
    ),
    "odd head size": ({"spec.model.hiddenSize": 36, "spec.model.attentionHeads": 12}, "must be even"),
    "key/value heads that don't divide the heads": (
        {"spec.model.keyValueHeads": 5},
        "attentionHeads must be a multiple of keyValueHeads; change one of them",
    ),
    "patches of no forecaster": (
        {"spec.model.patches": {"length": 4, "channels": 2, "horizon": 4}},
        "patches belong to architecture forecaster, which needs them",
    ),
    "a forecaster without patches": (
        {"spec.model.architecture": "forecaster"},
        "patches belong to architecture forecaster, which needs them",
    ),
    "a custom model that says nothing": (
        {"spec.model.architecture": "custom"},
        "custom belongs to architecture custom, which needs it",
    ),
    "more active experts than there are": (
        {"spec.model.experts": {"count": 2, "active": 3}},
        "active must not exceed count; lower active or raise count",
    ),
    "a canonical structure of a run that isn't certified": (
        {"spec.reproducibility": {"mode": "Deterministic", "canonical": {"tensorLanes": 2}}},
        "canonical belongs to mode Certified",
    ),
    "leaves that don't divide the batch": (
        {
            "spec.reproducibility": {"mode": "Certified", "canonical": {"leafSequences": 7}},
            "spec.optimization.globalBatchSize": 16,
        },
        "leafSequences must divide optimization.globalBatchSize; change one of them",
    ),
    "text with too small a vocabulary": (
        {"spec.model.vocabularySize": 128},
        "text is read as bytes, so model.vocabularySize must be at least 256",
    ),
    "a relative data path": ({"spec.data.path": "corpus"}, "spec.data.path"),
    "data of two volumes": (
        {"spec.data.volume": {**HOST, **CLAIM}},
        "give exactly one of persistentVolumeClaim and hostPath",
    ),
    "data of no volume": (
        {"spec.data.volume": {}},
        "give exactly one of persistentVolumeClaim and hostPath",
    ),
    "data where checkpoints go": (
        {"spec.data.path": "/kronos/checkpoints/data", "spec.data.volume": HOST},
        "folders in /kronos are the operator's; choose another data.path",
    ),
    "data over the root": (
        {"spec.data.path": "/", "spec.data.volume": HOST},
        "the data's volume can't be mounted there",
    ),
    "data over the temporary folder": (
        {"spec.data.path": "/tmp", "spec.data.volume": HOST},
        "choose a data.path of its own without a / at its end, such as /data",
    ),
    "data over the temporary folder, spelt otherwise": (
        {"spec.data.path": "/tmp/", "spec.data.volume": HOST},
        "the data's volume can't be mounted there",
    ),
    "no include patterns": ({"spec.data.include": []}, "spec.data.include"),
    "no steps": ({"spec.optimization.steps": 0}, "spec.optimization.steps"),
    "a longer warm-up than training": (
        {"spec.optimization.warmupSteps": 3000},
        "warmupSteps must not exceed steps; lower warmupSteps",
    ),
    "a learning rate of zero": ({"spec.optimization.learningRate": 0}, "spec.optimization.learningRate"),
    "an unknown optimizer": ({"spec.optimization.optimizer": "Magic"}, 'supported values: "AdamW"'),
    "min above max": (
        {"spec.accelerators": {"min": 8, "max": 4}},
        "min must not exceed max; lower min or raise max",
    ),
    "fixed degrees of fewer ranks than min": (
        {"spec.strategy": {"mode": "Fixed", "tensorParallel": 2}, "spec.accelerators": {"min": 4, "max": 8}},
        "multiply to fewer ranks than accelerators.min; raise a degree or lower min",
    ),
    "fixed degrees of more ranks than max": (
        {"spec.strategy": {"mode": "Fixed", "dataParallel": 8, "tensorParallel": 4}},
        "multiply to more ranks than accelerators.max; lower a degree or raise max",
    ),
    "pinned degrees of more ranks than max": (
        {"spec.strategy": {"tensorParallel": 4, "pipelineParallel": 6}},
        "multiply to more ranks than accelerators.max; lower a degree or raise max",
    ),
    "mode Fixed without degrees": (
        {"spec.strategy": {"mode": "Fixed"}},
        "mode Fixed needs at least one degree; give one or use mode Auto",
    ),
    "tensor parallel that doesn't divide the heads": (
        {"spec.strategy": {"tensorParallel": 5}},
        "tensorParallel must divide model.attentionHeads; change one of them",
    ),
    "tensor parallel that doesn't divide the key/value heads": (
        {"spec.model.keyValueHeads": 2, "spec.strategy": {"tensorParallel": 4}},
        "tensorParallel must divide model.keyValueHeads; change one of them",
    ),
    "tensor parallel that doesn't divide the feed-forward size": (
        {"spec.model.feedForwardSize": 1001, "spec.strategy": {"tensorParallel": 2}},
        "tensorParallel must divide model.feedForwardSize; change one of them",
    ),
    "more stages than layers": (
        {"spec.strategy": {"pipelineParallel": 13}},
        "pipelineParallel must not exceed model.layers; lower it",
    ),
    "tied embeddings over stages": (
        {"spec.model.tiedEmbeddings": True, "spec.strategy": {"pipelineParallel": 2}},
        "use pipelineParallel 1 or untie them",
    ),
    "a batch that the replicas don't divide": (
        {"spec.strategy": {"dataParallel": 3, "shardedDataParallel": 2}},
        "must divide optimization.globalBatchSize; change one of them",
    ),
    "an unknown objective": ({"spec.strategy": {"objective": "Fame"}}, "spec.strategy.objective"),
    "an unknown reproducibility mode": (
        {"spec.reproducibility": {"mode": "Perhaps"}},
        'supported values: "Off", "Deterministic"',
    ),
    "a negative seed": ({"spec.reproducibility": {"seed": -1}}, "spec.reproducibility.seed"),
    "a time-out that isn't a duration": (
        {"spec.scheduling": {"startTimeout": "soon"}},
        "spec.scheduling.startTimeout",
    ),
    "a negative restart limit": ({"spec.restart": {"backoffLimit": -1}}, "spec.restart.backoffLimit"),
    "a checkpoint without a volume": (
        {"spec.checkpoint": {"everySteps": 10}},
        "spec.checkpoint.volume: Required value",
    ),
    "an environment name of the operator's": (
        {"spec.template": {"env": [{"name": "KRONOS_MEMBER", "value": "7"}]}},
        "environment names that begin with KRONOS_ are set by the operator; choose another name",
    ),
    "the same environment name twice": (
        {"spec.template": {"env": [{"name": "A"}, {"name": "A"}]}},
        "Duplicate value",
    ),
    "memory that isn't a quantity": (
        {"spec.template": {"perAccelerator": {"memory": "plenty"}}},
        "spec.template.perAccelerator.memory",
    ),
    "a node affinity without values": (
        {"spec.template": {"nodeAffinity": [{"matchExpressions": [{"key": "gpu", "operator": "In"}]}]}},
        "In and NotIn need values",
    ),
    "a node affinity that compares with words": (
        {
            "spec.template": {
                "nodeAffinity": [{"matchExpressions": [{"key": "gpu", "operator": "Gt", "values": ["many"]}]}]
            }
        },
        "Gt and Lt one whole number",
    ),
    "a scheduler of its own without a PodGroup": (
        {"spec.scheduling": {"admission": {"by": "Kueue", "schedulerName": "mine"}}},
        "schedulerName goes with by: PodGroup",
    ),
    "a PodGroup without a scheduler": (
        {"spec.scheduling": {"admission": {"by": "PodGroup"}}},
        "schedulerName goes with by: PodGroup",
    ),
    "a role that can't be a label": ({"spec.role": "a role"}, "spec.role"),
}

BAD_FABRICS: dict[str, tuple[Json, str]] = {
    "an accelerator that nobody knows": (
        {"spec.accelerators": [{"resource": "nvidia.com/gpu", "model": "H900"}]},
        "Kronos knows A100-40GB",
    ),
    "a link that nobody knows": (
        {"spec.node": {"kind": "NVLink9"}},
        "give a kind that Kronos knows (NVLink3",
    ),
    "a link of half the figures": (
        {"spec.node": {"bandwidthGigabytesPerSecond": 3}},
        "or bandwidthGigabytesPerSecond and latencyMicroseconds",
    ),
    "a level that nobody knows": (
        {"spec.levels": [{"name": "rack", "nodeLabel": "rack", "kind": "Token-Ring"}]},
        "give a kind that Kronos knows (NVLink3",
    ),
    "an accelerator of half the figures": (
        {"spec.accelerators": [{"resource": "nvidia.com/gpu", "model": "H900", "memoryGiB": 80}]},
        "for another model give memoryGiB and peakTflops",
    ),
    "collectives faster than the link": (
        {"spec.node": {"kind": "NVLink4", "efficiency": 1.5}},
        "spec.node.efficiency",
    ),
    "no accelerators": ({"spec.accelerators": []}, "spec.accelerators"),
    "no node link": ({"spec.node": None}, "spec.node: Required value"),
    "a level called node": (
        {
            "spec.levels": [
                {
                    "name": "node",
                    "nodeLabel": "kubernetes.io/hostname",
                    "bandwidthGigabytesPerSecond": 1,
                    "latencyMicroseconds": 1,
                }
            ]
        },
        "the level node is always there; describe it under spec.node and drop it from levels",
    ),
    "two levels of one label": (
        {
            "spec.levels": [
                {
                    "name": name,
                    "nodeLabel": "rack",
                    "bandwidthGigabytesPerSecond": 1,
                    "latencyMicroseconds": 1,
                }
                for name in ("block", "rack")
            ]
        },
        "each level needs a nodeLabel of its own; two levels use the same one",
    ),
    "a bandwidth of zero": (
        {"spec.node": {"bandwidthGigabytesPerSecond": 0, "latencyMicroseconds": 1}},
        "spec.node.bandwidthGigabytesPerSecond",
    ),
}

GOOD_FABRICS: dict[str, Json] = {
    "names of the catalog alone": {
        "spec.levels": [{"name": "rack", "nodeLabel": "rack", "kind": "InfiniBand-NDR"}],
        "spec.node": {"kind": "NVLink4"},
        "spec.accelerators": [{"resource": "nvidia.com/gpu", "model": "H100-80GB"}],
    },
    "overrides of the catalog": {
        "spec.node": {"kind": "NVLink4", "bandwidthGigabytesPerSecond": 200, "efficiency": 1},
        "spec.accelerators": [
            {
                "resource": "nvidia.com/gpu",
                "model": "H100-80GB",
                "memoryGiB": 93.6,
                "memoryBandwidthGigabytesPerSecond": 3900,
                "matmulEfficiency": 0.7,
            }
        ],
    },
    "names of one's own with figures": {
        "spec.node": {"kind": "Slingshot-11", "bandwidthGigabytesPerSecond": 25, "latencyMicroseconds": 4},
        "spec.accelerators": [
            {
                "resource": "example.com/gpu",
                "model": "H900",
                "memoryGiB": 64,
                "peakTflops": {"fp32": 200, "bf16": 400},
            }
        ],
    },
}

BAD_QUEUES: dict[str, tuple[Json, str]] = {
    "limits on lending without a cohort": (
        {"spec.cohort": None},
        "borrowingLimit and lendingLimit need a cohort to borrow from and lend to; set cohort or drop them",
    ),
    "a quota below zero": (
        {"spec.quotas": [{"resource": "nvidia.com/gpu", "nominal": -1}]},
        "spec.quotas[0].nominal: Invalid value: -1",
    ),
    "two quotas for one resource": (
        {"spec.quotas": [{"resource": "a", "nominal": 1}, {"resource": "a", "nominal": 2}]},
        'spec.quotas[1]: Duplicate value: {"resource":"a"}',
    ),
    "no weight at all": ({"spec.weight": 0}, "spec.weight: Invalid value: 0"),
    "an unknown rule": ({"spec.preemption": {"reclaim": "Some"}}, 'Unsupported value: "Some"'),
    "a name that no cohort can have": ({"spec.cohort": "Campus!"}, 'spec.cohort: Invalid value: "Campus!"'),
}

EDITS: dict[str, tuple[Json, str]] = {
    "another model": ({"spec.model.layers": 24}, "model can't be changed after the job was created"),
    "another seed": ({"spec.reproducibility.seed": 1}, "reproducibility can't be changed"),
    "more accelerators": ({"spec.accelerators.max": 32}, "accelerators can't be changed"),
    "a checkpoint where there was none": (
        {"spec.checkpoint": {"everySteps": 5, "volume": CLAIM}},
        "checkpoint can't be changed after the job was created; create a new job instead",
    ),
}


def refusal(server: client.CustomObjectsApi, document: Json) -> str:
    with pytest.raises(ApiException) as refused:
        create(server, document)
    assert refused.value.status in (400, 422)
    return str(refused.value.body)


@pytest.mark.parametrize("name", BAD_JOBS)
def test_a_bad_job_is_refused_with_a_sentence_that_says_what_to_change(server, name):
    changes, sentence = BAD_JOBS[name]
    assert sentence in refusal(server, changed(good_job(), changes)).replace('\\"', '"')


@pytest.mark.parametrize("name", BAD_FABRICS)
def test_a_bad_fabric_is_refused_with_a_sentence_that_says_what_to_change(server, name):
    changes, sentence = BAD_FABRICS[name]
    assert sentence in refusal(server, changed(good_fabric(), changes)).replace('\\"', '"')


@pytest.mark.parametrize("name", BAD_QUEUES)
def test_a_bad_queue_is_refused_with_a_sentence_that_says_what_to_change(server, name):
    changes, sentence = BAD_QUEUES[name]
    assert sentence in refusal(server, changed(good_queue(), changes)).replace('\\"', '"')


def test_the_api_server_fills_in_the_same_defaults_of_a_queue_as_the_models(server):
    document = changed(good_queue(), {"spec.quotas": [{"resource": "nvidia.com/gpu", "nominal": 64}]})
    stored = create(server, document)["spec"]
    assert QueueSpec.model_validate(stored).wire() == QueueSpec.model_validate(document["spec"]).wire()


@pytest.mark.parametrize("name", GOOD_FABRICS)
def test_a_fabric_may_name_hardware_or_describe_it(server, name):
    document = changed(good_fabric(), {"metadata.name": "another", **GOOD_FABRICS[name]})
    FabricSpec.model_validate(create(server, document)["spec"])


def test_a_good_job_and_a_good_fabric_are_accepted(server):
    create(server, good_job())
    create(server, changed(good_fabric(), {"metadata.name": "another"}))
    create(server, good_queue())


def test_the_api_server_fills_in_the_same_defaults_as_the_models(server):
    stored = create(server, good_job())["spec"]
    ours = TrainingJobSpec.model_validate(good_job()["spec"]).wire()
    assert TrainingJobSpec.model_validate(stored).wire() == ours


@pytest.mark.parametrize("name", EDITS)
def test_what_a_running_job_is_about_cannot_be_edited(server, name):
    changes, sentence = EDITS[name]
    job = changed(good_job(), {"metadata.name": "edited"})
    create(server, job, dry_run=False)
    try:
        with pytest.raises(ApiException) as refused:
            server.patch_namespaced_custom_object(
                GROUP,
                VERSION,
                "default",
                "kronostrainingjobs",
                "edited",
                {"spec": changed({"spec": {}}, changes)["spec"]},
                dry_run="All",
            )
        assert sentence in str(refused.value.body)
    finally:
        server.delete_namespaced_custom_object(GROUP, VERSION, "default", "kronostrainingjobs", "edited")


def test_a_job_can_be_suspended_and_its_start_timeout_changed(server):
    job = changed(good_job(), {"metadata.name": "edited"})
    create(server, job, dry_run=False)
    try:
        answer = server.patch_namespaced_custom_object(
            GROUP,
            VERSION,
            "default",
            "kronostrainingjobs",
            "edited",
            {"spec": {"scheduling": {"suspend": True, "startTimeout": "5m"}}},
        )
        stored = answer["spec"]["scheduling"]
        assert (stored["suspend"], stored["startTimeout"]) == (True, "5m")
    finally:
        server.delete_namespaced_custom_object(GROUP, VERSION, "default", "kronostrainingjobs", "edited")


def test_an_edit_of_the_status_through_the_main_resource_is_ignored(server):
    job = changed(good_job(), {"status": {"phase": "Complete"}})
    assert "status" not in create(server, job)
