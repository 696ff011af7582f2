"""One connection to one node: many requests under way, answers in any order.

`post` puts a request in the outbox and never waits; its callback is called exactly once, with the
answer's frame or with `Lost`, unless the request was forgotten. One task reads, one writes and
joins small frames into one system call, one watches for silence.

A request leaves within `post`, without a switch to the writing task, if the last receive brought
one answer, or if the writing task has just run dry: it is what a single caller waits for. Requests
after that one gather until the writing task runs.

A node that is stopped but not dead keeps its connections open and answers nothing. If requests are
open and no bytes moved for a second, the node counts as silent: the client sends a request that a
live node answers at once, and the router asks other nodes about the silent one. After five seconds
the connection is given up in any case.

Invariants:
- A request is *written* from the moment its bytes may have left; before that it can be withdrawn,
  and then no node ever gets it.
- Requests are written in the order in which they were posted.
- Callbacks run on the event loop and do not wait.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import anyio
import msgspec

from raftmq.client.address import Address
from raftmq.client.login import Source, log_in
from raftmq.client.tls import refused
from raftmq.client.world import ClientWorld, ReceivesInto, Stream
from raftmq.errors import ProtocolError, Reason, Rejected
from raftmq.version import VERSION
from raftmq.wire.access import LoggedIn, LogIn
from raftmq.wire.codec import pack, unpack
from raftmq.wire.frame import FRAME_BYTES_MAX, Frame, FrameParser, encode_frame
from raftmq.wire.messages import PROTOCOL, REPLY, FrameKind, Hello, Metadata, Welcome
from raftmq.wire.streams import SendsNowait

from .refusals import exception_of, refusal_of

R = TypeVar("R", bound=msgspec.Struct)

OPEN_SECONDS_MAX = 2.0
"""Limit for connecting and the greeting. A stopped node's kernel still accepts connections."""
LOGIN_SECONDS_MAX = 8.0
"""Limit for the login: a node lets attempts wait that follow failed ones."""
TICK_SECONDS = 0.5
"""Time between two checks for silence."""
SILENT_TICKS_ASK = 2
"""Ticks of silence, with requests open, after which the client asks this node and others."""
SILENT_TICKS_MAX = 10
"""Ticks of silence after which the connection is given up."""

WINDOW_REQUESTS = 512
"""Requests under way on a connection before batches wait; half of the number that a broker reads
ahead, so that other requests still get through."""
WINDOW_BYTES = 16 * 1024 * 1024
"""Bytes of requests under way on a connection before batches wait."""

_LARGE_BYTES = 64 * 1024
_RECEIVE_BYTES = 256 * 1024
_AHEAD_BYTES = 5 * 1024 * 1024
"""Memory taken for an answer before its bytes come. A usual fetch is answered with up to 4 MiB and
the rest of a batch: a smaller room would move such an answer near its end."""
_JOIN_BYTES_MAX = 256 * 1024


class Lost(NamedTuple):
    """The end of a request that gets no answer."""

    was_written: bool
    """False: the request never left, so nothing happened."""
    why: str
    """Why the connection ended."""


Answer = Frame | Lost
OnAnswer = Callable[[Answer], None]


class Request:
    """A request under way."""

    __slots__ = ("correlation", "is_patient", "is_written", "on_answer", "parts", "size")

    def __init__(self, correlation: int, parts: list[bytes], on_answer: OnAnswer) -> None:
        self.correlation = correlation
        self.parts = parts
        self.size = sum(map(len, parts))
        self.on_answer = on_answer
        self.is_written = False
        """True once its bytes may have left."""
        self.is_patient = False
        """True: the node is not silent for want of this answer, which may take a minute."""


class Attempt:
    """A connection that is being opened; one for all callers."""

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.connection: Connection | None = None
        self.error: Exception | None = None


