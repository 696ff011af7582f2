"""One connection that a client or a peer opened to this node.

Under TLS the handshake comes first, and its certificate is judged before any frame is read. The
first frame must be `Hello`. Then every frame is handed to the node, which answers now or later,
in any order; `correlation` ties the answer to its request. One task reads, one writes.

Back-pressure: the task takes no further frame while the connection, or the node as a whole, has
as many unanswered requests or unsent bytes as its limits allow. TCP then stops the sender. Nothing
that was read is dropped. Where the node as a whole is at its limit, a connection that holds less
than its share of the limit goes on: readers that never empty their sockets must not stop the
others.

A frame that is not whole yet counts as held, byte by byte. As many connections in the middle of
large frames could wait for each other for ever, one of them, the *finisher*, may read on to the end
of its frame where the node is at its limit. A frame that makes no progress closes its connection,
and so does that of a finisher for which others have waited for `load.FINISH_SECONDS_MAX`.

Invariants:
- A bad frame closes this connection, after an `ERROR` frame that says why, and nothing else.
- A correlation id in use is not accepted a second time.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Protocol

import trio

from raftmq.broker.settings import Limits
from raftmq.broker.world import PlainText, address_of, secure
from raftmq.errors import ProtocolError, Reason
from raftmq.tls.names import CertificateName
from raftmq.wire.address import why_no_address
from raftmq.wire.codec import Misfit, pack, unpack
from raftmq.wire.frame import Frame, FrameParser, FramePart, encode_frame
from raftmq.wire.messages import PROTOCOL, REPLY, ErrorReply, FrameKind, Hello, Welcome

from .load import Load
from .outbox import Outbox

RECEIVE_BYTES = 256 * 1024
"""Bytes asked of the socket at once: many small frames, or a good piece of a large one."""

HEADER_BYTES_MAX = 256 * 1024
"""The longest header of a client's request, which is decoded in one go: a hostile one of this
length took 33 to 42 ms. Requests need a few hundred bytes, a fetch of 5,000 queues 95 KiB."""
NODE_HEADER_BYTES_MAX = 1024 * 1024
"""The longest header of a node's request: one change of the catalog may move 4,096 groups."""

_STANDING = frozenset((FrameKind.SETTINGS, FrameKind.LEASE))
_UNANSWERED = frozenset((FrameKind.RAFT, FrameKind.FORGET, FrameKind.DIRECTORY))

HELLO_BYTES_MAX = 64 * 1024
"""The longest frame before the other end said Hello or logged in, and the most that is read at
once; also the unsent answers at which such a connection is read no further."""

FRAME_SECONDS_MAX = 30.0
"""A frame of which less than `FRAME_BYTES_MIN` came in this time of reading is given up."""

FRAME_BYTES_MIN = 64 * 1024
"""The bytes that a link of 2 KiB a second brings in `FRAME_SECONDS_MAX`."""

STEP_SECONDS_MAX = 0.005
"""Frames of one connection are acted on for about this long, then all others have their turn."""

HELLO_SECONDS_MAX = 10.0
"""A connection that is still silent (see `load`) after this time is closed: the other end is no
client."""

UNACKNOWLEDGED_SECONDS_MAX = 30.0
"""A connection whose other end acknowledges nothing for this long is given up; one that is idle is
probed. A reader that takes nothing for this long counts as lost too, and connects again."""


class Refusal(Exception):
    """The other end is not welcome; `reply` tells it why, and the connection is closed."""

    def __init__(self, reply: ErrorReply) -> None:
        super().__init__(reply.message)
        self.reply = reply


class Share(Protocol):
    """The share of a user in the node's open requests (`raftmq.broker.quotas.shares`)."""

    open: int
    """Open requests on all connections of the user."""

    @property
    def is_full(self) -> bool:
        """True: none of the user's connections is read."""

    def enlist(self, connection: "Connection") -> None:
        """A connection does not read, as the share is full."""

    def give_up(self, connection: "Connection") -> None:
        """A connection waits no longer."""

    def note_closed(self) -> None:
        """A request was answered."""

    def pass_on(self) -> None:
        """A connection takes no place that is free: the next one may."""


