"""What a node answers to the API server: container logs, and a clear no to everything else."""

from __future__ import annotations

import ssl
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from aiohttp import web

from kronos.local.node.context import NODE_ADDRESS
from kronos.local.node.logs import ContainerLog, LogOptions, read
from kronos.local.pki import KUBELET_CLIENT, Pair

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
UNSUPPORTED = "kubectl {} does not work on Kronos's local nodes; use kubectl logs, or a real cluster"


class LogNotFoundError(Exception):
    """There is no such log; the message says why."""


class LogSource(Protocol):
    """Whoever knows the pods of the node."""

    def find_log(
        self, namespace: str, pod: str, container: str, previous: bool
    ) -> tuple[Path, ContainerLog | None]:
        """The file of a container's log, and its writer while it still runs."""
        ...


class NodeServer:
    """The HTTPS server of one node, on a free port."""

    def __init__(self, source: LogSource, authority: Path, pair: Pair) -> None:
        """Serve with the given certificate to clients that the authority vouches for."""
        self.source = source
        self.ssl = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority))
        self.ssl.verify_mode = ssl.CERT_REQUIRED
        self.ssl.load_cert_chain(pair.certificate, pair.key)
        application = web.Application(middlewares=[only_the_api_server])
        application.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self.logs)
        application.router.add_get("/healthz", healthy)
        for what in ("exec", "attach", "run", "portForward", "cp"):
            application.router.add_route("*", f"/{what}/{{rest:.*}}", refusal(what))
        self.runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        self.port = 0

    async def start(self) -> None:
        """Listen; ``port`` is known afterwards."""
        await self.runner.setup()
        site = web.TCPSite(self.runner, NODE_ADDRESS, 0, ssl_context=self.ssl)
        await site.start()
        self.port = self.runner.addresses[0][1]

    async def stop(self) -> None:
        """Close all connections."""
        await self.runner.cleanup()

    async def logs(self, request: web.Request) -> web.StreamResponse:
        """Stream a container's log."""
        names = request.match_info
        try:
            options = LogOptions.from_query(request.query, time.time_ns())
            path, log = self.source.find_log(
                names["namespace"], names["pod"], names["container"], request.query.get("previous") == "true"
            )
        except LogNotFoundError as error:
            return web.Response(status=404, text=str(error))
        except ValueError as error:
            return web.Response(status=400, text=f"the log options cannot be read: {error}")
        response = web.StreamResponse()
        response.content_type = "text/plain"
        await response.prepare(request)
        async for piece in read(path, options, log):
            await response.write(piece)
        await response.write_eof()
        return response


@web.middleware
async def only_the_api_server(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse clients that are not the API server, other nodes of the cluster included."""
    certificate = request.transport.get_extra_info("peercert") if request.transport else None
    subject = {key: value for part in (certificate or {}).get("subject", ()) for key, value in part}
    if subject.get("commonName") != KUBELET_CLIENT:
        return web.Response(status=403, text="only the API server may ask a node")
    return await handler(request)


async def healthy(_: web.Request) -> web.StreamResponse:
    """Answer that the node lives."""
    return web.Response(text="ok")


def refusal(what: str) -> Handler:
    """A handler that says that something is not supported."""

    async def refuse(_: web.Request) -> web.StreamResponse:
        return web.Response(status=501, text=UNSUPPORTED.format(what))

    return refuse