class Connection:
    """An open connection. Bytes move only while `run` runs."""

    def __init__(self, stream: Stream, address: Address, welcome: Welcome, user: str = "") -> None:
        self._stream = stream
        self._nowait = stream if isinstance(stream, SendsNowait) else None
        self._into = stream if isinstance(stream, ReceivesInto) else None
        self._parser = FrameParser(FRAME_BYTES_MAX)
        self._outbox: deque[Request] = deque()
        # The end of a request that left in part.
        self._rest = b""
        self._wake = anyio.Event()
        self._is_sending = False
        # True: the next request may leave within `post`.
        self._is_prompt = False
        self._open: dict[int, Request] = {}
        self._correlation_last = 0
        self._moves = 0
        self._room_wanted: dict[Callable[[], None], None] = {}
        self._scope = anyio.CancelScope()
        self.address = address
        """The address of the node."""
        self.welcome = welcome
        """The node's greeting."""
        self.node = welcome.node
        """The number of the node at the other end."""
        self.user = user
        """The user that logged in; empty: none did, or a certificate names it."""
        self.open_bytes = 0
        """Bytes of the requests that are not answered."""
        self.is_open = True
        """False once the connection broke or was closed; no request can be posted then."""
        self.why = "the connection was closed"
        """Why the connection is no longer open."""
        self.is_silent = False
        """True while requests are open and no bytes have moved for `SILENT_TICKS_ASK` ticks."""
        self.when_silent: Callable[[], None] = lambda: None
        """Called at each tick of silence from `SILENT_TICKS_ASK` on."""
        self.was_silent = False
        """True if the connection was given up because the node did not answer."""

    @property
    def has_room(self) -> bool:
        """May another batch be posted? If not, `when_room` calls back once it may."""
        return len(self._open) < WINDOW_REQUESTS and self.open_bytes < WINDOW_BYTES

    def when_room(self, call: Callable[[], None]) -> None:
        """Call `call` once, as soon as there is room again or the connection is gone."""
        self._room_wanted[call] = None

    def post(self, kind: int, header: bytes, body: Sequence[bytes], on_answer: OnAnswer) -> Request:
        """Send a request as soon as possible; `on_answer` gets the answer, never from in here."""
        assert self.is_open
        self._correlation_last += 1
        correlation = self._correlation_last
        request = Request(correlation, encode_frame(kind, correlation, header, body), on_answer)
        self._open[correlation] = request
        self.open_bytes += request.size
        self._outbox.append(request)
        if not self._is_prompt or not self._sent_at_once(request):
            self._wake.set()
        return request

    async def call(
        self, kind: int, header: bytes, body: Sequence[bytes] = (), *, is_patient: bool = False
    ) -> Answer:
        """Send a request and wait for its answer. Cancelling leaves the request done or not."""
        if not self.is_open:
            return Lost(was_written=False, why=self.why)
        answers: list[Answer] = []
        arrived = anyio.Event()

        def on_answer(answer: Answer) -> None:
            answers.append(answer)
            arrived.set()

        request = self.post(kind, header, body, on_answer)
        request.is_patient = is_patient
        try:
            await arrived.wait()
        except BaseException:
            self.forget(request)
            raise
        return answers[0]

    def forget(self, request: Request) -> bool:
        """Drop a request and its callback. True if it was never written: nothing happened."""
        if self._open.pop(request.correlation, None) is None:
            return False
        self._freed(request)
        if request.is_written:
            return False
        self._outbox.remove(request)
        return True

    def recall(self, request: Request) -> None:
        """Make the node answer a waiting fetch now, with the messages that it has."""
        if request.correlation in self._open and self.is_open:
            parts = encode_frame(FrameKind.FORGET, request.correlation, b"")
            self._outbox.append(Request(request.correlation, parts, lambda _: None))
            self._wake.set()

    def close(self, why: str = "the connection was closed") -> None:
        """End the connection; requests under way are lost."""
        if self.is_open:
            self.is_open = False
            self.why = why
            self._scope.cancel()

    def close_for(self, error: ProtocolError) -> None:
        """End the connection, as the node breaks the rules."""
        self.close(f"node {self.node} at {self.address}: {error}")

    async def run(self) -> None:
        """Read, write and watch until the connection breaks, is closed, or is cancelled."""
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._until_broken, self._write)
                    tasks.start_soon(self._until_broken, self._watch)
                    await self._until_broken(self._read)
        finally:
            self.is_open = False
            with anyio.CancelScope(shield=True), anyio.move_on_after(1.0, shield=True):
                await self._stream.aclose()
            self._lose_all()

    async def _until_broken(self, part: Callable[[], object]) -> None:
        try:
            await part()  # type: ignore[misc]
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            self.close(f"node {self.node} at {self.address} closed the connection")
        except ProtocolError as error:
            self.close_for(error)

    async def _read(self) -> None:
        opened = self._open
        while True:
            await self._receive()
            self._moves += 1
            answers = 0
            for frame in self._parser.frames():
                request = opened.pop(frame.correlation, None)
                if request is not None:
                    self.open_bytes -= request.size
                    request.on_answer(frame)
                    answers += 1
                elif frame.correlation == 0 and (refusal := refusal_of(frame)) is not None:
                    # No request has number 0: the node says why it ends the connection.
                    raise ProtocolError(f"it was ended by the node: {refusal.message}")
            # Several answers wake several callers: their requests share a system call, and at the
            # node an entry of the log.
            self._is_prompt = answers == 1
            if self._room_wanted and self.has_room:
                self._tell_room()

    async def _receive(self) -> None:
        """Bring bytes from the stream into the parser, those of a large body without a copy."""
        if self._into is not None and (room := self._parser.room(_AHEAD_BYTES)) is not None:
            self._parser.filled(await self._into.receive_into(room))
        else:
            self._parser.feed(await self._stream.receive(_RECEIVE_BYTES))

    def _sent_at_once(self, request: Request) -> bool:
        """Send a request that has no others before it; False: the writing task must go on."""
        # In the middle of a piece or a request, bytes sent here would overtake its rest.
        is_first = len(self._outbox) == 1 and not self._is_sending and not self._rest
        if self._nowait is None or not is_first or request.size > _JOIN_BYTES_MAX:
            return False
        self._is_prompt = False
        data = b"".join(request.parts)
        sent = self._nowait.send_nowait(data)
        if not sent:
            return False
        self._outbox.popleft()
        request.is_written, request.parts = True, []
        self._moves += sent >= _LARGE_BYTES
        self._rest = data[sent:]
        return not self._rest

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake = anyio.Event()
            self._is_sending = True
            if self._rest:
                rest, self._rest = self._rest, b""
                await self._stream.send(rest)
            while self._outbox:
                for piece in self._next_pieces():
                    await self._stream.send(piece)
                    # A large piece that leaves shows that the node reads; a small piece may only
                    # have gone into the kernel's buffer.
                    self._moves += len(piece) >= _LARGE_BYTES
            self._is_sending = False
            self._is_prompt = True

    def _next_pieces(self) -> list[bytes]:
        """The pieces to send next: small frames joined, a large frame as it is."""
        parts: list[bytes] = []
        size = 0
        while self._outbox and size < _JOIN_BYTES_MAX:
            if parts and size + self._outbox[0].size > _JOIN_BYTES_MAX:
                break
            request = self._outbox.popleft()
            request.is_written = True
            parts += request.parts
            request.parts = []
            size += request.size
        return [b"".join(parts)] if size <= _JOIN_BYTES_MAX else parts

    async def _watch(self) -> None:
        silent, seen = 0, -1
        while True:
            await anyio.sleep(TICK_SECONDS)
            is_due = any(not request.is_patient for request in self._open.values())
            silent = silent + 1 if is_due and self._moves == seen else 0
            seen = self._moves
            self.is_silent = silent >= SILENT_TICKS_ASK
            if silent == SILENT_TICKS_ASK:
                self.post(FrameKind.METADATA, pack(Metadata([])), (), lambda _: None)
            if SILENT_TICKS_ASK <= silent < SILENT_TICKS_MAX:
                self.when_silent()
            elif silent >= SILENT_TICKS_MAX:
                self.was_silent = True
                seconds = SILENT_TICKS_MAX * TICK_SECONDS
                self.close(f"node {self.node} at {self.address} was silent for {seconds:.0f} s")

    def _freed(self, request: Request) -> None:
        self.open_bytes -= request.size
        if self._room_wanted and self.has_room:
            self._tell_room()

    def _tell_room(self) -> None:
        wanted, self._room_wanted = self._room_wanted, {}
        for call in wanted:
            call()

    def _lose_all(self) -> None:
        lost, self._open = self._open, {}
        self._outbox.clear()
        self.open_bytes = 0
        for request in lost.values():
            request.on_answer(Lost(request.is_written, self.why))
        self._tell_room()


