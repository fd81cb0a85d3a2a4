"""What all models share: camelCase on the wire, unknown fields refused, durations."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

_DURATION_PARTS = re.compile(r"(\d+)(h|m|s)")
_UNIT_SECONDS = {"h": 3600, "m": 60, "s": 1}

Duration = Annotated[
    str,
    Field(
        pattern=r"^([0-9]+h)?([0-9]+m)?([0-9]+s)?$",
        min_length=2,
        max_length=20,
        json_schema_extra={"example": "1h30m"},
    ),
]
"""A length of time such as `72h`, `10m` or `1h30m15s`."""


def parse_duration(text: str) -> timedelta:
    """Turn a `Duration` into a timedelta; ValueError when the text isn't one."""
    parts = _DURATION_PARTS.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is not a duration; write for example 90s, 10m or 1h30m")
    return timedelta(seconds=sum(int(number) * _UNIT_SECONDS[unit] for number, unit in parts))


def rules(*pairs: tuple[str, str]) -> dict[str, Any]:
    """CEL rules for the API server, each (expression, message), as the schema extension that CRDs use."""
    return {"x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in pairs]}


def list_map(key: str) -> dict[str, Any]:
    """Marks a list of objects as a map by one of their fields, so that server-side apply merges it by that key."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


class Model(BaseModel):
    """Immutable, camelCase on the wire, snake_case in Python, unknown fields are errors."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )

    def wire(self) -> dict[str, Any]:
        """The object as JSON-ready data with the names used on the wire, without unset optional values."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class Lenient(Model):
    """A model for data that newer versions may have written: unknown fields are no error, and are written back as they were."""

    model_config = ConfigDict(extra="allow")
