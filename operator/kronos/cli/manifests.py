"""Manifests: the jobs and fabrics in a text, and a sentence for everything that the API server would refuse in it.

Only what the models check is checked; the other rules of the CRDs are written in the API
server's own language. The search refuses what they would, as far as it matters to a plan.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from kronos.api import API_VERSION
from kronos.api.fabric import FabricSpec
from kronos.api.job import NAME_LIMIT, TrainingJobSpec
from kronos.api.queue import QueueSpec
from kronos.cli.complaints import InputError, complaints

JOB, FABRIC, QUEUE = "KronosTrainingJob", "KronosFabric", "KronosQueue"

WRITTEN_OUT = 1e21
"""From here on JSON shows whole numbers with an exponent."""
MOST_VALUES = 100_000
"""Values that a document may hold with its aliases written out; the API server takes 3 MiB of them."""

_MODELS: Mapping[str, type[BaseModel]] = {JOB: TrainingJobSpec, FABRIC: FabricSpec, QUEUE: QueueSpec}

_JOB_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")

Spec = TypeVar("Spec", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Job:
    """A job as somebody wrote it."""

    name: str
    namespace: str
    spec: TrainingJobSpec


@dataclass(frozen=True, slots=True)
class Fabric:
    """A fabric as somebody wrote it."""

    name: str
    spec: FabricSpec


@dataclass(slots=True)
class Manifests:
    """What a text holds."""

    jobs: list[Job] = field(default_factory=list)
    fabrics: dict[str, Fabric] = field(default_factory=dict)
    """By name; as with `kubectl apply`, the last of a name counts."""
    queues: dict[str, QueueSpec] = field(default_factory=dict)
    """By name."""
    ignored: list[str] = field(default_factory=list)
    """Documents of other kinds, in words."""


class _Loader(yaml.SafeLoader):
    """YAML as kubectl reads it: dates and times of day are text, 1e1 is a whole number, and no field is given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        given: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in given:
                problem = f"{key.value} is given twice"
                raise yaml.constructor.ConstructorError(problem=problem, problem_mark=key.start_mark)
            if isinstance(key, yaml.ScalarNode):
                given.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_number(self, node: yaml.ScalarNode) -> float:
        """A number with a point or an exponent; a whole one is one to the API server, however it is written."""
        value = float(self.construct_scalar(node))
        return int(value) if abs(value) < WRITTEN_OUT and value.is_integer() else value


_DROPPED_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("timestamp", "float", "int", "value")}
_Loader.yaml_implicit_resolvers = {
    first: [resolver for resolver in resolvers if resolver[0] not in _DROPPED_TAGS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int",
    re.compile(r"^[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)$"),
    list("-+0123456789"),
)
# Whole numbers match it as well, but those were asked for first.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$"),
    list("-+.0123456789"),
)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_number)


def parse(text: str, source: str) -> Manifests:
    """The jobs and fabrics of a text with any number of YAML (or JSON) documents.

    `source` names the text in sentences. InputError with a sentence for each mistake.
    """
    found, wrong = Manifests(), []
    for number, document in enumerate(_documents(text, source), start=1):
        if document is not None:
            wrong += [f"{source}, {sentence}" for sentence in _take(document, f"document {number}", found)]
    if wrong:
        raise InputError(*wrong)
    return found


def _documents(text: str, source: str) -> list[Any]:
    try:
        return list(yaml.load_all(text, Loader=_Loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InputError(
            f"{source}{place}: this is no YAML: {error.problem or error.context}; correct it"
        ) from None
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{source}: this is no YAML: {reason}; correct it") from None
    except RecursionError:
        raise InputError(
            f"{source}: the YAML is nested too deeply; a manifest needs a dozen levels"
        ) from None
    except (AttributeError, LookupError, TypeError, ValueError):
        # PyYAML's constructors end so where a value isn't what its tag or its look says, such as `!!int x`.
        raise InputError(
            f"{source}: a value isn't what its YAML tag says; drop the tag, or correct the value"
        ) from None


def _take(document: Any, name: str, found: Manifests) -> Iterator[str]:
    """Add what a document holds to what was found, or say what is wrong with it."""
    if not isinstance(document, dict):
        yield f"{name}: this is no object; write one that begins with apiVersion, kind, metadata and spec"
        return
    if not _written_out_within(document, MOST_VALUES):
        yield f"{name}: holds more than {MOST_VALUES:,} values with its aliases (*) written out; drop what nothing needs"
        return
    kind, metadata = document.get("kind"), document.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    given = metadata.get("name")
    if not isinstance(kind, str):
        yield f"{name}, kind: is missing; set it to {JOB} or {FABRIC}"
        return
    if kind not in _MODELS:
        found.ignored.append(f"{kind} {given}" if isinstance(given, str) else kind)
        return
    named = isinstance(given, str) and given != ""
    label = f"{kind} {given}" if named else name
    wrong = [*_envelope(document, kind, given if named else None)]
    try:
        spec = _spec(_json_ready(document), _MODELS[kind])
    except InputError as error:
        wrong += error.sentences
    if wrong:
        yield from (f"{label}, {sentence}" for sentence in wrong)
    elif isinstance(spec, TrainingJobSpec):
        found.jobs.append(Job(str(given), metadata.get("namespace") or "default", spec))
    elif isinstance(spec, FabricSpec):
        found.fabrics[str(given)] = Fabric(str(given), spec)
    elif isinstance(spec, QueueSpec):
        found.queues[str(given)] = spec


def _envelope(document: Mapping[str, Any], kind: str, name: str | None) -> Iterator[str]:
    version = document.get("apiVersion")
    if version != API_VERSION:
        stands = f"is {version}" if isinstance(version, str) else "is missing"
        yield f"apiVersion: {stands}; set it to {API_VERSION}"
    if name is None:
        yield "metadata.name: is missing; add a name"
    elif kind == JOB and (len(name) > NAME_LIMIT or not _JOB_NAME.fullmatch(name)):
        yield (
            f"metadata.name: must begin with a letter, hold only a-z, 0-9 and '-', and have at most {NAME_LIMIT} "
            "characters; rename the job"
        )
    namespace = (document.get("metadata") or {}).get("namespace") if name is not None else None
    if not isinstance(namespace, str | None):
        yield "metadata.namespace: is no text; change it to the name of a namespace"
    for unknown in sorted(
        str(key) for key in document.keys() - {"apiVersion", "kind", "metadata", "spec", "status"}
    ):
        yield f"{unknown}: is no field that Kronos knows; drop it, or move it into spec"


def _json_ready(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The document, if it can be sent to the API server, which takes JSON."""
    try:
        json.dumps(document, allow_nan=False, ensure_ascii=False).encode()
    except (RecursionError, TypeError, ValueError):
        raise InputError(
            "holds something that isn't text, a finite number, a list or a mapping; drop it"
        ) from None
    return document


def _written_out_within(document: Any, most: int) -> bool:
    """Whether a document holds at most so many values, each counted as often as aliases stand for it."""
    left, pending = most, [document]
    while pending:
        value = pending.pop()
        left -= 1
        if left < 0:
            return False
        if isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, list):
            pending += value
    return True


def _spec(document: Mapping[str, Any], model: type[Spec]) -> Spec:
    """The spec, checked as strictly as the API server does: text isn't taken for a number."""
    if "spec" not in document:
        raise InputError("spec: is missing; add it")
    try:
        return model.model_validate_json(json.dumps(document["spec"]), strict=True)
    except ValidationError as error:
        raise InputError(*complaints(error, model, "spec")) from None
