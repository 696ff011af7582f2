"""Reading ahead: one long-polling `FETCH` at each leader, for all queues that it leads.

A request has a bound of queues (`LIST_MAX`). A leader of more of them is read by several sessions,
each with a request of its own.

Each queue has a cursor: the next offset to fetch. An answer is checked (structure and CRC-32C of
each batch, its queue, no gap, no repeat), its batches are buffered, the cursors move, and the next
request leaves at once, as long as the buffer is below its bound. A request names only the changes
since the last one (`fetch_session`), so the cost of an answer is its batches, however many queues
are read. When a node should read other queues or offsets than its open request names (after a seek,
or when a queue comes to the node), the request is recalled: the node answers at once, and the next
request is sent.

    answer, seek, leader found, room ──> kick(): for each leader that is not being asked, ask

If the consumer's group has subscribed, an answer tells how far it reaches (`next`) and which
messages of its batches match. Runs of matching messages enter the buffer; the cursor passes over
the others, and its handed and done offsets follow, so that the group's lag is true.

Invariants:
- A batch enters the buffer only if it continues its cursor, so a change of leader, a late answer or
  a repeated one can neither repeat nor skip a message. With a filter the leader vouches for the
  offsets between.
- The buffer holds at most `bytes_max` and one answer of each session, which is at most `bytes_max`
  and one batch.
- A queue with an error is not asked for until it is moved.
- A queue that is *paused* is neither asked for nor handed out. Its fetched batches wait aside,
  beyond the buffer's bound: up to `bytes_max` and one answer for each such queue.

Sources: Kafka's fetch sessions (KIP-227): one request a broker for all its partitions; its
consumer's `pause`.
"""

import struct
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import anyio

from raftmq.batch import Batch
from raftmq.client.message import decode
from raftmq.client.routing.calls import wait_leader
from raftmq.client.routing.connection import Answer, Connection, Lost
from raftmq.client.routing.refusals import ASKED_AGAIN, NOT_LEADER, exception_of, refusal_of
from raftmq.client.routing.router import Router
from raftmq.client.slices import Slice
from raftmq.client.supervisor import TaskScope
from raftmq.errors import ProtocolError, Reason, Rejected, UnreadableBatch
from raftmq.machine.queue_numbers import QUEUE_BITS
from raftmq.pop.spans import runs_of
from raftmq.pushed import Pushed
from raftmq.wire.codec import pack, unpack
from raftmq.wire.fetches import UNKNOWN_SESSION, Fetch, Fetched, FetchedQueue
from raftmq.wire.frame import Frame
from raftmq.wire.messages import (
    REPLY,
    ErrorReply,
    FrameKind,
)
from raftmq.wire.numbers import LIST_MAX

from .fetch_session import ReadSession
from .positions import Chunk, Cursor

FETCH_BYTES = 4 * 1024 * 1024
"""The largest answer that is asked for: large enough that the work for a request is small beside
it, also with messages of 1 MiB. Less if the application wants less read ahead."""
BEHIND_RETRY_MS = 50
BEHIND_STRIKES_MAX = 10
"""Tries to catch up for a leader whose queue ends before an offset that was read from another
leader: about 2 s with the router's delays."""
POLL_MS = 5_000
"""How long a node waits for messages, in milliseconds, before it sends an empty answer."""

_TRIMMED = Reason.OFFSET_OUT_OF_RANGE.value
_UNKNOWN_TOPIC = Reason.UNKNOWN_TOPIC.value


class StoredBatch(NamedTuple):
    """A batch in an answer."""

    base: int
    """Offset of its first message."""
    timestamp: int
    """When it was stored, in milliseconds since 1970."""
    payload: memoryview
    """Its bytes."""


