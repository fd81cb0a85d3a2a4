"""Passing connections on from one network to another."""

from __future__ import annotations

import asyncio
import contextlib
import socket

CHUNK = 1 << 16


class Relay:
    """Passes every connection to a listening socket on to a port of this machine.

    The socket keeps the network in which it was made, the connections on are made in that of this process.
    """

    def __init__(self, listening: socket.socket, port: int) -> None:
        """Prepare; nothing is accepted yet."""
        self.listening = listening
        self.port = port
        self.server: asyncio.Server | None = None
        self.open: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        """Begin to accept."""
        self.server = await asyncio.start_server(self._pass_on, sock=self.listening)

    def stop(self) -> None:
        """Stop accepting and cut what is open."""
        if self.server is not None:
            self.server.close()
        for writer in self.open:
            writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open.add(writer)
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            writer.close()
            self.open.discard(writer)
            return
        self.open.add(far_writer)
        try:
            await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
        finally:
            for each in (writer, far_writer):
                each.close()
                self.open.discard(each)


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Copy until one side ends, and let the other side know."""
    with contextlib.suppress(OSError):
        while data := await source.read(CHUNK):
            target.write(data)
            await target.drain()
        if target.can_write_eof():
            target.write_eof()
