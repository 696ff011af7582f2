"""Fetch sessions: a node remembers which queues a consumer reads, and from which offsets.

A consumer of 4,000 queues asks for the same 4,000 queues again and again, and usually one of them
has messages. The first fetch of a *session* names all queues. Each later fetch names only the
queues that changed, as the node itself moves each offset past the messages that it sends. A fetch
without a session is handled as a session that ends with its request.

| fetch | session, epoch | queues |
|---|---|---|
| without a session | 0, -1 | all |
| the first | 0, 0; the answer names the session | all |
| the next ones | its number; 1, 2, 3, … | new or read from another offset; to forget |
| the last | its number, -1 | - |

A queue of a session is *marked* or it *rests*. The next look reads the marked queues. A queue rests
when the session has all its messages; a new batch marks it (`Fetches`).

Invariants:
- One request of a session is open at a time. As a connection delivers in order, node and client
  agree about the offsets after each answer.
- A queue that is answered with an error has left the session.
- A session ends with its connection. Sessions are bounded: each to the queues of one request, and
  all of them for each connection and over the node.
  At the node's bound, sessions that were idle for `IDLE_SECONDS` are forgotten, the oldest first;
  their clients get `UNKNOWN_SESSION` and begin others. If that is not enough, a new session ends
  with its request, and the client sends all its queues again.
- The memory of a session that is not kept counts among the bytes of its request.

Sources: Kafka's incremental fetch sessions (KIP-227).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import trio

from raftmq.broker.timers import Timer
from raftmq.errors import ProtocolError
from raftmq.machine.queue_numbers import QUEUE_BITS
from raftmq.machine.subscriptions import Subscriptions
from raftmq.wire.codec import pack
from raftmq.wire.fetches import NO_SESSION, UNKNOWN_SESSION, Fetch, Fetched, FetchedQueue
from raftmq.wire.frame import FramePart
from raftmq.wire.messages import (
    ErrorReply,
    FrameKind,
)
from raftmq.wire.numbers import LIST_MAX

from .connection import Connection

K = TypeVar("K", int, str)

SESSIONS_MAX = 1024
"""Sessions of one connection: each consumer of a client has one at each leader."""
CONNECTION_QUEUES_MAX = 64 * 1024
"""Queues in all sessions of one connection."""
QUEUES_LEAST = 2
"""A session counts as this many queues at least: an empty one takes about 550 bytes."""
QUEUE_BYTES = 768
"""Memory of one queue of a session, at most: measured, see decision 0030."""
IDLE_SECONDS = 120.0
"""A session without an open request for this long gives way to another: Kafka's
`MinIncrementalFetchSessionEvictionMs`. A consumer that reads has a request open nearly always."""


class FetchSession:
    """The queues of one consumer, and its request if one is open."""

    __slots__ = (
        "_topics",
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
        "throttle_ms",
        "timer",
    )

    def __init__(self, connection: Connection, request: Fetch, number: int) -> None:
        self.connection = connection
        """The consumer's connection."""
        self.number = number
        """Name of the session on its connection; 0: the session ends with its request."""
        self.epoch = 0
        """The epoch of the next request."""
        self.consumer_group = request.consumer_group
        """The group whose filter applies; empty: no filter applies."""
        self.subscribed = request.subscribed
        """Version of the subscription that the log must have before the request is answered."""
        self.correlation: int | None = None
        """The open request; None: no request is open."""
        self.bytes_max = 0
        """Bytes of the open request's answer, at most."""
        self.throttle_ms = 0
        """Milliseconds for which a quota held the open request."""
        self.is_reading = False
        """True while the answer is read from disk."""
        self.timer: Timer | None = None
        """The end of the open request's wait."""
        self.counted = 0
        """Queues that this session counts for in the bounds."""
        self.offsets: dict[int, int] = {}
        """Queue → the next offset to read."""
        self.marked: dict[int, None] = {}
        """Queues that may have messages, the one whose last look is oldest first."""
        self.reached: dict[int, int] = {}
        """Queue with a filter → the offset before which no message matches."""
        self.numbers: dict[int, int] = {}
        """Queue → number of the group's subscription at the last look; 0: the group has none,
        -1: the log does not have the subscription yet."""
        # See `topics`; None: the queues have changed since.
        self._topics: frozenset[int] | None = None

    @property
    def topics(self) -> frozenset[int]:
        """The numbers of the topics of all its queues."""
        if self._topics is None:
            self._topics = frozenset([queue >> QUEUE_BITS for queue in self.offsets])
        return self._topics

    @property
    def is_waiting(self) -> bool:
        """True if a request is open and can be answered."""
        return self.correlation is not None and not self.is_reading

    def put(self, queue: int, offset: int) -> None:
        """Read a queue from an offset on."""
        if queue not in self.offsets:
            self._topics = None
        self.offsets[queue] = offset
        self.reached.pop(queue, None)
        # At the end: a queue that always has messages must not starve the others.
        self.marked.pop(queue, None)
        self.marked[queue] = None

    def remove(self, queue: int) -> None:
        """Stop reading a queue."""
        self.offsets.pop(queue, None)
        self._topics = None
        self.marked.pop(queue, None)
        self.reached.pop(queue, None)
        self.numbers.pop(queue, None)

    def has_new_filter(self, queue: int, subscriptions: Subscriptions) -> bool:
        """Whether the queue has another filter for the group than at the last look."""
        return self.numbers.get(queue) != self._number(queue, subscriptions)

    def note_filter(self, queue: int, subscriptions: Subscriptions) -> bool:
        """Note the group's filter as the log has it. True: the group has one, or will have one;
        False: it gets all batches."""
        if self.has_new_filter(queue, subscriptions):
            # By the filter before it passed over batches that this one may want.
            self.reached.pop(queue, None)
            self.numbers[queue] = self._number(queue, subscriptions)
        return self.numbers[queue] != 0

    def _number(self, queue: int, subscriptions: Subscriptions) -> int:
        if subscriptions.version < self.subscribed:
            return -1
        return subscriptions.number_of(queue >> QUEUE_BITS, self.consumer_group)

    def answer(self, queues: list[FetchedQueue], body: Sequence[FramePart]) -> None:
        """Answer the open request."""
        assert self.correlation is not None
        correlation = self.correlation
        self.close_request()
        header = pack(Fetched(queues, self.number, self.throttle_ms))
        self.connection.reply(FrameKind.FETCH, correlation, header, body)

    def close_request(self) -> None:
        """Close the open request. Its timer would hold the session until it is due, so it ends."""
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
        # Kept sessions without an open request → since when; the oldest comes first.
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

    def topics_of(self, connection: Connection, number: int) -> Iterable[int]:
        """The numbers of the topics that a session which is kept reads."""
        session = self.named(connection, number)
        return () if session is None else session.topics

    def asked(self, connection: Connection, correlation: int) -> FetchSession | None:
        """The session with this open request."""
        return self._open.get(connection, {}).get(correlation)

    def of(self, connection: Connection) -> list[FetchSession]:
        """All sessions of a connection."""
        found = dict.fromkeys(self._kept.get(connection, {}).values())
        found.update(dict.fromkeys(self._open.get(connection, {}).values()))
        return list(found)

    def with_groups(self) -> list[FetchSession]:
        """All sessions of consumer groups."""
        of_all = [*self._kept.values(), *self._open.values()]
        found = dict.fromkeys(session for of in of_all for session in of.values())
        return [session for session in found if session.consumer_group]

    def count(self, session: FetchSession) -> None:
        """Count the session's queues again; beyond the bounds the session is not kept."""
        queues = max(QUEUES_LEAST, len(session.offsets))
        if not session.number:
            _charge(session)
        elif session.counted != queues:
            self._count(session, queues)
            while self.queues > self._queues_max and (idle := self._idle_for_long()) is not None:
                self._end(idle)
            mine = sum([other.counted for other in self._kept[session.connection].values()])
            is_long = queues > LIST_MAX or mine > CONNECTION_QUEUES_MAX
            if is_long or self.queues > self._queues_max:
                self.release(session)

    def answered(self, session: FetchSession, correlation: int) -> None:
        """Note that the request is closed."""
        _remove(self._open, session.connection, correlation)
        if session.number:
            self._idle[session] = trio.current_time()

    def release(self, session: FetchSession) -> None:
        """Keep the session no longer: it ends now, or with its open request."""
        if session.number:
            self._count(session, 0)
            _remove(self._kept, session.connection, session.number)
            self._idle.pop(session, None)
            session.number = 0
            _charge(session)

    def _idle_for_long(self) -> FetchSession | None:
        """The session that has been idle for longest, if for `IDLE_SECONDS` at least."""
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


def leave(resting: dict[K, dict[FetchSession, None]], key: K, session: FetchSession) -> None:
    """Remove a session from those that rest under a key."""
    sessions = resting.get(key)
    if sessions is not None:
        sessions.pop(session, None)
        if not sessions:
            del resting[key]


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