async def open_connection(
    world: ClientWorld, address: Address, *, cluster: str, login: Source | None = None
) -> Connection:
    """Connect, exchange greetings, and log in. Cancelling closes the connection.

    Raises:
        OSError: no process answers there.
        ProtocolError: the process that answers is no raftmq node, or has another version.
        Rejected: `WRONG_CLUSTER`; `TLS`, the two ends do not agree on it; `UNAUTHENTICATED`, the
            node wants a login, or another one; `BAD_ARGUMENT`, the login cannot be read.
        Unavailable: the node has no room for another connection.
        TimeoutError: connecting and greeting took longer than `OPEN_SECONDS_MAX`, or the login
            longer than `LOGIN_SECONDS_MAX`.
    """
    with anyio.fail_after(OPEN_SECONDS_MAX):
        stream = await world.connect(address.host, address.port)
        opening = _Opening(stream, address)
        try:
            welcome = await opening.greet(cluster)
        except BaseException:
            await _close(stream)
            raise
    user = ""
    try:
        if login is not None:
            with anyio.fail_after(LOGIN_SECONDS_MAX):
                user = await log_in(login(), opening.say)
        elif welcome.wants_login:
            fix = "give `login`, or a certificate that names a user"
            raise Rejected(Reason.UNAUTHENTICATED, f"this cluster requires a login: {fix}")
    except BaseException:
        await _close(stream)
        raise
    return Connection(stream, address, welcome, user)


