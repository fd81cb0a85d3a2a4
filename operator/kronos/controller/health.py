"""Answers probes: is the operator alive, and does it know the cluster?

kopf's own endpoint answers the first question only, and not before the first full list, so an operator that waits for a
slow API server would be killed by its liveness probe.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

_SHUTDOWN_SECONDS = 1.0


def listen(port: int) -> socket.socket:
    """A socket on that port of all addresses, IPv6 where there is any; OSError when the port is taken."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("0.0.0.0", port))


@asynccontextmanager
async def answering(listener: socket.socket, not_ready: Callable[[], str]) -> AsyncIterator[None]:
    """Answer `GET /healthz` and `GET /readyz` on a socket for as long as the block runs.

    `/healthz` says nothing but that the event loop turns: a part of the operator that fails ends the process anyway, and
    a restart mends nothing that the API server refuses. `not_ready` returns why the operator isn't ready, or nothing.
    """

    async def alive(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_: web.Request) -> web.Response:
        reason = not_ready()
        return web.Response(text=f"{reason or 'ok'}\n", status=503 if reason else 200)

    application = web.Application()
    application.add_routes([web.get("/healthz", alive), web.get("/readyz", ready)])
    runner = web.AppRunner(
        application, handle_signals=False, access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS
    )
    await runner.setup()
    try:
        await web.SockSite(runner, listener).start()
        yield
    finally:
        await runner.cleanup()
