"""A socket as a client's stream, without the layers of an event loop's own streams.

A read waits first: nearly always no bytes are there yet, and a vain `recv` with its exception costs
as much as the wait. A send is tried at once, and waits only for room.

Invariants:
- `send_nowait` and `send` never run at the same time: the caller sees to that.
"""

import socket
from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.lowlevel

from raftmq.tls.sockets import TlsSocket

T = TypeVar("T", bytes, int)

SMALL_BYTES = 16 * 1024
"""Bytes of one read while little comes at once. A buffer of 256 KiB for each small frame is mapped,
cut down and unmapped by the C library: three system calls and a page fault."""


class SocketStream:
    """A connected socket; see `raftmq.client.world.Stream`. On trio and asyncio alike."""

    def __init__(self, sock: socket.socket | TlsSocket) -> None:
        if isinstance(sock, socket.socket):
            sock.setblocking(False)
        self._socket = sock
        self._has_more = False
        # True: the last read brought much.
        self._is_busy = False

    def send_nowait(self, data: bytes) -> int:
        """Send as many bytes as possible without waiting; the number of bytes sent.

        A broken or closed connection takes nothing: the next `send` or `receive` reports it.
        """
        try:
            return self._socket.send(data)
        except OSError:
            return 0

    async def send(self, item: bytes) -> None:
        """Send all bytes. Cancelling leaves a part of them sent."""
        rest = memoryview(item)
        while True:
            try:
                rest = rest[self._open().send(rest) :]
            except BlockingIOError:
                await anyio.wait_writable(self._open())
            except OSError as error:
                raise anyio.BrokenResourceError from error
            else:
                if not rest:
                    return

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        """At least one byte. Cancelling loses nothing."""
        size = max_bytes if self._is_busy else min(max_bytes, SMALL_BYTES)
        data = await self._received(lambda: self._open().recv(size))
        # A short read has emptied the socket.
        self._has_more = len(data) == size
        self._is_busy = len(data) >= SMALL_BYTES
        return data

    async def receive_into(self, room: memoryview) -> int:
        """Fill the beginning of `room`; at least one byte. Cancelling loses nothing."""
        count = await self._received(lambda: self._open().recv_into(room))
        self._has_more = count == len(room)
        return count

    async def _received(self, read: Callable[[], T]) -> T:
        while True:
            if self._has_more:
                await anyio.lowlevel.checkpoint()
            else:
                await anyio.wait_readable(self._open())
            try:
                received = read()
            except BlockingIOError:
                self._has_more = False
                continue
            except OSError as error:
                raise anyio.BrokenResourceError from error
            if not received:
                raise anyio.EndOfStream
            return received

    async def aclose(self) -> None:
        """Close it; a waiting `send` or `receive` ends with an error."""
        if self._socket.fileno() >= 0:
            anyio.notify_closing(self._socket)
            self._socket.close()
        await anyio.lowlevel.checkpoint()

    def _open(self) -> socket.socket | TlsSocket:
        if self._socket.fileno() < 0:
            raise anyio.ClosedResourceError
        return self._socket