class Handler(Protocol):
    """The node, as a connection sees it."""

    def check_certificate(self, names: frozenset[CertificateName]) -> None:
        """Accept the certificate of the client or peer that connected, or raise `Refusal`."""

    def greet(self, connection: "Connection", hello: Hello) -> Welcome:
        """Accept the client or peer that connected, or raise `Refusal`."""

    def handle(self, connection: "Connection", frame: Frame) -> None:
        """Act on a frame; answer now or later through the connection. Never waits, never raises
        but `Misfit`, by which the request is refused, and `ProtocolError`, which closes the
        connection."""

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
        self._parser = FrameParser(HELLO_BYTES_MAX)
        self._scope = trio.CancelScope()
        self._pauses = 0
        self._unfinished = 0
        """Bytes of the frame that is not whole yet, when all whole ones were last taken."""
        self._login_due = 0.0
        """When the connection is closed if it is silent."""
        self._frame_due = 0.0
        self._frame_bytes = 0
        """Bytes of the frame under way that had come when `_frame_due` was set."""
        self._open: dict[int, int] = {}
        # Those of them that the share does not count.
        self._standing: set[int] = set()
        self._when_closed: dict[int, list[Callable[[], None]]] = {}
        self._open_bytes = 0
        self._held_bytes = 0
        """Bytes of unfinished frames, requests and unsent answers, as counted in the load."""
        self.address = address_of(stream)
        """The address of the other end; empty: it has none."""
        self.has_place = False
        """True while the connection has one of the node's places."""
        self.names: frozenset[CertificateName] | None = None
        """The names in the certificate of the other end; None: the connection is plain."""
        self.hello: Hello | None = None
        """The Hello of the other end; None: it has not come yet."""
        self.needs_login = False
        """True: the client must log in first. Until then its frames are short, its time is limited,
        and it counts as silent in the load."""
        self.user = ""
        """The user at the other end; empty: it is not known, or a node."""
        self.share: Share | None = None
        """The user's share of open requests; None: the user has no bound on them."""
        self.is_closed = False
        """True once the connection ended; answers are dropped then."""

    @property
    def is_of_client(self) -> bool:
        """True: a client has said Hello."""
        return self.hello is not None and not self.hello.node

    @property
    def from_node(self) -> int:
        """The node at the other end; 0 for a client."""
        return self.hello.node if self.hello is not None else 0

    def reply(
        self, kind: int, correlation: int, header: bytes, body: Sequence[FramePart] = ()
    ) -> None:
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
        """True while the connection holds as many bytes as it may: add no answer of any size."""
        is_own = self._owed >= self._limits.connection_bytes_max
        return is_own or self._load.is_over(self._held_bytes)

    @property
    def is_unread(self) -> bool:
        """True while unsent answers alone take all bytes of the connection."""
        return self._outbox.size >= self._limits.connection_bytes_max

    def pause(self) -> None:
        """Take no more frames before a call of `resume` for each `pause`: the frame under way must
        be finished before the frames that follow."""
        self._pauses += 1

    @property
    def is_paused(self) -> bool:
        """True: a frame under way must be finished before the frames that follow."""
        return self._pauses > 0

    @property
    def open_requests(self) -> int:
        """Requests without an answer, but for those that stand until something changes."""
        return len(self._open) - len(self._standing)

    def resume(self) -> None:
        """Undo one `pause`."""
        self._pauses -= 1
        self.wake()

    def wake(self) -> None:
        """Check again whether there is room to read."""
        self._room.set()

    def act_again(self, frames: Iterable[Frame]) -> None:
        """Act from the beginning on requests that are open: what held them up is over."""
        self.run_in_step(partial(self._act_all, frames))

    def run_in_step(self, act: Callable[[], None]) -> None:
        """Act on an open request, in a step of its own; no effect if the connection is gone."""
        if self.is_closed:
            return
        self._load.step.begin()
        try:
            act()
        except ProtocolError:
            self.end()
        finally:
            self._handler.settle()

    def lift_limits(self) -> None:
        """Take frames of any length that the limits allow; the connection keeps its place."""
        self.needs_login = False
        self._load.greet(self)
        longest = NODE_HEADER_BYTES_MAX if self.from_node else HEADER_BYTES_MAX
        self._parser.allow(self._limits.frame_bytes_max, header_bytes_max=longest)

    def end(self) -> None:
        """Close the connection, whatever its tasks do."""
        self._scope.cancel()

    def expect(self, correlation: int, size: int) -> None:
        """Count up to `size` bytes that are being read for the answer from now on; no effect if the
        request was answered or the connection is gone."""
        # A connection gives back what it holds once, when it ends: later bytes would stay counted.
        if correlation in self._open and not self.is_closed:
            self._open[correlation] += size
            self._open_bytes += size
            self._count()

    def when_closed(self, correlation: int, call: Callable[[], None]) -> None:
        """Call `call` when the request is answered or the connection is gone; at once if it was
        before."""
        if correlation in self._open and not self.is_closed:
            self._when_closed.setdefault(correlation, []).append(call)
        else:
            call()

    async def serve(self) -> None:
        """Serve until the other end closes, breaks the rules, or this task is cancelled."""
        try:
            with self._scope:
                if self._load.take_place(self):
                    await self._converse()
                else:
                    text = self._load.why_no_place(self)
                    parts = encode_frame(
                        FrameKind.ERROR, 0, pack(ErrorReply("busy", text, retry_ms=1000))
                    )
                    with trio.move_on_after(1.0), suppress(trio.BrokenResourceError, PlainText):
                        await secure(self._stream)
                        await self._stream.send_all(b"".join(parts))
        finally:
            self.is_closed = True
            self._load.leave(self)
            self._load.add(-self._held_bytes)
            self._handler.closed(self)
            while self._when_closed:
                self._call_all(self._when_closed.popitem()[1])
            # The limits do not count these bytes from here on, so a part of the node that still
            # has this object at hand must not hold them.
            self._parser.drop()
            self._outbox.drop()
            await trio.aclose_forcefully(self._stream)

    async def _converse(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write, nursery.cancel_scope)
            try:
                await self._read()
            except ProtocolError as error:
                await self._say_goodbye(ErrorReply("protocol", str(error)))
            except Refusal as refusal:
                await self._say_goodbye(refusal.reply)
            except PlainText:
                text = "this node takes connections under TLS only: write raftmqs:// in the URL"
                await self._say_goodbye(ErrorReply(Reason.TLS.value, text))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # the other end went away: nothing to say to it
            nursery.cancel_scope.cancel()

    async def _write(self, scope: trio.CancelScope) -> None:
        try:
            await self._outbox.run()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            # The reading task may be waiting for room that will never come.
            scope.cancel()

    async def _read(self) -> None:
        self._login_due = trio.current_time() + HELLO_SECONDS_MAX
        with trio.CancelScope(deadline=self._login_due) as scope:
            await self._secure()
            while True:
                frames = self._parser.frames()
                while not self._take_frames(frames):
                    await self._wait_for_room(scope)
                    await trio.lowlevel.checkpoint()
                self._note_rest()
                await self._wait_for_room(scope)
                self._pass_on()
                if self._is_stranger:
                    _set_deadline(scope, self._login_due)
                else:
                    _set_deadline(scope, self._frame_due if self._unfinished else inf)
                data = await self._stream.receive_some(
                    RECEIVE_BYTES if self.hello is not None else HELLO_BYTES_MAX
                )
                # The bytes came in time, so the deadline must not strike while they are handled.
                _set_deadline(scope, inf)
                if not data:
                    return
                self._parser.feed(bytes(data))
        if self._is_stranger:
            what = "Hello" if self.hello is None else "login"
            raise ProtocolError(f"no {what} within {HELLO_SECONDS_MAX:.0f} s")
        raise ProtocolError(
            f"a frame of which less than {FRAME_BYTES_MIN} bytes came in {FRAME_SECONDS_MAX:.0f} s"
        )

    async def _secure(self) -> None:
        """Shake hands where the connection is to be under TLS, and judge the certificate."""
        try:
            self.names = await secure(self._stream)
        except trio.BrokenResourceError as error:
            self._load.handshakes_failed += 1
            self._load.handshake_error = f"{self.address or 'this machine'}: {error}"
            raise
        if self.names is not None:
            # No other task runs between the end of the handshake and this line, so a change of
            # whom to trust finds the connection here or breaks its handshake.
            self._load.secured[self] = None
            self._handler.check_certificate(self.names)

    def _note_rest(self) -> None:
        """The whole frames were taken: note the bytes of a frame that is not whole yet."""
        rest = self._parser.buffered_bytes
        # A frame that has just begun has its full time, as has one of which enough bytes came.
        if rest and (not self._unfinished or rest - self._frame_bytes >= FRAME_BYTES_MIN):
            self._frame_bytes = rest
            self._frame_due = trio.current_time() + FRAME_SECONDS_MAX
        self._unfinished = rest
        self._count()

    async def _wait_for_room(self, scope: trio.CancelScope) -> None:
        """Wait until there is room for more."""
        began = trio.current_time()
        while self._is_full() and not self._may_finish():
            # A stranger that takes no answers has its time all the same; one whose login waits
            # for its turn does not lose its time by that.
            is_timed = self._is_stranger and not self._pauses
            _set_deadline(scope, self._login_due if is_timed else inf)
            await self._wait_for_wake()
        # While it was not read, the frame could make no progress.
        self._frame_due += trio.current_time() - began

    async def _wait_for_wake(self) -> None:
        """Wait for the end of one reason not to read: those that wait for another one sleep on."""
        self._room, share = trio.Event(), self.share
        if self._is_full_itself():
            # Others may be in the middle of frames, and have no such reason.
            self._load.finished(self)
        if share is not None and share.is_full and not self._is_stopped():
            share.enlist(self)
            try:
                await self._room.wait()
            finally:
                share.give_up(self)
            return
        self._pass_on()
        due = inf
        if not self._is_stopped():
            self._load.waiting[self] = None
            due = self._load.finish_due if self._unfinished else inf
        try:
            with trio.move_on_at(due):
                await self._room.wait()
        finally:
            self._load.waiting.pop(self, None)

    def _pass_on(self) -> None:
        """This connection takes no frame now: another one of its user may."""
        if self.share is not None:
            self.share.pass_on()

    def _may_finish(self) -> bool:
        """May a frame under way be read to its end, though the node is at its limit?"""
        if not self._unfinished or self._is_full_itself():
            return False
        return self._load.may_finish(self)

    def _take_frames(self, frames: Iterator[Frame]) -> bool:
        """Act on the frames that have come; False: there was no room or time for all of them."""
        self._load.step.begin()
        until = trio.current_time() + STEP_SECONDS_MAX
        try:
            # One read may bring thousands of small requests for large answers. A frame whose bytes
            # are held already is taken in any case: that is what makes room.
            while not (self._is_full_itself() if self._unfinished else self._is_full()):
                frame = next(frames, None)
                if frame is None:
                    return True
                self._unfinished = 0
                self._load.finished(self)
                if self.hello is None:
                    self._greet(frame)
                else:
                    self._handle(frame)
                if trio.current_time() >= until:
                    break
            return False
        finally:
            self._handler.settle()

    def _greet(self, frame: Frame) -> None:
        if frame.kind != FrameKind.HELLO:
            raise ProtocolError(f"the first frame must be HELLO, not kind {frame.kind}")
        hello = unpack(Hello, frame.header)
        if hello.protocol != PROTOCOL:
            raise ProtocolError(f"this node speaks protocol {PROTOCOL}, not {hello.protocol}")
        problem = why_no_address(hello.host, hello.port) if hello.host or hello.port else ""
        if problem:
            raise ProtocolError(f"a node's Hello says where it is reached: {problem}")
        welcome = self._handler.greet(self, hello)
        self.hello = hello
        if not self.needs_login:
            self.lift_limits()
        header = pack(welcome)
        self._outbox.put(encode_frame(FrameKind.HELLO | REPLY, frame.correlation, header))

    def _handle(self, frame: Frame) -> None:
        if frame.kind not in _UNANSWERED:
            self._open_request(frame)
        self._act(frame)

    def _act_all(self, frames: Iterable[Frame]) -> None:
        for frame in frames:
            self._act(frame)

    def _act(self, frame: Frame) -> None:
        try:
            self._handler.handle(self, frame)
        except Misfit as error:
            if frame.kind == FrameKind.DIRECTORY:
                # Soft state must not cost the link that carries Raft's messages.
                return
            if frame.kind in _UNANSWERED:
                raise
            # The frames after this one can be read, so other requests on the connection go on.
            self.refuse(frame.correlation, ErrorReply(Reason.BAD_ARGUMENT.value, str(error)))

    def _open_request(self, frame: Frame) -> None:
        if frame.correlation in self._open:
            raise ProtocolError(f"correlation {frame.correlation} is still in use")
        size = len(frame.header) + len(frame.body)
        self._open[frame.correlation] = size
        if frame.kind in _STANDING:
            # It waits for long, and must not take a place that the user's work needs.
            self._standing.add(frame.correlation)
        elif self.share is not None:
            self.share.open += 1
        self._open_bytes += size
        self._count()

    def _close_request(self, correlation: int) -> bool:
        """Forget a request; False: the request is not open, or the connection is closed."""
        size = self._open.pop(correlation, None)
        if self._when_closed:
            self._call_all(self._when_closed.pop(correlation, ()))
        is_standing = correlation in self._standing
        self._standing.discard(correlation)
        if size is not None and self.share is not None and not is_standing:
            self.share.note_closed()
        if size is None or self.is_closed:
            return False
        self._open_bytes -= size
        self._room.set()
        return True

    def _call_all(self, calls: Iterable[Callable[[], None]]) -> None:
        for call in calls:
            call()

    def _is_full(self) -> bool:
        return self._is_full_itself() or self._load.is_over(self._held_bytes)

    def _is_full_itself(self) -> bool:
        """Is the connection at a limit of its own? Such a limit ends without other connections."""
        return self._is_stopped() or (self.share is not None and self.share.is_full)

    def _is_stopped(self) -> bool:
        """Is there a reason not to read that ends with something of this connection alone?"""
        return bool(
            self._pauses
            or len(self._open) >= self._limits.connection_requests_max
            or self._owed >= self._owed_max
        )

    @property
    def _is_stranger(self) -> bool:
        """The other end has not said Hello, or has to log in first."""
        return self.hello is None or self.needs_login

    @property
    def _owed_max(self) -> int:
        bytes_max = self._limits.connection_bytes_max
        return min(HELLO_BYTES_MAX, bytes_max) if self._is_stranger else bytes_max

    @property
    def _owed(self) -> int:
        return self._open_bytes + self._outbox.size

    def _sent(self) -> None:
        self._count()
        self._room.set()

    def _count(self) -> None:
        held = self._owed + self._unfinished
        change, self._held_bytes = held - self._held_bytes, held
        self._load.add(change)

    async def _say_goodbye(self, error: ErrorReply) -> None:
        self._outbox.put(encode_frame(FrameKind.ERROR, 0, pack(error)))
        with trio.move_on_after(1.0):
            await self._outbox.wait_drained()


def _set_deadline(scope: trio.CancelScope, deadline: float) -> None:
    # Nearly always the same: trio takes a scope out of its heap and puts it back for each setting.
    if scope.deadline != deadline:
        scope.deadline = deadline
