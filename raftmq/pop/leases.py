"""Leases: messages in the hands of consumers, and the timers that take them back.

A *token* names a lease for ever: the Raft index of the record that handed the messages out, and a
slot within it. So tokens grow with every hand-out, no two are equal across leaders and restarts,
and a token stands for one hand-out only: a stale token finds nothing.

Leases are columns, in the order of their tokens, so that a million of them take 75 MB, are no
objects to the interpreter's collector, and are written into a snapshot as a few byte strings:

    token      48 << 20   48 << 20 | 1   52 << 20
    queue         65536          65537      65536
    base            100              0        110
    bits       0b111111            0b0      0b100     0: the lease is over; rows go in bulk
    attempt           1              1          2
    consumer         11             12         11
    deadline       5000           5000       6000

A timer is a note under a deadline. A lease that is settled or extended leaves its note behind; the
note is skipped when its time comes, and when most notes are stale all notes are built again.

Invariants:
- A lease whose deadline has come belongs to no consumer, whether it was taken back already or not:
  a million leases are taken back in portions.
- Each lease has a note under its deadline or an earlier time.
- No visible result depends on notes or on rows that are over: leases run out by deadline and
  token.

Sources: Amazon SQS (visibility timeout); RocketMQ's checkpoints, whose handle is a position and a
wall-clock time and so cannot tell one hand-out from the next; Kleppmann, "How to do distributed
locking" (fencing tokens).
"""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

import numpy as np

from raftmq.errors import Reason
from raftmq.results import Refused

from .pieces import KEY_BYTES, Piece, pick, piece
from .spans import Span, shifted, span

SLOT_BITS = 20
"""A token is `index << SLOT_BITS | slot`."""
CONSUMER_MAX = (1 << 63) - 1
"""The highest number of a consumer."""
_STALE_MIN = 1024
"""Stale notes and rows below which nothing is cleaned up."""
_SCANNED_MAX = 65_536
"""Unsorted rows that a search for a consumer's leases may scan: 0.1 ms."""
_SCANS_MAX = 16
"""Longer scans before the rows are sorted: a sort takes as long as this number of them."""
_SMALL_MAX = (1 << 64) - 1


class Lease(NamedTuple):
    """Messages of one queue in the hand of one consumer."""

    token: int
    """The lease's name."""
    queue: int
    """The queue's number."""
    messages: Piece
    """The messages that are not settled, and their attempt."""
    consumer: int
    """The consumer that has the messages in hand."""
    deadline: int
    """From this time on no consumer has the messages, in milliseconds."""


class Handed(NamedTuple):
    """Messages that a consumer has from now on."""

    consumer: int
    """The consumer that gets the messages."""
    token: int
    """The lease's token, which the consumer must name to settle the messages."""
    queue: int
    """The queue's number."""
    messages: Span
    """Which messages, and their attempt: 1 for the first hand-out."""
    deadline: int
    """When the lease runs out, in milliseconds."""


