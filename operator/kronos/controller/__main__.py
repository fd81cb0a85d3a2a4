"""`python -m kronos.controller`: runs the operator until it is told to stop."""

from __future__ import annotations

import argparse
import logging
import os
import sys

import kopf

from kronos.controller.wiring import Operator, registry_of


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
    logging.getLogger("kopf").setLevel(max(logging.WARNING, logging.getLevelName(options.log_level)))
    operator = Operator(progress_interval=options.progress_interval)
    kopf.run(
        registry=registry_of(operator), clusterwide=True, standalone=True, liveness_endpoint=options.liveness
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
