"""CustomResourceDefinitions from the models: `python -m kronos.api.crd FOLDER` writes or, with --check, compares."""

from __future__ import annotations

import argparse
import copy
import sys
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from kronos.api import GROUP, VERSION
from kronos.api.fabric import FabricSpec, FabricStatus
from kronos.api.job import NAME_LIMIT, TrainingJobSpec
from kronos.api.queue import QueueSpec, QueueStatus
from kronos.api.status import TrainingJobStatus

Schema = dict[str, Any]

_DROPPED = frozenset({"title", "additionalProperties", "$defs", "example", "discriminator"})


def structural_schema(model: type[BaseModel], *, defaults: bool = True) -> Schema:
    """The model's JSON schema in the dialect of CRDs: no references, no nulls, OpenAPI 3.0 bounds, nested defaults.

    Without `defaults` the API server fills in nothing: a status must hold what was observed and no more.
    """
    schema = model.model_json_schema(by_alias=True, mode="validation")
    converted = _convert(schema, schema.get("$defs", {}))
    return converted if defaults else _without_defaults(converted)


def _without_defaults(schema: Schema) -> Schema:
    result = {key: value for key, value in schema.items() if key != "default"}
    if "properties" in result:
        result["properties"] = {name: _without_defaults(item) for name, item in result["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(result.get(key), dict):
            result[key] = _without_defaults(result[key])
    return result


def _convert(schema: Schema, definitions: dict[str, Schema]) -> Schema:
    schema = _inline(schema, definitions)
    result: Schema = {}
    for key, value in schema.items():
        if key == "properties":
            result[key] = {name: _convert(item, definitions) for name, item in value.items()}
        elif key == "items" or (key == "additionalProperties" and isinstance(value, dict)):
            result[key] = _convert(value, definitions)
        elif key == "const":
            result["enum"] = [value]
        elif key in ("exclusiveMinimum", "exclusiveMaximum"):
            # OpenAPI 3.0, which CRDs speak, has the bound and its strictness apart.
            result["minimum" if key == "exclusiveMinimum" else "maximum"] = value
            result[key] = True
        elif key == "default":
            if value is not None:
                result[key] = value
        elif key not in _DROPPED:
            result[key] = copy.deepcopy(value)
    if "properties" in result and "default" in result:
        # Spelled out from the parts' own defaults, since the API server validates a default before it fills it in.
        parts = result["properties"].items()
        result["default"] = {
            name: copy.deepcopy(part["default"]) for name, part in parts if "default" in part
        }
    if result.get("type") == "integer":
        result["format"] = "int64"
    return result


def _inline(schema: Schema, definitions: dict[str, Schema]) -> Schema:
    """Replace a reference by what it names and an `X or null` by X; keywords beside them win."""
    while True:
        beside = {key: value for key, value in schema.items() if key not in ("$ref", "allOf", "anyOf")}
        if "$ref" in schema:
            schema = {**definitions[schema["$ref"].rsplit("/", 1)[1]], **beside}
        elif "allOf" in schema and len(schema["allOf"]) == 1:
            schema = {**schema["allOf"][0], **beside}
        elif "anyOf" in schema:
            (other,) = [item for item in schema["anyOf"] if item.get("type") != "null"]
            schema = {**other, **beside}
        else:
            return schema


def _column(
    name: str, path: str, kind: str = "string", *, priority: int = 0, description: str = ""
) -> Schema:
    column: Schema = {"name": name, "type": kind, "jsonPath": path}
    if priority:
        column["priority"] = priority
    if description:
        column["description"] = description
    return column


def _definition(
    kind: str, plural: str, short: str, scope: str, root: Schema, columns: list[Schema], *, status: bool
) -> Schema:
    version: Schema = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": root},
        "additionalPrinterColumns": columns,
    }
    if status:
        version["subresources"] = {"status": {}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}", "labels": {"app.kubernetes.io/part-of": "kronos"}},
        "spec": {
            "group": GROUP,
            "scope": scope,
            "names": {
                "kind": kind,
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
                "listKind": f"{kind}List",
                "categories": ["kronos"],
            },
            "versions": [version],
        },
    }


