"""Readiness probes."""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import aiohttp

from kronos.local.node.isolation import Launch
from kronos.local.processes import spawn

Object = Mapping[str, Any]


async def watch_readiness(
    probe: Object, container: Object, address: str, launch: Launch, set_ready: Callable[[bool], None]
) -> None:
    """Probe for ever, telling every change after the number of equal results that the probe asks for."""
    await asyncio.sleep(probe.get("initialDelaySeconds") or 0)
    ready, streak, last = False, 0, None
    while True:
        try:
            timeout = probe.get("timeoutSeconds") or 1
            result = await asyncio.wait_for(attempt(probe, container, address, launch), timeout)
        except (TimeoutError, OSError, aiohttp.ClientError):
            result = False
        streak = streak + 1 if result == last else 1
        last = result
        needed = (probe.get("successThreshold") or 1) if result else (probe.get("failureThreshold") or 3)
        if result != ready and streak >= needed:
            ready = result
            set_ready(ready)
        await asyncio.sleep(probe.get("periodSeconds") or 10)


async def attempt(probe: Object, container: Object, address: str, launch: Launch) -> bool:
    """Make one probe."""
    if action := probe.get("httpGet"):
        return await _http(action, container, address)
    if action := probe.get("tcpSocket"):
        return await _tcp(action.get("host") or address, _port(action["port"], container))
    if action := probe.get("exec"):
        return await _exec(replace(launch, argv=list(action["command"])))
    return True


async def _http(action: Object, container: Object, address: str) -> bool:
    scheme = (action.get("scheme") or "HTTP").lower()
    host, port = action.get("host") or address, _port(action["port"], container)
    headers = {item["name"]: item["value"] for item in action.get("httpHeaders") or ()}
    insecure = ssl.create_default_context()
    insecure.check_hostname, insecure.verify_mode = False, ssl.CERT_NONE
    url = f"{scheme}://{host}:{port}{action.get('path') or '/'}"
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, headers=headers, ssl=insecure) as response,
    ):
        return 200 <= response.status < 400


async def _tcp(host: str, port: int) -> bool:
    _, writer = await asyncio.open_connection(host, port)
    writer.close()
    return True


async def _exec(launch: Launch) -> bool:
    # A process of its own in the same view of files and names; it cannot see the container's processes.
    process = spawn(
        launch.argv,
        env=launch.env,
        cwd=launch.cwd,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        isolation=launch.isolation,
        report=True,
    )
    assert process.report is not None
    with os.fdopen(process.report) as reports:
        try:
            await process.wait()
        except BaseException:
            process.kill()
            raise
        return '"code": 0' in reports.read()


def _port(port: int | str, container: Object) -> int:
    if isinstance(port, str) and not port.isdigit():
        named = {item.get("name"): item["containerPort"] for item in container.get("ports") or ()}
        return int(named[port])
    return int(port)
