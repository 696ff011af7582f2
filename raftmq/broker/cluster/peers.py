"""Links to the other nodes: one connection from here to each, kept open, bounded, best effort.

Raft expects a network that loses messages, so a message to a peer that cannot be reached is dropped
and reported to consensus (`report_unreachable`). A link also carries requests with answers: probes
at the start, chunks of snapshots.

Invariants:
- No fault of a name, an address, a peer or an answer ends the link's task, and with it the node:
  the link notes the reason and tries again.
- At most `peer_bytes_max` bytes wait for one peer; beyond that Raft messages are dropped.
- Messages to one peer arrive in the order sent, or the connection broke in between.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec
import trio

from raftmq.broker.serve.connection import RECEIVE_BYTES, Refusal
from raftmq.broker.serve.outbox import Outbox, Step
from raftmq.broker.settings import Peer
from raftmq.broker.world import World, give_up_after, secure
from raftmq.errors import ProtocolError, Reason, Unavailable
from raftmq.machine.catalog.levels import FIRST_LEVEL
from raftmq.machine.catalog.state import Place
from raftmq.wire.codec import pack, unpack
from raftmq.wire.frame import Frame, FrameParser, encode_frame
from raftmq.wire.messages import REPLY, ErrorReply, FrameKind, Hello, Welcome

from .certificates import check_cluster, check_node

S = TypeVar("S", bound=msgspec.Struct)

RETRY_SECONDS_MIN = 0.05
RETRY_SECONDS_MAX = 1.0
"""Pause before a peer is tried again: from the minimum, doubled up to the maximum."""

UNACKNOWLEDGED_SECONDS_MAX = 5.0
"""A link whose bytes are not acknowledged for this long is cut and made again: a few election
timeouts. The kernel alone would send again after as long as the outage lasted."""

CONNECT_SECONDS_MAX = 3.0
"""The longest time to open a connection, and again to greet."""


class Declined(Unavailable):
    """The other node answered with an error, `reply`."""

    def __init__(self, reply: ErrorReply) -> None:
        super().__init__(reply.message)
        self.reply = reply


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
        """The other node's number and address; see `move`."""
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
        self._attempt = trio.CancelScope()
        self.incarnation = ""
        """The random name of the other node's data folder; empty while not connected."""
        self.level = 0
        """The highest feature level that the other node allowed when it last answered; 0: never."""
        self.place: Place | None = None
        """Where the other node stands by its last word; None: it never answered."""
        self.last_error = ""
        """Why the last attempt to connect failed, for people; empty while connected."""
        self.is_of_other_cluster = False
        """True if the last attempt to connect reached a node of another cluster."""

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

    async def ask(
        self, kind: int, question: msgspec.Struct, answer: type[S], body: Sequence[bytes] = ()
    ) -> S:
        """As `request`, with structs.

        Cancelling drops the answer. Raises:
            Declined: the other node refused.
            Unavailable: as `request`, or the answer cannot be read: it comes from other software.
        """
        found, _ = await self.ask_with_body(kind, question, answer, body)
        return found

    async def ask_with_body(
        self, kind: int, question: msgspec.Struct, answer: type[S], body: Sequence[bytes] = ()
    ) -> tuple[S, bytes]:
        """As `ask`; the answer and its body."""
        frame = await self.request(kind, pack(question), body)
        try:
            if frame.kind == FrameKind.ERROR:
                raise Declined(unpack(ErrorReply, frame.header))
            if frame.kind != kind | REPLY:
                raise ProtocolError(f"a frame of kind {frame.kind} answers one of kind {kind}")
            return unpack(answer, frame.header), frame.body
        except ProtocolError as error:
            raise Unavailable(f"node {self.peer.id} gave no answer to read: {error}") from error

    def hurry(self) -> None:
        """The other node is known to be up: cut the pause before the next attempt short."""
        self._hurry.set()

    def move(self, peer: Peer) -> None:
        """Reach the other node at this address from now on. A connection to another address is cut,
        as the kernel might take long to find out that the host is gone, and an attempt under way is
        given up. Nothing that comes over the old connection is taken for an answer."""
        before, self.peer = self.peer, peer
        if (before.host, before.port) != (peer.host, peer.port):
            self.reopen()

    def reopen(self) -> None:
        """Cut the connection, or give up the attempt under way, and connect again at once."""
        self._disconnected()
        self._attempt.cancel()
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
            with trio.CancelScope() as self._attempt:
                try:
                    stream = await self._open()
                except Exception as error:
                    _raise_bug(error)
                    # A resolver may raise all kinds of errors: links are best effort by contract.
                    self._failed(error)
                    was_refused = isinstance(error, ConnectionRefusedError)
                else:
                    if await self._converse(stream):
                        pause = RETRY_SECONDS_MIN
            if self._attempt.cancelled_caught:
                pause = RETRY_SECONDS_MIN
            self._on_lost(self.peer.id, was_refused)
            self._hurry = trio.Event()
            with trio.move_on_after(pause * (0.5 + self._world.random.random())):
                await self._hurry.wait()
            pause = min(2 * pause, RETRY_SECONDS_MAX)

    async def _open(self) -> trio.abc.Stream:
        with trio.fail_after(CONNECT_SECONDS_MAX):
            stream = await self._world.connect(self.peer.host, self.peer.port)
        give_up_after(stream, UNACKNOWLEDGED_SECONDS_MAX)
        return stream

    async def _converse(self, stream: trio.abc.Stream) -> bool:
        """Greet, then send and receive until the stream breaks; True if we were welcome."""
        parser = FrameParser(self._frame_bytes_max)
        welcomed = False
        try:
            async with stream:
                with trio.fail_after(CONNECT_SECONDS_MAX):
                    await self._secure(stream)
                    welcome, rest = await self._greet(stream, parser)
                # The other node may have moved while the Welcome was under way.
                await trio.lowlevel.checkpoint_if_cancelled()
                self.incarnation = welcome.incarnation
                self.level = max(FIRST_LEVEL, welcome.level)
                self.place = Place(welcome.zone, welcome.machine)
                welcomed = True
                self._outbox = Outbox(stream, self._step)
                self.last_error, self.is_of_other_cluster = "", False
                self._on_open(self.peer.id)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write, self._outbox, nursery.cancel_scope)
                    try:
                        await self._read(stream, parser, rest)
                    except (
                        ProtocolError,
                        trio.BrokenResourceError,
                        trio.ClosedResourceError,
                    ) as error:
                        self.last_error = f"the link broke: {error}"
                    nursery.cancel_scope.cancel()
        except Declined as error:
            self.last_error = error.reply.message
            self.is_of_other_cluster = error.reply.code == Reason.WRONG_CLUSTER.value
        except Exception as error:
            _raise_bug(error)
            self._failed(error)
        finally:
            self._disconnected()
        return welcomed

    async def _secure(self, stream: trio.abc.Stream) -> None:
        """Shake hands where the stream is to be under TLS, with the wanted node and no other."""
        names = await secure(stream)
        if names is None:
            return
        cluster = self._hello().cluster
        try:
            check_cluster(names, cluster)
            check_node(names, cluster, self.peer.id)
        except Refusal as refusal:
            raise Declined(refusal.reply) from refusal

    def _failed(self, error: Exception) -> None:
        self.last_error = f"{type(error).__name__}: {error}"
        # The node that answered before may be gone.
        self.is_of_other_cluster = False

    def _disconnected(self) -> None:
        self._outbox, self.incarnation = None, ""
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            answer(None)

    async def _greet(
        self, stream: trio.abc.Stream, parser: FrameParser
    ) -> tuple[Welcome, list[Frame]]:
        """Send the Hello; the Welcome, and the frames that came along with it."""
        parts = encode_frame(FrameKind.HELLO, 0, pack(self._hello()))
        await stream.send_all(b"".join(parts))
        frames: list[Frame] = []
        while not frames:
            data = await stream.receive_some(RECEIVE_BYTES)
            if not data:
                raise ProtocolError("the other end closed instead of a Welcome")
            parser.feed(bytes(data))
            frames = list(parser.frames())
        first = frames[0]
        if first.kind == FrameKind.ERROR:
            raise Declined(unpack(ErrorReply, first.header))
        return unpack(Welcome, first.header), frames[1:]

    async def _write(self, outbox: Outbox, scope: trio.CancelScope) -> None:
        try:
            await outbox.run()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            scope.cancel()

    async def _read(
        self, stream: trio.abc.Stream, parser: FrameParser, frames: Iterable[Frame]
    ) -> None:
        """Take in answers: `frames`, which came along with the Welcome, then what comes."""
        self._take(frames)
        while data := await stream.receive_some(RECEIVE_BYTES):
            parser.feed(bytes(data))
            self._take(parser.frames())

    def _take(self, frames: Iterable[Frame]) -> None:
        for frame in frames:
            if frame.kind == FrameKind.ERROR and not frame.correlation:
                reply = unpack(ErrorReply, frame.header)
                self.last_error = reply.message
                self._on_refused(reply)
            answer = self._waiting.get(frame.correlation)
            if answer is not None:
                answer(frame)


def _raise_bug(error: Exception) -> None:
    """Raise a failed assertion again, also out of a nursery's group: a bug of this node, not of its
    peer, must end the node."""
    group = ExceptionGroup("", [error])
    if group.subgroup(AssertionError) is not None:
        raise error
