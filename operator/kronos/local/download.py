"""The official releases: quick to give up where they cannot be reached."""

from __future__ import annotations

import io
import tarfile
import threading
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path

from kronos.local.versions import KUBERNETES_COMMANDS, Platform, checksum_of, verify

CONNECT_SECONDS = 3.0
ANSWER_SECONDS = 5.0
STALL_SECONDS = 20.0
REPORT_EVERY_SECONDS = 5.0
CHUNK_BYTES = 1 << 18
# Below this, all files together would take longer than building them.
SLOWEST_BYTES_PER_SECOND = 300 * 1024


class TooSlowError(OSError):
    """A download would take longer than a build."""


def fetch(url: str, timeout: float, tell: Callable[[str], None] = lambda _: None) -> bytes:
    """Download one file; the timeout bounds the connection and every pause, not the whole."""
    content = bytearray()
    began = told = time.monotonic()
    with urllib.request.urlopen(url, timeout=timeout) as response:
        size = int(response.headers.get("Content-Length") or 0)
        while piece := response.read(CHUNK_BYTES):
            content += piece
            if (now := time.monotonic()) - told >= REPORT_EVERY_SECONDS:
                told = now
                rate = len(content) / (now - began)
                if rate < SLOWEST_BYTES_PER_SECOND:
                    raise TooSlowError(f"{rate / 1024:.0f} KiB/s is too slow")
                tell(describe_progress(len(content), size, rate))
    return bytes(content)


def describe_progress(received: int, size: int, rate: float) -> str:
    """How far a download is, and how long it may still take."""
    mebibyte = 1024 * 1024
    if not size:
        return f"{received // mebibyte} MiB"
    left = (size - received) / rate
    return f"{received // mebibyte} of {size // mebibyte} MiB, about {left:.0f} s left"


def answers(url: str) -> bool:
    """Whether a small file can be fetched within seconds, whatever name resolution is doing."""
    results: list[bytes] = []

    def probe() -> None:
        try:
            results.append(fetch(url, CONNECT_SECONDS))
        except OSError:
            return

    # Resolving a name cannot be given a timeout, hence a thread that may be left behind.
    thread = threading.Thread(target=probe, daemon=True)
    thread.start()
    thread.join(ANSWER_SECONDS)
    return bool(results)


def download(platform: Platform, target: Path, progress: Callable[[str], None]) -> bool:
    """Fill the folder with released binaries; False when the release servers cannot be reached."""
    sums_url = f"{platform.etcd_release_url}/SHA256SUMS"
    if not answers(sums_url) or not answers(platform.kubernetes_url("kubectl") + ".sha256"):
        return False
    try:
        for command in KUBERNETES_COMMANDS:
            progress(f"downloading {command}")
            url = platform.kubernetes_url(command)
            content = fetch(url, STALL_SECONDS, partial(tell_about, command, progress))
            verify(command, content, fetch(url + ".sha256", STALL_SECONDS).decode())
            install(target / command, content)
        progress("downloading etcd")
        sums = fetch(sums_url, STALL_SECONDS).decode()
        archive_url = f"{platform.etcd_release_url}/{platform.etcd_archive}"
        archive = fetch(archive_url, STALL_SECONDS, partial(tell_about, "etcd", progress))
        verify(platform.etcd_archive, archive, checksum_of(platform.etcd_archive, sums))
    except OSError as error:
        progress(f"the download stopped ({error})")
        return False
    install(target / "etcd", member(archive, "etcd"))
    return True


def tell_about(name: str, progress: Callable[[str], None], text: str) -> None:
    """Tell how far the download of one file is."""
    progress(f"downloading {name}: {text}")


def member(archive: bytes, name: str) -> bytes:
    """One file of the etcd release archive."""
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        for entry in tar:
            if entry.isfile() and Path(entry.name).name == name:
                file = tar.extractfile(entry)
                if file is not None:
                    return file.read()
    raise FileNotFoundError(f"the etcd release holds no file named {name}")


def install(path: Path, content: bytes) -> None:
    """Write an executable."""
    path.write_bytes(content)
    path.chmod(0o755)
