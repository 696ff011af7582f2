"""From leases to bytes: the batches that hold what a consumer was handed, as one answer.

    unsent   lease 812: offsets 40-49 and 57         lease 815: offset 3
    plan     batches at 40 (10 messages), 50 (8,000) the batch at 0 (20)
    answer   those at 40 and 0 as they stand in the log, of the one at 50 the message at 57 alone;
             and which of their messages are meant

Batches that are not in memory are read from disk. Messages that do not fit stay unsent, so
one lease may come in several answers under the same token. Until an answer takes them, the lease
may be extended or reset, and its messages settled: each answer looks its leases up in the machine.

A large batch of which less than half is meant is *cut*: sending and checking all of it would take
longer than making the part. A consumer that pops a batch of 8,000 by the hundred is thus sent the
batch once and not 80 times, and a retry of one message brings one message.

Left out: the messages between the first and the last that is meant of a batch go along. Compressed
batches are decompressed again for each cut; large ones are sent whole instead.
"""

from collections import deque
from itertools import pairwise
from typing import Final, NamedTuple

from raftmq.batch import Flag, cut, peek
from raftmq.broker.host import Source
from raftmq.broker.replica.group import Group
from raftmq.errors import CorruptRecord
from raftmq.log.builder import Placement
from raftmq.log.record import Record
from raftmq.log.store import LogStore
from raftmq.machine.machine import PartitionMachine
from raftmq.pop.leases import Handed
from raftmq.pop.spans import Span, shifted, span, to_bytes
from raftmq.wire.frame import FramePart
from raftmq.wire.popping import Lease, Popped

from .consumers import OrderFlags

PLACEMENTS_MAX = 1024
"""Batches of one answer."""
LEASE_BYTES_MAX = 1024 * 1024
"""Bytes of the bits of an answer's leases, and those of one lease more. A lease has up to 8 KiB of
them, and a header up to 4 MiB."""
LOOK_UP_MAX = 64
"""Batches that are looked up at once: most leases are of a few batches."""
CUT_BYTES_MIN = 64 * 1024
"""Smaller batches are sent whole. Measured over a loopback socket, both ends: for bare messages,
a cut to a quarter takes less time than the whole from this size on; for messages with keys, tags
and properties a cut saves only bytes, up to 160 KiB at least."""
EFFORT_MAX = 128
"""Cuts of one answer, about 0.1 ms each: bounded, as cuts are made on the event loop."""
_EFFORT_BYTES: Final = 128 * 1024
"""Bytes that are decompressed in the time of one cut."""
_READ_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes read from disk for one answer, even if little of them is sent."""


class _Piece(NamedTuple):
    """The messages of a lease that one batch holds."""

    placement: Placement
    """The batch."""
    messages: Span
    """The messages, by their offsets in the queue."""


class Part(NamedTuple):
    """A lease, or its beginning."""

    handed: Handed
    """The lease."""
    pieces: list[_Piece]
    """The lease's messages by batch, without those that retention has dropped."""
    rest: Span | None
    """The messages behind them, for which one answer has no room; None: there are none."""


class Extent(NamedTuple):
    """The part of a batch from the first message to the last that any of the leases holds."""

    placement: Placement
    """The batch."""
    start: int
    """Position of the first message in the batch."""
    stop: int
    """Position after the last message."""


class Outgoing(NamedTuple):
    """A batch to send, or the part of it that is meant."""

    base_offset: int
    """Offset of its first message."""
    timestamp: int
    """The leader's stamp."""
    payload: FramePart
    """The batch."""


def plan(group: Group, number: int, unsent: deque[Handed], now: int) -> list[Part]:
    """The batches of the unsent leases of an attachment's consumer, in order, as far as the
    consumer still holds their messages; leases that are over are dropped from `unsent`."""
    parts: list[Part] = []
    room, bytes_left = PLACEMENTS_MAX, LEASE_BYTES_MAX
    while unsent and room > 0 and bytes_left > 0:
        handed = _still_held(group, number, unsent.popleft(), now)
        if handed is not None:
            part = _part(group, handed, room)
            room -= len(part.pieces)
            bytes_left -= handed.messages.bits.bit_length() // 8
            parts.append(part)
    unsent.extendleft([part.handed for part in reversed(parts)])
    return parts


