"""Telling a first cause from its consequences."""

from __future__ import annotations

import re

from kronos_trainer.exits import InputError
from kronos_trainer.messages import Failure

_CONSEQUENCES = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|closed by (remote )?peer|broken pipe|socket|"
    r"gloo|nccl|timed out waiting|\btimeout\b|remote process|no route to host",
    re.IGNORECASE,
)
_GLOO_DECORATION = re.compile(r"^\[[^\]]*\.(cc|h):\d+\] | This is typically caused by .*$")
_CONNECTION_TYPES = ("DistNetworkError", "DistBackendError", "DistStoreError", "DistError")


def describe(error: BaseException, trace: str, rank: int, step: int | None) -> Failure:
    """The failure of a rank as its launcher and the other members need to know it."""
    return Failure(
        rank=rank,
        step=step,
        error=one_line(error),
        trace=trace,
        secondary=looks_secondary(error),
        user_error=isinstance(error, InputError),
    )


def looks_secondary(error: BaseException) -> bool:
    """Whether an error in a rank is what a failure elsewhere looks like: a broken connection or collective.

    Communication libraries raise plain RuntimeErrors for most of these, so the text decides.
    """
    if isinstance(error, ConnectionError) or type(error).__name__ in _CONNECTION_TYPES:
        return True
    return type(error) is RuntimeError and _CONSEQUENCES.search(str(error)) is not None


def one_line(error: BaseException) -> str:
    """Type and message of an error on one line; an InputError is a sentence that stands alone."""
    text = _GLOO_DECORATION.sub("", " ".join(str(error).split()))
    if isinstance(error, InputError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
