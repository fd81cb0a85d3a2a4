"""The command line of the local cluster: ``python -m kronos.local up|down|env|status``."""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from kronos.local.binaries import cache_folder, ensure
from kronos.local.cluster import ClusterError, LocalCluster
from kronos.local.control import ControlError, ExtraProcess, ask, stop
from kronos.local.gobuild import BuildError
from kronos.local.topology import LocalNode, default_topology
from kronos.local.versions import Platform, UnsupportedPlatformError

KNOWN_ERRORS = (BuildError, ClusterError, ControlError, UnsupportedPlatformError, ValueError)


def default_state(environ: dict[str, str], home: Path) -> Path:
    """Where ``up`` keeps its cluster unless told otherwise."""
    base = environ.get("XDG_STATE_HOME")
    return (Path(base) if base else home / ".local" / "state") / "kronos" / "local"


def parse_process(text: str) -> ExtraProcess:
    """Read ``NAME=COMMAND``."""
    name, _, command = text.partition("=")
    argv = shlex.split(command)
    if not name or not argv:
        raise argparse.ArgumentTypeError(f"write NAME=COMMAND, not {text!r}")
    return ExtraProcess(name, argv)


def parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    common = argparse.ArgumentParser(add_help=False)
    default = default_state(dict(os.environ), Path.home())
    common.add_argument("--state", type=Path, default=default, help="folder of the cluster (%(default)s)")
    result = argparse.ArgumentParser(prog="python -m kronos.local", description=__doc__)
    commands = result.add_subparsers(dest="command", required=True)
    starting = commands.add_parser("up", parents=[common], help="start a cluster and leave it running")
    starting.add_argument("--racks", type=int, default=2, help="number of racks (%(default)s)")
    starting.add_argument("--nodes-per-rack", type=int, default=2, help="nodes in each rack (%(default)s)")
    starting.add_argument("--slots", type=int, default=4, help="accelerator slots of a node (%(default)s)")
    starting.add_argument("--nodes-file", type=Path, help="YAML list of nodes, instead of racks")
    starting.add_argument(
        "--process",
        type=parse_process,
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="run a program beside the cluster, with KUBECONFIG set; may be repeated",
    )
    commands.add_parser("down", parents=[common], help="stop the cluster and all that runs in it")
    commands.add_parser("env", parents=[common], help="print the shell lines that point kubectl at it")
    commands.add_parser("status", parents=[common], help="say what runs")
    commands.add_parser("programs", help="obtain the control plane's programs, without starting any")
    return result


def read_nodes(path: Path) -> list[LocalNode]:
    """Read a YAML list of nodes, each with a name and perhaps labels, capacity and taints."""
    content = yaml.safe_load(path.read_text())
    if not isinstance(content, list) or not content:
        raise ValueError(f"{path} must hold a list of nodes")
    return [LocalNode.from_dict(item) for item in content]


def show(text: str) -> None:
    """Print progress at once, apart from what a shell may evaluate."""
    print(text, file=sys.stderr, flush=True)


def up(state: Path, nodes: Sequence[LocalNode], processes: Sequence[ExtraProcess] = ()) -> None:
    """Start a cluster that goes on after this process, with further programs beside it."""
    if is_running(state):
        show(f"a cluster already runs in {state}")
        return
    cluster = LocalCluster(state, nodes, processes=processes, progress=show)
    cluster.start()
    try:
        cluster.detach()
    except BaseException:
        cluster.stop()
        raise
    show(f"the cluster is ready; its logs are in {state}. Point kubectl at it with:")
    show(f'  eval "$(python -m kronos.local env --state {shlex.quote(str(state))})"')


def is_running(state: Path) -> bool:
    """Whether a cluster answers in the folder."""
    try:
        ask(state, "status")
    except ControlError:
        return False
    return True


def down(state: Path) -> None:
    """Stop the cluster and wait until its last process is gone."""
    if not is_running(state):
        show(f"no cluster runs in {state}")
        return
    stop(state)
    show("the cluster is gone")


def environment_lines(state: Path, binaries: Path) -> str:
    """Shell lines that set KUBECONFIG and put kubectl on PATH."""
    return (
        f"export KUBECONFIG={shlex.quote(str(state.absolute() / 'kubeconfig'))}\n"
        f'export PATH={shlex.quote(str(binaries))}:"$PATH"'
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out one command."""
    options = parser().parse_args(argv)
    try:
        if options.command == "up":
            nodes = (
                read_nodes(options.nodes_file)
                if options.nodes_file
                else default_topology(options.racks, options.nodes_per_rack, options.slots)
            )
            up(options.state, nodes, options.process)
        elif options.command == "down":
            down(options.state)
        elif options.command == "programs":
            ensure(show)
        elif options.command == "env":
            ask(options.state, "status")
            key = Platform.of(platform.system(), platform.machine()).key
            print(environment_lines(options.state, cache_folder(os.environ, Path.home()) / key))
        else:
            answer = ask(options.state, "status")
            print(f"supervisor: pid {answer['pid']}, {'ready' if answer['ready'] else 'starting'}")
            for name, running in answer["nodes"].items():
                print(f"node {name}: {'running' if running else 'killed'}")
            for name in answer["processes"]:
                print(f"process {name}: supervised")
    except KNOWN_ERRORS as error:
        show(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        show("interrupted; everything that was started is stopped")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
