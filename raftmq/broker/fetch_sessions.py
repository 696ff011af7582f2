"""What a consumer reads at this node, remembered from one fetch to the next.

A consumer of 4,000 queues asks for the same 4,000 queues again and again, and mostly one of them
has something. In a *session* its first fetch names all of them, the later ones name only what is
different, and the node moves the offsets on by what it sends. A fetch without a session is a
session that lasts for one request.

| fetch | session, epoch | queues |
|---|---|---|
| without a session | 0, -1 | all |
| the first | 0, 0; the answer names the session | all |
| the next ones | its number; 1, 2, 3, … | new ones, those read from elsewhere; those to forget |
| the last | its number, -1 | - |

A queue of a session is *marked*, so the next look goes there, or it *rests*: the session has all
that is there, and is registered (`Fetches`) so that news of the queue marks it.

Invariants:
- One request of a session is open at a time. As a connection delivers in order, node and client
  agree about the offsets after each answer.
- A queue that is answered with an error has left the session.
- A session ends with its connection. Those kept are bounded: for each connection, and over the
  node. At the node's bound, sessions that were idle for `IDLE_SECONDS` are forgotten, the oldest
  first; their clients are told so and begin others. Beyond, a session lasts for one request, and
  the client sends all its queues again.
- What a session that is not kept takes counts among the bytes of its request.

Sources: Kafka's incremental fetch sessions (KIP-227).
"""

from collections.abc import Callable

import trio

from raftmq.errors import ProtocolError
from raftmq.wire.codec import pack
from raftmq.wire.fetching import (
    NO_SESSION,
    UNKNOWN_SESSION,
    Fetch,
    Fetched,
    FetchedQueue,
)
from raftmq.wire.messages import (
    ErrorReply,
    FrameKind,
)

from .connection import Connection
from .timers import Timer

SESSIONS_MAX = 1024
"""Sessions of one connection: consumers of one client, each with one at each leader."""
CONNECTION_QUEUES_MAX = 64 * 1024
"""Queues in all sessions of one connection."""
QUEUES_LEAST = 2
"""A session counts as this many queues at least: by itself it takes about 550 bytes."""
QUEUE_BYTES = 768
"""What a queue of a session takes, at the most: measured, see decision 0030."""
IDLE_SECONDS = 120.0
"""A session without an open request for this long gives way to another: Kafka's
`MinIncrementalFetchSessionEvictionMs`. A consumer that reads has a request open nearly always."""


