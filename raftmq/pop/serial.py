"""A backlog in the order of its queue: one lease at a time, a run in the order of offsets.

    lease 10..19, acked 10 11, nack 12  →  12 waits, 13..19 come back; this attempt was not theirs
    12 is due                           →  lease 12, for the second time
    ack 12                              →  lease 13..19, for the first time

Whatever ends a part of a lease without success takes all that comes after it in the lease along: a
nack, a rejection, giving back, the deadline. Only the first that failed counts an attempt: those
behind it were not its fault. So a consumer drops the rest of a lease once it settled a message
otherwise than by an ack, and goes on with what it is handed next.

Invariants:
- While a message is leased, or waits, or is parked, nothing after it goes out.
- What goes out comes before all that came back and did not go out.

Left out: holding a consumer to the order within its lease. It has the messages in order; one that
acks the third and then fails the second gets the second alone.

Sources: RocketMQ's ConsumerOrderInfoManager (a queue is blocked by an un-acked offset), whose state
is written every ten seconds and forgotten at a change of master; here it is in the log.
"""

from bisect import bisect_left, insort
from typing import Any

from .backlog import Backlog
from .pieces import WIDTH_MAX, Piece, joined
from .windows import Fill


class SerialBacklog(Backlog):
    """What a group in queue order has not settled of one queue."""

    def __init__(self, begun: int, *, is_fed: bool = False, fill: Fill | None = None) -> None:
        super().__init__(begun, is_fed=is_fed, fill=fill)
        # What came back, by offset, in place of the backlog's own.
        self._pieces: list[Piece] = []
        # First offsets of what waits or is parked.
        self._blocks: list[int] = []

    @property
    def has_returned(self) -> bool:
        """Whether what came back may go out."""
        if self.leased or not self._pieces:
            return False
        return not self._blocks or self._pieces[0].base < self._blocks[0]

    @property
    def is_free(self) -> bool:
        """Whether something fresh may go out."""
        return not (self.leased or self._pieces or self._blocks)

    @property
    def may_serve(self) -> bool:
        """Whether a settlement may have made something go out that did not before."""
        return self.has_returned or self.is_free

    def has_some(self, end: int) -> bool:
        """Whether there may be something to hand out, given the queue's end."""
        return self.has_returned or (self.is_free and super().has_some(end))

    def take(self, count: int, end: int, *, is_full: bool = False) -> Piece | None:
        """The next run; None while one is out."""
        return None if self.leased else super().take(count, end, is_full=is_full)

    def _take_ready(self, count: int) -> Piece | None:
        if not self.has_returned:
            return None
        first = self._pieces.pop(0)
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

    def put_back(self, messages: Piece) -> None:
        """They are to be handed out again, in their place."""
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
        """They failed, and are in the way until they are done."""
        super().wait(messages)
        insort(self._blocks, messages.base)

    def wake(self, messages: Piece) -> None:
        """They waited and are due."""
        self._unblock(messages.base)
        super().wake(messages)

    def lose_waiting(self, messages: Piece) -> None:
        """Retention took them while they waited."""
        self._unblock(messages.base)
        super().lose_waiting(messages)

    def bury(self, messages: Piece, *, is_parked: bool) -> None:
        """They are in a dead letter now."""
        super().bury(messages, is_parked=is_parked)
        if is_parked:
            insort(self._blocks, messages.base)

    def unpark(self, messages: Piece, left: Piece | None) -> None:
        """A parked dead letter is being attended to; what is left of it is in the way."""
        self._unblock(messages.base)
        if left is not None:
            insort(self._blocks, left.base)

    def trim(self, earliest: int) -> None:
        """Retention: fresh messages and those that came back before an offset are gone."""
        super().trim(earliest)
        # A piece without its first messages may come after one that it came before.
        self._pieces = sorted(self._trimmed(self._pieces, earliest))

    def _unblock(self, base: int) -> None:
        del self._blocks[bisect_left(self._blocks, base)]

    def _dump_order(self) -> list[Any]:
        return [[list(each) for each in self._pieces], list(self._blocks)]

    def _load_order(self, values: list[Any]) -> None:
        pieces, self._blocks = values
        self._pieces = [Piece(*each) for each in pieces]
