"""The seam between the client and the outside: network, wall clock, randomness.

As the broker's `World`, and for the same reason: the client that applications use also runs in a
simulated world, on a seeded scheduler, where a test decides what breaks and when.
"""

import os
import socket
import time
from random import Random, SystemRandom
from typing import Any, Protocol, runtime_checkable
from weakref import WeakSet

import anyio
from anyio.abc import SocketAttribute

from raftmq.wire.streams import set_patience

from .socket_stream import SocketStream
from .tls import ClientTls

UNACKNOWLEDGED_SECONDS_MAX = 30.0
"""A connection whose node acknowledges nothing for this time is given up, also without requests.
"""

_SEEDED: WeakSet[Random] = WeakSet()


def _seed_again() -> None:
    """Seed again after a fork: a child that drew the ids of its parent and siblings would have its
    messages taken for repeats of theirs, and its consumers for theirs."""
    for random in _SEEDED:
        random.seed(SystemRandom().getrandbits(64))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_seed_again)


class Stream(Protocol):
    """A connection's bytes. Errors are those of anyio's byte streams."""

    async def send(self, item: bytes) -> None:
        """Send all bytes. Raises `anyio.BrokenResourceError` or `anyio.ClosedResourceError`."""

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        """At least one byte. Raises `anyio.EndOfStream`, or as `send`."""

    async def aclose(self) -> None:
        """Close the stream; a waiting `send` or `receive` ends with an error."""


@runtime_checkable
class ReceivesInto(Protocol):
    """A stream that can also receive into memory of its caller."""

    async def receive_into(self, room: memoryview) -> int:
        """Receive at least one byte into the beginning of `room`; the number of bytes. Raises as
        `receive`."""


class ClientWorld(Protocol):
    """The client's access to the outside. Monotonic time is the event loop's."""

    random: Random
    """Producer ids and jitter come from here."""

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since 1970."""

    async def connect(self, host: str, port: int) -> Stream:
        """Open a connection.

        Raises:
            OSError: no process answers.
            Rejected: `TLS`.
        """


class RealWorld:
    """Sockets, the system's clock and randomness; on trio and asyncio alike.

    Args:
        tls: for TLS on all connections; None: they are plain.
    """

    def __init__(self, tls: ClientTls | None = None) -> None:
        self._tls = tls
        self.random = Random(SystemRandom().getrandbits(64))
        _SEEDED.add(self.random)

    def now_ms(self) -> int:
        """The system's wall clock in milliseconds."""
        return time.time_ns() // 1_000_000

    async def connect(self, host: str, port: int) -> Stream:
        """Open a TCP connection that sends small frames at once, under TLS if the client uses
        it."""
        try:
            stream = await anyio.connect_tcp(host, port)
        except (ValueError, OverflowError) as error:
            # A resolver fails so on some texts (UnicodeError is a ValueError): no such host.
            raise OSError(f"{host}:{port} is no address: {error}") from error
        raw: Any = stream.extra(SocketAttribute.raw_socket)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        set_patience(raw, UNACKNOWLEDGED_SECONDS_MAX)
        if isinstance(raw, socket.socket):
            sock = socket.socket(fileno=raw.detach())
        elif self._tls is None:
            # On asyncio the event loop itself reads the socket.
            return stream
        else:
            sock = socket.socket(fileno=os.dup(raw.fileno()))
            # This closes the other descriptor, and does not shut the connection down.
            await stream.aclose()
        if self._tls is None:
            return SocketStream(sock)
        return SocketStream(await self._tls.secure(sock, host))
