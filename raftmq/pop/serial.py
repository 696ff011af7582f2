"""A backlog in the order of its queue: one lease at a time, a run in the order of offsets.

    lease 10..19, acked 10 11, nack 12  →  12 waits, 13..19 come back; this attempt was not theirs
    12 is due                           →  lease 12, for the second time
    ack 12                              →  lease 13..19, for the first time

A nack, a rejection, a give-back and the deadline end the lease of a message, and of all messages
behind it in the lease. Only the first failed message counts an attempt: the ones behind it did not
fail. So a consumer drops the rest of a lease once it has settled a message otherwise than by an
ack, and goes on with its next lease.

Invariants:
- While a message is leased, or waits, or is parked, nothing after it goes out.
- A message that goes out stands before all that came back and did not go out.

Left out: holding a consumer to the order within its lease. A consumer that acks the third message
and then fails the second gets the second alone.

Sources: RocketMQ's ConsumerOrderInfoManager (a queue is blocked by an un-acked offset), whose state
is written every ten seconds and forgotten at a change of master; here it is in the log.
"""

from bisect import bisect_left, insort
from typing import Any

from .backlog import Backlog
from .pieces import WIDTH_MAX, Piece, joined
from .windows import Fill


class SerialBacklog(Backlog):
    """One queue's messages that a group in queue order has not settled."""

    def __init__(self, begun: int, *, is_fed: bool = False, fill: Fill | None = None) -> None:
        super().__init__(begun, is_fed=is_fed, fill=fill)
        # Messages that came back, by offset; the base class's `_ready` stays empty.
        self._pieces: list[Piece] = []
        # First offsets of pieces that wait or are parked, rising.
        self._blocks: list[int] = []

    @property
    def has_returned(self) -> bool:
        """Whether messages that came back may go out."""
        if self.leased or not self._pieces:
            return False
        return not self._blocks or self._pieces[0].base < self._blocks[0]

    @property
    def is_free(self) -> bool:
        """Whether fresh messages may go out: none before them is in hand, came back or waits."""
        return not (self.leased or self._pieces or self._blocks)

    @property
    def may_serve(self) -> bool:
        """Whether a settlement may have freed messages to go out."""
        return self.has_returned or self.is_free

    def has_some(self, end: int) -> bool:
        """Whether there may be messages to hand out, given the queue's end."""
        return self.has_returned or (self.is_free and super().has_some(end))

    def take(self, count: int, end: int, *, is_full: bool = False) -> Piece | None:
        """The next run of messages; None while a run is out."""
        taken = None if self.leased else super().take(count, end, is_full=is_full)
        is_next = taken is None or not self._blocks or taken.base < self._blocks[0]
        assert is_next, f"messages pass the block at {self._blocks[0]}"
        return taken

    def _take_ready(self, count: int) -> Piece | None:
        if not self.has_returned:
            return None
        first = self._pieces.pop(0)
        # The run ends where another piece or a block begins: messages go out by offset.
        stops = [each.base for each in self._pieces[:1]] + self._blocks[:1]
        taken, rest = first.before(min(stops, default=first.stop))
        assert taken is not None, "pieces begin at different offsets"
        taken, more = taken.split(count)
        for each in (more, rest):
            if each is not None:
                insort(self._pieces, each)
        return taken

    def _take_fresh(self, count: int, end: int) -> Piece | None:
        return super()._take_fresh(count, end) if self.is_free else None

    def heads(self, messages: Piece) -> tuple[Piece, Piece | None]:
        """Of messages whose lease ended without an ack: the first one failed, and the others stand
        behind it."""
        return messages.split(1)

    def behind(self, taken: Piece, left: Piece) -> Piece | None:
        """Of the messages that are left in a lease: all behind the first one taken."""
        return left.before(taken.base)[1]

    def put_back(self, messages: Piece) -> None:
        """The messages go out again, in their place by offset."""
        self.ready += messages.size
        at = bisect_left(self._pieces, messages)
        for near in (at, at - 1):
            if 0 <= near < len(self._pieces):
                both = joined(self._pieces[near], messages, width_max=WIDTH_MAX)
                if both is not None:
                    self._pieces[near] = both
                    return
        self._pieces.insert(at, messages)

    def wait(self, messages: Piece) -> None:
        """The messages failed, and hold up the queue until their turn ends."""
        super().wait(messages)
        self._block(messages.base)

    def wake(self, messages: Piece) -> None:
        """The messages waited and are due."""
        self._unblock(messages.base)
        super().wake(messages)

    def lose_waiting(self, messages: Piece) -> None:
        """Retention removed the messages while they waited."""
        self._unblock(messages.base)
        super().lose_waiting(messages)

    def bury(self, messages: Piece, *, is_parked: bool) -> None:
        """The messages are in a dead letter now; a parked one holds up the queue."""
        super().bury(messages, is_parked=is_parked)
        if is_parked:
            self._block(messages.base)

    def unpark(self, messages: Piece, left: Piece | None) -> None:
        """A parked dead letter that held `messages` now holds `left`, which blocks the queue."""
        self._unblock(messages.base)
        if left is not None:
            self._block(left.base)

    def trim(self, earliest: int) -> None:
        """Retention: fresh messages and those that came back before an offset are gone."""
        super().trim(earliest)
        # A piece that lost its first messages may now stand behind one that it stood before.
        self._pieces = sorted(self._trimmed(self._pieces, earliest))

    def _block(self, base: int) -> None:
        assert base < self.next, f"{base} blocks and never went out"
        insort(self._blocks, base)

    def _unblock(self, base: int) -> None:
        at = bisect_left(self._blocks, base)
        # Without a look, the end of this block would let messages pass another one.
        assert self._blocks[at : at + 1] == [base], f"{base} does not block: {self._blocks}"
        del self._blocks[at]

    def _dump_order(self) -> list[Any]:
        return [[list(each) for each in self._pieces], list(self._blocks)]

    def _load_order(self, values: list[Any]) -> None:
        pieces, self._blocks = values
        self._pieces = [Piece(*each) for each in pieces]
