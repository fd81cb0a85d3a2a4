"""Background tasks whose failures are not lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger(__name__)


def background(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start a task that nobody awaits; the caller keeps the reference, the log gets any failure."""
    task = asyncio.create_task(work)
    task.add_done_callback(_log_failure)
    return task


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        log.error("a background task has failed", exc_info=error)
