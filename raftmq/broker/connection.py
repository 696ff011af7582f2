"""One connection that somebody opened to this node: a client, or a peer.

The first frame must be `Hello`. Then every frame is handed to the node, which answers now or later,
in any order; `correlation` ties the answer to its request. One task reads, one writes.

Back-pressure: the task takes no further frame while the connection, or the node as a whole, has
as many unanswered requests or unsent bytes as its limits allow. TCP then stops the sender. Nothing
that was read is dropped. Where the node as a whole is at its limit, a connection that holds less
than its share of it goes on: readers that never empty their sockets must not stop the others.

Invariants:
- A bad frame closes this connection, after an `ERROR` frame that says why, and nothing else.
- A correlation id in use is not accepted a second time.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import trio

from raftmq.errors import ProtocolError
from raftmq.wire.codec import pack, unpack
from raftmq.wire.frame import Frame, FrameParser, encode_frame
from raftmq.wire.messages import PROTOCOL, REPLY, ErrorReply, FrameKind, Hello, Welcome

from .outbox import Outbox, Step
from .settings import Limits

RECEIVE_BYTES = 256 * 1024
"""Asked of the socket at once: many small frames, or a good piece of a large one."""

HEADER_BYTES_MAX = 1024 * 1024
"""A CBOR header may decode to many times its length; requests need a few hundred bytes, a fetch of
20,000 queues 300 KiB."""

_UNANSWERED = frozenset((FrameKind.RAFT, FrameKind.FORGET))

HELLO_SECONDS_MAX = 10.0
"""A connection that says nothing for so long is closed: it is no client of ours."""


class Load:
    """What all connections of a node hold together."""

    def __init__(self) -> None:
        self.connections = 0
        """Open connections."""
        self.request_bytes = 0
        """Bytes of requests that are not answered yet, of answers being read from disk, and of
        answers that are not sent yet."""
        self.step = Step()
        """Gathers what is sent within one step of the node's loop."""


class Refusal(Exception):
    """The other end is not welcome; `reply` tells it why, and the connection is closed."""

    def __init__(self, reply: ErrorReply) -> None:
        super().__init__(reply.message)
        self.reply = reply


class Handler(Protocol):
    """The node, as a connection sees it."""

    def greet(self, hello: Hello) -> Welcome:
        """Accept who connected, or raise `Refusal`."""

    def handle(self, connection: "Connection", frame: Frame) -> None:
        """Act on a frame; answer now or later through the connection. Never waits, never raises
        but `ProtocolError`, which closes the connection."""

    def settle(self) -> None:
        """All frames that have come so far were handed over: act on them."""

    def closed(self, connection: "Connection") -> None:
        """The connection is gone: drop what waits for it."""