class _Opening:
    """A connection's first frames, one after the other."""

    def __init__(self, stream: Stream, address: Address) -> None:
        self._stream = stream
        self._address = address
        self._parser = FrameParser(64 * 1024)
        self._correlation = -1

    async def greet(self, cluster: str) -> Welcome:
        """Exchange greetings."""
        hello = Hello(PROTOCOL, cluster, 0, "", f"raftmq {VERSION}")
        welcome = await self._ask(FrameKind.HELLO, hello, Welcome)
        if welcome.protocol != PROTOCOL:
            raise ProtocolError(f"the node speaks protocol {welcome.protocol}, not {PROTOCOL}")
        return welcome

    async def say(self, message: LogIn) -> LoggedIn:
        """Send a message of a login."""
        return await self._ask(FrameKind.LOG_IN, message, LoggedIn)

    async def _ask(self, kind: FrameKind, message: msgspec.Struct, reply: type[R]) -> R:
        self._correlation += 1
        try:
            frame = await self._answer(encode_frame(kind, self._correlation, pack(message)))
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            closed = OSError(f"the connection was closed before the answer to {kind.name}")
            raise refused(error.__cause__, self._address) or closed from error
        refusal = refusal_of(frame)
        if refusal is not None:
            raise exception_of(refusal)
        if frame.kind != kind | REPLY:
            raise ProtocolError(f"{kind.name} is answered with a frame of kind {frame.kind}")
        return unpack(reply, frame.header)

    async def _answer(self, parts: list[bytes]) -> Frame:
        await self._stream.send(b"".join(parts))
        frames: list[Frame] = []
        while not frames:
            self._parser.feed(await self._stream.receive(_RECEIVE_BYTES))
            frames = list(self._parser.frames())
        return frames[0]


async def _close(stream: Stream) -> None:
    with anyio.CancelScope(shield=True), anyio.move_on_after(1.0, shield=True):
        await stream.aclose()
