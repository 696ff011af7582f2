"""Reading queues: answers at once, from memory or from disk, or when the next batch commits.

A fetch names queues and offsets. What is there is answered: recent batches from the cache, older
ones by large reads on the reading thread. If nothing is there, the fetch is *parked* under its
queues; the apply of a batch wakes the fetches of its queue, once per pump. Nothing polls.

Invariants:
- Only committed and applied batches are ever given, whole, byte for byte as they were produced.
- Each fetch is answered once: with batches, with an error of a queue, or empty when its wait ends.
- An answer is bounded: `bytes_max` over all its queues, one batch at the least, and a header that
  stays below 3 MiB.
"""

from collections.abc import Callable
from functools import partial
from struct import pack as pack_struct
from typing import NamedTuple, Protocol

from raftmq.batch import BATCH_BYTES_MAX
from raftmq.log.builder import Placement
from raftmq.log.record import HEADER_BYTES, Record
from raftmq.wire.codec import pack, unpack
from raftmq.wire.frame import Frame
from raftmq.wire.messages import (
    ErrorReply,
    Fetch,
    Fetched,
    FetchedQueue,
    FetchFrom,
    FrameKind,
)

from .connection import Connection
from .group import Group
from .settings import Limits
from .timers import Timers
from .world import Worker

PLACEMENTS_MAX = 1024
"""Batches of one queue in one answer."""
BATCHES_MAX = 64 * 1024
"""Batches of all queues in one answer: each takes 20 bytes of its header."""
QUEUES_MAX = 4096
"""Queues in one answer, about 200 bytes of the header each if they come with an error; a client
asks again, and other queues come first then."""
BYTES_MAX = BATCH_BYTES_MAX
"""Of an answer, whatever is asked and set: with one batch more it still fits into a frame."""


class Source(NamedTuple):
    """Where one queue is read."""

    group: Group
    """The partition group's replica."""
    end: int
    """The offset after the queue's last message."""

    def earliest(self, queue: int) -> int:
        """The queue's first kept offset; its end if nothing is kept."""
        earliest = self.group.index.earliest(queue)
        return self.end if earliest is None else earliest


class Catalogue(Protocol):
    """What fetches need of the node."""

    def source(self, queue: int) -> Source | ErrorReply:
        """Where a queue is read on this node, or why it is not."""


class _Found(NamedTuple):
    """The batches to give for one queue."""

    queue: int
    source: Source
    placements: list[Placement]


class Fetches:
    """All fetches of a node that are under way."""

    def __init__(
        self,
        catalogue: Catalogue,
        *,
        timers: Timers,
        reader: Worker,
        limits: Limits,
        on_error: Callable[[BaseException], ErrorReply],
    ) -> None:
        self._catalogue = catalogue
        self._timers = timers
        self._reader = reader
        self._limits = limits
        self._on_error = on_error
        # In the order in which they came: a set's would change from run to run.
        self._parked: dict[int, dict[_Pending, None]] = {}
        # The same ones by who asked, and under which correlation.
        self._waiting: dict[tuple[Connection, int], _Pending] = {}

    def start(self, connection: Connection, frame: Frame) -> None:
        """Answer a FETCH frame, now or later."""
        request = unpack(Fetch, frame.header)
        # Each fetch starts with another queue, so that a busy one cannot starve the others.
        shift = frame.correlation % max(1, len(request.queues))
        queues = request.queues[shift:] + request.queues[:shift]
        request = Fetch(queues, request.wait_ms, request.bytes_max)
        pending = _Pending(connection, frame.correlation, request)
        if self._try(pending):
            return
        wait_ms = min(request.wait_ms, self._limits.fetch_wait_ms_max)
        if wait_ms <= 0:
            pending.answer([], [])
            return
        for item in request.queues:
            self._parked.setdefault(item.queue, {})[pending] = None
        self._waiting[connection, frame.correlation] = pending
        self._timers.call_after(wait_ms / 1000, partial(self._time_out, pending))

    def forget(self, connection: Connection, frame: Frame) -> None:
        """Nobody waits for this fetch any more: it must not count until its wait ends."""
        pending = self._waiting.get((connection, frame.correlation))
        if pending is not None:
            self._time_out(pending)

    def wake(self, queues: set[int]) -> None:
        """New batches were applied to these queues."""
        if not self._parked:
            return
        for queue in queues:
            for pending in list(self._parked.get(queue, ())):
                if pending.is_answered:
                    continue
                if pending.connection.is_clogged:
                    # It does not read: it is told that there is nothing, and its next fetch waits
                    # until there is room.
                    self._unpark(pending)
                    pending.answer([], [])
                elif self._try(pending):
                    self._unpark(pending)

    def drop(self, connection: Connection) -> None:
        """The connection is gone: forget its fetches."""
        gone = dict.fromkeys(p for waiting in self._parked.values() for p in waiting)
        for pending in gone:
            if pending.connection is connection:
                pending.is_answered = True
                self._unpark(pending)

    def refuse(self, is_lost: Callable[[int], bool]) -> None:
        """Wake the fetches of the queues that this node leads no more, so that they are told."""
        self.wake({queue for queue in self._parked if is_lost(queue)})

    def _time_out(self, pending: "_Pending") -> None:
        if not pending.is_answered:
            self._unpark(pending)
            pending.answer([], [])

    def _unpark(self, pending: "_Pending") -> None:
        self._waiting.pop((pending.connection, pending.correlation), None)
        for item in pending.request.queues:
            waiting = self._parked.get(item.queue)
            if waiting is not None:
                waiting.pop(pending, None)
                if not waiting:
                    del self._parked[item.queue]

    def _try(self, pending: "_Pending") -> bool:
        """Answer if there is anything to say; False if the fetch has to wait."""
        errors: list[FetchedQueue] = []
        found: list[_Found] = []
        for item in pending.request.queues:
            if len(errors) + len(found) >= QUEUES_MAX:
                break
            source = self._catalogue.source(item.queue)
            if isinstance(source, ErrorReply):
                errors.append(_failed(item.queue, source))
            elif item.offset < source.end or item.offset > source.end:
                self._look_up(item, source, found, errors)
        if not found and not errors:
            return False
        pending.is_answered = True
        self._read(pending, found, errors)
        return True

    def _look_up(
        self, item: FetchFrom, source: Source, found: list[_Found], errors: list[FetchedQueue]
    ) -> None:
        earliest = source.earliest(item.queue)
        if not earliest <= item.offset <= source.end:
            message = f"offset {item.offset} is not within {earliest}..{source.end}"
            error = ErrorReply("offset_out_of_range", message, earliest=earliest, end=source.end)
            errors.append(_failed(item.queue, error))
            return
        placements = source.group.index.lookup(item.queue, item.offset, PLACEMENTS_MAX)
        found.append(_Found(item.queue, source, placements))

    def _read(self, pending: "_Pending", found: list[_Found], errors: list[FetchedQueue]) -> None:
        budget = max(1, min(pending.request.bytes_max, self._limits.fetch_bytes_max, BYTES_MAX))
        queues, body, cold = _from_memory(found, budget)
        if queues or errors or not cold:
            pending.answer(errors + queues, body)
            return
        pending.connection.expect(pending.correlation, budget)
        self._reader.submit(
            partial(_from_disk, cold, budget), partial(self._read_done, pending, cold)
        )

    def _read_done(
        self,
        pending: "_Pending",
        cold: list[_Found],
        result: "tuple[list[FetchedQueue], list[bytes]] | None",
        error: BaseException | None,
    ) -> None:
        if result is not None:
            pending.answer(*result)
            return
        assert error is not None
        reply = self._on_error(error)
        pending.answer([_failed(found.queue, reply) for found in cold], [])


