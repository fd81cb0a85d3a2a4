"""A cluster of real nodes as a Python object."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kronos.local.cluster import DEFAULT_NODE_GRACE_SECONDS, LocalCluster, silent
from kronos.local.control import ExtraProcess
from kronos.local.kubelets import programs
from kronos.local.topology import LocalNode


class KubeletCluster(LocalCluster):
    """A control plane with real nodes, used as any local cluster; it runs as root only."""

    def __init__(
        self,
        state_dir: Path,
        nodes: Sequence[LocalNode],
        images: Mapping[str, Path],
        *,
        node_grace_seconds: float = DEFAULT_NODE_GRACE_SECONDS,
        processes: Sequence[ExtraProcess] = (),
        progress: Callable[[str], None] = silent,
    ) -> None:
        """Describe a cluster whose nodes hold these images, by name; pods cannot pull any others."""
        super().__init__(
            state_dir,
            nodes,
            node_grace_seconds=node_grace_seconds,
            processes=processes,
            progress=progress,
        )
        self.images = dict(images)
        self.programs: Path | None = None

    def start(self) -> None:
        """Start everything; returns when pods can be created and every node is ready."""
        self.programs = programs.ensure(self.progress)
        super().start()

    def supervisor_command(self) -> list[str]:
        """The program that runs the cluster; it reads its settings from standard input."""
        archives = [str(self.images[name]) for name in sorted(self.images)]
        return [sys.executable, "-m", "kronos.local.kubelets.host", str(self.programs), *archives]
