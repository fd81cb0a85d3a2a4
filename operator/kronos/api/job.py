"""KronosTrainingJob: what people write."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from kronos.api.base import Duration, Model, list_map, rules
from kronos.api.training import Data, ModelShape, Optimization, Reproducibility, Volume

Degree = Annotated[int, Field(ge=1, le=1_000_000)]
QueueName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$", max_length=63)]
LevelName = Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$", max_length=63)]

NAME_LIMIT = 48
"""Longest job name: pods are called <job>-<attempt>-<member>, and the kubelet makes that a host name (63 at most)."""

_DEGREES = ("dataParallel", "shardedDataParallel", "tensorParallel", "pipelineParallel", "contextParallel")
_PRODUCT = " * ".join(f"(has(self.strategy.{name}) ? self.strategy.{name} : 1)" for name in _DEGREES)
_BATCH_RANKS = " * ".join(f"(has(self.strategy.{name}) ? self.strategy.{name} : 1)" for name in _DEGREES[:2])

_TAKEN_PATHS = (
    "/bin",
    "/dev",
    "/etc",
    "/etc/kronos",
    "/kronos",
    "/lib",
    "/proc",
    "/sys",
    "/tmp",
    "/usr",
    "/var",
)
"""Folders that a volume would hide and the container needs."""


class Accelerators(Model):
    """How many accelerators, and of which kind."""

    model_config = {
        "json_schema_extra": rules(
            ("self.min <= self.max", "min must not exceed max; lower min or raise max")
        )
    }

    resource: str = Field(default="nvidia.com/gpu", min_length=1, max_length=317)
    """Extended resource to ask nodes for, as named in the fabric."""
    min: int = Field(default=1, ge=1, le=100_000)
    """Fewest accelerators that the job may run on."""
    max: int = Field(ge=1, le=100_000)
    """Most accelerators that the job may use."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min {self.min} must not exceed max {self.max}; lower min or raise max")
        return self


class Strategy(Model):
    """How the model is split. Degrees left out are chosen in mode Auto and are 1 in mode Fixed."""

    model_config = {
        "json_schema_extra": rules(
            (
                "self.mode != 'Fixed' || has(self.dataParallel) || has(self.shardedDataParallel) || "
                "has(self.tensorParallel) || has(self.pipelineParallel) || has(self.contextParallel)",
                "mode Fixed needs at least one degree; give one or use mode Auto",
            ),
        )
    }

    mode: Literal["Auto", "Fixed"] = "Auto"
    """`Auto`: Kronos chooses every degree that isn't given here. `Fixed`: degrees that aren't given are 1."""
    objective: Literal["Time", "Efficiency", "Memory"] = "Time"
    """What the choice minimises: time per step, time per step x accelerators, or memory per accelerator."""
    data_parallel: Degree | None = None
    """Pin the number of replicas."""
    sharded_data_parallel: Degree | None = None
    """Pin the number of ranks over which weights, gradients and optimizer state are sharded."""
    tensor_parallel: Degree | None = None
    """Pin the number of ranks that share each matrix multiplication; must divide the attention heads."""
    pipeline_parallel: Degree | None = None
    """Pin the number of pipeline stages; at most the number of layers."""
    context_parallel: Degree | None = None
    """Pin the number of ranks that share each sequence; twice this must divide the sequence length."""
    expert_parallel: Degree | None = None
    """Pin the number of ranks over which the experts are dealt out; must divide data parallel x sharded data parallel, and
    the experts.
    """


