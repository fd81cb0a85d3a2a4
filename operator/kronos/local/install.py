"""Installs Kronos into a local cluster: an overlay of manifests/ with all but the operator's pod, which runs beside it.

`python -m kronos.local.install run` installs it with the example fabric and becomes the operator; `make up` runs that
beside its cluster. `wait` returns once a job can be applied. Both find the cluster by KUBECONFIG.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, Protocol

import yaml

from kronos.local import binaries

ROOT = Path(__file__).resolve().parents[3]
CRDS = ROOT / "crds"
CLUSTER = ROOT / "manifests" / "overlays" / "cluster"
"""Kronos for the jobs of all namespaces."""
NAMESPACED = ROOT / "manifests" / "overlays" / "namespaced"
"""Kronos for the jobs of one namespace."""
FABRIC = ROOT / "manifests" / "examples" / "fabric.yaml"
TOKEN_LIFETIME = "8760h"
WAIT_SECONDS = 60.0


class Kubectl(Protocol):
    """Runs kubectl against one cluster and returns what it prints."""

    def __call__(self, *arguments: str) -> str:
        """Raise an exception with kubectl's message when it fails."""


class KubectlError(Exception):
    """kubectl failed; the message is its own."""


def kubectl_of(kubeconfig: Path) -> Kubectl:
    """Kubectl for the cluster of a kubeconfig, from the user's cache."""
    program = binaries.ensure(lambda _: None) / "kubectl"

    def kubectl(*arguments: str) -> str:
        command = [str(program), f"--kubeconfig={kubeconfig}", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise KubectlError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    return kubectl


def install(kubectl: Kubectl, admin: Path, overlay: Path = CLUSTER) -> Path:
    """Install the CRDs and the operator's service account; returns a kubeconfig with that account's identity.

    The operator then runs with the permissions that it has on a real cluster, so one that is missing shows here.
    """
    kubectl("apply", "-k", str(overlay), "-l", "app.kubernetes.io/component!=operator")
    _wait_for_crds(kubectl)
    token = kubectl(
        "-n", "kronos-system", "create", "token", "kronos", f"--duration={TOKEN_LIFETIME}"
    ).strip()
    path = admin.with_name("operator.kubeconfig")
    path.touch(mode=0o600)
    path.write_text(with_token(admin.read_text(encoding="utf-8"), token), encoding="utf-8")
    return path


def deploy(kubectl: Kubectl) -> None:
    """The whole install as users do it, with the example fabric; returns once the operator's pod is ready."""
    kubectl("apply", "-k", str(CLUSTER))
    _wait_for_crds(kubectl)
    kubectl("apply", "-f", str(FABRIC))
    kubectl("-n", "kronos-system", "rollout", "status", "deployment/kronos", "--timeout=55s")


def install_crds(kubectl: Kubectl) -> None:
    """Make the API server know Kronos's resources; returns once it serves them."""
    kubectl("apply", "-f", str(CRDS))
    _wait_for_crds(kubectl)


def _wait_for_crds(kubectl: Kubectl) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", str(CRDS))
        except Exception:
            # `kubectl wait` fails on an object that has no conditions at all yet; soon it has.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


def with_token(kubeconfig: str, token: str) -> str:
    """A kubeconfig whose users all are the one that the token belongs to."""
    content = yaml.safe_load(kubeconfig)
    content["users"] = [{"name": user["name"], "user": {"token": token}} for user in content["users"]]
    return yaml.safe_dump(content, sort_keys=False)


def controller_command(kubeconfig: Path, *options: str) -> list[str]:
    """The command line of the operator."""
    return [sys.executable, "-m", "kronos.controller", "--kubeconfig", str(kubeconfig), *options]


def wait(kubectl: Kubectl) -> None:
    """Return once the fabric is there, which is applied last; the last error when it takes too long."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            kubectl("get", "-f", str(FABRIC))
        except KubectlError:
            if time.monotonic() > deadline:
                raise
        else:
            return
        time.sleep(0.2)


def run(kubectl: Kubectl, admin: Path) -> NoReturn:
    """Install everything and become the operator."""
    kubeconfig = install(kubectl, admin)
    kubectl("apply", "-f", str(FABRIC))
    command = controller_command(kubeconfig, "--progress-interval", "1")
    os.execv(command[0], command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Install and become the operator, or wait until somebody else has installed it."""
    parser = argparse.ArgumentParser(prog="python -m kronos.local.install", description=main.__doc__)
    parser.add_argument("command", choices=["run", "wait"])
    options = parser.parse_args(arguments)
    admin = Path(os.environ["KUBECONFIG"])
    kubectl = kubectl_of(admin)
    try:
        if options.command == "run":
            run(kubectl, admin)
        wait(kubectl)
    except KubectlError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
