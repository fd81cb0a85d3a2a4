"""What must be settled in a process before torch is loaded: threads and network interface."""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import MutableMapping

THREADS_VARIABLE = "OMP_NUM_THREADS"
"""Threads per rank; one unless the pod's environment says otherwise, since their number changes bits."""

_SIOCGIFADDR = 0x8915
_ADDRESS_OFFSET = 20


def prepare_environment(environ: MutableMapping[str, str], pod_ip: str | None) -> None:
    """Set the variables that native libraries read when they are loaded; what is already set stays."""
    threads = environ.setdefault(THREADS_VARIABLE, "1")
    for name in ("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        environ.setdefault(name, threads)
    environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    interface = interface_of(pod_ip) if pod_ip else None
    if interface:
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            environ.setdefault(name, interface)


def interface_of(address: str) -> str | None:
    """Name of the network interface that carries an IPv4 address; None when unknown (collectives then choose)."""
    if address.startswith("127."):
        return "lo"
    if ":" in address:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # An interface without an IPv4 address.
            if socket.inet_ntoa(answer[_ADDRESS_OFFSET : _ADDRESS_OFFSET + 4]) == address:
                return name
    return None
