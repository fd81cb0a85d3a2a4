"""Requests to the API server as plain JSON, over the kubernetes package's asynchronous client."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, Self

import aiohttp
from kubernetes.aio import client, config
from pydantic_core import from_json, to_json

from kronos.api import GROUP, VERSION

Json = dict[str, Any]
Kind = Literal[
    "jobs",
    "fabrics",
    "queues",
    "priorities",
    "pods",
    "nodes",
    "services",
    "configmaps",
    "events",
    "podgroups",
]

_PREFIX: Mapping[Kind, str] = {
    "jobs": f"/apis/{GROUP}/{VERSION}",
    "fabrics": f"/apis/{GROUP}/{VERSION}",
    "queues": f"/apis/{GROUP}/{VERSION}",
    "priorities": "/apis/scheduling.k8s.io/v1",
    "pods": "/api/v1",
    "nodes": "/api/v1",
    "services": "/api/v1",
    "configmaps": "/api/v1",
    "events": "/api/v1",
    "podgroups": "/apis/scheduling.x-k8s.io/v1alpha1",
}
_PLURAL: Mapping[Kind, str] = {
    "jobs": "kronostrainingjobs",
    "fabrics": "kronosfabrics",
    "queues": "kronosqueues",
    "priorities": "priorityclasses",
}
_KIND_OF: Mapping[str, Kind] = {
    "Pod": "pods",
    "Service": "services",
    "ConfigMap": "configmaps",
    "Event": "events",
    "PodGroup": "podgroups",
}
_PAGE = 500
_PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
_JSON = "application/json"
_ONLY_METADATA = f"{_JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""Form of an answer that needn't repeat what was sent: a third of the time that a write takes is spent on answers."""
_TIMEOUT_SECONDS = 30
_WATCH_SECONDS = 300


