"""The watches of jobs, pods and nodes: what is gone is forgotten, however the watch ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio import client

from kronos.controller import wiring
from kronos.controller.api import Api, ApiError
from kronos.controller.wiring import Operator

JOBS = "/apis/training.kronos.dev/v1alpha1/namespaces/forge/kronostrainingjobs"


def raw_job(name: str, version: int) -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": "forge",
            "name": name,
            "uid": name,
            "resourceVersion": str(version),
            "creationTimestamp": "2026-03-01T12:00:00Z",
        },
        "spec": {},
    }


def line(kind: str, item: Any) -> str:
    return json.dumps({"type": kind, "object": item}) + "\n"


@asynccontextmanager
async def served(answer: Callable[[web.Request], str]) -> AsyncIterator[Api]:
    """An API server that answers every request with a text, piece by piece."""

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        text = answer(request)
        for start in range(0, len(text), 40):
            await response.write(text[start : start + 40].encode())
        return response

    application = web.Application()
    application.router.add_get("/{path:.*}", handle)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        (address,) = runner.addresses
        settings = client.Configuration(host=f"http://127.0.0.1:{address[1]}")
        async with client.ApiClient(settings) as connection, Api.over(connection) as api:
            yield api
    finally:
        await runner.cleanup()


async def test_a_watch_goes_on_from_a_version_and_ends_when_the_server_ends_it():
    asked: list[web.Request] = []

    def answer(request: web.Request) -> str:
        asked.append(request)
        return line("ADDED", raw_job("a", 8)) + line("DELETED", raw_job("a", 9))

    async with served(answer) as api:
        events = [(kind, item["metadata"]["name"]) async for kind, item in api.watch("jobs", "forge", 7)]
    assert events == [("ADDED", "a"), ("DELETED", "a")]
    (request,) = asked
    assert request.path == JOBS
    assert (request.query["watch"], request.query["resourceVersion"]) == ("1", "7")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        pytest.param(line("ERROR", {"code": 410, "message": "too old"}), ApiError, id="version too old"),
        pytest.param(line("ADDED", raw_job("a", 8))[:-9], ConnectionError, id="half a line"),
    ],
)
async def test_a_watch_that_fails_says_so(text: str, error: type[Exception]):
    async with served(lambda _: text) as api:
        with pytest.raises(error):
            [event async for event in api.watch("jobs", "forge", 7)]


class Script:
    """An API server that gives one list after another and one watch after another; then nothing more happens."""

    def __init__(self, lists: list[tuple[list[dict[str, Any]], int]], watches: list[list[Any]]) -> None:
        self.lists = lists
        self.watches = watches
        self.watched_from: list[int] = []
        self.done = asyncio.Event()

    async def list_all(self, kind: str, namespace: str) -> tuple[list[dict[str, Any]], int]:
        assert (kind, namespace) == ("jobs", "forge")
        return self.lists.pop(0)

    async def watch(self, kind: str, namespace: str, version: int) -> AsyncIterator[tuple[str, Any]]:
        self.watched_from.append(version)
        if not self.watches:
            self.done.set()
            await asyncio.Event().wait()
        for event in self.watches.pop(0):
            if isinstance(event, Exception):
                raise event
            yield event


async def watched(script: Script, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the jobs that an operator knows of in the end."""
    monkeypatch.setattr(wiring, "_REWATCH", 0.0)
    operator = Operator(progress_interval=1.0, namespace="forge")
    watching = asyncio.create_task(operator._watch(script, "jobs"))
    await asyncio.wait_for(script.done.wait(), timeout=10)
    watching.cancel()
    return sorted(name for _, name in operator.cache.jobs.raw)


async def test_what_a_watch_whose_version_is_too_old_has_missed_is_in_the_next_list(
    monkeypatch: pytest.MonkeyPatch,
):
    script = Script(
        [([raw_job("kept", 1), raw_job("gone", 2)], 3), ([raw_job("kept", 1), raw_job("new", 6)], 7)],
        [[("ADDED", raw_job("seen", 4)), ApiError(410, "too old")]],
    )
    assert await watched(script, monkeypatch) == ["kept", "new"]
    assert script.watched_from == [3, 7]


@pytest.mark.parametrize(
    "end",
    [
        pytest.param([], id="the server ends it"),
        pytest.param([ConnectionError("lost")], id="the connection is lost"),
    ],
)
async def test_a_watch_that_ended_goes_on_where_it_was_without_a_list(
    end: list[Any], monkeypatch: pytest.MonkeyPatch
):
    script = Script(
        [([raw_job("kept", 1)], 3)],
        [
            [("ADDED", raw_job("seen", 4)), ("BOOKMARK", {"metadata": {"resourceVersion": "9"}}), *end],
            [("ADDED", raw_job("later", 10))],
        ],
    )
    assert await watched(script, monkeypatch) == ["kept", "later", "seen"]
    assert script.watched_from == [3, 9, 10]