def renewed(
    group: Group, number: int, unsent: deque[Handed], parts: list[Part], now: int
) -> list[Part]:
    """The parts of a plan that was made a while ago, as `plan` makes them of the same batches."""
    kept: list[Part] = []
    for part in parts:
        assert unsent[0] is part.handed
        handed = _still_held(group, number, unsent.popleft(), now)
        if handed is not None:
            mine = handed.messages
            cut = [(placement, _common(each, mine)) for placement, each in part.pieces]
            pieces = [_Piece(placement, each) for placement, each in cut if each is not None]
            rest = None if part.rest is None else _common(part.rest, mine)
            kept.append(Part(handed, pieces, rest))
    unsent.extendleft([part.handed for part in reversed(kept)])
    return kept


def _still_held(group: Group, number: int, handed: Handed, now: int) -> Handed | None:
    """The messages of a lease that are still its consumer's. Another consumer may have the others
    by now, or they are settled."""
    assert isinstance(group.machine, PartitionMachine)
    attached = group.machine.pop_groups.attached.get(number)
    return None if attached is None else attached.group.still_held(handed, now)


def _common(some: Span, others: Span) -> Span | None:
    bits = some.bits & shifted(others.bits, others.base - some.base)
    return span(some.base, bits, some.attempt)


def wanted(parts: list[Part]) -> dict[int, Extent]:
    """The records to read, in the order in which they are sent, and the extent of each."""
    extents: dict[int, Extent] = {}
    for part in parts:
        for placement, messages in part.pieces:
            start, stop = (at - placement.base_offset for at in (messages.base, messages.stop))
            before = extents.get(placement.index)
            # Leases that share a batch share one copy of it, from the first message to the last.
            if before is not None:
                start, stop = min(start, before.start), max(stop, before.stop)
            extents[placement.index] = Extent(placement, start, stop)
    return extents


class _Packing:
    """Batches as they are read, until the answer is full."""

    def __init__(self, budget: int) -> None:
        self.batches: dict[int, Outgoing] = {}
        # Bytes that the answer may still take.
        self.room = budget
        self._effort = EFFORT_MAX

    @property
    def is_full(self) -> bool:
        return self.room <= 0 or self._effort <= 0

    def add(self, record: Record, extent: Extent) -> None:
        """Add a batch, which may take more than the room that is left."""
        base, payload = extent.placement.base_offset, self._cut(record, extent)
        if payload is None:
            payload = record.held_payload
        else:
            base += extent.start
        self.batches[record.index] = Outgoing(base, record.timestamp, payload)
        self.room -= len(payload)

    def _cut(self, record: Record, extent: Extent) -> FramePart | None:
        """The part of the batch in `extent`; None: the batch is better sent whole."""
        placement, start, stop = extent
        if len(record.encoded) < CUT_BYTES_MIN or 2 * (stop - start) >= placement.count:
            return None
        try:
            effort = _effort(record.payload)
            # To decompress it would hold the event loop for longer than all cuts of an answer may.
            if effort > EFFORT_MAX:
                return None
            self._effort -= effort
            return cut(record.payload, start, stop)
        except CorruptRecord:
            # Sent whole: the consumer checks the batch too, and reports the damage.
            return None


def _effort(payload: memoryview) -> int:
    head = peek(payload)
    is_compressed = head.flags & (Flag.ZSTD | Flag.LZ4)
    return 1 + head.body_bytes // _EFFORT_BYTES if is_compressed else 1


def from_memory(group: Group, extents: dict[int, Extent], budget: int) -> dict[int, Outgoing]:
    """The batches from the first on that the cache holds, up to one that it lacks: `budget` bytes,
    and at most one batch more."""
    packing = _Packing(budget)
    for index, extent in extents.items():
        record = group.cache.get(index)
        # Messages leave in the order of their leases: none may pass a batch that is not here.
        if record is None or packing.is_full:
            break
        packing.add(record, extent)
    return packing.batches