class ApiError(Exception):
    """The API server refused a request; `status` is the HTTP code and `str()` its sentence."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class NoClusterError(Exception):
    """There is no cluster to connect to."""


class Api:
    """A connection to one API server.

    Every request raises ApiError when it is refused, and OSError when no answer came.
    """

    def __init__(self, connection: client.ApiClient, session: aiohttp.ClientSession) -> None:
        self._client = connection
        self._session = session

    @classmethod
    @asynccontextmanager
    async def connect(cls) -> AsyncIterator[Self]:
        """Connect as the pod's service account, or as the current user of the kubeconfig outside of a cluster.

        Raises NoClusterError when there is neither.
        """
        settings = client.Configuration()
        if runs_in_cluster():
            config.load_incluster_config(client_configuration=settings)
        else:
            # The client's own default was read from the environment when it was imported; ask again.
            path = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
            try:
                await config.load_kube_config(path, client_configuration=settings)
            except (config.ConfigException, OSError) as error:
                raise NoClusterError(
                    f"no cluster to talk to: {path} isn't a usable kubeconfig ({error})"
                ) from error
        async with client.ApiClient(settings) as connection, cls.over(connection) as api:
            yield api

    @classmethod
    @asynccontextmanager
    async def over(cls, connection: client.ApiClient) -> AsyncIterator[Self]:
        """Requests with the address and the identity of a client that is set up already."""
        async with _session(connection) as session:
            yield cls(connection, session)

    async def served(self) -> set[str]:
        """Names of Kronos's resources that the API server says it serves; they come and go with their CRDs."""
        groups = await self._request("GET", "/apis")
        if all(group["name"] != GROUP for group in groups["groups"]):
            return set()
        try:
            found = await self._request("GET", f"/apis/{GROUP}/{VERSION}")
        except ApiError as error:
            if error.status == 404:
                return set()
            raise
        return {resource["name"] for resource in found["resources"]}

    async def list_all(
        self, kind: Kind, namespace: str = "", *, limit: int | None = None
    ) -> tuple[list[Json], int]:
        """All objects of a kind in one or all namespaces, page by page, and the resource version that they are from.

        With `limit`, only so many of them.
        """
        items: list[Json] = []
        query: dict[str, str] = {"limit": str(limit or _PAGE)}
        while True:
            page = await self._request("GET", _path(kind, namespace), query=query)
            items += page["items"]
            token = page["metadata"].get("continue")
            if not token or limit is not None:
                return items, int(page["metadata"]["resourceVersion"])
            query["continue"] = token

    async def watch(self, kind: Kind, namespace: str, version: int) -> AsyncIterator[tuple[str, Json]]:
        """What happens to the objects of a kind in a namespace after a resource version: (event type, object).

        An event BOOKMARK only says, by its object's resource version, how far the watch has come. Ends when the server
        ends the watch, as it does after some minutes, or at once when it has too much to do; ApiError 410 when the
        version is too old.
        """
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(version),
            "timeoutSeconds": str(_WATCH_SECONDS),
        }
        # A connection that was lost silently is noticed when the server hasn't ended the watch in time.
        limits = aiohttp.ClientTimeout(total=_WATCH_SECONDS + _TIMEOUT_SECONDS, sock_connect=_TIMEOUT_SECONDS)
        try:
            async with await self._send("GET", _path(kind, namespace), query=query, limits=limits) as answer:
                async for line in answer.content:
                    event: Json = from_json(line)
                    if event["type"] == "ERROR":
                        raise ApiError(event["object"].get("code", 500), event["object"].get("message", ""))
                    yield event["type"], event["object"]
        except (aiohttp.ClientError, ValueError) as error:  # the latter for half a line
            raise ConnectionError(f"the watch of {kind} was lost: {error}") from error

    async def get(self, kind: Kind, namespace: str, name: str) -> Json:
        """One object; ApiError 404 when there is none."""
        return await self._request("GET", _path(kind, namespace, name))

    async def warnings_about(self, namespace: str, uid: str) -> list[Json]:
        """The events that warn about the object of that UID."""
        query = {"fieldSelector": f"involvedObject.uid={uid},type=Warning", "limit": str(_PAGE)}
        answer = await self._request("GET", _path("events", namespace), query=query)
        items: list[Json] = answer["items"]
        return items

    async def create(self, manifest: Mapping[str, Any]) -> Json:
        """Create a namespaced object of one of the kinds that Kronos creates; ApiError 409 when the name is taken.

        Returns the manifest with the metadata that the server gave it, without what the server added elsewhere.
        """
        kind = _KIND_OF[manifest["kind"]]
        answer = await self._request(
            "POST", _path(kind, manifest["metadata"]["namespace"]), body=manifest, accept=_ONLY_METADATA
        )
        return {**manifest, "metadata": answer["metadata"]}

    async def replace_job_status(self, job: Json) -> Json:
        """Store a job's status if the job is still at the resource version it holds; ApiError 409 otherwise.

        Returns the job with its new metadata.
        """
        metadata = job["metadata"]
        path = _path("jobs", metadata["namespace"], metadata["name"], "status")
        answer = await self._request("PUT", path, body=job, accept=_ONLY_METADATA)
        return {**job, "metadata": answer["metadata"]}

    async def replace_cluster_status(self, kind: Kind, item: Json) -> Json:
        """Store the status of a fabric or queue if that is still at the resource version it holds; ApiError 409 otherwise."""
        return await self._request("PUT", _path(kind, "", item["metadata"]["name"], "status"), body=item)

    async def delete_pod(self, namespace: str, name: str, uid: str, *, force: bool) -> Json:
        """Delete exactly the pod of that UID, at once when forced; ApiError 404 or 409 when it isn't there."""
        body: Json = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}}
        if force:
            body["gracePeriodSeconds"] = 0
        return await self._request("DELETE", _path("pods", namespace, name), body=body)

    async def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        accept: str = _JSON,
    ) -> Json:
        try:
            async with await self._send(method, path, query=query, body=body, accept=accept) as response:
                answer: Json = from_json(await response.read())
        except (aiohttp.ClientError, TimeoutError) as error:
            # A time-out has no words of its own.
            reason = str(error) or f"no answer within {_TIMEOUT_SECONDS} s"
            raise ConnectionError(f"the API server can't be reached: {reason}") from error
        return answer

    async def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        accept: str = _JSON,
        limits: aiohttp.ClientTimeout | None = None,
    ) -> aiohttp.ClientResponse:
        headers = {"Accept": accept, "Content-Type": _JSON, "User-Agent": "kronos"}
        method, url, headers, *_ = await self._client.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params=headers,
            auth_settings=["BearerToken"],
        )
        timing = limits or aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
        # The package's own call looks for proxies in threads and serialises twice: a sixth of the operator's time under load.
        response = await self._session.request(
            method,
            url,
            headers=headers,
            data=None if body is None else to_json(body),
            timeout=timing,
            proxy=self._client.configuration.proxy,
            proxy_headers=self._client.configuration.proxy_headers,
            server_hostname=self._client.configuration.tls_server_name,
        )
        if response.status >= 400:
            raise ApiError(response.status, _sentence(await response.read(), response.status))
        return response


def _session(connection: client.ApiClient) -> aiohttp.ClientSession:
    """Connections with the client's certificates; proxies of the environment count where there are any."""
    proxies = any(os.environ.get(name) for name in _PROXIES)
    connector = aiohttp.TCPConnector(ssl=connection.rest_client.ssl_context)
    # An event can be larger than what is read ahead by default.
    return aiohttp.ClientSession(connector=connector, trust_env=proxies, read_bufsize=2**21)


def runs_in_cluster() -> bool:
    """Whether the pod's service account is the identity to use: a kubeconfig that is named goes first."""
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and not os.environ.get("KUBECONFIG")


def service_url() -> str:
    """Where pods find the API server."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def plural_of(kind: Kind) -> str:
    """The name of a kind of object in URLs and permissions."""
    return _PLURAL.get(kind, kind)


def _path(kind: Kind, namespace: str = "", *parts: str) -> str:
    scope = f"/namespaces/{namespace}" if namespace else ""
    return "/".join([f"{_PREFIX[kind]}{scope}/{plural_of(kind)}", *parts])


def _sentence(text: bytes, status: int) -> str:
    try:
        message = json.loads(text).get("message")
    except (ValueError, AttributeError):
        message = None
    return message or f"the API server answered {status}"
