"""The few calls that nodes make to the API server, over one connection pool."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp

from kronos.local.pki import Pair

log = logging.getLogger(__name__)

Object = dict[str, Any]
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
WATCH_SECONDS = 3000
RETRY_SECONDS = 0.5
REQUEST_SECONDS = 30.0


class ApiError(Exception):
    """The API server refused a request."""

    def __init__(self, status: int, message: str) -> None:
        """Keep the HTTP status beside the server's sentence."""
        super().__init__(message)
        self.status = status


class ApiClient:
    """An authenticated connection to the API server; use it as an async context manager."""

    def __init__(self, server: str, authority: Path, pair: Pair) -> None:
        """Connect to ``server`` with a client certificate."""
        self.server = server
        self.authority = authority
        self.ssl = ssl.create_default_context(cafile=str(authority))
        self.ssl.load_cert_chain(pair.certificate, pair.key)
        self.session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> ApiClient:
        """Open the connection pool."""
        connector = aiohttp.TCPConnector(ssl=self.ssl, limit=0, keepalive_timeout=60)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
        self.session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        if self.session is not None:
            await self.session.close()

    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        """Make one request and return the object that the server answers with."""
        assert self.session is not None
        async with self.session.request(
            method,
            self.server + path,
            params=query,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": content_type, "Accept": "application/json"},
            timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS),
        ) as response:
            text = await response.text()
            answer: Object = json.loads(text) if text.startswith("{") else {"message": text}
            if response.status >= 400:
                raise ApiError(response.status, str(answer.get("message", response.reason)))
            return answer

    async def watch(self, path: str, query: Mapping[str, str]) -> AsyncIterator[Object]:
        """Yield watch events until the server ends the watch."""
        assert self.session is not None
        params = {**query, "watch": "1", "timeoutSeconds": str(WATCH_SECONDS), "allowWatchBookmarks": "true"}
        async with self.session.get(self.server + path, params=params) as response:
            if response.status >= 400:
                raise ApiError(response.status, await response.text())
            rest = b""
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield json.loads(line)


async def follow(
    client: ApiClient,
    path: str,
    query: Mapping[str, str],
    on_list: Callable[[list[Object]], None],
    on_event: Callable[[str, Object], None],
) -> None:
    """Keep up with a collection for ever: a full list first, then every change, again after any trouble."""
    while True:
        try:
            listing = await client.request("GET", path, query=query)
            on_list(listing.get("items") or [])
            version = listing["metadata"]["resourceVersion"]
            while True:
                async for event in client.watch(path, {**query, "resourceVersion": version}):
                    if event["type"] == "ERROR":
                        raise ApiError(event["object"].get("code", 500), event["object"].get("message", ""))
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        on_event(event["type"], event["object"])
        except (ApiError, aiohttp.ClientError, TimeoutError, OSError) as error:
            # 410 means that the version is too old, which listing again cures.
            if not (isinstance(error, ApiError) and error.status == 410):
                log.warning("following %s: %s; trying again", path, error)
            await asyncio.sleep(RETRY_SECONDS)
