"""A private view of the machine for one cluster: its own network, mounts and kernel settings.

The supervisor enters it before it starts anything, so whatever nodes mount, create or set disappears together with the
last of their processes, however that ended. Two clusters can therefore use the same addresses and fixed paths.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

CLONE_NEWNS, CLONE_NEWNET = 0x20000, 0x40000000

BRIDGE = "kronos0"
BRIDGE_ADDRESS = "02:00:0a:f4:00:01"
POD_NETWORK = "10.244.0.0/16"
GATEWAY = "10.244.0.1"
MOST_NODES = 200

# Folders whose paths are fixed in containerd, its shims and the kubelet, and that several nodes would share.
EMPTIED = ("/run", "/var/log")
LAYERED = "/var/lib"
# The kubelet insists on these values. It reads them from files of this cluster, so that the machine's stay.
KERNEL_SETTINGS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}


class SandboxError(Exception):
    """The machine refuses something that nodes need."""


def enter(state: Path) -> None:
    """Move this process, which may have one thread only, into namespaces of its own; files go into ``state``."""
    for hidden in (*EMPTIED, LAYERED):
        if state.resolve().is_relative_to(hidden):
            raise SandboxError(f"the cluster's folder {state} is below {hidden}; choose one elsewhere")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS | CLONE_NEWNET) != 0:
        raise SandboxError(
            f"new namespaces are refused ({os.strerror(ctypes.get_errno())}); run this as root"
        )
    run("mount", "--make-rprivate", "/")
    settings = state / "kernel"
    for name, value in KERNEL_SETTINGS.items():
        file = settings / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{value}\n")
        run("mount", "--bind", str(file), f"/proc/sys/{name}")
    layer = Path("/run/layer")
    for folder in EMPTIED:
        run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", folder)
    for part in ("upper", "work"):
        (layer / part).mkdir(parents=True)
    options = f"lowerdir={LAYERED},upperdir={layer / 'upper'},workdir={layer / 'work'}"
    run("mount", "-t", "overlay", "-o", options, "overlay", LAYERED)


def build_network(addresses: list[str]) -> None:
    """Make the bridge of the pods, and give this machine the addresses of nodes and Services."""
    run("ip", "link", "set", "lo", "up")
    # With an address of its own: else it has that of a pod's end, which changes as pods come and go, and neighbours that
    # still know the old one reach nothing for half a minute.
    run("ip", "link", "add", BRIDGE, "address", BRIDGE_ADDRESS, "type", "bridge")
    run("ip", "address", "add", f"{GATEWAY}/16", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    for address in addresses:
        run("ip", "address", "add", f"{address}/32", "dev", "lo")


def node_address(index: int) -> str:
    """The address of a node, outside the pods' network."""
    return f"10.245.0.{index + 1}"


def pod_range(index: int) -> tuple[str, str]:
    """The first and the last address for the pods of a node, within the network that all of them share."""
    return f"10.244.{index + 1}.1", f"10.244.{index + 1}.254"


def mounts_below(folder: Path, mountinfo: str) -> Iterator[str]:
    """The mount points at or below a folder, the latest first, from the text of ``/proc/self/mountinfo``."""
    for line in reversed(mountinfo.splitlines()):
        point = line.split()[4].encode().decode("unicode_escape")
        if Path(point).is_relative_to(folder):
            yield point


def unmount_below(folder: Path) -> None:
    """Unmount everything at or below a folder, so that deleting it cannot reach what was mounted there."""
    for point in mounts_below(folder, Path("/proc/self/mountinfo").read_text()):
        run("umount", "--lazy", point)
    left = list(mounts_below(folder, Path("/proc/self/mountinfo").read_text()))
    if left:
        raise SandboxError(f"{left[0]} is still mounted; the cluster's files are left where they are")


def share_mounts(folder: Path) -> None:
    """Make a folder whose mounts are seen in every namespace that begins with this one's, whoever makes them."""
    folder.mkdir(parents=True, exist_ok=True)
    run("mount", "--bind", str(folder), str(folder))
    run("mount", "--make-shared", str(folder))


def with_own(path: Path, folder: Path) -> list[str]:
    """The beginning of a command line whose program finds ``folder`` at ``path``, which nobody else sees there."""
    script = 'mount --bind "$0" "$1" && shift && exec "$@"'
    path.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    return ["unshare", "--mount", "--propagation", "unchanged", "sh", "-c", script, str(folder), str(path)]


def run(*command: str) -> None:
    """Run a system command; SandboxError with its words when it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise SandboxError(f"the command {command[0]} is missing; install it") from None
    if done.returncode:
        raise SandboxError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")
