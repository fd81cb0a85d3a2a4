"""The programs of real nodes: built from their Go modules once, then kept in the user's cache."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from kronos.local.binaries import cache_folder, obtain, this_platform
from kronos.local.gobuild import Target, build, kubernetes_target
from kronos.local.versions import (
    CNI_VERSION,
    CONTAINERD_VERSION,
    COREDNS_VERSION,
    KUBERNETES_VERSION,
    RUNC_VERSION,
    Platform,
)

CONTAINERD = "github.com/containerd/containerd/v2/cmd"
CNI = "github.com/containernetworking/plugins/plugins"
TARGETS = (
    Target("pause", "pause", ".", "for pods", 3),
    Target("runc", "runc", "github.com/opencontainers/runc", RUNC_VERSION, 55, c_tags="seccomp"),
    Target("bridge", "cni", f"{CNI}/main/bridge", CNI_VERSION, 10),
    Target("loopback", "cni", f"{CNI}/main/loopback", CNI_VERSION, 2),
    Target("host-local", "cni", f"{CNI}/ipam/host-local", CNI_VERSION, 2),
    Target("containerd", "containerd", f"{CONTAINERD}/containerd", CONTAINERD_VERSION, 180),
    Target(
        "containerd-shim-runc-v2",
        "containerd",
        f"{CONTAINERD}/containerd-shim-runc-v2",
        CONTAINERD_VERSION,
        10,
    ),
    Target("ctr", "containerd", f"{CONTAINERD}/ctr", CONTAINERD_VERSION, 15),
    Target("coredns", "coredns", "github.com/coredns/coredns", COREDNS_VERSION, 150),
    kubernetes_target("kubelet", 60),
)
COMMANDS = tuple(target.command for target in TARGETS)


def key_of(platform: Platform) -> str:
    """The name of the cache folder for these versions on a platform."""
    versions = (
        f"kubelet-{KUBERNETES_VERSION}_containerd-{CONTAINERD_VERSION}_runc-{RUNC_VERSION}"
        f"_cni-{CNI_VERSION}_coredns-{COREDNS_VERSION}"
    )
    return f"{versions}_{platform.system}-{platform.architecture}"


def folder() -> Path:
    """Where the programs lie once they are built."""
    return cache_folder(os.environ, Path.home()) / key_of(this_platform())


def are_built() -> bool:
    """Whether nothing needs to be compiled."""
    return all(os.access(folder() / command, os.X_OK) for command in COMMANDS)


def ensure(progress: Callable[[str], None]) -> Path:
    """Return the folder with all programs, building them the first time."""
    cache = cache_folder(os.environ, Path.home())

    def fill(partial: Path) -> None:
        progress("building the programs of real nodes from Go modules, once")
        build(cache, partial, progress, TARGETS)

    return obtain(cache, key_of(this_platform()), COMMANDS, fill, progress)