def from_disk(store: LogStore, extents: dict[int, Extent], budget: int) -> dict[int, Outgoing]:
    """The batches from the first on, as far as their indexes rise; runs on the reading thread."""
    indexes = list(extents)
    # A read takes rising indexes; leases of several queues, or of retries, may go back in the log.
    falls = (n for n, (before, after) in enumerate(pairwise(indexes), 1) if after < before)
    rising = indexes[: next(falls, len(indexes))]
    packing = _Packing(budget)
    unread = _READ_BYTES_MAX
    while rising and unread > 0 and not packing.is_full:
        # Cuts may leave few of the bytes that were read: read on while the answer has room.
        records = store.read_at(rising, min(packing.room, unread))
        for record in records:
            packing.add(record, extents[record.index])
        unread -= sum([len(record.encoded) for record in records])
        rising = rising[len(records) :]
    return packing.batches


def answer(
    group: Group,
    number: int,
    unsent: deque[Handed],
    parts: list[Part],
    read: dict[int, Outgoing],
    now: int,
    *,
    order: OrderFlags,
) -> tuple[Popped, list[FramePart]]:
    """The answer with the batches that were read, and its body; the rest of the parts stays
    unsent."""
    leases: list[Lease] = []
    given: dict[int, set[int]] = {}
    for part in parts:
        assert unsent[0] is part.handed
        unsent.popleft()
        pieces = _leading(part.pieces, read)
        if pieces:
            sent = _joined([piece.messages for piece in pieces])
            leases.append(_lease(part.handed, sent, now))
            of_queue = given.setdefault(part.handed.queue, set())
            of_queue.update(piece.placement.index for piece in pieces)
        unread = part.pieces[len(pieces)].messages if len(pieces) < len(part.pieces) else part.rest
        if unread is not None:
            _, rest = part.handed.messages.before(unread.base)
            assert rest is not None, "messages are unread that the lease does not hold"
            # The next answer begins with it; the leases behind it were not looked at.
            unsent.appendleft(part.handed._replace(messages=rest))
            break
    # Else the consumer would ask again at once for leases that are over.
    while unsent and _still_held(group, number, unsent[0], now) is None:
        unsent.popleft()
    assert isinstance(group.machine, PartitionMachine)
    queues, body = [], list[FramePart]()
    for queue, indexes in given.items():
        batches = [read[index] for index in sorted(indexes)]
        payloads = [batch.payload for batch in batches]
        source = Source(group, group.machine.ends.get(queue, 0))
        queues.append(
            source.describe(
                queue,
                bases=[batch.base_offset for batch in batches],
                timestamps=[batch.timestamp for batch in batches],
                sizes=list(map(len, payloads)),
            )
        )
        body += payloads
    return Popped(leases, queues, bool(unsent), *order), body


def _part(group: Group, handed: Handed, room: int) -> Part:
    messages: Span | None = handed.messages
    pieces: list[_Piece] = []
    while messages is not None and len(pieces) < room:
        limit = min(room - len(pieces), LOOK_UP_MAX)
        placements = group.index.lookup(handed.queue, messages.base, limit)
        # Retention took all that the lease still holds.
        if not placements:
            return Part(handed, pieces, rest=None)
        for placement in placements:
            # Retention took the batches of messages before this one.
            _, messages = messages.before(placement.base_offset)
            if messages is None:
                break
            inside, messages = messages.before(placement.base_offset + placement.count)
            if inside is not None:
                pieces.append(_Piece(placement, inside))
            if messages is None:
                break
    return Part(handed, pieces, rest=messages)


def _leading(pieces: list[_Piece], read: dict[int, Outgoing]) -> list[_Piece]:
    """The pieces before the first one whose batch was not read."""
    for count, piece in enumerate(pieces):
        if piece.placement.index not in read:
            return pieces[:count]
    return pieces


def _joined(spans: list[Span]) -> Span:
    """Rising spans as one."""
    base = spans[0].base
    bits = 0
    for each in spans:
        bits |= each.bits << each.base - base
    return spans[0]._replace(bits=bits)


def _lease(handed: Handed, messages: Span, now: int) -> Lease:
    base, bits, attempt = messages
    packed = to_bytes(bits)
    remaining_ms = max(handed.deadline - now, 0)
    return Lease(handed.token, handed.queue, attempt, base, packed, handed.deadline, remaining_ms)