class PlacementRules(Model):
    """Where the gang may run. Level names are those of the fabric, and `node`."""

    fabric: LevelName = "default"
    """Name of the KronosFabric that describes the network."""
    required: LevelName | None = None
    """The whole gang must be inside one domain of this level."""
    preferred: LevelName | None = None
    """The whole gang should be inside one domain of this level where possible."""
    tensor_parallel_within: LevelName | None = None
    """Each tensor-parallel group must be inside one domain of this level. Default: the narrowest that can hold it."""
    pipeline_parallel_within: LevelName | None = None
    """Each pipeline, with its tensor-parallel groups, must be inside one domain of this level."""
    sharded_data_parallel_within: LevelName | None = None
    """The ranks over which a copy of the model is sharded, with their pipelines, must be inside one domain of this level."""

    @property
    def named_levels(self) -> tuple[tuple[str, str], ...]:
        """The fields that name a level, as they are written, each with its level."""
        fields = (
            ("required", self.required),
            ("preferred", self.preferred),
            ("tensorParallelWithin", self.tensor_parallel_within),
            ("pipelineParallelWithin", self.pipeline_parallel_within),
            ("shardedDataParallelWithin", self.sharded_data_parallel_within),
        )
        return tuple((field, level) for field, level in fields if level is not None)


class Checkpoint(Model):
    """When and where training state is saved."""

    every_steps: int = Field(ge=1, le=1_000_000_000)
    """Save after each this many steps, and at the end."""
    keep: int = Field(default=2, ge=1, le=1000)
    """Complete checkpoints to keep; older ones are deleted."""
    volume: Volume
    """Volume that every member of the gang can write and read."""


class AdmissionRules(Model):
    """Who decides when a gang starts, and on which nodes. Kronos chooses the strategy and the ranks' places all the same."""

    model_config = {
        "json_schema_extra": rules(
            (
                "(self.by == 'PodGroup') == has(self.schedulerName)",
                "schedulerName goes with by: PodGroup; give both or neither",
            ),
        )
    }

    by: Literal["Kronos", "Kueue", "PodGroup"] = "Kronos"
    """`Kueue`: the pods are a pod group of a LocalQueue. `PodGroup`: they are a PodGroup (scheduling.x-k8s.io) for the
    scheduler of that name.
    """
    local_queue: QueueName | None = None
    """Kueue's LocalQueue in the job's namespace. Default: the name of the job's queue."""
    scheduler_name: str | None = Field(default=None, min_length=1, max_length=253)
    """The scheduler of the pods."""
    accelerators_per_member: int | None = Field(default=None, ge=1, le=1024)
    """Most accelerators of one pod. Default: those of the largest node."""


class Scheduling(Model):
    """When the job runs."""

    queue: QueueName = "default"
    """Name of the KronosQueue whose quota the job uses. The queue `default` needs not exist: without it there are no limits."""
    priority_class_name: str | None = Field(default=None, min_length=1, max_length=253)
    """A PriorityClass of the cluster: jobs of a higher one go first, and may stop those of a lower one in their queue."""
    patience: Duration = "1h"
    """Longest time that the job waits for a better place although it could start in a worse one, if it is predicted to end
    earlier for it. `0s`: it takes the first place that there is.
    """
    admission: AdmissionRules | None = None
    """Who decides when the job starts. Default: as its queue says, else Kronos."""
    suspend: bool = False
    """True keeps the job from starting, or stops it after a checkpoint; false lets it go on."""
    start_timeout: Duration = "10m"
    """A gang that isn't training this long after its place was reserved gives the place back and queues again."""


class Restart(Model):
    """What happens when a gang fails."""

    backoff_limit: int = Field(default=3, ge=0, le=1000)
    """Times that the gang may be started again after a failure of the training itself; after that the job is Failed."""


class EnvironmentVariable(Model):
    """One environment variable."""

    name: str = Field(pattern="^[A-Za-z_][A-Za-z0-9_]*$", max_length=256)
    """Name of the variable; names that begin with KRONOS_ are the operator's."""
    value: str = Field(default="", max_length=32768)
    """Its value."""


class Toleration(Model):
    """A taint that the pods tolerate, as in a pod's spec."""

    key: str | None = Field(default=None, max_length=317)
    """Taint key; all keys when left out (operator Exists)."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """How value is compared."""
    value: str | None = Field(default=None, max_length=63)
    """Taint value."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Taint effect; all effects when left out."""