class Fetcher:
    """Reads ahead for one consumer."""

    def __init__(
        self,
        router: Router,
        tasks: TaskScope,
        *,
        topic: str,
        bytes_max: int,
        on_trimmed: str,
        consumer_group: str = "",
        subscribed: int = 0,
    ) -> None:
        self._router = router
        self._tasks = tasks
        self._topic = topic
        self._bytes_max = bytes_max
        self._on_trimmed = on_trimmed
        self._consumer_group = consumer_group
        self._subscribed = subscribed
        self._buffer: deque[Chunk] = deque()
        self._buffered_bytes = 0
        # Batches of paused queues.
        self._aside: list[Chunk] = []
        # By connection, and the session's place among those of the connection.
        self._sessions: dict[tuple[Connection, int], ReadSession] = {}
        # Partition group → since when its leader is looked for.
        self._lost: dict[int, float] = {}
        self._failures: dict[int, int] = {}
        self._news = anyio.Event()
        self._is_changed = False
        # Operators have paused the consumer.
        self._is_paused = False
        self.cursors: dict[int, Cursor] = {}
        """Queue number → its cursor."""

    # -- for the consumer ------------------------------------------------------------------------

    def add(self, cursors: Iterable[Cursor]) -> None:
        """Read these queues, too."""
        for cursor in cursors:
            self.cursors[cursor.queue_number] = cursor
        self._is_changed = True
        self.kick()

    def move(self, cursor: Cursor, offset: int) -> None:
        """Go on reading a queue from `offset`; its buffered messages are dropped."""
        cursor.move(offset)
        self._drop_chunks({cursor})

    def remove(self, cursors: Iterable[Cursor]) -> None:
        """Stop reading queues; their buffered messages are dropped, their positions stay."""
        gone = set(cursors)
        for cursor in gone:
            del self.cursors[cursor.queue_number]
            cursor.version += 1
            cursor.tail = None
        if gone:
            self._drop_chunks(gone)

    def pause(self, queues: set[int]) -> None:
        """Neither ask for these queues nor hand them out; go on with all others."""
        for number, cursor in self.cursors.items():
            cursor.is_paused = number in queues
        self._sort([*self._aside, *self._buffer])
        # Messages may be here that a waiting call gets now.
        self.tell()

    def obey(self, pushed: Pushed) -> None:
        """Obey what operators push. While consumers are paused, no request leaves and no message is
        handed out; the answer to an open request is kept."""
        # Leaders may have moved during a pause: the queues are shared out again.
        self._is_paused, self._is_changed = pushed.consumer.is_paused, True
        self.kick()
        self.tell()

    def _drop_chunks(self, cursors: set[Cursor]) -> None:
        chunks = [*self._aside, *self._buffer]
        self._sort([chunk for chunk in chunks if chunk.cursor not in cursors])

    def _sort(self, chunks: list[Chunk]) -> None:
        """Keep these chunks, in this order, and ask for what is missing."""
        self._aside = [chunk for chunk in chunks if chunk.cursor.is_paused]
        self._buffer = deque(chunk for chunk in chunks if not chunk.cursor.is_paused)
        self._buffered_bytes = sum(chunk.size for chunk in self._buffer)
        self._is_changed = True
        self.kick()

    def check(self) -> None:
        """Raise the error of a queue whose buffered messages are all handed out, if any has one."""
        for cursor in self.cursors.values():
            if cursor.error is not None and not self._has_messages(cursor):
                raise cursor.error

    def _has_messages(self, cursor: Cursor) -> bool:
        return any(chunk.cursor is cursor for chunk in (*self._buffer, *self._aside))

    def take(self, count: int) -> list[Slice]:
        """Hand out up to `count` fetched messages."""
        slices: list[Slice] = []
        was_full = self._buffered_bytes >= self._bytes_max
        buffer = self._buffer
        while buffer and count > 0 and not self._is_paused:
            chunk = buffer[0]
            cursor, batch, start = chunk.cursor, chunk.batch, chunk.start
            stop = min(chunk.stop, start + count)
            slices.append(Slice(batch, start, stop, cursor.queue_number))
            cursor.handed = batch.base_offset + stop
            count -= stop - start
            if stop == chunk.stop:
                buffer.popleft()
                self._buffered_bytes -= chunk.size
                cursor.handed = chunk.following
                if cursor.tail is chunk:
                    cursor.tail = None
            else:
                chunk.start = stop
        if was_full and self._buffered_bytes < self._bytes_max:
            self.kick()
        return slices

    async def wait_news(self) -> None:
        """Wait until messages or an error came. Cancelling changes nothing."""
        await self._news.wait()

    def lost_since(self) -> float | None:
        """Since when any queue's leader is looked for, by the event loop's clock; None: none is."""
        return min(self._lost.values(), default=None)

    def forgive(self) -> None:
        """Count the time of lost leaders from now."""
        now = anyio.current_time()
        self._lost = dict.fromkeys(self._lost, now)

    def close(self) -> None:
        """Recall all requests and end the sessions."""
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            session.end()
        self.tell()

    def tell(self) -> None:
        """Wake the calls of `wait_news`."""
        self._news.set()
        self._news = anyio.Event()

    # -- asking ----------------------------------------------------------------------------------

    def kick(self) -> None:
        """Send a request in each session without an open one, if the buffer has room."""
        is_full = self._buffered_bytes >= self._bytes_max
        if is_full or self._is_paused or self._tasks.is_closed:
            return
        if self._is_changed or not all(each.connection.is_open for each in self._sessions.values()):
            self._is_changed = False
            self._share_out()
        for session in self._sessions.values():
            if session.request is None:
                self._ask(session)

    def _share_out(self) -> None:
        """Assign each queue to a session of its leader's connection."""
        wanted: dict[tuple[Connection, int], dict[int, Cursor]] = {}
        counts = Counter[Connection]()
        for queue, cursor in self.cursors.items():
            if cursor.error is not None or cursor.is_paused or cursor.group in self._lost:
                continue
            connection = self._router.open_leader(cursor.group)
            if connection is None:
                self._find_leader(cursor.group)
            else:
                place = connection, counts[connection] // LIST_MAX
                wanted.setdefault(place, {})[queue] = cursor
                counts[connection] += 1
        for place in [*self._sessions]:
            if not place[0].is_open:
                del self._sessions[place]
        for place in wanted:
            if place not in self._sessions:
                self._sessions[place] = ReadSession(*place)
        for place, session in self._sessions.items():
            session.want(wanted.get(place, {}))

    def _ask(self, session: ReadSession) -> None:
        queues, forgotten = session.difference(self._lost)
        if not session.known:
            session.end()
            return
        fetch = Fetch(
            queues=queues,
            wait_ms=POLL_MS,
            bytes_max=min(FETCH_BYTES, self._bytes_max),
            consumer_group=self._consumer_group,
            subscribed=self._subscribed,
            session=session.number,
            epoch=session.epoch,
            forgotten=forgotten,
        )
        session.request = session.connection.post(
            FrameKind.FETCH, pack(fetch), (), lambda answer: self._answered(session, answer)
        )

    def _find_leader(self, group: int, retry_ms: int = 0) -> None:
        """Look for the group's leader in the background; then its queues are asked for again."""
        if group in self._lost or self._tasks.is_closed:
            return
        # A leader that has told how long to wait is not lost before that.
        self._lost[group] = anyio.current_time() + retry_ms / 1000
        # Calls that wait for messages count the time of a lost leader from here.
        self.tell()
        failures = self._failures[group] = self._failures.get(group, 0) + 1

        async def find() -> None:
            await wait_leader(self._router, group, failures, retry_ms / 1000)
            self._lost.pop(group, None)
            self._is_changed = True
            self.kick()

        self._tasks.start(find)

    # -- answers ---------------------------------------------------------------------------------

    def _answered(self, session: ReadSession, answer: Answer) -> None:
        session.request = None
        session.is_recalled = False
        connection, place = session.connection, (session.connection, session.place)
        if self._sessions.get(place) is not session:
            _end_late(session, answer)
            return
        if isinstance(answer, Lost):
            del self._sessions[place]
            self._is_changed = True
        else:
            try:
                self._take_answer(session, answer)
            except ProtocolError as error:
                connection.close_for(error)
        self.kick()

    def _take_answer(self, session: ReadSession, answer: Frame) -> None:
        connection = session.connection
        refusal = refusal_of(answer)
        if refusal is not None:
            self._is_changed = True
            session.begin_again(is_known=refusal.code != UNKNOWN_SESSION)
            if refusal.code != UNKNOWN_SESSION:
                for cursor, version in session.known.values():
                    if refusal.group in {-1, cursor.group} and cursor.version == version:
                        self._refused(connection, cursor, refusal)
            return
        if answer.kind != FrameKind.FETCH | REPLY:
            raise ProtocolError(f"a fetch was answered by a frame of kind {answer.kind}")
        fetched = unpack(Fetched, answer.header)
        self._router.note_throttled(fetched.throttle_ms)
        session.answered(fetched.session, [queue.queue for queue in fetched.queues])
        for queue, batches in batches_in(fetched.queues, answer.body):
            asked = session.known.get(queue.queue)
            if queue.error is not None:
                session.known.pop(queue.queue, None)
            if asked is not None and asked[0].version == asked[1]:
                if queue.error is not None:
                    self._refused(connection, asked[0], queue.error)
                else:
                    self._read_queue(asked[0], queue, batches)
                    self._failures.pop(asked[0].group, None)
        if not fetched.queues:
            # An empty answer gives time to check all queues for a leader that moved.
            self._is_changed = True
            for cursor, _ in session.known.values():
                self._failures.pop(cursor.group, None)
        self.tell()

    def _read_queue(self, cursor: Cursor, queue: FetchedQueue, batches: list[StoredBatch]) -> None:
        if queue.next >= 0:
            self._read_filtered(cursor, queue, batches)
            return
        for base, timestamp, payload in batches:
            try:
                batch = decode(payload, base, timestamp, cursor.queue_number, self._topic)
            except UnreadableBatch as error:
                cursor.error = error
                return
            if batch.head.queue != cursor.queue_number or base > cursor.fetched:
                raise ProtocolError(
                    f"{self._name(cursor)} at offset {cursor.fetched} was answered with a batch of "
                    f"queue {batch.head.queue} at offset {base}"
                )
            end = base + len(batch)
            if end > cursor.fetched:
                self._keep(Chunk(cursor, batch, cursor.fetched - base, len(batch), len(payload)))
                cursor.fetched = end
                cursor.strikes = 0

    def _read_filtered(
        self, cursor: Cursor, queue: FetchedQueue, batches: list[StoredBatch]
    ) -> None:
        """Take the matching messages of an answer and pass over the others."""
        mask_position = 0
        for base, timestamp, payload in batches:
            try:
                batch = decode(payload, base, timestamp, cursor.queue_number, self._topic)
            except UnreadableBatch as error:
                cursor.pass_over(max(cursor.fetched, base))
                cursor.error = error
                return
            mask_bytes = (len(batch) + 7) // 8
            mask = queue.masks[mask_position : mask_position + mask_bytes]
            mask_position += mask_bytes
            if batch.head.queue != cursor.queue_number or len(mask) != mask_bytes:
                raise ProtocolError(
                    f"{self._name(cursor)} at offset {cursor.fetched} was answered with a batch of "
                    f"queue {batch.head.queue} at offset {base} and a mask of {len(mask)} bytes"
                )
            if base + len(batch) > cursor.fetched:
                found = runs(mask, max(0, cursor.fetched - base))
                self._take_runs(cursor, batch, found, len(payload))
        if queue.next > cursor.fetched:
            cursor.pass_over(queue.next)
        cursor.strikes = 0

    def _take_runs(
        self, cursor: Cursor, batch: Batch, found: list[tuple[int, int]], size: int
    ) -> None:
        for start, stop in found:
            cursor.pass_over(batch.base_offset + start)
            # The last run counts the batch's size: until then the batch stays in memory.
            chunk = Chunk(cursor, batch, start, stop, size if stop == found[-1][1] else 0)
            self._keep(chunk)
            cursor.fetched = chunk.following
        cursor.pass_over(batch.base_offset + len(batch))

    def _keep(self, chunk: Chunk) -> None:
        chunk.cursor.tail = chunk
        if chunk.cursor.is_paused:
            # The answer to a request from before the queue was paused.
            self._aside.append(chunk)
            return
        self._buffer.append(chunk)
        self._buffered_bytes += chunk.size

    def _refused(self, connection: Connection, cursor: Cursor, refusal: ErrorReply) -> None:
        code = refusal.code
        if code == NOT_LEADER:
            self._router.not_leader(cursor.group, connection.node, refusal.leader)
            self._find_leader(cursor.group, refusal.retry_ms)
        elif code in ASKED_AGAIN:
            self._find_leader(cursor.group, refusal.retry_ms)
        elif code == _UNKNOWN_TOPIC:
            self._confirm_topic(cursor, refusal)
        elif code == _TRIMMED:
            self._trimmed(cursor, refusal)
        else:
            cursor.error = exception_of(refusal)
            self.tell()

    def _trimmed(self, cursor: Cursor, refusal: ErrorReply) -> None:
        if 0 <= refusal.end < cursor.fetched and cursor.strikes < BEHIND_STRIKES_MAX:
            # Messages that were read are committed, so this leader is new and has not applied them.
            cursor.strikes += 1
            self._find_leader(cursor.group, BEHIND_RETRY_MS)
            return
        if refusal.earliest >= 0 and self._on_trimmed != "error":
            # Messages fetched before stay in the buffer: they come first, in order.
            at = refusal.earliest if self._on_trimmed == "earliest" else refusal.end
            cursor.version += 1
            cursor.fetched = at
            return
        cursor.error = Rejected(
            Reason.OFFSET_OUT_OF_RANGE,
            f"{self._name(cursor)} begins at offset {refusal.earliest} and ends at offset "
            f"{refusal.end}, and {cursor.fetched} is wanted: seek, or set on_trimmed to 'earliest' "
            "or 'latest'",
        )
        self.tell()

    def _confirm_topic(self, cursor: Cursor, refusal: ErrorReply) -> None:
        """Ask the system group's leader for the topic: another node may not know it yet."""
        if cursor.group in self._lost or self._tasks.is_closed:
            return
        self._lost[cursor.group] = anyio.current_time()

        async def confirm() -> None:
            try:
                topic = await self._router.topic(self._topic, is_fresh=True)
            except Rejected as error:
                cursor.error = error
            else:
                if topic.id != cursor.queue_number >> QUEUE_BITS:
                    cursor.error = exception_of(refusal)
            await anyio.sleep(self._router.delay(3))
            self._lost.pop(cursor.group, None)
            self._is_changed = True
            self.tell()
            self.kick()

        self._tasks.start(confirm)

    def _name(self, cursor: Cursor) -> str:
        return f"queue {cursor.queue} of topic {self._topic!r}"