class _Pending:
    """One fetch and who waits for it."""

    __slots__ = ("connection", "correlation", "is_answered", "request")

    def __init__(self, connection: Connection, correlation: int, request: Fetch) -> None:
        self.connection = connection
        self.correlation = correlation
        self.request = request
        self.is_answered = False

    def answer(self, queues: list[FetchedQueue], body: list[bytes]) -> None:
        self.is_answered = True
        header = pack(Fetched(queues))
        self.connection.reply(FrameKind.FETCH, self.correlation, header, body)


def _failed(queue: int, error: ErrorReply) -> FetchedQueue:
    return FetchedQueue(queue, -1, -1, b"", b"", b"", error)


def _from_memory(
    found: list[_Found], budget: int
) -> tuple[list[FetchedQueue], list[bytes], list[_Found]]:
    """What the caches hold of `found`, within `budget` bytes; and the queues they do not start."""
    queues: list[FetchedQueue] = []
    body: list[bytes] = []
    cold: list[_Found] = []
    for item in found:
        if budget <= 0 or len(body) >= BATCHES_MAX:
            break
        records: list[Record] = []
        for placement in item.placements:
            record = item.source.group.cache.get(placement.index)
            if record is None or budget <= 0:
                break
            records.append(record)
            budget -= len(record.encoded)
        if records:
            queues.append(_describe(item, records))
            body.extend([record.encoded[HEADER_BYTES:] for record in records])
        else:
            cold.append(item)
    return queues, body, cold


def _from_disk(cold: list[_Found], budget: int) -> tuple[list[FetchedQueue], list[bytes]]:
    """On the reading thread: the batches of queues whose next one has left the cache."""
    queues: list[FetchedQueue] = []
    body: list[bytes] = []
    for item in cold:
        if budget <= 0 or len(body) >= BATCHES_MAX:
            break
        wanted = [placement.index for placement in item.placements]
        records = item.source.group.store.read_at(wanted, budget)
        budget -= sum([len(record.encoded) for record in records])
        queues.append(_describe(item, records))
        body.extend([record.encoded[HEADER_BYTES:] for record in records])
    return queues, body


def _describe(item: _Found, records: list[Record]) -> FetchedQueue:
    count = len(records)
    bases = [placement.base_offset for placement in item.placements[:count]]
    return FetchedQueue(
        item.queue,
        item.source.earliest(item.queue),
        item.source.end,
        pack_struct(f"<{count}Q", *bases),
        pack_struct(f"<{count}q", *[record.timestamp for record in records]),
        pack_struct(f"<{count}I", *[len(record.encoded) - HEADER_BYTES for record in records]),
    )
