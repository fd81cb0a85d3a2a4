"""`python -m kronos.controller`: runs the operator until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys

import kopf

from kronos.controller.api import NoClusterError
from kronos.controller.wiring import Operator, preflight, registry_of

EXIT_NO_CLUSTER = 3
"""Exit code when there is no cluster, no permission or no CRDs."""


def main(arguments: list[str] | None = None) -> int:
    """Run the operator against the cluster of the kubeconfig, or the one that it runs in."""
    parser = argparse.ArgumentParser(prog="kronos.controller", description=main.__doc__)
    parser.add_argument("--kubeconfig", help="file to use; default: KUBECONFIG, or the pod's service account")
    parser.add_argument(
        "--progress-interval", type=float, default=10.0, help="seconds between two looks at a gang's progress"
    )
    parser.add_argument(
        "--liveness", help="where to answer liveness probes, such as http://0.0.0.0:8080/healthz"
    )
    parser.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    options = parser.parse_args(arguments)
    if options.progress_interval <= 0:
        parser.error("--progress-interval must be more than zero seconds")
    if options.kubeconfig:
        os.environ["KUBECONFIG"] = options.kubeconfig
    logging.basicConfig(
        level=options.log_level, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", stream=sys.stderr
    )
    # One line per probe and per lost kubeconfig would bury what matters.
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    logging.getLogger("kubernetes").setLevel(logging.ERROR)
    logging.getLogger("kopf").setLevel(max(logging.WARNING, logging.getLevelName(options.log_level)))
    try:
        asyncio.run(preflight())
    except NoClusterError as error:
        print(error, file=sys.stderr)
        return EXIT_NO_CLUSTER
    operator = Operator(progress_interval=options.progress_interval)
    kopf.run(
        registry=registry_of(operator), clusterwide=True, standalone=True, liveness_endpoint=options.liveness
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