def _end_late(session: ReadSession, answer: Answer) -> None:
    """End the session of a closed consumer at the node: the late answer names the session."""
    if isinstance(answer, Frame) and answer.kind == FrameKind.FETCH | REPLY:
        session.number = unpack(Fetched, answer.header).session
        session.end()


def runs(mask: bytes, first: int) -> list[tuple[int, int]]:
    """Runs of set bits at or after position `first`, as [start, stop).

    >>> runs(bytes([0b11100110]), 2)
    [(2, 3), (5, 8)]
    """
    bits = int.from_bytes(mask, "little") >> first
    return [(first + start, first + stop) for start, stop in runs_of(bits)]


def batches_in(
    queues: Iterable[FetchedQueue], body: bytes
) -> Iterator[tuple[FetchedQueue, list[StoredBatch]]]:
    """Each queue of an answer, with its batches in the answer's body.

    Raises:
        ProtocolError: the vectors of a queue, or all of them and the body, do not fit each other.
    """
    view, position = memoryview(body), 0
    for queue in queues:
        bases, timestamps = vector(queue.bases, "Q"), vector(queue.timestamps, "q")
        sizes = vector(queue.sizes, "I")
        is_cut = position + sum(sizes) > len(view)
        if not len(bases) == len(timestamps) == len(sizes) or is_cut:
            raise ProtocolError(f"the vectors of queue {queue.queue} do not fit each other")
        batches = []
        for base, timestamp, size in zip(bases, timestamps, sizes, strict=True):
            payload = view[position : position + size]
            batches.append(StoredBatch(base, timestamp, payload))
            position += size
        yield queue, batches
    if position != len(view):
        raise ProtocolError(f"an answer of {position} bytes came with {len(view)}")


def vector(data: bytes, item: str) -> tuple[int, ...]:
    """A vector of little-endian integers of a `struct` type."""
    size = struct.calcsize(item)
    if len(data) % size:
        raise ProtocolError(f"a vector of {size}-byte integers has {len(data)} bytes")
    return struct.unpack(f"<{len(data) // size}{item}", data)