class FetchSession:
    """The queues of one consumer, and its request if one is open."""

    __slots__ = (
        "bytes_max",
        "connection",
        "consumer_group",
        "correlation",
        "counted",
        "epoch",
        "is_reading",
        "marked",
        "number",
        "numbers",
        "offsets",
        "reached",
        "subscribed",
        "timer",
    )

    def __init__(self, connection: Connection, request: Fetch, number: int) -> None:
        self.connection = connection
        """Who asks."""
        self.number = number
        """What names it on its connection; 0: it lasts for one request."""
        self.epoch = 0
        """The epoch of the next request."""
        self.consumer_group = request.consumer_group
        """Who reads; empty if nobody's filter counts."""
        self.subscribed = request.subscribed
        """The version of the subscription that the log must know first."""
        self.correlation: int | None = None
        """The open request; None: there is none."""
        self.bytes_max = 0
        """What the open request may be answered with."""
        self.is_reading = False
        """True while its answer is being read from disk."""
        self.timer: Timer | None = None
        """The end of the open request's wait."""
        self.counted = 0
        """Its queues as they count against the bounds."""
        self.offsets: dict[int, int] = {}
        """Queue → the offset from which on it is read."""
        self.marked: dict[int, None] = {}
        """Queues that may have something; those that were not looked at for longest come first."""
        self.reached: dict[int, int] = {}
        """Queue with a filter → the offset before which nothing matches."""
        self.numbers: dict[int, int] = {}
        """Queue → the number of the group's subscription as it was last looked at; 0: it has none,
        -1: the log does not know it yet."""

    @property
    def is_waiting(self) -> bool:
        """True if a request is open and can be answered."""
        return self.correlation is not None and not self.is_reading

    def put(self, queue: int, offset: int) -> None:
        """Read a queue from an offset on."""
        self.offsets[queue] = offset
        self.reached.pop(queue, None)
        # At the end: a queue that always has something must not starve the others.
        self.marked.pop(queue, None)
        self.marked[queue] = None

    def remove(self, queue: int) -> None:
        """Read a queue no more."""
        self.offsets.pop(queue, None)
        self.marked.pop(queue, None)
        self.reached.pop(queue, None)
        self.numbers.pop(queue, None)

    def answer(self, queues: list[FetchedQueue], body: list[bytes]) -> None:
        """Answer the open request."""
        assert self.correlation is not None
        correlation = self.correlation
        self.close_request()
        header = pack(Fetched(queues, self.number))
        self.connection.reply(FrameKind.FETCH, correlation, header, body)

    def close_request(self) -> None:
        """No request is open: the timer must not hold the session until it is due."""
        self.correlation = None
        self.is_reading = False
        self.epoch += 1
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class FetchSessions:
    """All sessions of a node, and their bounds."""

    def __init__(self, *, queues_max: int, end: Callable[[FetchSession], None]) -> None:
        self._queues_max = queues_max
        self._end = end
        self._kept: dict[Connection, dict[int, FetchSession]] = {}
        self._open: dict[Connection, dict[int, FetchSession]] = {}
        # Those that are kept and have no open request → since when; the oldest comes first.
        self._idle: dict[FetchSession, float] = {}
        self.queues = 0
        """Queues in all sessions that are kept, `QUEUES_LEAST` for each of them at the least."""

    def __len__(self) -> int:
        """Sessions that are kept."""
        return sum(map(len, self._kept.values()))

    def find(
        self, connection: Connection, request: Fetch, correlation: int
    ) -> FetchSession | ErrorReply:
        """The session that a request belongs to, with the request open in it.

        Raises:
            ProtocolError: a request of the session is open already.
        """
        if request.session:
            session = self._kept.get(connection, {}).get(request.session)
            if session is not None and session.correlation is not None:
                raise ProtocolError(f"fetch session {request.session} has an open request")
            if session is None or session.epoch != request.epoch:
                text = f"there is no fetch session {request.session} at epoch {request.epoch}"
                return ErrorReply(UNKNOWN_SESSION, text)
        else:
            session = FetchSession(connection, request, 0)
            if request.epoch != NO_SESSION:
                self._keep(session, correlation)
        self._idle.pop(session, None)
        session.correlation = correlation
        session.bytes_max = request.bytes_max
        self._open.setdefault(connection, {})[correlation] = session
        return session

    def named(self, connection: Connection, number: int) -> FetchSession | None:
        """A session that is kept, by its number."""
        return self._kept.get(connection, {}).get(number)

    def asked(self, connection: Connection, correlation: int) -> FetchSession | None:
        """The session with this open request."""
        return self._open.get(connection, {}).get(correlation)

    def of(self, connection: Connection) -> list[FetchSession]:
        """All sessions of a connection."""
        found = dict.fromkeys(self._kept.get(connection, {}).values())
        found.update(dict.fromkeys(self._open.get(connection, {}).values()))
        return list(found)

    def count(self, session: FetchSession) -> None:
        """Its queues changed: beyond the bounds the session is not kept."""
        queues = max(QUEUES_LEAST, len(session.offsets))
        if not session.number:
            _charge(session)
        elif session.counted != queues:
            self._count(session, queues)
            while self.queues > self._queues_max and (idle := self._idle_for_long()) is not None:
                self._end(idle)
            mine = sum([other.counted for other in self._kept[session.connection].values()])
            if self.queues > self._queues_max or mine > CONNECTION_QUEUES_MAX:
                self.release(session)

    def answered(self, session: FetchSession, correlation: int) -> None:
        """The request is not open any more."""
        _remove(self._open, session.connection, correlation)
        if session.number:
            self._idle[session] = trio.current_time()

    def release(self, session: FetchSession) -> None:
        """It ends with the request that is open, if one is."""
        if session.number:
            self._count(session, 0)
            _remove(self._kept, session.connection, session.number)
            self._idle.pop(session, None)
            session.number = 0
            _charge(session)

    def _idle_for_long(self) -> FetchSession | None:
        """The session that was idle for longest, if that is long enough to forget it."""
        oldest = next(iter(self._idle), None)
        is_long = oldest is not None and self._idle[oldest] <= trio.current_time() - IDLE_SECONDS
        return oldest if is_long else None

    def _keep(self, session: FetchSession, number: int) -> None:
        kept = self._kept.get(session.connection, {})
        if number and len(kept) < SESSIONS_MAX and number not in kept:
            session.number = number
            self._kept.setdefault(session.connection, kept)[number] = session

    def _count(self, session: FetchSession, queues: int) -> None:
        self.queues += queues - session.counted
        session.counted = queues


def _charge(session: FetchSession) -> None:
    """Count the queues of a session that is not kept among the bytes of its open request."""
    if session.correlation is not None:
        session.connection.expect(session.correlation, QUEUE_BYTES * len(session.offsets))


def _remove(
    sessions: dict[Connection, dict[int, FetchSession]], connection: Connection, key: int
) -> None:
    of = sessions.get(connection)
    if of is not None:
        of.pop(key, None)
        if not of:
            del sessions[connection]
