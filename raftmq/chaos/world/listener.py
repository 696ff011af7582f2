"""An address of the simulated network at which a process accepts connections."""

from typing import TYPE_CHECKING

import trio

from raftmq.chaos.world.process import Process

if TYPE_CHECKING:
    from raftmq.chaos.world.network import Network, Stream

Address = tuple[str, int]

BACKLOG = 1024
"""Connections that wait to be accepted, at most."""


class Listener(trio.abc.Listener[trio.abc.Stream]):
    """Streams that processes opened to one address."""

    def __init__(self, network: "Network", process: Process, address: Address) -> None:
        self._network = network
        self._address = address
        self.process = process
        """The process that listens."""
        channel: tuple[trio.MemorySendChannel[Stream], trio.MemoryReceiveChannel[Stream]]
        channel = trio.open_memory_channel(BACKLOG)
        self.send, self._receive = channel

    async def accept(self) -> trio.abc.Stream:
        """Wait for the next connection."""
        stream = await self._receive.receive()
        stream.note_accepted()
        return stream

    async def aclose(self) -> None:
        """Give up the address."""
        self._network.forget(self._address, self)
        await self._receive.aclose()
