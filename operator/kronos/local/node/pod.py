"""One pod on a node, from admission to the end of its last process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

from kronos.local.api import STRATEGIC_MERGE_PATCH, ApiClient, ApiError
from kronos.local.node import status
from kronos.local.node.container import ContainerRun
from kronos.local.node.context import NODE_ADDRESS, NodeContext, now
from kronos.local.node.environment import ConfigError
from kronos.local.node.hosts import Peer
from kronos.local.node.inputs import PodInputs
from kronos.local.node.isolation import Launch
from kronos.local.node.probes import watch_readiness
from kronos.local.node.status import ContainerRecord, Verdict
from kronos.local.tasks import background

log = logging.getLogger(__name__)

Object = Mapping[str, Any]
CONFIG_RETRY_SECONDS = 1.0
API_RETRY_SECONDS = 0.5
# Shorter than a kubelet's, since nobody wants to wait five minutes for a test.
FIRST_BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS, BACKOFF_RESET_SECONDS = 1.0, 30.0, 600.0
# A pod whose object is already gone gets this long between SIGTERM and SIGKILL.
ORPHAN_GRACE_SECONDS = 2.0
DEFAULT_GRACE_SECONDS = 30
# Asks the patch to replace a list that it would merge; an earlier life of the pod may have had another address.
REPLACE = {"$patch": "replace"}


class PodWorker:
    """Runs the containers of one pod and keeps its status up to date."""

    def __init__(
        self,
        pod: Object,
        context: NodeContext,
        client: ApiClient,
        folder: Path,
        allocatable: Mapping[str, str],
        rejection: Verdict | None,
    ) -> None:
        """Take over a pod, perhaps one that an earlier life of this node had started."""
        self.pod = pod
        self.context = context
        self.client = client
        self.folder = folder
        self.uid: str = pod["metadata"]["uid"]
        self.path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        self.policy: str = pod["spec"].get("restartPolicy", "Always")
        host_network = bool(pod["spec"].get("hostNetwork"))
        self.address = NODE_ADDRESS if host_network else context.addresses.take()
        self.inputs = PodInputs(pod, context, client, folder, self.address, allocatable)
        self.verdict = rejection
        self.stopping = asyncio.Event()
        self.kill_at: float | None = None
        self.gone = False
        self.finished = False
        self.dirty = asyncio.Event()
        self.runs: dict[str, ContainerRun] = {}
        self.written: dict[str, Any] | None = None
        known = pod.get("status") or {}
        self.known_conditions: list[Object] = known.get("conditions") or []
        self.started_at: str = known.get("startTime") or now()
        self.began = time.monotonic()
        self.init = self._records("initContainers", known.get("initContainerStatuses"))
        self.main = self._records("containers", known.get("containerStatuses"))
        self.tasks = [background(self._live()), background(self._write_status())]
        self.killer: asyncio.Task[None] | None = None
        self.update(pod)

    def _records(self, key: str, known: list[Object] | None) -> list[ContainerRecord]:
        by_name = {item["name"]: item for item in known or ()}
        return [
            ContainerRecord.restored(container, by_name.get(container["name"]), now())
            for container in self.pod["spec"].get(key) or ()
        ]

    # What the API server says.

    def update(self, pod: Object) -> None:
        """Take note of a new version of the pod, which may ask it to end."""
        self.pod = pod
        if pod["metadata"].get("deletionTimestamp"):
            self._stop(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
            self.dirty.set()

    def removed(self) -> None:
        """The pod's object is gone: end its processes, and tell nobody."""
        self.gone = True
        self._stop(ORPHAN_GRACE_SECONDS)
        self.dirty.set()

    @property
    def active(self) -> bool:
        """Whether it still takes up the node's resources."""
        return not self.finished and self.verdict is None

    def log_path(self, container: str, restart: int) -> Path:
        """The log file of one run of a container."""
        return self.folder / "logs" / container / f"{restart}.log"

    async def abort(self) -> None:
        """End at once, as when the node loses power: kill everything and write nothing."""
        for task in (*self.tasks, *([self.killer] if self.killer else [])):
            task.cancel()
        runs = list(self.runs.values())
        for run in runs:
            run.kill()
        for run in runs:
            await run.process.wait()
        self._release()

    # Stopping.

    def _stop(self, grace: float) -> None:
        deadline = time.monotonic() + grace
        if self.kill_at is not None and deadline >= self.kill_at:
            return
        self.kill_at = deadline
        if not self.stopping.is_set():
            self.stopping.set()
            for run in self.runs.values():
                run.stop()
        if self.killer is not None:
            self.killer.cancel()
        self.killer = background(self._kill_later(grace))

    async def _kill_later(self, grace: float) -> None:
        await asyncio.sleep(grace)
        for run in self.runs.values():
            run.kill()

    async def _pause(self, seconds: float) -> None:
        """Sleep, but not beyond the moment when the pod is to stop."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.stopping.wait(), seconds)

    # Living.

    async def _live(self) -> None:
        deadline = background(self._watch_deadline())
        try:
            if self.verdict is None and not self.stopping.is_set():
                await self._run_all()
        except Exception:
            log.exception("pod %s", self.path)
            self.verdict = Verdict("NodeError", "the local node failed to run the pod; see its log")
            self._stop(0)
        finally:
            deadline.cancel()
        self.finished = True
        self.context.names.withdraw(self.uid)
        self.dirty.set()

    async def _run_all(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "home").mkdir(exist_ok=True)
        self._announce()
        for record, container in zip(self.init, self.pod["spec"].get("initContainers") or (), strict=True):
            if record.exit_code != 0:
                policy = "OnFailure" if self.policy == "Always" else self.policy
                await self._keep_running(record, container, policy)
            if record.exit_code != 0:
                return
            record.ready = True
        await asyncio.gather(
            *(
                self._keep_running(record, container, self.policy)
                for record, container in zip(self.main, self.pod["spec"]["containers"], strict=True)
            )
        )

    async def _watch_deadline(self) -> None:
        seconds = self.pod["spec"].get("activeDeadlineSeconds")
        if seconds is not None:
            await asyncio.sleep(max(0.0, self.began + seconds - time.monotonic()))
            message = "Pod was active on the node longer than the specified deadline"
            self.verdict = Verdict("DeadlineExceeded", message)
            self._stop(self.pod["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS))

    async def _keep_running(self, record: ContainerRecord, container: Object, policy: str) -> None:
        """Run a container again and again, as far as the policy says."""
        backoff = 0.0
        if record.exit_code is not None:
            if not status.restarts(policy, record.exit_code):
                return
            record.restarts += 1
        while not self.stopping.is_set():
            began = time.monotonic()
            if not await self._run_once(record, container):
                await self._pause(CONFIG_RETRY_SECONDS)
                continue
            code = record.exit_code
            assert code is not None
            if self.stopping.is_set() or not status.restarts(policy, code):
                return
            if time.monotonic() - began > BACKOFF_RESET_SECONDS:
                backoff = 0.0
            if backoff:
                name = container["name"]
                record.waiting("CrashLoopBackOff", f"back-off {backoff:g}s restarting container {name}")
                self._changed()
                await self._pause(backoff)
                if self.stopping.is_set():
                    record.state = record.last_state
                    return
            backoff = min(LONGEST_BACKOFF_SECONDS, backoff * 2 or FIRST_BACKOFF_SECONDS)
            record.restarts += 1

    async def _run_once(self, record: ContainerRecord, container: Object) -> bool:
        """Run a container to its end; False when it cannot be configured yet."""
        place = self.folder / "containers" / container["name"] / str(record.restarts)
        place.mkdir(parents=True, exist_ok=True)
        message_file = place / "termination-log"
        message_file.write_bytes(b"")
        message_file.chmod(0o666)
        try:
            launch = await self.inputs.launch(container, place, message_file)
        except (ConfigError, ApiError, aiohttp.ClientError, OSError) as error:
            record.waiting("CreateContainerConfigError", str(error) or type(error).__name__)
            self._changed()
            return False
        if self.stopping.is_set():
            return False
        run = ContainerRun.start(launch, self.log_path(container["name"], record.restarts))
        self.runs[container["name"]] = run
        readiness: asyncio.Task[None] | None = None
        started: str | None = None
        try:
            if await run.running():
                started = now()
                record.started(started, f"process://{self.uid}-{container['name']}-{record.restarts}")
                readiness = self._watch_readiness(record, container, launch)
                self._changed()
            ended = await run.wait(message_file, container.get("terminationMessagePolicy") or "File")
        finally:
            if readiness is not None:
                readiness.cancel()
        del self.runs[container["name"]]
        record.terminated(ended.code, ended.signal, ended.reason, ended.message, started, now())
        self._changed()
        return True

    def _watch_readiness(
        self, record: ContainerRecord, container: Object, launch: Launch
    ) -> asyncio.Task[None] | None:
        def set_ready(ready: bool) -> None:
            record.ready = ready and record.running
            self._changed()

        probe = container.get("readinessProbe")
        if not probe:
            record.ready = True
            return None
        return background(watch_readiness(probe, container, self.address, launch, set_ready))

    # Telling.

    def _announce(self) -> None:
        metadata, spec = self.pod["metadata"], self.pod["spec"]
        ready = bool(self.main) and all(record.ready for record in self.main)
        peer = Peer(
            metadata["namespace"],
            self.address,
            self.inputs.hostname,
            spec.get("subdomain") or "",
            metadata.get("labels") or {},
            ready,
        )
        self.context.names.announce(self.uid, peer, self.inputs.hosts)

    def _changed(self) -> None:
        self._announce()
        self.dirty.set()

    def _status(self) -> dict[str, Any]:
        stopped = self.finished
        current = status.phase(self.policy, self.init, self.main, stopped)
        if self.verdict is not None and stopped:
            current = "Failed"
        self.known_conditions = [
            *status.conditions(current, self.init, self.main, not stopped, self.known_conditions, now())
        ]
        result: dict[str, Any] = {
            "phase": current,
            "conditions": self.known_conditions,
            "hostIP": NODE_ADDRESS,
            "hostIPs": [{"ip": NODE_ADDRESS}],
            "startTime": self.started_at,
        }
        if self.verdict is not None:
            result |= {"reason": self.verdict.reason, "message": self.verdict.message}
        if self.inputs.volumes is not None:
            result |= {"podIP": self.address, "podIPs": [{"ip": self.address}, REPLACE]}
        result["containerStatuses"] = [record.as_status() for record in self.main]
        if self.init:
            result["initContainerStatuses"] = [record.as_status() for record in self.init]
        return result

    async def _write_status(self) -> None:
        """Write every change of the status, the newest only, and remove the object of an ended pod."""
        while not self.gone:
            await self.dirty.wait()
            self.dirty.clear()
            wanted = self._status()
            if wanted != self.written and not self.gone:
                await self._insist(partial(self._patch_status, wanted))
                self.written = wanted
            # What came about during the write is written first: the last status counts for controllers.
            ended = self.finished and not self.dirty.is_set()
            if ended and self.pod["metadata"].get("deletionTimestamp"):
                await self._insist(self._delete_object)
                return

    async def _patch_status(self, wanted: Object) -> None:
        patch = {"metadata": {"uid": self.uid}, "status": wanted}
        await self.client.request("PATCH", self.path + "/status", patch, content_type=STRATEGIC_MERGE_PATCH)

    async def _delete_object(self) -> None:
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}}
        await self.client.request("DELETE", self.path, options)

    async def _insist(self, call: Callable[[], Awaitable[object]]) -> None:
        """Repeat a write until the server has taken it, or the object is gone."""
        while not self.gone:
            try:
                await call()
                return
            except ApiError as error:
                if error.status == 404:
                    return
                log.warning("pod %s: %s", self.path, error)
                if error.status in (400, 403, 422):
                    return
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                log.warning("pod %s: %s", self.path, error)
            await asyncio.sleep(API_RETRY_SECONDS)

    def _release(self) -> None:
        self.context.names.withdraw(self.uid)
        if self.address != NODE_ADDRESS:
            self.context.addresses.release(self.address)

    async def forget(self) -> None:
        """Wait until a removed pod's processes are gone, then delete everything it left on the node."""
        await self.tasks[0]
        if self.killer is not None:
            self.killer.cancel()
        self.tasks[1].cancel()
        self._release()
        await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)
