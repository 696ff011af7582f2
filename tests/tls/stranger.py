"""A process under TLS that speaks frames, and need not be a client."""

import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import trio

from raftmq.wire.codec import pack, unpack
from raftmq.wire.frame import FrameParser, encode_frame
from raftmq.wire.messages import ErrorReply, FrameKind

from .certificates import HOST


class Stranger:
    """A connection under TLS of a process with a certificate, which speaks frames."""

    def __init__(self, stream: trio.SSLStream[trio.SocketStream]) -> None:
        self._stream = stream
        self._parser = FrameParser(1 << 20)
        self._frames: list[Any] = []

    async def ask(self, kind: int, header: Any) -> Any:
        """The answer to a request: a frame."""
        await self._stream.send_all(b"".join(encode_frame(kind, 7, pack(header))))
        return await self.next()

    async def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        await self._stream.send_all(data)

    async def next(self) -> Any:
        """The next frame."""
        while not self._frames:
            data = await self._stream.receive_some(65_536)
            assert data, "closed without a word"
            self._parser.feed(bytes(data))
            self._frames = list(self._parser.frames())
        return self._frames.pop(0)

    async def refusal(self) -> ErrorReply:
        """The refusal that comes next."""
        frame = await self.next()
        assert frame.kind == FrameKind.ERROR
        return unpack(ErrorReply, frame.header)


@asynccontextmanager
async def stranger(port: int, context: ssl.SSLContext) -> AsyncGenerator[Stranger]:
    """A connection to the node at a port, after the handshake."""
    tcp = await trio.open_tcp_stream(HOST, port)
    stream = trio.SSLStream(tcp, context, server_hostname=HOST, https_compatible=True)
    async with stream:
        yield Stranger(stream)