class Connection:
    """The state of one accepted connection."""

    def __init__(
        self, stream: trio.abc.Stream, handler: Handler, limits: Limits, load: Load
    ) -> None:
        self._stream = stream
        self._handler = handler
        self._limits = limits
        self._load = load
        self._room = trio.Event()
        self._outbox = Outbox(stream, load.step, on_sent=self._sent)
        self._parser = FrameParser(limits.frame_bytes_max, header_bytes_max=HEADER_BYTES_MAX)
        self._open: dict[int, int] = {}
        self._open_bytes = 0
        self._held_bytes = 0
        """Of requests and unsent answers, as counted in the load."""
        self.hello: Hello | None = None
        """Who is at the other end; None until it said so."""
        self.is_closed = False
        """True once the connection ended; answers are dropped then."""

    @property
    def from_node(self) -> int:
        """The node at the other end; 0 for a client."""
        return self.hello.node if self.hello is not None else 0

    def reply(self, kind: int, correlation: int, header: bytes, body: Sequence[bytes] = ()) -> None:
        """Answer a request; without effect if it was answered or the connection is gone."""
        if not self._close_request(correlation):
            return
        self._outbox.put(encode_frame(kind | REPLY, correlation, header, body))
        self._count()

    def refuse(self, correlation: int, error: ErrorReply) -> None:
        """Answer a request with an error."""
        if not self._close_request(correlation):
            return
        self._outbox.put(encode_frame(FrameKind.ERROR, correlation, pack(error)))
        self._count()

    @property
    def is_clogged(self) -> bool:
        """True while it holds as many bytes as it may: no answer of any size should be added."""
        held, limits, load = self._held_bytes, self._limits, self._load
        return held >= limits.connection_bytes_max or (
            load.request_bytes >= limits.requests_bytes_max
            and held > limits.requests_bytes_max // load.connections
        )

    def expect(self, correlation: int, size: int) -> None:
        """Up to so many bytes are being read for the answer: they count from now on."""
        if correlation in self._open:
            self._open[correlation] += size
            self._open_bytes += size
            self._count()

    async def serve(self) -> None:
        """Serve until the other end closes, breaks the rules, or this task is cancelled."""
        self._load.connections += 1
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write, nursery.cancel_scope)
                try:
                    await self._read()
                except ProtocolError as error:
                    await self._say_goodbye(ErrorReply("protocol", str(error)))
                except Refusal as refusal:
                    await self._say_goodbye(refusal.reply)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    pass  # the other end went away: nothing to say to it
                nursery.cancel_scope.cancel()
        finally:
            self.is_closed = True
            self._load.connections -= 1
            self._load.request_bytes -= self._held_bytes
            self._handler.closed(self)
            await trio.aclose_forcefully(self._stream)

    async def _write(self, scope: trio.CancelScope) -> None:
        try:
            await self._outbox.run()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            # The reading task may be waiting for room that will never come.
            scope.cancel()

    async def _read(self) -> None:
        with trio.move_on_after(HELLO_SECONDS_MAX) as scope:
            while True:
                frames = self._parser.frames()
                is_all = False
                while not is_all:
                    is_all = self._take_frames(frames)
                    if self.hello is not None:
                        scope.deadline = float("inf")
                    while self._is_full():
                        self._room = trio.Event()
                        await self._room.wait()
                data = await self._stream.receive_some(RECEIVE_BYTES)
                if not data:
                    return
                self._parser.feed(bytes(data))
        raise ProtocolError(f"no Hello within {HELLO_SECONDS_MAX:.0f} s")

    def _take_frames(self, frames: Iterator[Frame]) -> bool:
        """Act on the frames that have come; False if the connection was full before their end."""
        self._load.step.begin()
        try:
            # One read may bring thousands of small requests for large answers.
            while not self._is_full():
                frame = next(frames, None)
                if frame is None:
                    return True
                if self.hello is None:
                    self._greet(frame)
                else:
                    self._handle(frame)
            return False
        finally:
            self._handler.settle()

    def _greet(self, frame: Frame) -> None:
        if frame.kind != FrameKind.HELLO:
            raise ProtocolError(f"the first frame must be HELLO, not kind {frame.kind}")
        hello = unpack(Hello, frame.header)
        if hello.protocol != PROTOCOL:
            raise ProtocolError(f"this node speaks protocol {PROTOCOL}, not {hello.protocol}")
        welcome = self._handler.greet(hello)
        self.hello = hello
        header = pack(welcome)
        self._outbox.put(encode_frame(FrameKind.HELLO | REPLY, frame.correlation, header))

    def _handle(self, frame: Frame) -> None:
        if frame.kind not in _UNANSWERED:
            self._open_request(frame)
        self._handler.handle(self, frame)

    def _open_request(self, frame: Frame) -> None:
        if frame.correlation in self._open:
            raise ProtocolError(f"correlation {frame.correlation} is still in use")
        size = len(frame.header) + len(frame.body)
        self._open[frame.correlation] = size
        self._open_bytes += size
        self._count()

    def _close_request(self, correlation: int) -> bool:
        """Forget a request; False if it is not open (any more)."""
        size = self._open.pop(correlation, None)
        if size is None or self.is_closed:
            return False
        self._open_bytes -= size
        self._room.set()
        return True

    def _is_full(self) -> bool:
        return len(self._open) >= self._limits.connection_requests_max or self.is_clogged

    def _sent(self) -> None:
        self._count()
        self._room.set()

    def _count(self) -> None:
        held = self._open_bytes + self._outbox.size
        self._load.request_bytes += held - self._held_bytes
        self._held_bytes = held

    async def _say_goodbye(self, error: ErrorReply) -> None:
        self._outbox.put(encode_frame(FrameKind.ERROR, 0, pack(error)))
        with trio.move_on_after(1.0):
            await self._outbox.wait_drained()
