"""Asking a node for its status on its private port, past all rules and past any client."""

from typing import Any

import trio

from raftmq.chaos.real.network.trust import Trust
from raftmq.errors import ProtocolError
from raftmq.wire.codec import pack, unpack
from raftmq.wire.frame import FRAME_BYTES_MAX, Frame, FrameParser, encode_frame
from raftmq.wire.messages import PROTOCOL, FrameKind, Hello, NodeStatus, Status


async def ask_status(
    host: str, port: int, *, own: str, timeout: float = 1.0, trust: Trust | None = None
) -> dict[str, Any] | None:
    """A node's status with all its groups, asked from the address `own`, under TLS with `trust`;
    None: no answer in time, or an error."""
    with trio.move_on_after(timeout):
        try:
            async with await trio.open_tcp_stream(host, port, local_address=own) as stream:
                return await _converse(await trust.connected(stream) if trust else stream)
        except (OSError, ProtocolError, trio.BrokenResourceError):
            return None
    return None


async def _converse(stream: trio.abc.Stream) -> dict[str, Any] | None:
    parser = FrameParser(FRAME_BYTES_MAX)
    hello = Hello(PROTOCOL, "", 0, "", "raftmq chaos")
    await stream.send_all(b"".join(encode_frame(FrameKind.HELLO, 0, pack(hello))))
    await _receive(stream, parser)
    whole: dict[str, Any] = {}
    after = -1
    while True:
        header = pack(Status(after=after))
        await stream.send_all(b"".join(encode_frame(FrameKind.STATUS, 1, header)))
        frame = await _receive(stream, parser)
        if frame.kind == FrameKind.ERROR:
            return None
        status = unpack(NodeStatus, frame.header).status
        groups = whole.get("groups", []) + status["groups"]
        whole = {**status, "groups": groups}
        if "next" not in status:
            return whole
        after = status["next"]


async def _receive(stream: trio.abc.Stream, parser: FrameParser) -> Frame:
    """The next frame; a node answers each request with one frame."""
    while True:
        data = await stream.receive_some(65_536)
        if not data:
            raise ProtocolError("the node closed the connection")
        parser.feed(bytes(data))
        frames = list(parser.frames())
        if frames:
            return frames[0]