def _root(description: str, properties: Schema, rules: list[tuple[str, str]]) -> Schema:
    root: Schema = {
        "type": "object",
        "description": description,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            **properties,
        },
    }
    if rules:
        root["x-kubernetes-validations"] = [{"rule": rule, "message": message} for rule, message in rules]
    return root


def training_job_crd() -> Schema:
    """The CustomResourceDefinition of KronosTrainingJob."""
    root = _root(
        "Trains one model on a gang of accelerators.",
        {
            "spec": structural_schema(TrainingJobSpec),
            "status": structural_schema(TrainingJobStatus, defaults=False),
        },
        [
            (
                f"size(self.metadata.name) <= {NAME_LIMIT}",
                f"metadata.name must have at most {NAME_LIMIT} characters, since pod names add to it; shorten it",
            ),
            (
                "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
                "metadata.name must begin with a letter and hold only a-z, 0-9 and '-', since a Service has the same "
                "name; rename the job",
            ),
        ],
    )
    columns = [
        _column("Phase", ".status.phase"),
        _column("Ready", ".status.ready", description="Members running, of those in the gang"),
        _column("Strategy", ".status.strategy.summary"),
        _column("Step", ".status.progress.step", "integer"),
        _column("Restarts", ".status.failures", "integer", priority=1),
        _column("Loss", ".status.progress.loss", "number", priority=1),
        _column("Tokens/s", ".status.progress.tokensPerSecond", "number", priority=1),
        _column("Place", ".status.placement.summary", priority=1),
        _column("Queue", ".spec.scheduling.queue", priority=1),
        _column("Why", ".status.reason", priority=1),
        _column("Age", ".metadata.creationTimestamp", "date"),
    ]
    return _definition(
        "KronosTrainingJob", "kronostrainingjobs", "ktj", "Namespaced", root, columns, status=True
    )


def fabric_crd() -> Schema:
    """The CustomResourceDefinition of KronosFabric."""
    root = _root(
        "Describes the levels of a cluster's network and its accelerators.",
        {"spec": structural_schema(FabricSpec), "status": structural_schema(FabricStatus)},
        [],
    )
    columns = [
        _column("Levels", ".spec.levels[*].name"),
        _column("Accelerators", ".spec.accelerators[*].model"),
        _column(
            "Correction",
            ".status.calibrations[*].factor",
            description="By what predicted times are multiplied, from what jobs measured",
        ),
        _column("Age", ".metadata.creationTimestamp", "date"),
    ]
    return _definition("KronosFabric", "kronosfabrics", "kfab", "Cluster", root, columns, status=True)


def queue_crd() -> Schema:
    """The CustomResourceDefinition of KronosQueue."""
    root = _root(
        "Limits how many accelerators the jobs of a team may hold.",
        {"spec": structural_schema(QueueSpec), "status": structural_schema(QueueStatus, defaults=False)},
        [],
    )
    columns = [
        _column("Cohort", ".spec.cohort"),
        _column("Quota", ".spec.quotas[*].nominal"),
        _column("Used", ".status.use[*].used"),
        _column("Borrowed", ".status.use[*].borrowed"),
        _column("Running", ".status.running", "integer"),
        _column("Waiting", ".status.waiting", "integer"),
        _column("Age", ".metadata.creationTimestamp", "date"),
    ]
    return _definition("KronosQueue", "kronosqueues", "kq", "Cluster", root, columns, status=True)


def documents() -> dict[str, str]:
    """File name -> YAML text of every CustomResourceDefinition."""
    note = "# Generated from the models in kronos.api by `make crds`; edit those instead.\n"
    return {
        f"{crd['metadata']['name']}.yaml": note
        + yaml.safe_dump(crd, sort_keys=False, width=110, allow_unicode=True)
        for crd in (training_job_crd(), fabric_crd(), queue_crd())
    }


def main(arguments: list[str] | None = None) -> int:
    """Write the definitions into a folder, or with --check say which differ and return 1."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    stale = []
    for name, text in documents().items():
        path: Path = options.folder / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not options.check:
                path.write_text(text, encoding="utf-8")
    if stale and options.check:
        print(f"these differ from the models; run `make crds`: {', '.join(stale)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
