"""What a pod's containers are given: configuration, volumes and the rest of what a launch needs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kronos.local.api import ApiClient, ApiError
from kronos.local.node import environment, volumes
from kronos.local.node.context import NODE_ADDRESS, NodeContext
from kronos.local.node.environment import ConfigError, Sources
from kronos.local.node.isolation import ContainerPlan, Launch
from kronos.local.node.rootfs import Mount

Object = Mapping[str, Any]
AUTHORIZER_LAG_SECONDS = (0.02, 0.05, 0.1, 0.2, 0.4)
PLURALS = {"ConfigMap": "configmaps", "Secret": "secrets"}


class PodInputs:
    """Fetches and prepares what one pod needs; its volumes are prepared once."""

    def __init__(
        self,
        pod: Object,
        context: NodeContext,
        client: ApiClient,
        folder: Path,
        address: str,
        allocatable: Mapping[str, str],
    ) -> None:
        """Prepare nothing yet; ``folder`` is the pod's own."""
        self.pod = pod
        self.context = context
        self.client = client
        self.folder = folder
        self.sources = Sources({}, NODE_ADDRESS, address, allocatable)
        self.volumes: dict[str, Path] | None = None
        self.namespace_path = f"/api/v1/namespaces/{pod['metadata']['namespace']}"

    @property
    def hosts(self) -> Path:
        """The pod's hosts file."""
        return self.folder / "hosts"

    @property
    def hostname(self) -> str:
        """The name that the pod has inside, at most as long as Linux allows."""
        chosen: str = self.pod["spec"].get("hostname") or self.pod["metadata"]["name"]
        return chosen[:63].rstrip("-.")

    async def launch(self, container: Object, place: Path, message_file: Path) -> Launch:
        """Work out what to start for a container; ConfigError when something that it needs is missing."""
        wanted = environment.references(container)
        if self.volumes is None:
            wanted |= volumes.volume_references(self.pod)
        await self._fetch(wanted)
        if self.volumes is None:
            self.volumes = await volumes.prepare(self.pod, self.folder / "volumes", self.sources, self)
        home = str(self.folder / "home")
        base = {**self.context.base_env, "HOME": home, "HOSTNAME": self.hostname}
        env = environment.build(self.pod, container, base, self.sources)
        mounts = volumes.mounts(container, self.pod, self.volumes, env)
        message_path = container.get("terminationMessagePath") or "/dev/termination-log"
        plan = ContainerPlan(
            argv=environment.command_line(container, env),
            env=env,
            cwd=container.get("workingDir") or home,
            mounts=[*mounts, Mount(message_file, message_path)],
            hosts=self.hosts,
            root=place / "root",
            hostname=self.hostname,
            namespace=self.pod["metadata"]["namespace"],
        )
        return await self.context.isolator.launch(plan)

    async def _fetch(self, wanted: set[tuple[str, str]]) -> None:
        for kind, name in sorted(wanted):
            found = await self._read(f"{self.namespace_path}/{PLURALS[kind]}/{name}")
            if found is None:
                self.sources.data.pop((kind, name), None)
            else:
                self.sources.data[kind, name] = environment.entries(kind, found)

    async def _read(self, path: str) -> Object | None:
        """An object of the pod's namespace, None when there is none.

        The node authorizer answers 403 for what does not exist, and also for a moment until it has heard that a pod
        here uses the object, which may be later than this node: hence the repetitions.
        """
        for pause in (*AUTHORIZER_LAG_SECONDS, 0.0):
            try:
                return await self.client.request("GET", path)
            except ApiError as error:
                if error.status == 404:
                    return None
                if error.status != 403:
                    raise
            await asyncio.sleep(pause)
        return None

    async def claimed_volume(self, claim: str) -> Object:
        """The specification of the persistent volume that is bound to a claim of the pod."""
        path = f"{self.namespace_path}/persistentvolumeclaims/{claim}"
        name = (await self.client.request("GET", path))["spec"].get("volumeName")
        if not name:
            raise ConfigError(f"claim {claim} is not bound to a volume")
        spec: Object = (await self.client.request("GET", f"/api/v1/persistentvolumes/{name}"))["spec"]
        return spec

    async def token(self, wanted: Object) -> str:
        """A token of the pod's service account, for a projected volume."""
        metadata = self.pod["metadata"]
        account = self.pod["spec"].get("serviceAccountName") or "default"
        pod = {"kind": "Pod", "apiVersion": "v1", "name": metadata["name"], "uid": metadata["uid"]}
        spec: dict[str, Any] = {
            "audiences": [wanted["audience"]] if wanted.get("audience") else [],
            "expirationSeconds": wanted.get("expirationSeconds") or 3600,
            "boundObjectRef": pod,
        }
        answer = await self.client.request(
            "POST",
            f"{self.namespace_path}/serviceaccounts/{account}/token",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec},
        )
        token: str = answer["status"]["token"]
        return token
