"""The termination message: valid JSON of a bounded size."""

from __future__ import annotations

import json
from pathlib import Path

from kronos.api.plan import LastWords

LIMIT_BYTES = 4096
"""Kubernetes cuts termination messages at this size, which would leave broken JSON."""
_ERROR_CHARACTERS = 1000


def encode(words: LastWords) -> bytes:
    """JSON of at most LIMIT_BYTES: the error keeps its beginning, the trace its end."""
    error = words.error
    if error is not None and len(error) > _ERROR_CHARACTERS:
        error = error[: _ERROR_CHARACTERS - 3] + "..."
    trace = words.trace
    while True:
        text = json.dumps(
            words.model_copy(update={"error": error, "trace": trace}).wire(), ensure_ascii=False
        )
        data = text.encode("utf-8", errors="replace")
        excess = len(data) - LIMIT_BYTES
        if excess <= 0:
            return data
        if trace:
            trace = trace[max(1, excess // 4) :]
        else:
            assert error
            error = error[: -max(1, excess // 4)]


def write(path: Path, words: LastWords) -> str | None:
    """Write the message; returns the problem when the place can't be written, which must not hide the outcome."""
    try:
        path.write_bytes(encode(words))
    except OSError as error:
        return f"the termination message can't be written: {error}"
    return None
