"""The buffer: messages that were popped ahead, in the order in which they came.

A piece is neighbouring messages of one batch that belong to one lease. A lease that was lost or
given back since shows this in its bits: `take` passes over messages that are no longer buffered.

Invariants:
- `take` removes the messages that it returns: no message is handed out twice.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from raftmq.batch import Batch
from raftmq.client.slices import Slice
from raftmq.pop.spans import runs_of

from .leases import HeldLease


class Taken(NamedTuple):
    """Messages for the application."""

    part: Slice
    """The messages and their batch."""
    lease: HeldLease
    """The lease of the messages."""
    bits: int
    """The messages as bits of the lease."""


class _Piece:
    __slots__ = ("batch", "lease", "size", "start", "stop")

    def __init__(self, lease: HeldLease, batch: Batch, start: int, stop: int, size: int) -> None:
        self.lease = lease
        self.batch = batch
        self.start = start
        self.stop = stop
        self.size = size

    def mask(self) -> int:
        base = self.batch.base_offset
        return self.lease.mask(base + self.start, base + self.stop)


class PrefetchBuffer:
    """Messages that one consumer got from the brokers and has not handed on."""

    def __init__(self) -> None:
        self._pieces: deque[_Piece] = deque()
        self.bytes = 0
        """Bytes of the messages, estimated from the sizes of their batches."""
        self.counts: dict[int, int] = {}
        """Partition group → messages, including those that `take` will pass over."""

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def put(self, lease: HeldLease, batch: Batch, bits: int, size: int) -> None:
        """Add messages that came: those of `bits`, all of this batch of `size` bytes."""
        shift = lease.base - batch.base_offset
        count = bits.bit_count()
        per_message = size / len(batch)
        for start, stop in runs_of(bits):
            bytes_ = int(per_message * (stop - start))
            self._pieces.append(_Piece(lease, batch, start + shift, stop + shift, bytes_))
            self.bytes += bytes_
        self.counts[lease.group] = self.counts.get(lease.group, 0) + count

    def take(self, count: int, now: float, give_back: Callable[[HeldLease], None]) -> list[Taken]:
        """Up to `count` messages; leases with too little time left are given back instead."""
        taken: list[Taken] = []
        pieces = self._pieces
        while pieces and count > 0:
            piece = pieces[0]
            lease, batch, start = piece.lease, piece.batch, piece.start
            if lease.stale_at <= now and lease.buffered:
                give_back(lease)
            mask = piece.mask()
            if lease.buffered & mask != mask:
                self._pass_over(piece, mask)
                continue
            stop = piece.stop
            if stop - start > count:
                stop = start + count
                mask = lease.mask(batch.base_offset + start, batch.base_offset + stop)
                piece.start = stop
                self.counts[lease.group] -= count
            else:
                pieces.popleft()
                self._forget(piece)
            lease.buffered ^= mask
            count -= stop - start
            taken.append(Taken(Slice(batch, start, stop, lease.queue_number), lease, mask))
        return taken

    def take_one(self, now: float, give_back: Callable[[HeldLease], None]) -> Taken | None:
        """The next message, if there is one: `take` for a single message, at less cost."""
        pieces = self._pieces
        while pieces:
            piece = pieces[0]
            lease, batch, start = piece.lease, piece.batch, piece.start
            if lease.stale_at <= now and lease.buffered:
                give_back(lease)
            bit = 1 << (batch.base_offset + start - lease.base)
            if not lease.buffered & bit:
                self._pass_over(piece, piece.mask())
                continue
            lease.buffered ^= bit
            if start + 1 < piece.stop:
                piece.start = start + 1
                self.counts[lease.group] -= 1
            else:
                pieces.popleft()
                self._forget(piece)
            return Taken(Slice(batch, start, start + 1, lease.queue_number), lease, bit)
        return None

    def leases(self) -> list[HeldLease]:
        """The leases with buffered messages, in order."""
        found = dict.fromkeys(piece.lease for piece in self._pieces)
        return [lease for lease in found if lease.buffered]

    def sweep(self) -> None:
        """Drop the pieces that `take` would pass over."""
        for piece in list(self._pieces):
            if not piece.lease.buffered & piece.mask():
                self._pieces.remove(piece)
                self._forget(piece)

    def clear(self) -> None:
        """Drop all messages."""
        self._pieces.clear()
        self.counts.clear()
        self.bytes = 0

    def _pass_over(self, piece: _Piece, mask: int) -> None:
        """Replace the first piece by its messages that are still buffered."""
        self._pieces.popleft()
        self._forget(piece)
        lease, batch = piece.lease, piece.batch
        shift = lease.base - batch.base_offset
        left = list(runs_of(lease.buffered & mask))
        for start, stop in reversed(left):
            self._pieces.appendleft(_Piece(lease, batch, start + shift, stop + shift, 0))
            self.counts[lease.group] += stop - start

    def _forget(self, piece: _Piece) -> None:
        self.bytes -= piece.size
        self.counts[piece.lease.group] -= piece.stop - piece.start