class Leases:
    """The leases of one consumer group."""

    def __init__(self) -> None:
        self._tokens = array("Q")
        self._queues = array("Q")
        self._bases = array("Q")
        self._attempts = array("Q")
        self._consumers = array("Q")
        self._deadlines = array("Q")
        self._bits: list[int] = []
        # By row the key hashes of all messages that were handed out, empty where keys play no part;
        # and by token the bits of these messages, if there is more than one.
        self._keys: list[bytes] = []
        self._key_bits: dict[int, int] = {}
        self._over_count = 0
        # Consumer → its messages in hand, also those of leases that ran out.
        self._in_hand: dict[int, int] = {}
        # The oldest rows, sorted by consumer once many consumers ask; newer rows are scanned.
        self._by_consumer = np.empty(0, np.int64)
        self._scans = 0
        # Deadline → tokens: the notes.
        self._due: dict[int, array[int]] = {}
        self._times: list[int] = []
        self._note_count = 0
        # The deadline whose tokens are sorted already.
        self._in_order = -1

    def __len__(self) -> int:
        return len(self._tokens) - self._over_count

    def __iter__(self) -> Iterator[Lease]:
        return (self._lease(row) for row, bits in enumerate(self._bits) if bits)

    @property
    def next_deadline(self) -> int | None:
        """When the next lease has to be taken back; None if there is none."""
        while self._times:
            tokens = self._due[self._times[0]]
            if self._row_due(tokens[-1], self._times[0]) >= 0:
                return self._times[0]
            self._drop_note(tokens)
        return None

    def open(self, lease: Lease) -> None:
        """A new lease; its token is higher than all before."""
        assert not self._tokens or lease.token > self._tokens[-1], lease.token
        self._tidy_rows()
        self._tidy_notes()
        base, bits, attempt, keys = lease.messages
        assert bits & 1, "a lease begins with a message that it holds"
        assert attempt > 0, "a hand-out that no attempt counts"
        assert not keys or len(keys) == bits.bit_count() * KEY_BYTES, "a message without its key"
        self._tokens.append(lease.token)
        self._queues.append(lease.queue)
        self._bases.append(base)
        self._attempts.append(attempt)
        self._consumers.append(lease.consumer)
        self._deadlines.append(lease.deadline)
        self._bits.append(bits)
        self._keys.append(keys)
        if len(keys) > KEY_BYTES:
            self._key_bits[lease.token] = bits
        self._count(lease.consumer, bits.bit_count())
        self._note(lease.token, lease.deadline)

    def find(self, token: int, consumer: int, now: int) -> int | None:
        """The row of a consumer's lease that runs, valid until the next lease is opened; None if
        the token is stale, or was never given."""
        row = self._row(token)
        if row < 0 or self._consumers[row] != consumer or self._deadlines[row] <= now:
            return None
        return row

    def held_until(self, token: int, consumer: int, messages: Span, now: int) -> int | None:
        """The deadline of a consumer's lease, if that runs and holds all of these messages."""
        row = self.find(token, consumer, now)
        if row is None:
            return None
        shift, held = messages.base - self._bases[row], self._bits[row]
        if not 0 <= shift < held.bit_length() or messages.bits & ~(held >> shift):
            return None
        return self._deadlines[row]

    def still_held(self, handed: Handed, now: int) -> Handed | None:
        """The part of a hand-out that its consumer still holds, with the lease's deadline of now;
        None: the consumer holds nothing of it."""
        token, queue = handed.token, handed.queue
        row = self.find(token, handed.consumer, now)
        if row is None:
            return None
        base, bits, attempt = handed.messages
        held = span(base, bits & shifted(self._bits[row], self._bases[row] - base), attempt)
        if held is None:
            return None
        return Handed(handed.consumer, token, queue, held, self._deadlines[row])

    def queue(self, row: int) -> int:
        """The queue of a lease."""
        return self._queues[row]

    def held(self, row: int) -> Piece | None:
        """The messages that a lease still holds; None: the lease is over."""
        bits = self._bits[row]
        return self._part(row, bits) if bits else None

    def take(self, row: int, messages: Span) -> Piece | None:
        """Take messages out of a lease: those that the lease still holds, None if it holds none."""
        shift, held = messages.base - self._bases[row], self._bits[row]
        # A command may name any offset: shifting by it could fill the memory.
        if shift >= held.bit_length():
            return None
        return self._take(row, held & shifted(messages.bits, shift))

    def _take(self, row: int, taken: int) -> Piece | None:
        if not taken:
            return None
        messages = self._part(row, taken)
        left = self._bits[row] ^ taken
        assert not left & taken, "a message is taken that the lease does not hold"
        self._bits[row] = left
        self._count(self._consumers[row], -taken.bit_count())
        if not left:
            self._over_count += 1
            self._key_bits.pop(self._tokens[row], None)
        return messages

    def extend(self, row: int, deadline: int) -> None:
        """Let a lease run until another time."""
        assert self._bits[row], "a lease that is over runs again"
        # A later deadline needs no note: the earlier note gives it one when its time comes.
        if deadline < self._deadlines[row]:
            self._note(self._tokens[row], deadline)
        self._deadlines[row] = deadline
        self._tidy_notes()

    def take_expired(self, now: int, count: int) -> list[tuple[int, Piece]]:
        """Take back up to `count` leases whose deadline has come, the oldest first: (queue,
        messages) each."""
        taken: list[tuple[int, Piece]] = []
        while self._times and self._times[0] <= now and len(taken) < count:
            deadline = self._times[0]
            # Replicas differ in the order of notes, and must take back the same leases first.
            if self._in_order != deadline:
                self._due[deadline] = array("Q", sorted(self._due[deadline], reverse=True))
                self._in_order = deadline
            tokens = self._due[deadline]
            row = self._row_due(tokens[-1], deadline)
            if row >= 0:
                assert self._deadlines[row] <= now, "a lease that runs is taken back"
                messages = self._take(row, self._bits[row])
                assert messages is not None, "an empty lease was found"
                taken.append((self._queues[row], messages))
            self._drop_note(tokens)
        return taken

    def drop_before(self, queue: int, offset: int) -> list[Piece]:
        """Drop all messages before an offset of a queue; which they were."""
        is_meant = (_numbers(self._queues) == queue) & (_numbers(self._bases) < offset)
        dropped: list[Piece] = []
        for row in np.flatnonzero(is_meant).tolist():
            width = min(offset - self._bases[row], self._bits[row].bit_length())
            gone = self._take(row, self._bits[row] & (1 << width) - 1)
            if gone is not None:
                dropped.append(gone)
        return dropped

    def drop(self, queues: Collection[int]) -> None:
        """Drop all messages of some queues, in one pass for all of them."""
        rows = np.flatnonzero(np.isin(_numbers(self._queues), np.fromiter(queues, np.uint64)))
        for row in rows.tolist():
            self._take(row, self._bits[row])

    def of_consumer(self, consumer: int, now: int) -> Iterator[tuple[int, int, Span, int]]:
        """A consumer's leases that run, oldest first: token, queue, messages, deadline."""
        found = self._rows_of(consumer)
        rows = found[_numbers(self._deadlines)[found] > now]
        columns = [_numbers(each)[rows].tolist() for each in self._columns()]
        for row, token, queue, base, attempt, _, deadline in zip(
            rows.tolist(), *columns, strict=True
        ):
            held = span(base, self._bits[row], attempt)
            if held is not None:
                yield token, queue, held, deadline

    def in_hand(self, consumer: int) -> int:
        """How many messages a consumer has in hand, those of leases that ran out included until
        they are taken back."""
        return self._in_hand.get(consumer, 0)

    @property
    def hands(self) -> Mapping[int, int]:
        """By consumer what `in_hand` gives, without those that have nothing."""
        return self._in_hand

    @property
    def all_in_hand(self) -> int:
        """How many messages all consumers have in hand."""
        return sum(self._in_hand.values())

    def audit(self) -> None:
        """Assert that the messages in each hand, recounted, are as many as were counted."""
        found = Counter[int]()
        for lease in self:
            found[lease.consumer] += lease.messages.size
        assert found == self._in_hand, (found, self._in_hand)

    def _count(self, consumer: int, change: int) -> None:
        count = self._in_hand.get(consumer, 0) + change
        assert count >= 0, "more messages leave a hand than it held"
        if count:
            self._in_hand[consumer] = count
        else:
            self._in_hand.pop(consumer, None)

    def _rows_of(self, consumer: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
        """The rows of a consumer, those that are over included."""
        consumers = _numbers(self._consumers)
        by_consumer, count = self._by_consumer, len(self._by_consumer)
        if len(consumers) - count > _SCANNED_MAX:
            self._scans += 1
            if self._scans > _SCANS_MAX:
                self._by_consumer = by_consumer = np.argsort(consumers, kind="stable")
                self._scans, count = 0, len(by_consumer)
        start, stop = (
            np.searchsorted(consumers[:count], consumer, side, sorter=by_consumer)
            for side in ("left", "right")
        )
        newer = np.flatnonzero(consumers[count:] == consumer) + count
        return np.concatenate((by_consumer[start:stop], newer))

    # As plain values

    def dump(self) -> list[Any]:
        """The leases as plain values: columns of eight bytes little-endian each."""
        self._drop_rows()
        wide: list[list[int]] = []
        bits = self._bits
        if max(bits, default=0) > _SMALL_MAX:
            wide = [[row, each] for row, each in enumerate(bits) if each > _SMALL_MAX]
            bits = [each if each <= _SMALL_MAX else 0 for each in bits]
        small = array("Q", bits)
        columns = [_numbers(each).astype("<u8").tobytes() for each in (*self._columns(), small)]
        sizes = array("Q", map(len, self._keys)) if any(self._keys) else array("Q")
        keys = [_numbers(sizes).astype("<u8").tobytes(), b"".join(self._keys)]
        return [columns, wide, *keys, [[token, bits] for token, bits in self._key_bits.items()]]

    def load(self, values: list[Any]) -> None:
        """The reverse of `dump`."""
        columns, wide, sizes, keys, key_bits = values
        *plain, small = (array("Q", np.frombuffer(each, "<u8").tolist()) for each in columns)
        self._set_columns(plain)
        self._bits = small.tolist()
        for row, bits in wide:
            self._bits[row] = bits
        self._keys = [b""] * len(self._bits)
        at = 0
        for row, size in enumerate(np.frombuffer(sizes, "<u8").tolist()):
            self._keys[row] = keys[at : at + size]
            at += size
        self._key_bits = dict(key_bits)
        self._in_hand = {}
        for consumer, bits in zip(self._consumers, self._bits, strict=True):
            self._count(consumer, bits.bit_count())
        self._rebuild_notes()

    # Rows

    def _columns(self) -> "tuple[array[int], ...]":
        return (
            self._tokens,
            self._queues,
            self._bases,
            self._attempts,
            self._consumers,
            self._deadlines,
        )

    def _set_columns(self, columns: "list[array[int]]") -> None:
        self._tokens, self._queues, self._bases = columns[:3]
        self._attempts, self._consumers, self._deadlines = columns[3:]

    def _row(self, token: int) -> int:
        row = bisect_left(self._tokens, token)
        is_there = row < len(self._tokens) and self._tokens[row] == token and self._bits[row]
        return row if is_there else -1

    def _part(self, row: int, bits: int) -> Piece:
        keys = self._keys[row]
        if len(keys) > KEY_BYTES:
            keys = pick(keys, self._key_bits[self._tokens[row]], bits)
        part = piece(self._bases[row], bits, self._attempts[row], keys)
        assert part is not None, "nothing of a lease"
        return part

    def _lease(self, row: int) -> Lease:
        messages = self._part(row, self._bits[row])
        return Lease(
            self._tokens[row],
            self._queues[row],
            messages,
            self._consumers[row],
            self._deadlines[row],
        )

    def _tidy_rows(self) -> None:
        if self._over_count > len(self) + _STALE_MIN:
            self._drop_rows()

    def _drop_rows(self) -> None:
        kept = np.fromiter(map(bool, self._bits), bool, len(self._bits))
        columns = [array("Q", _numbers(each)[kept].tobytes()) for each in self._columns()]
        self._set_columns(columns)
        self._keys = [keys for keys, bits in zip(self._keys, self._bits, strict=True) if bits]
        self._bits = [bits for bits in self._bits if bits]
        assert len(self._tokens) == len(self._bits) == len(self._keys), "columns out of step"
        self._over_count = 0
        self._by_consumer = np.empty(0, np.int64)

    # Notes

    def _note(self, token: int, deadline: int) -> None:
        tokens = self._due.get(deadline)
        if tokens is None:
            tokens = self._due[deadline] = array("Q")
            heappush(self._times, deadline)
        tokens.append(token)
        self._note_count += 1

    def _tidy_notes(self) -> None:
        if self._note_count > 2 * len(self) + _STALE_MIN:
            self._rebuild_notes()

    def _rebuild_notes(self) -> None:
        self._due = {}
        for token, deadline, bits in zip(self._tokens, self._deadlines, self._bits, strict=True):
            if bits:
                self._due.setdefault(deadline, array("Q")).append(token)
        self._times = list(self._due)
        heapify(self._times)
        self._note_count, self._in_order = len(self), -1

    def _row_due(self, token: int, deadline: int) -> int:
        """The row of the lease that a note is for; -1 if the lease is over, or ends at another
        time: a lease that ends later gets a new note."""
        row = self._row(token)
        if row < 0 or self._deadlines[row] == deadline:
            return row
        if self._deadlines[row] > deadline:
            self._note(token, self._deadlines[row])
        return -1

    def _drop_note(self, tokens: "array[int]") -> None:
        tokens.pop()
        self._note_count -= 1
        assert self._note_count >= 0, "more notes are dropped than were made"
        if not tokens:
            del self._due[heappop(self._times)]


def _numbers(column: "array[int]") -> "np.ndarray[Any, np.dtype[np.uint64]]":
    """A numpy view of a column; the view must be gone before the column grows."""
    return np.frombuffer(column, np.uint64) if column else np.empty(0, np.uint64)


def fenced(token: int) -> Refused:
    """The refusal of a call on a lease that is over."""
    message = f"lease {token} is no longer yours: its time ran out, or it is settled"
    return Refused(Reason.FENCED, message)
