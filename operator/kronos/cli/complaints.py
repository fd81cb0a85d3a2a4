"""What is wrong with what people gave a command: where, what, and what to change, in one sentence each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

SHOWN = 40
"""Characters of a wrong value that are repeated."""


class InputError(Exception):
    """Something that was given can't be used; the sentences say what to change."""

    def __init__(self, *sentences: str) -> None:
        super().__init__(*sentences)
        self.sentences = sentences


def complaints(error: ValidationError, model: type[BaseModel], path: str) -> Iterator[str]:
    """One sentence for each field that a model refused; `path` is where the model stands in its document."""
    items = error.errors(include_url=False)
    for item in items:
        if item["type"] == "too_short" and any(_inside(other, item) for other in items):
            # Pydantic counts the items that are right; a list isn't short for having wrong ones.
            continue
        place = path + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in item["loc"])
        yield f"{place}: {_what(item, model)}"


def _inside(item: ErrorDetails, outer: ErrorDetails) -> bool:
    """Whether an error is about something inside what another one is about."""
    return len(item["loc"]) > len(outer["loc"]) and item["loc"][: len(outer["loc"])] == outer["loc"]


def _what(item: ErrorDetails, model: type[BaseModel]) -> str:
    kind, message = item["type"], item["msg"]
    if kind == "json_invalid":
        return "is no JSON object; correct it"
    if kind == "missing":
        return "is missing; add it"
    if kind == "extra_forbidden":
        *place, name = item["loc"]
        return _unknown_field(str(name), known_fields(model, place))
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"is {_shown(item['input'])} and must hold fields; write them below it, indented"
    if kind == "value_error":
        sentence = message.removeprefix("Value error, ")
        return (
            sentence if ";" in sentence or sentence.startswith("give ") else f"{sentence}; change one of them"
        )
    if kind in ("too_short", "too_long"):
        limits = item["ctx"]
        bound = (
            f"at least {limits['min_length']}" if kind == "too_short" else f"at most {limits['max_length']}"
        )
        return f"has {limits['actual_length']} items and must have {bound}; change it"
    return f"is {_shown(item['input'])} and {_plain(message)}; change it"


_PLAIN = {
    "Input should be ": "must be ",
    "String should have ": "must have ",
    "String should match ": "must match the ",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid string": "text",
    "a valid boolean": "true or false",
    "a valid array": "a list",
}


def _plain(message: str) -> str:
    """A message of pydantic without its jargon."""
    for jargon, words in _PLAIN.items():
        message = message.replace(jargon, words)
    return message[:1].lower() + message[1:]


def known_fields(model: type[BaseModel], place: Sequence[str | int]) -> tuple[str, ...]:
    """Names on the wire of the fields that may stand at some place inside a model; none where it holds no fields."""
    here: type[BaseModel] | None = model
    for part in place:
        if here is None:
            break
        if isinstance(part, str):
            fields = here.model_fields.items()
            field = next((field for name, field in fields if part in (name, field.alias)), None)
            here = _model_in(field.annotation) if field else None
    return tuple(field.alias or name for name, field in here.model_fields.items()) if here else ()


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model in `Model | None`, `tuple[Model, ...]` and the like."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)


def _unknown_field(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, n=1)
    if near:
        return f"is no field that Kronos knows; change it to {near[0]}, or drop it"
    return "is no field that Kronos knows; drop it" + (f", or use one of {', '.join(known)}" if known else "")


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "empty"
    text = (
        str(value).lower()
        if isinstance(value, bool)
        else repr(value)
        if isinstance(value, str)
        else str(value)
    )
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
