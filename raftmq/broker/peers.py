"""Links to the other nodes: one connection from here to each, kept open, bounded, best effort.

Raft expects a network that loses, so a message to a peer that cannot be reached is dropped and
consensus is told (`report_unreachable`). A link also carries requests with answers: probes at the
start, chunks of snapshots.

Invariants:
- At most `peer_bytes_max` bytes wait for one peer; beyond that Raft messages are dropped.
- Messages to one peer arrive in the order sent, or the connection broke in between.
"""

from collections.abc import Callable, Sequence

import trio

from raftmq.errors import ProtocolError, Unavailable
from raftmq.wire.codec import pack, unpack
from raftmq.wire.frame import Frame, FrameParser, encode_frame
from raftmq.wire.messages import ErrorReply, FrameKind, Hello, Welcome

from .connection import RECEIVE_BYTES
from .outbox import Outbox, Step
from .settings import Peer
from .world import World

RETRY_SECONDS_MIN = 0.05
RETRY_SECONDS_MAX = 1.0
"""A peer that does not answer is tried again after the first, then ever longer up to the second."""

CONNECT_SECONDS_MAX = 3.0
"""How long opening a connection and greeting may take."""


class PeerLink:
    """The connection from this node to one other."""

    def __init__(
        self,
        peer: Peer,
        hello: Callable[[], Hello],
        *,
        world: World,
        step: Step,
        unsent_bytes_max: int,
        frame_bytes_max: int,
        on_open: Callable[[int], None],
        on_lost: Callable[[int, bool], None],
        on_refused: Callable[[ErrorReply], None],
    ) -> None:
        self.peer = peer
        """Where the other node is reached; may be replaced when its address changes."""
        self._hello = hello
        self._world = world
        self._step = step
        self._unsent_bytes_max = unsent_bytes_max
        self._frame_bytes_max = frame_bytes_max
        self._on_open = on_open
        self._on_lost = on_lost
        self._on_refused = on_refused
        self._hurry = trio.Event()
        self._outbox: Outbox | None = None
        self._waiting: dict[int, Callable[[Frame | None], None]] = {}
        self._correlation = 0
        self._scope = trio.CancelScope()
        self.incarnation = ""
        """The random name of the other node's data folder; empty while not connected."""
        self.last_error = ""
        """Why the last attempt to connect failed, for people; empty while connected."""

    @property
    def is_connected(self) -> bool:
        """True while the other node has welcomed this one."""
        return self._outbox is not None

    def send(self, parts: Sequence[bytes]) -> bool:
        """Send a frame's parts; False if they were dropped."""
        outbox = self._outbox
        if outbox is None or outbox.size > self._unsent_bytes_max:
            return False
        outbox.put(parts)
        return True

    async def request(self, kind: int, header: bytes, body: Sequence[bytes] = ()) -> Frame:
        """Send a request and wait for its answer, which may be an `ERROR` frame.

        Cancelling drops the answer. Raises:
            Unavailable: the link is down, or went down before the answer came.
        """
        self._correlation += 1
        correlation = self._correlation
        if not self.send(encode_frame(kind, correlation, header, body)):
            raise Unavailable(f"node {self.peer.id} is not connected")
        answered = trio.Event()
        answers: list[Frame | None] = []

        def answer(frame: Frame | None) -> None:
            answers.append(frame)
            answered.set()

        self._waiting[correlation] = answer
        try:
            await answered.wait()
        finally:
            self._waiting.pop(correlation, None)
        frame = answers[0]
        if frame is None:
            raise Unavailable(f"the link to node {self.peer.id} broke")
        return frame

    def hurry(self) -> None:
        """The other node is known to be up: connect now, if that is being waited with."""
        self._hurry.set()

    def stop(self) -> None:
        """End the link for ever."""
        self._scope.cancel()

    async def run(self) -> None:
        """Keep the link open until `stop`, or cancelled."""
        with self._scope:
            await self._keep_open()

    async def _keep_open(self) -> None:
        pause = RETRY_SECONDS_MIN
        while True:
            was_refused = False
            try:
                stream = await self._open()
            except (OSError, trio.TooSlowError) as error:
                self.last_error = f"{type(error).__name__}: {error}"
                was_refused = isinstance(error, ConnectionRefusedError)
            else:
                if await self._converse(stream):
                    pause = RETRY_SECONDS_MIN
            self._on_lost(self.peer.id, was_refused)
            self._hurry = trio.Event()
            with trio.move_on_after(pause * (0.5 + self._world.random.random())):
                await self._hurry.wait()
            pause = min(2 * pause, RETRY_SECONDS_MAX)

    async def _open(self) -> trio.abc.Stream:
        with trio.fail_after(CONNECT_SECONDS_MAX):
            return await self._world.connect(self.peer.host, self.peer.port)

    async def _converse(self, stream: trio.abc.Stream) -> bool:
        """Greet, then send and receive until the stream breaks; True if we were welcome."""
        parser = FrameParser(self._frame_bytes_max)
        welcomed = False
        try:
            async with stream:
                with trio.fail_after(CONNECT_SECONDS_MAX):
                    welcome = await self._greet(stream, parser)
                self.incarnation = welcome.incarnation
                welcomed = True
                self._outbox = Outbox(stream, self._step)
                self.last_error = ""
                self._on_open(self.peer.id)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write, self._outbox, nursery.cancel_scope)
                    try:
                        await self._read(stream, parser)
                    except (
                        ProtocolError,
                        trio.BrokenResourceError,
                        trio.ClosedResourceError,
                    ) as error:
                        self.last_error = f"the link broke: {error}"
                    nursery.cancel_scope.cancel()
        except (OSError, ProtocolError, trio.TooSlowError, trio.BrokenResourceError) as error:
            self.last_error = f"{type(error).__name__}: {error}"
        finally:
            self._outbox, self.incarnation = None, ""
            for answer in list(self._waiting.values()):
                answer(None)
        return welcomed

    async def _greet(self, stream: trio.abc.Stream, parser: FrameParser) -> Welcome:
        parts = encode_frame(FrameKind.HELLO, 0, pack(self._hello()))
        await stream.send_all(b"".join(parts))
        while True:
            data = await stream.receive_some(RECEIVE_BYTES)
            if not data:
                raise ProtocolError("the other end closed instead of a Welcome")
            parser.feed(bytes(data))
            for frame in parser.frames():
                if frame.kind == FrameKind.ERROR:
                    raise ProtocolError(unpack(ErrorReply, frame.header).message)
                return unpack(Welcome, frame.header)

    async def _write(self, outbox: Outbox, scope: trio.CancelScope) -> None:
        try:
            await outbox.run()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            scope.cancel()

    async def _read(self, stream: trio.abc.Stream, parser: FrameParser) -> None:
        while data := await stream.receive_some(RECEIVE_BYTES):
            parser.feed(bytes(data))
            for frame in parser.frames():
                if frame.kind == FrameKind.ERROR and not frame.correlation:
                    reply = unpack(ErrorReply, frame.header)
                    self.last_error = reply.message
                    self._on_refused(reply)
                answer = self._waiting.get(frame.correlation)
                if answer is not None:
                    answer(frame)
