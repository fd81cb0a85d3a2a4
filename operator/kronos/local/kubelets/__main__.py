"""The command line of real nodes: ``python -m kronos.local.kubelets check|up|down|env``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from kronos.local import __main__ as local
from kronos.local import images
from kronos.local.cluster import ClusterError
from kronos.local.control import ControlError
from kronos.local.gobuild import BuildError
from kronos.local.install import deploy
from kronos.local.kubelets import preflight
from kronos.local.kubelets.cluster import KubeletCluster
from kronos.local.topology import default_topology

EXIT_CANNOT = 4
"""Exit code when this machine cannot run real nodes; standard error says what is missing."""


def default_state() -> Path:
    """Where ``up`` keeps its cluster unless told otherwise."""
    return local.default_state(dict(os.environ), Path.home()).with_name("nodes")


def parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--state", type=Path, default=default_state(), help="folder of the cluster (%(default)s)"
    )
    result = argparse.ArgumentParser(prog="python -m kronos.local.kubelets", description=__doc__)
    commands = result.add_subparsers(dest="command", required=True)
    commands.add_parser("check", help="say what this machine lacks to run real nodes, if anything")
    starting = commands.add_parser("up", parents=[common], help="start a cluster and leave it running")
    starting.add_argument("--racks", type=int, default=2, help="number of racks (%(default)s)")
    starting.add_argument("--nodes-per-rack", type=int, default=2, help="nodes in each rack (%(default)s)")
    starting.add_argument("--slots", type=int, default=4, help="accelerator slots of a node (%(default)s)")
    commands.add_parser("down", parents=[common], help="stop the cluster and all that runs in it")
    commands.add_parser("env", parents=[common], help="print the shell lines that point kubectl at it")
    return result


def up(options: argparse.Namespace) -> None:
    """Start a cluster whose nodes hold Kronos's images, unless one runs already."""
    state: Path = options.state
    if local.is_running(state):
        local.show(f"a cluster already runs in {state}")
        return
    nodes = default_topology(options.racks, options.nodes_per_rack, options.slots)
    cluster = KubeletCluster(state, nodes, images.ensure(local.show), progress=local.show)
    cluster.start()
    try:
        local.show("installing Kronos")
        deploy(cluster.kubectl)
        cluster.detach()
    except BaseException:
        cluster.stop()
        raise
    local.show(f"the cluster is ready and the operator runs; logs are in {state}. Point kubectl at it with:")
    local.show('  eval "$(make cluster-env)"')


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out one command."""
    options = parser().parse_args(argv)
    if options.command in ("check", "up"):
        lacking = list(preflight.missing(preflight.Machine.this()))
        if lacking:
            local.show(f"Real nodes cannot run here; missing: {'; '.join(lacking)}.")
            return EXIT_CANNOT
    try:
        if options.command == "up":
            up(options)
        elif options.command in ("down", "env"):
            return local.main([options.command, "--state", str(options.state)])
    except (BuildError, ClusterError, ControlError, images.ImagesError, ValueError) as error:
        local.show(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        local.show("interrupted; everything that was started is stopped")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