Quantity = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$", max_length=32)]
LabelValue = Annotated[str, Field(max_length=63)]
AnnotationValue = Annotated[str, Field(max_length=4096)]


class MemberResources(Model):
    """What each accelerator's process needs besides the accelerator; a pod asks for this times its accelerators."""

    cpu: Quantity | None = None
    """CPU per accelerator, such as `4` or `500m`."""
    memory: Quantity | None = None
    """Memory per accelerator, such as `16Gi`; a pod that uses more than its accelerators' is ended."""


class NodeExpression(Model):
    """A condition on one label of a node, as in a pod's node affinity."""

    model_config = {
        "json_schema_extra": rules(
            (
                "self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0 : "
                "self.operator in ['Gt', 'Lt'] ? has(self.values) && size(self.values) == 1 && "
                "self.values[0].matches('^-?[0-9]+$') : !has(self.values) || size(self.values) == 0",
                "In and NotIn need values, Gt and Lt one whole number, Exists and DoesNotExist none",
            ),
        )
    }

    key: str = Field(min_length=1, max_length=317)
    """Label key."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    """How the label's value is compared. `NotIn` and `DoesNotExist` hold where the node lacks the label."""
    values: tuple[LabelValue, ...] = Field(default=(), max_length=64)
    """What it is compared with."""

    @model_validator(mode="after")
    def _values_fit(self) -> Self:
        count = len(self.values)
        if self.operator in ("In", "NotIn"):
            fits = count > 0
        elif self.operator in ("Gt", "Lt"):
            fits = count == 1 and self.values[0].removeprefix("-").isdecimal()
        else:
            fits = count == 0
        if not fits:
            raise ValueError(
                "In and NotIn need values, Gt and Lt one whole number, Exists and DoesNotExist none"
            )
        return self


class NodeTerm(Model):
    """Conditions on a node that hold together."""

    match_expressions: tuple[NodeExpression, ...] = Field(min_length=1, max_length=32)
    """All must hold."""


class Template(Model):
    """The pods' details."""

    image: str = Field(default="kronos/trainer:0.1", min_length=1, max_length=1024)
    """Image with the trainer."""
    env: tuple[EnvironmentVariable, ...] = Field(
        default=(), max_length=256, json_schema_extra=list_map("name")
    )
    """Environment variables of the trainer."""
    per_accelerator: MemberResources | None = None
    """CPU and memory per accelerator."""
    labels: dict[str, LabelValue] = Field(default_factory=dict, max_length=64)
    """Further labels of the pods, such as a cost centre's."""
    annotations: dict[str, AnnotationValue] = Field(default_factory=dict, max_length=64)
    """Annotations of the pods, for other programs in the cluster."""
    node_selector: dict[str, LabelValue] = Field(default_factory=dict, max_length=64)
    """Labels that nodes must have."""
    node_affinity: tuple[NodeTerm, ...] = Field(default=(), max_length=16)
    """Nodes must also match one of these terms, as one of the nodeSelectorTerms of a pod's required node affinity."""
    tolerations: tuple[Toleration, ...] = Field(default=(), max_length=64)
    """Taints that the pods tolerate."""
    service_account_name: str | None = Field(default=None, max_length=253)
    """Service account of the pods; its token is never mounted."""


def _immutable(*fields: str) -> list[tuple[str, str]]:
    """Transition rules: these fields of the spec can't change after the job was created."""
    return [
        (
            f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})",
            f"{field} can't be changed after the job was created; create a new job instead",
        )
        for field in fields
    ]


