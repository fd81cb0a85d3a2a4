"""Reports for machines: dataclasses as JSON-ready data, written as JSON or YAML."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import yaml
from pydantic.alias_generators import to_camel

from kronos.api.base import Model


def wire(value: Any) -> Any:
    """JSON-ready data: the fields of dataclasses in camelCase, the keys of mappings as they are, nothing left out."""
    if is_dataclass(value) and not isinstance(value, type):
        return {wire_name(field.name): wire(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Model):
        return value.wire()
    if isinstance(value, Mapping):
        return {key: wire(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [wire(item) for item in value]
    return value


def wire_name(name: str) -> str:
    """A field's name on the wire; GiB keeps its capitals, as in the resources."""
    head, separator, last = name.rpartition("_")
    return f"{to_camel(head)}GiB" if separator and last == "gib" else to_camel(name)


def as_json(data: Any) -> bytes:
    """JSON-ready data as JSON in UTF-8."""
    return (json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def as_yaml(data: Any) -> bytes:
    """JSON-ready data as YAML in UTF-8, with the fields in the same order."""
    text: str = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=110)
    return text.encode()
