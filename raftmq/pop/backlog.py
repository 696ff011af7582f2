"""A backlog: what one consumer group has not settled of one queue.

    offset   0 ....... 100 101 102 103 104 105 106 ... 130
             acked     ^waits  ^leased ^acked  ^next       ^end
             or dead    (a retry that is not due)          (of the queue)

| a message is | when it is | kept in |
|---|---|---|
| fresh | at or after `next`: never handed out | - , or what is known of it in the `window` |
| leased | in the hand of a consumer | `leases` |
| waiting | in a retry that is not due | `retries` |
| ready | in a retry that is due: handed out before all that is fresh | here |
| held | kept back for the sake of order | `keyed` |
| dead | in a dead letter | `groups` |
| acked, passed, purged, lost | in none of these, before `next` | - |

A retry stays in place: the message keeps its offset and is never written a second time. This
backlog knows no order; `keyed` and `serial` are backlogs that keep one.

Invariants:
- Each offset before `next` is in exactly one state, and the counts say how many are in which;
  messages that resets jumped over, forward or back, are counted apart (`jumped`).
- With a window, the message at `next` matches, or nothing is known of it.

Sources: RocketMQ copies a retry to a topic of its own, and loses it between two writes (#10985,
#7914) or revives the next message (#7724); RabbitMQ's rabbit_fifo keeps returns in the machine.
"""

from collections import deque
from typing import Any, NamedTuple

from .pieces import WIDTH_MAX, Piece, joined
from .windows import Fill, Window


class Counts(NamedTuple):
    """How many messages of a queue are in each state, of those before `next`.

    Snapshots hold the counts in this order. `BacklogView` on the wire and `Backlog` of the client
    have the same names, with `held` in `ready`: a client only sees that such a message is to come.
    """

    leased: int
    """In the hand of a consumer."""
    waiting: int
    """Failed, and not due for a retry yet."""
    ready: int
    """Came back, and go out before fresh messages."""
    dead: int
    """In dead letters."""
    acked: int
    """Acknowledged."""
    passed: int
    """Did not match the filter."""
    lost: int
    """Taken by retention before they were settled."""
    purged: int = 0
    """Thrown away as dead letters."""
    held: int = 0
    """Kept back for the sake of order: never handed out, or back from a lease."""