class TrainingJobSpec(Model):
    """What to train, on what, and how."""

    model_config = {
        "json_schema_extra": rules(
            (
                f"self.strategy.mode != 'Fixed' || ({_PRODUCT}) >= self.accelerators.min",
                "the strategy's degrees multiply to fewer ranks than accelerators.min; raise a degree or lower min",
            ),
            (
                f"({_PRODUCT}) <= self.accelerators.max",
                "the strategy's degrees multiply to more ranks than accelerators.max; lower a degree or raise max",
            ),
            (
                "!has(self.strategy.tensorParallel) || "
                "self.model.attentionHeads % self.strategy.tensorParallel == 0",
                "tensorParallel must divide model.attentionHeads; change one of them",
            ),
            (
                "!has(self.strategy.tensorParallel) || !has(self.model.keyValueHeads) || "
                "self.model.keyValueHeads % self.strategy.tensorParallel == 0",
                "tensorParallel must divide model.keyValueHeads; change one of them",
            ),
            (
                "!has(self.strategy.tensorParallel) || !has(self.model.feedForwardSize) || "
                "self.model.feedForwardSize % self.strategy.tensorParallel == 0",
                "tensorParallel must divide model.feedForwardSize; change one of them",
            ),
            (
                "!has(self.strategy.pipelineParallel) || self.strategy.pipelineParallel <= self.model.layers",
                "pipelineParallel must not exceed model.layers; lower it",
            ),
            (
                "!has(self.strategy.pipelineParallel) || self.strategy.pipelineParallel == 1 || "
                "!self.model.tiedEmbeddings",
                "tiedEmbeddings puts the embedding and the head on one stage; use pipelineParallel 1 or untie them",
            ),
            (
                f"self.optimization.globalBatchSize % ({_BATCH_RANKS}) == 0",
                "dataParallel x shardedDataParallel must divide optimization.globalBatchSize; change one of them",
            ),
            (
                "!has(self.reproducibility.canonical) || "
                "self.optimization.globalBatchSize % self.reproducibility.canonical.leafSequences == 0",
                "reproducibility.canonical.leafSequences must divide optimization.globalBatchSize; change one of them",
            ),
            (
                "self.data.format != 'text' || self.model.vocabularySize >= 256",
                "text is read as bytes, so model.vocabularySize must be at least 256",
            ),
            (
                "!has(self.data.volume) || !(self.data.path.endsWith('/') || "
                f"self.data.path in [{', '.join(repr(path) for path in _TAKEN_PATHS)}])",
                "the data's volume can't be mounted there; choose a data.path of its own without a / at its end, "
                "such as /data",
            ),
            (
                "!has(self.data.volume) || !self.data.path.startsWith('/kronos/')",
                "folders in /kronos are the operator's; choose another data.path, such as /data",
            ),
            (
                "!self.template.env.exists(e, e.name.startsWith('KRONOS_'))",
                "environment names that begin with KRONOS_ are set by the operator; choose another name",
            ),
            (
                "!has(self.template.labels) || self.template.labels.all(k, "
                "!k.startsWith('training.kronos.dev/') && k != 'app.kubernetes.io/managed-by')",
                "labels that begin with training.kronos.dev/, and app.kubernetes.io/managed-by, are set by the operator; "
                "choose another name in template.labels",
            ),
            *_immutable(
                "role",
                "model",
                "data",
                "optimization",
                "accelerators",
                "strategy",
                "placement",
                "reproducibility",
                "checkpoint",
                "template",
            ),
        )
    }

    role: str | None = Field(
        default=None, pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$", max_length=63
    )
    """What the model is for, such as `breeder` or `burner`: a label on everything the job owns, nothing more."""
    model: ModelShape
    """The model to train."""
    data: Data
    """The data to train on."""
    optimization: Optimization
    """How the weights are updated."""
    accelerators: Accelerators
    """How many accelerators of which kind."""
    strategy: Strategy = Strategy()
    """How the model is split over the accelerators."""
    placement: PlacementRules = PlacementRules()
    """Where in the fabric the gang may run."""
    reproducibility: Reproducibility = Reproducibility()
    """How far the run can be repeated bit for bit."""
    checkpoint: Checkpoint | None = None
    """Checkpoints. Without them a restart begins at step 0."""
    scheduling: Scheduling = Scheduling()
    """When the job runs."""
    restart: Restart = Restart()
    """What happens when the gang fails."""
    template: Template = Template()
    """Details of the pods."""
