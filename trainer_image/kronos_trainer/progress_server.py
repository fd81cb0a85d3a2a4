"""The gang's progress over HTTP, served by the launcher of member 0."""

from __future__ import annotations

import json
import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from kronos.api.plan import Progress


class ProgressServer:
    """`GET /progress` answers with `Progress` as JSON, or 503 before training began; `GET /healthz` with `ok`."""

    def __init__(self, address: str | None, port: int) -> None:
        """Listen on an address (None: all); OSError when the port is taken."""
        self.progress: Progress | None = None
        board = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                progress = board.progress
                if self.path == "/progress" and progress is None:
                    self._answer(503, "text/plain", "training has not begun")
                elif self.path == "/progress" and progress is not None:
                    self._answer(200, "application/json", json.dumps(progress.wire()))
                elif self.path == "/healthz":
                    self._answer(200, "text/plain", "ok")
                else:
                    self._answer(404, "text/plain", "not found; try /progress or /healthz")

            def _answer(self, status: int, kind: str, text: str) -> None:
                body = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
                """Say nothing: the controller asks every few seconds."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            address_family = socket.AF_INET6 if address and ":" in address else socket.AF_INET

            def server_bind(self) -> None:
                # The standard one looks up the host's name, which may take seconds in a pod.
                self.socket.bind(self.server_address)
                self.server_address = self.socket.getsockname()
                self.server_name, self.server_port = str(self.server_address[0]), port

        self._server = Server((address or "", port), Handler)
        self._thread = Thread(target=self._server.serve_forever, name="progress", daemon=True)

    def start(self) -> None:
        """Answer requests from a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Stop answering and close the port."""
        self._server.shutdown()
        self._server.server_close()