class Backlog:
    """One queue's messages that the group has not settled."""

    is_keyed = False
    """Whether the window needs the keys' hashes."""

    def __init__(self, begun: int, *, is_fed: bool = False, fill: Fill | None = None) -> None:
        self._fill = fill or Fill()
        self.begun = begun
        """The offset at which the group began to read."""
        self.jumped = 0
        """Messages that resets passed over, less those that they brought back."""
        self.next = begun
        """The first offset that was not looked at; `counts` covers the offsets before it."""
        self.window = self._new_window() if is_fed else None
        """Matches and keys of messages from `next` on; None: the group needs neither."""
        self.earliest = 0
        """The first offset that retention keeps, as far as the log says."""
        self.leased = self.waiting = self.ready = self.dead = 0
        self.acked = self.passed = self.lost = self.purged = 0
        self._ready: deque[Piece] = deque()

    @property
    def held(self) -> int:
        """Messages kept back for the sake of order."""
        return 0

    @property
    def counts(self) -> Counts:
        """Messages in each state."""
        return Counts(
            leased=self.leased,
            waiting=self.waiting,
            ready=self.ready,
            dead=self.dead,
            acked=self.acked,
            passed=self.passed,
            lost=self.lost,
            purged=self.purged,
            held=self.held,
        )

    def replace(self, before: "Backlog", dead: int) -> None:
        """Take the place of a backlog that a reset ended: counts of settled messages go on, and
        `dead` messages stay in dead letters."""
        # All windows of the group share one fill: the old window must give its part back.
        if before.window is not None:
            before.window.cut(before.window.width)
        self.begun, self.earliest, self.dead = before.begun, before.earliest, dead
        self.acked, self.passed = before.acked, before.passed
        self.lost, self.purged = before.lost, before.purged
        assert dead <= before.dead, "a reset makes messages dead"
        self.jumped = self.next - self.begun - sum(self.counts)

    # Feeds

    @property
    def known(self) -> int:
        """The offset up to which the window describes all messages; without a window, `next`."""
        return self.next if self.window is None else self.next + self.window.width

    def feed(self, base: int, count: int, mask: int | None, keys: bytes | None) -> tuple[int, int]:
        """Take in the leader's description of messages from `known` on: how many were taken, and
        which of them do not match, as bits."""
        # A feed that a former leader made, or that comes a second time, continues nothing.
        if self.window is None or base != self.known:
            return 0, 0
        count = self.window.feed(count, mask, keys)
        self._skip()
        assert self.known == base + count, f"{count} messages from {base} on lead to {self.known}"
        return count, 0 if mask is None else ~mask & (1 << count) - 1

    def wants_feed(self, end: int) -> bool:
        """Whether the window is low and the queue goes on behind it."""
        return self.window is not None and self.window.is_low and self.known < end

    def set_fed(self, is_fed: bool) -> None:
        """Open a window, or go on without one."""
        if self.window is None and is_fed:
            self.window = self._new_window()
        elif self.window is not None and not is_fed:
            self.window.cut(self.window.width)
            self.window = None

    def set_filtered(self, is_filtered: bool) -> None:
        """The first filter came, or the filter went: the leader must feed the window again."""
        if self.window is not None:
            self.window.cut(self.window.width)

    def _new_window(self) -> Window:
        return Window(self._fill, is_keyed=self.is_keyed)

    # Hand-out

    @property
    def has_returned(self) -> bool:
        """Whether messages that came back, or were held, may go out."""
        return bool(self._ready)

    @property
    def may_serve(self) -> bool:
        """Whether a settlement may have freed messages to go out."""
        return self.has_returned

    def has_some(self, end: int) -> bool:
        """Whether there may be messages to hand out, given the queue's end."""
        if self.window is not None:
            return self.has_returned or bool(self.window.mask)
        return self.has_returned or self.next < end

    def take(self, count: int, end: int, *, is_full: bool = False) -> Piece | None:
        """The next messages to hand out, at most `count`: retries that are due, or fresh ones if
        the group is not full. Their attempt includes this hand-out."""
        assert count > 0, "a hand-out of no messages"
        taken = self._take_ready(count)
        if taken is not None:
            self.ready -= taken.size
            assert self.ready >= 0, "more messages go out again than came back"
        elif not is_full:
            taken = self._take_fresh(count, end)
        if taken is None:
            return None
        assert taken.base < self.next, "a message goes out that was not looked at"
        self.leased += taken.size
        return taken._replace(attempt=taken.attempt + 1)

    def _take_ready(self, count: int) -> Piece | None:
        if not self._ready:
            return None
        taken = self._ready.popleft()
        while self._ready and taken.size < count:
            both = joined(taken, self._ready[0])
            if both is None:
                break
            taken = both
            self._ready.popleft()
        taken, rest = taken.split(count)
        if rest is not None:
            self._ready.appendleft(rest)
        return taken

    def _take_fresh(self, count: int, end: int) -> Piece | None:
        if self.window is not None:
            return self._take_known(count, self.window)
        count = min(count, end - self.next, WIDTH_MAX)
        if count <= 0:
            return None
        taken = Piece(self.next, (1 << count) - 1)
        self.next += count
        return taken

    def _take_known(self, count: int, window: Window) -> Piece | None:
        if not window.mask:
            return None
        found, _ = Piece(self.next, window.mask).split(count)
        width = found.bits.bit_length()
        window.cut(width)
        self.next += width
        self.passed += width - found.size
        self._skip()
        return found

    def _skip(self) -> None:
        assert self.window is not None
        skipped = self.window.skip()
        self.next += skipped
        self.passed += skipped
        assert self.window.mask & 1 or not self.window.width, "the next message does not match"

    # The fate of messages that went out

    def heads(self, messages: Piece) -> tuple[Piece, Piece | None]:
        """Of messages whose lease ended without an ack: those that failed, and those that only
        stand behind a failed one."""
        return messages, None

    def apart(self, messages: Piece) -> tuple[Piece | None, Piece | None]:
        """Of messages that failed: those that wait for their delay, and those that wait for earlier
        ones instead."""
        return messages, None

    def behind(self, taken: Piece, left: Piece) -> Piece | None:
        """Of the messages that are left in a lease: those that end with what was taken out of it,
        otherwise than by an ack."""
        return None

    def put_back(self, messages: Piece) -> None:
        """The messages go out again, after those that are ready."""
        assert messages.base < self.next, "messages come back that never went out"
        self.ready += messages.size
        both = joined(self._ready[-1], messages) if self._ready else None
        if both is None:
            self._ready.append(messages)
        else:
            self._ready[-1] = both

    def wait(self, messages: Piece) -> None:
        """The messages failed and are not due yet."""
        assert messages.attempt > 0, "messages wait that never went out"
        self.waiting += messages.size

    def wake(self, messages: Piece) -> None:
        """The messages waited and are due."""
        self.waiting -= messages.size
        assert self.waiting >= 0, "more messages wake than waited"
        self.put_back(messages)

    def ack(self, messages: Piece) -> None:
        """The messages are acknowledged."""
        self.acked += messages.size
        self.end_turn(messages)

    def bury(self, messages: Piece, *, is_parked: bool) -> None:
        """The messages are in a dead letter now; a parked letter holds up those that follow it."""
        self.dead += messages.size
        if not is_parked:
            self.end_turn(messages)

    def redrive(self, messages: Piece, *, is_parked: bool, is_old: bool) -> None:
        """The messages left their dead letter, to go out as if for the first time.

        Args:
            messages: with the attempt 0.
            is_parked: whether the letter held up messages.
            is_old: by the rule of old records, see `keyed`.
        """
        self.dead -= messages.size
        assert self.dead >= 0, "more messages are redriven than are dead"
        self.put_back(messages)

    def purge(self, messages: Piece, *, is_parked: bool) -> None:
        """The messages left their dead letter, and are thrown away."""
        self.dead -= messages.size
        self.purged += messages.size
        assert self.dead >= 0, "more messages are purged than are dead"
        if is_parked:
            self.end_turn(messages)

    def unpark(self, messages: Piece, left: Piece | None) -> None:
        """A parked dead letter that held `messages` now holds only `left`; None: it is gone."""

    def lose_dead(self, messages: Piece, *, is_parked: bool) -> None:
        """The messages left their dead letter, but retention had removed them."""
        self.dead -= messages.size
        self.lost += messages.size
        assert self.dead >= 0, "more dead messages are lost than there are"
        if is_parked:
            self.end_turn(messages)

    def lose(self, messages: Piece) -> None:
        """Retention removed the messages."""
        self.lost += messages.size
        self.end_turn(messages)

    def lose_waiting(self, messages: Piece) -> None:
        """Retention removed the messages while they waited."""
        self.waiting -= messages.size
        assert self.waiting >= 0, "more waiting messages are lost than there are"
        self.lose(messages)

    def end_turn(self, messages: Piece) -> None:
        """The messages hold up no other message now: for backlogs that keep an order."""

    def occupy(self, messages: Piece, *, is_parked: bool = False) -> None:
        """After a restart: the messages went out, and their turn has not ended."""

    def trim(self, earliest: int) -> None:
        """Retention: fresh and ready messages before an offset are gone."""
        self.earliest = max(self.earliest, earliest)
        self._trim_fresh(earliest)
        assert self.next >= earliest, "a message that retention removed is fresh"
        ready, self._ready = self._ready, deque()
        kept = self._trimmed(ready, earliest)
        # The end of a turn may have made others ready.
        self._ready.extendleft(reversed(kept))

    def _trim_fresh(self, earliest: int) -> None:
        gone = earliest - self.next
        if gone <= 0:
            return
        self.next = earliest
        if self.window is None:
            self.lost += gone
            return
        # A message that does not match was never the group's: it is passed, not lost.
        known = min(gone, self.window.width)
        matched = self.window.cut(known).bit_count()
        self.passed += known - matched
        self.lost += gone - known + matched
        self._skip()

    def _trimmed(self, pieces: "deque[Piece] | list[Piece]", earliest: int) -> list[Piece]:
        parts = [each.before(earliest) for each in pieces]
        for gone, _ in parts:
            if gone is not None:
                self.ready -= gone.size
                self.lose(gone)
        assert self.ready >= 0, "more messages are lost than came back"
        return [kept for _, kept in parts if kept is not None]

    # As plain values

    def dump(self) -> list[Any]:
        """The backlog as plain values."""
        return [
            self.begun,
            self.next,
            self.earliest,
            list(self.counts),
            [list(each) for each in self._ready],
            None if self.window is None else self.window.dump(),
            self._dump_order(),
            self.jumped,
        ]

    def load(self, values: list[Any]) -> None:
        """Take the state that `dump` gave."""
        self.begun, self.next, self.earliest, counts, ready, window, order, *more = values
        # Snapshots of older software have no count of resets.
        self.jumped = more[0] if more else 0
        self._load_counts(Counts(*counts))
        self._ready = deque(Piece(*each) for each in ready)
        self.window = None if window is None else Window.load(window, self._fill)
        self._load_order(order)

    def _load_counts(self, counts: Counts) -> None:
        self.leased, self.waiting, self.ready, self.dead = counts[:4]
        self.acked, self.passed, self.lost, self.purged = counts[4:8]

    def _dump_order(self) -> list[Any]:
        return []

    def _load_order(self, values: list[Any]) -> None:
        assert not values
