"""An address of the simulated network at which a process accepts connections."""

from collections.abc import Callable

import trio

from raftmq.chaos.world.pipe import Connection
from raftmq.chaos.world.process import Process

Address = tuple[str, int]
Waiting = tuple[Connection, trio.abc.Stream]
"""A connection that waits to be accepted, and the stream for the process that listens."""

BACKLOG = 1024
"""Connections that wait to be accepted, at most."""


class Listener(trio.abc.Listener[trio.abc.Stream]):
    """Streams that processes opened to one address."""

    def __init__(self, process: Process, forget: Callable[["Listener"], None]) -> None:
        """`forget` gives up the address."""
        self._forget = forget
        self.process = process
        """The process that listens."""
        self.send, self._receive = trio.open_memory_channel[Waiting](BACKLOG)

    async def accept(self) -> trio.abc.Stream:
        """Wait for the next connection."""
        connection, stream = await self._receive.receive()
        connection.is_accepted = True
        return stream

    async def aclose(self) -> None:
        """Give up the address."""
        self._forget(self)
        await self._receive.aclose()
