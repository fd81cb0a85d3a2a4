"""`python -m kronos.controller`: runs the operator until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import sys

import kopf

from kronos.controller.api import NoClusterError
from kronos.controller.health import listen
from kronos.controller.preflight import preflight
from kronos.controller.wiring import Operator, registry_of

EXIT_NO_CLUSTER = 3
"""Exit code when there is no cluster, no permission or no CRDs."""
EXIT_NO_PORT = 4
"""Exit code when the port for probes is taken."""
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def main(arguments: list[str] | None = None) -> int:
    """Run the operator against the cluster of the kubeconfig, or the one that it runs in."""
    parser = argparse.ArgumentParser(prog="kronos.controller", description=main.__doc__)
    parser.add_argument("--kubeconfig", help="file to use; default: KUBECONFIG, or the pod's service account")
    parser.add_argument(
        "--progress-interval", type=float, default=10.0, help="seconds between two looks at a gang's progress"
    )
    parser.add_argument(
        "--namespace",
        type=_namespace,
        help="look after the jobs of this namespace only; default: of all. Nodes and pods are read everywhere",
    )
    parser.add_argument(
        "--health-port", type=int, help="port that answers GET /healthz and GET /readyz; default: none"
    )
    parser.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    options = parser.parse_args(arguments)
    if options.progress_interval <= 0:
        parser.error("--progress-interval must be more than zero seconds")
    namespace: str = options.namespace or ""
    if options.kubeconfig:
        os.environ["KUBECONFIG"] = options.kubeconfig
    logging.basicConfig(
        level=options.log_level, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", stream=sys.stderr
    )
    # One line per lost kubeconfig would bury what matters.
    logging.getLogger("kubernetes").setLevel(logging.ERROR)
    logging.getLogger("kopf").setLevel(max(logging.WARNING, logging.getLevelName(options.log_level)))
    try:
        listener = listen(options.health_port) if options.health_port is not None else None
    except (OSError, OverflowError) as error:
        print(f"can't answer probes on port {options.health_port}: {error}", file=sys.stderr)
        return EXIT_NO_PORT
    try:
        asyncio.run(preflight(namespace))
    except NoClusterError as error:
        print(error, file=sys.stderr)
        return EXIT_NO_CLUSTER
    operator = Operator(progress_interval=options.progress_interval, namespace=namespace, listener=listener)
    kopf.run(registry=registry_of(operator), clusterwide=True, standalone=True)
    return 0


def _namespace(text: str) -> str:
    if not _NAMESPACE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no name of a namespace")
    return text


if __name__ == "__main__":
    sys.exit(main())
