"""What must hold before the operator starts: a cluster that knows Kronos's resources and lets the operator see them."""

from __future__ import annotations

import asyncio
import logging
import time

from kronos.controller.api import Api, ApiError, Kind, NoClusterError, plural_of

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 15.0
"""One `kubectl apply` brings the CRDs, the permissions and the operator; the API server takes them in one by one."""
_PAUSE_SECONDS = 0.5
_WATCHED: tuple[Kind, ...] = ("jobs", "fabrics", "queues", "priorities", "pods", "nodes")


class _NotYetError(NoClusterError):
    """Something is missing that may be on its way."""


async def preflight(namespace: str = "", patience: float = PATIENCE_SECONDS) -> None:
    """Raise NoClusterError, with a sentence that says what to change, when the operator can't do its work at all.

    Waits a little for CRDs and permissions. An API server that doesn't answer is no such case: it may only be late, and
    the operator waits for it. Jobs are looked for in one namespace, where one is given.
    """
    deadline = time.monotonic() + patience
    told = ""
    async with Api.connect() as api:
        while True:
            try:
                await _check(api, namespace)
            except _NotYetError as error:
                if time.monotonic() >= deadline:
                    raise
                if str(error) != told:
                    told = str(error)
                    logger.warning("%s; waiting for up to %.0f s", told, patience)
            except OSError as error:
                logger.warning("%s", error)
                return
            else:
                return
            await asyncio.sleep(_PAUSE_SECONDS)


async def _check(api: Api, namespace: str) -> None:
    try:
        served = await api.served()
        # kopf looks once for what there is to watch, and would miss a resource that comes a moment later.
        missing = {plural_of(kind) for kind in ("jobs", "fabrics", "queues")} - served
    except ApiError as error:
        raise _sentence(error, "the resources that it serves") from error
    if missing:
        raise _NotYetError(
            f"the cluster doesn't know Kronos's resources ({', '.join(sorted(missing))}); "
            "run `kubectl apply -f crds/` first"
        )
    for kind in _WATCHED:
        try:
            await api.list_all(kind, namespace if kind == "jobs" else "", limit=1)
        except ApiError as error:
            if error.status not in (401, 403, 404):
                logger.warning("the API server isn't ready: %s", error)
                continue
            raise _sentence(error, kind) from error


def _sentence(error: ApiError, what: str) -> NoClusterError:
    if error.status == 401:
        return NoClusterError(f"the API server doesn't accept the operator's credentials: {error}")
    return _NotYetError(f"the API server lets the operator not list {what}: {error}")
