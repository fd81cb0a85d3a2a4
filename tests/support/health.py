"""Questions to the operator's probes, and waiting for the answers."""

from __future__ import annotations

import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("", 0)) as listener:
        number: int = listener.getsockname()[1]
        return number


def answer_of(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, str]:
    """Status and text of what is answered on a port; 0 when nothing is."""
    try:
        with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=2) as answer:
            return answer.status, answer.read().decode().strip()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode().strip()
    except OSError as error:
        return 0, str(error)


def wait_until(holds: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not after {seconds} s"
        time.sleep(0.2)
