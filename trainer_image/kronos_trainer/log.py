"""Log lines for people: time, who, what."""

from __future__ import annotations

import logging
import sys
import time

logger = logging.getLogger("kronos_trainer")


def configure(who: str) -> None:
    """Send this process's log to standard output, each line marked with `who` (such as `rank=3`)."""
    formatter = logging.Formatter(f"%(asctime)s.%(msecs)03dZ {who} %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(formatter)
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
