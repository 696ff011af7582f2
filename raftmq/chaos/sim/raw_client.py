"""Clients that send nodes frames of their own choice, past `raftmq.client`."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import msgspec
import trio

from raftmq.chaos.sim.cluster import CLUSTER, PORT
from raftmq.chaos.world.network import Network
from raftmq.chaos.world.process import Process
from raftmq.wire.codec import pack
from raftmq.wire.frame import Frame, FrameParser, encode_frame
from raftmq.wire.messages import PROTOCOL, FrameKind, Hello

ANSWER_BYTES_MAX = 1 << 24
"""The longest frame that a node may send."""


class RawClient:
    """One connection to one node."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._parser = FrameParser(ANSWER_BYTES_MAX)

    async def send(
        self, kind: FrameKind, correlation: int, message: msgspec.Struct | None, body: bytes = b""
    ) -> None:
        """Send a request; `message` is its header, None: it has none."""
        header = b"" if message is None else pack(message)
        await self._stream.send_all(b"".join(encode_frame(kind, correlation, header, [body])))

    async def receive(self) -> Iterator[Frame] | None:
        """Wait for more bytes; the frames that are whole with them, or None: the node has closed
        the connection."""
        data = await self._stream.receive_some()
        if not data:
            return None
        self._parser.feed(bytes(data))
        return self._parser.frames()


@asynccontextmanager
async def raw_client(
    network: Network, process: Process, host: str, software: str
) -> AsyncIterator[RawClient]:
    """A connection of a process, with a Hello that was sent.

    Raises:
        OSError: there is no connection.
        trio.BrokenResourceError: it broke.
    """
    async with await network.connect(process, host, PORT) as stream:
        client = RawClient(stream)
        await client.send(FrameKind.HELLO, 0, Hello(PROTOCOL, CLUSTER, 0, "", software))
        yield client
