"""Plays the demo on a local cluster that runs: installs Kronos, applies two jobs, watches them to their end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import yaml

from kronos.api import API_VERSION
from kronos.local.api import ApiClient, follow
from kronos.local.cluster import LocalCluster
from kronos.local.demo.display import Display
from kronos.local.demo.manifests import JOBS, NAMESPACE, text_folder, write_jobs
from kronos.local.demo.story import Story
from kronos.local.install import CRDS, FABRIC, controller_command, install
from kronos.local.pki import Pair
from kronos.local.processes import GuardedProcess, last_lines, spawn

RACK_LABEL = "kronos.dev/rack"
LONGEST_SECONDS = 600.0
"""From the jobs' apply to their completion; a slow machine needs two minutes."""
REFRESH_SECONDS = 0.2
OPERATOR_GRACE_SECONDS = 5.0
LONGEST_LINE = 200


class DemoError(Exception):
    """The demo didn't show what it should; the message says why."""


def play(cluster: LocalCluster, display: Display) -> None:
    """The whole demo; DemoError when anything goes otherwise than it should."""
    display.say("$ kubectl apply -k manifests/overlays/cluster   but the operator runs as a process here")
    kubeconfig = install(cluster.kubectl, cluster.kubeconfig)
    with running_operator(cluster.state, kubeconfig) as (operator, log):
        display.say(f"$ kubectl apply -f {FABRIC.relative_to(CRDS.parent)}")
        cluster.kubectl("apply", "-f", str(FABRIC))
        cluster.kubectl("create", "namespace", NAMESPACE)
        files = write_jobs(cluster.state / "jobs")
        display.say(
            f"Data of both jobs: Python's own sources in {text_folder()}, in place of their /data/text"
        )
        display.say(f"$ kubectl apply -f {' -f '.join(f'manifests/examples/{file.name}' for file in files)}")
        cluster.kubectl("apply", *(part for file in files for part in ("-f", str(file))))
        story = Story(JOBS)
        try:
            with display:
                asyncio.run(observe(cluster, operator, story, display))
            conclude(story, racks(cluster), display)
        except DemoError as error:
            said = "\n".join(line[:LONGEST_LINE] for line in last_lines(log).splitlines())
            raise DemoError(f"{error}\nThe operator's last words:\n{said}") from None


@contextlib.contextmanager
def running_operator(state: Path, kubeconfig: Path) -> Iterator[tuple[GuardedProcess, Path]]:
    """The operator as a process of its own, which ends with this one."""
    log = state / "logs" / "operator.log"
    command = controller_command(kubeconfig, "--progress-interval", "0.5")
    with log.open("ab") as output:
        process = spawn(
            command, env=os.environ, stdout=output.fileno(), stderr=output.fileno(), cwd=str(state)
        )
    try:
        yield process, log
    finally:
        process.stop_now(OPERATOR_GRACE_SECONDS)


async def observe(cluster: LocalCluster, operator: GuardedProcess, story: Story, display: Display) -> None:
    """Watch jobs and pods and show what they say, until the story is over."""
    deadline = time.monotonic() + LONGEST_SECONDS
    async with watching(cluster, story) as watches:
        while not story.over:
            if not operator.running:
                raise DemoError("The operator ended while its jobs ran.")
            if time.monotonic() > deadline:
                raise DemoError(f"The jobs weren't complete after {LONGEST_SECONDS:.0f} s.")
            for watch in watches:
                if watch.done():
                    watch.result()
            display.show(story.in_order)
            await asyncio.sleep(REFRESH_SECONDS)
        display.show(story.in_order)


@contextlib.asynccontextmanager
async def watching(cluster: LocalCluster, story: Story) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Feed the story from watches of the jobs and their pods."""
    server = yaml.safe_load(cluster.kubeconfig.read_text(encoding="utf-8"))["clusters"][0]["cluster"][
        "server"
    ]
    pki = cluster.state / "pki"
    admin = Pair(pki / "admin.crt", pki / "admin.key")

    def listed_jobs(jobs: list[dict[str, Any]]) -> None:
        for job in jobs:
            story.see_job(job)

    def listed_pods(pods: list[dict[str, Any]]) -> None:
        for pod in pods:
            story.see_pod("ADDED", pod)

    jobs = f"/apis/{API_VERSION}/namespaces/{NAMESPACE}/kronostrainingjobs"
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    async with ApiClient(server, pki / "ca.crt", admin) as client:
        tasks = [
            asyncio.create_task(follow(client, jobs, {}, listed_jobs, lambda _, job: story.see_job(job))),
            asyncio.create_task(follow(client, pods, {}, listed_pods, story.see_pod)),
        ]
        try:
            yield tasks
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def racks(cluster: LocalCluster) -> dict[str, str]:
    """Each node's rack."""
    nodes = json.loads(cluster.kubectl("get", "nodes", "-o", "json"))["items"]
    return {node["metadata"]["name"]: node["metadata"]["labels"].get(RACK_LABEL, "no rack") for node in nodes}


def conclude(story: Story, rack_of: dict[str, str], display: Display) -> None:
    """Print what was shown; DemoError when it isn't what the demo promises."""
    faults = story.faults()
    if faults:
        raise DemoError("\n".join(fault[0].upper() + fault[1:] for fault in faults))
    display.say("Both jobs are Complete.")
    for line in (*story.places(rack_of), *story.improvements(), *story.waited()):
        display.say(f"  {line}")
    display.say("  At no time did each hold a part of what it needs.")
