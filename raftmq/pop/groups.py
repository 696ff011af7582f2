"""A consumer group that pops: leases with deadlines, retries in place, dead letters. No rebalance.

Consumers get *credit* for messages. The group hands out available messages at once; the rest of the
credit stands until its time is over, and is served in the very record that brings something: a
batch, a retry that falls due, a lease that runs out. So a delivery costs no record of its own, and
no consumer owns a queue: a consumer that hangs holds up the messages in its hand and nothing else.

| call | effect on messages |
|---|---|
| `feed` | the leader describes fresh messages; those that do not match → passed |
| `ask`, `hand_out` | fresh or ready → leased, or held for the sake of order |
| `ack` | leased → acked |
| `nack` | leased → waiting (by the schedule, or as long as told), or dead after the last attempt |
| `reject` | leased → dead |
| `give_back` | leased → ready; the attempt does not count |
| `extend` | the lease runs longer |
| `pass_time` | leases that ran out: as nack; retries that fell due: waiting → ready |
| `redrive`, `purge` | dead → ready as new, or lost; dead → purged |
| `reset` | any but dead → skipped, or fresh again; dead ones from there on, too |
| `trim` | any but dead → lost: retention took it, and it is counted |

Three kinds of backlogs: without order (`backlog`), by key (`keyed`), by queue (`serial`). In an
ordered group a dead letter ends its message's turn, unless the policy is blocking: then it is
*parked*, and messages that follow it in order wait until an operator redrives or purges it.

Invariants:
- Conservation: each message that was ever looked at is in exactly one state; `audit` checks that.
- While a lease runs, no other consumer gets its messages; only its consumer and token settle them.
- An acked message is never handed out again.
- The state is bounded: with `PIECES_MAX` leases, retries and dead letters, or `LETTERS_MAX` dead
  letters, nothing fresh goes out until some are settled, redriven or purged.

Left out: broadcast.

Sources: RabbitMQ's rabbit_fifo (hand-out inside the apply of any command, while there is credit);
RocketMQ's POP (no rebalance); Kafka's share groups (KIP-932), which replicate no acquisition.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec

from raftmq.errors import Reason
from raftmq.log.traces import BEFORE, FROM, MessageEvent
from raftmq.results import Changed, Refused, Result

from .backlog import Backlog, Counts
from .backlogs import Backlogs
from .credit import Credit, Credits
from .dead_letters import DeadLetter, keep_before, no_letter
from .keyed import KeyedBacklog
from .leases import CONSUMER_MAX, Handed, Lease, Leases, fenced
from .message_events import EventKind
from .pieces import Piece, joined_by_queue
from .policy import INVISIBLE_MS_MAX, Mode, Order, Policy
from .retries import Retries
from .serial import SerialBacklog
from .spans import Span, span, told
from .windows import Fill

EXPIRIES_MAX = 2_500
"""Leases taken back in one step: a million that run out at once must not stop the loop."""
HANDED_MAX = 4096
"""Leases opened in one step, for the same reason; the next record opens the rest."""
CREDIT_MAX = 65_536
"""Messages that one consumer has credit for; a larger count is cut down to this one."""
PIECES_MAX = 1 << 20
"""Leases, retries and dead letters of a group, beyond which nothing fresh goes out."""
LETTERS_MAX = 100_000
"""Dead letters beyond which nothing fresh goes out: each may have a long reason."""

By = tuple[int, int]
"""The consumer that settles, and the token of its lease."""
NO_CONSUMER: By = (0, 0)


class PopGroup:
    """One consumer group's state in one partition group."""

    def __init__(self, policy: Policy, mode: Mode = Mode.POP, is_filtered: bool = False) -> None:
        self.policy = policy
        """Rules for leases, retries and dead letters; another policy changes all but `order`."""
        self.mode = mode
        """How the group is served; only `Mode.ORDERED` keeps an order."""
        self.is_filtered = is_filtered
        """Whether a filter chooses the group's messages."""
        self.backlogs = Backlogs(self._backlog)
        """Queue → the messages of the queue that are not settled."""
        self.dead: dict[int, DeadLetter] = {}
        """Dead letters by number; numbers grow, and none is used twice."""
        self.buried = 0
        """Dead letters so far: the number of the newest."""
        self.events: list[MessageEvent] = []
        """Events of messages since `PopGroups` last took them."""
        self.order = policy.order if mode is Mode.ORDERED else None
        """Which messages go out in order; None: the group keeps no order."""
        self.credits = Credits()
        """Consumers that wait for messages, and how many each may get."""
        self._leases = Leases()
        self._retries = Retries()
        self._fill = Fill()
        # Queues that may have something to hand out, in order of turns.
        self._open: OrderedDict[int, None] = OrderedDict()
        # Queues that may want to be fed; no other queue does.
        self._underfed: dict[int, None] = {}
        self._was_crowded = False
        # When the last hand-out was cut short; None: it was complete.
        self._cut_at: int | None = None

    # Calls for the queues

    def follow(self, queue: int, start: int) -> None:
        """Read a queue from an offset on. Nothing changes if the group reads it already."""
        if queue not in self.backlogs:
            self.begin({queue: start})

    def begin(self, starts: Mapping[int, int]) -> None:
        """Read queues from these offsets on, which the group does not read yet."""
        self.backlogs.begin(starts)
        self._came_all(starts)

    def _backlog(self, start: int) -> Backlog:
        if self.order is Order.KEY:
            return KeyedBacklog(start, self.policy.run, fill=self._fill)
        kind = Backlog if self.order is None else SerialBacklog
        return kind(start, is_fed=self.is_filtered, fill=self._fill)

    def came(self, queue: int) -> None:
        """A queue has new messages."""
        if queue in self.backlogs:
            self._open[queue] = None
            if self.is_fed:
                self._underfed[queue] = None

    def _came_all(self, queues: Iterable[int]) -> None:
        # A third of the time of `OrderedDict.update`.
        for queue in queues:
            self._open[queue] = None
        if self.is_fed:
            self._underfed.update(dict.fromkeys(queues))

    def trim(self, queue: int, earliest: int) -> None:
        """Retention removed a queue's messages before the offset `earliest`."""
        backlog = self.backlogs.get(queue)
        if backlog is None:
            return
        self.events.append(MessageEvent(EventKind.TRIMMED, queue, earliest, BEFORE))
        backlog.trim(earliest)
        # The counters spare a scan of all leases and retries of the group.
        if backlog.leased:
            for gone in self._leases.drop_before(queue, earliest):
                backlog.leased -= gone.size
                assert backlog.leased >= 0, "more leased messages are lost than there are"
                backlog.lose(gone)
        if backlog.waiting:
            for gone in self._retries.drop_before(queue, earliest):
                backlog.lose_waiting(gone)
        self.came(queue)

    # Feeds of the leader

    @property
    def is_fed(self) -> bool:
        """Whether the leader must feed the group each message's match and key."""
        return self.is_filtered or self.order is Order.KEY

    def set_filtered(self, is_filtered: bool) -> None:
        """The group's filter was set, replaced or removed. A replacement holds for later messages;
        a first filter, and the removal, hold for all messages that were not handed out."""
        has_turned, self.is_filtered = is_filtered != self.is_filtered, is_filtered
        # Nothing was fed to the others: their windows are made as the filter is by then.
        for queue, backlog in self.backlogs.made():
            # Messages ahead of the consumers may be traced as passed: they are fresh again.
            if has_turned and not is_filtered and backlog.known > backlog.next:
                self.events.append(MessageEvent(EventKind.UNFILTERED, queue, backlog.next, FROM))
            if has_turned:
                backlog.set_filtered(is_filtered)
            backlog.set_fed(self.is_fed)
        self._came_all(self.backlogs)

    def known(self, queue: int) -> int:
        """The offset up to which all of a queue is known; without a window, the next fresh one."""
        backlog = self.backlogs.get(queue)
        return 0 if backlog is None else backlog.known

    def feed(
        self, queue: int, base: int, count: int, *, mask: int | None, keys: bytes | None
    ) -> int:
        """Describe `count` messages of a queue, from `base` on, which must equal `known`.

        Args:
            mask: Bit n says that the message at `base + n` matches; None: all do.
            keys: The hash of each message's key, four bytes little-endian, 0: the message has none;
                empty or None: no message has a key.

        Returns:
            How many messages were taken in: fewer if the window is full. 0: nothing changed.
        """
        backlog = self.backlogs.get(queue)
        fed, missed = (0, 0) if backlog is None else backlog.feed(base, count, mask, keys)
        if fed:
            self.came(queue)
            if (passed := span(base, missed)) is not None:
                self.events.append(MessageEvent(EventKind.PASSED, queue, passed.base, passed.bits))
        return fed

    def wants_feed(self, ends: Mapping[int, int]) -> list[tuple[int, int]]:
        """Queues of which too little is known, each with the offset to feed from; the first
        `FED_QUEUES_MAX` by number."""
        if self._was_crowded and not self._fill.is_crowded:
            self._underfed = dict.fromkeys(self.backlogs)
        self._was_crowded = self._fill.is_crowded
        return self.backlogs.feeds(self._underfed, ends)

    # Calls of consumers

    def ask(
        self,
        consumer: int,
        count: int,
        *,
        invisible_ms: int,
        until: int,
        is_kept: bool = False,
        now: int = 0,
    ) -> None:
        """A consumer wants up to `count` messages until a time; its last credit is void.

        Unless the credit is kept, the first hand-out that takes from it ends it, even with fewer
        than `count` messages. A count of 0, or a consumer's number outside 1 to `CONSUMER_MAX`,
        only drops the last credit. `invisible_ms` is cut to its limit; 0 takes the policy's value.
        """
        if count <= 0 or not 0 < consumer <= CONSUMER_MAX:
            self.credits.drop(consumer)
            return
        invisible_ms = invisible_ms if invisible_ms > 0 else self.policy.invisible_ms
        invisible_ms = min(max(invisible_ms, 1), INVISIBLE_MS_MAX)
        credit = Credit(min(count, CREDIT_MAX), invisible_ms, until, is_kept)
        self.credits.put(consumer, credit, now)

    def hand_out(
        self,
        ends: Mapping[int, int],
        now: int,
        next_token: Callable[[], int],
        room: int | None = None,
    ) -> list[Handed]:
        """Serve the credit, in `room` leases at the most; consumers and queues take turns."""
        self._cut_at = None
        if not self.credits or not self._open:
            return []
        handed: list[Handed] = []
        served, stalled = dict[int, None](), list[int]()
        is_full = self.is_full
        limit = HANDED_MAX if room is None else min(HANDED_MAX, room)
        while self._open and (turn := self.credits.first(now)) is not None:
            if len(handed) >= limit:
                # A timer for now: the rest must go out even if no other record comes.
                self._cut_at = now
                break
            self.backlogs.drop_idle(self._open, ends, is_fed=self.is_fed)
            if not self._open:
                break
            consumer, credit = turn
            queue = next(iter(self._open))
            backlog, end = self.backlogs[queue], ends.get(queue, 0)
            messages = backlog.take(credit.size, end, is_full=is_full)
            if messages is not None:
                handed.append(self._hand(consumer, credit, queue, messages, now, next_token()))
                served[consumer] = None
            if messages is not None and backlog.has_some(end):
                self._open.move_to_end(queue)
            else:
                # `came` or `_reopen` opens it again.
                del self._open[queue]
                # Set aside: a full group hands out nothing fresh, and this loop would not end.
                if is_full and backlog.has_some(end):
                    stalled.append(queue)
            if self.is_fed:
                # Its window is lower now.
                self._underfed[queue] = None
        self.credits.end_hand_out(served)
        self._open.update(dict.fromkeys(stalled))
        return handed

    def _hand(
        self, consumer: int, credit: Credit, queue: int, messages: Piece, now: int, token: int
    ) -> Handed:
        deadline = now + credit.invisible_ms
        self._leases.open(Lease(token, queue, messages, consumer, deadline))
        self.credits.serve(consumer, credit, messages.size)
        self._note(EventKind.HANDED, queue, messages, (consumer, token), deadline)
        return Handed(consumer, token, queue, messages.span, deadline)

    def ack(self, consumer: int, token: int, messages: Span, now: int) -> Result:
        """A consumer acknowledges these messages of a lease."""

        def acked(queue: int, taken: Piece) -> None:
            self._note(EventKind.ACKED, queue, taken, (consumer, token))
            self.backlogs[queue].ack(taken)

        return self._settle(consumer, token, messages, now, acked, is_success=True)

    def nack(
        self, consumer: int, token: int, messages: Span, now: int, *, delay_ms: int | None = None
    ) -> Result:
        """These messages of a lease failed: retry them after a delay; None: by the schedule."""
        by = (consumer, token)
        settled = partial(self._failed, reason="failed", now=now, delay_ms=delay_ms, by=by)
        return self._settle(consumer, token, messages, now, settled)

    def reject(self, consumer: int, token: int, messages: Span, now: int, *, reason: str) -> Result:
        """These messages of a lease can never succeed: they are a dead letter at once."""
        settled = partial(self._bury, reason=reason, now=now, by=(consumer, token))
        return self._settle(consumer, token, messages, now, settled)

    def give_back(self, consumer: int, token: int, messages: Span, now: int) -> Result:
        """These messages of a lease were not begun: any consumer may have them."""
        settled = partial(self._not_begun, by=(consumer, token))
        return self._settle(consumer, token, messages, now, settled)

    def extend(self, consumer: int, token: int, now: int, *, invisible_ms: int) -> Result:
        """A lease runs `invisible_ms` from now on; the result is its new deadline."""
        row = self._leases.find(token, consumer, now)
        if row is None:
            return fenced(token)
        if not 0 < invisible_ms <= INVISIBLE_MS_MAX:
            message = f"a lease runs for 1 to {INVISIBLE_MS_MAX} ms from now, not {invisible_ms}"
            return Refused(Reason.BAD_ARGUMENT, message)
        held, queue, until = self._leases.held(row), self._leases.queue(row), now + invisible_ms
        assert held is not None, "a lease was found that is over"
        self._leases.extend(row, until)
        self._note(EventKind.EXTENDED, queue, held, (consumer, token), until)
        return Changed(until)

    def leave(self, consumer: int) -> None:
        """A consumer wants no more. Its leases stay until they are settled or run out."""
        self.credits.drop(consumer)

    def held_by(self, consumer: int, now: int) -> Iterator[Handed]:
        """A consumer's leases that run; a consumer that resumes is sent all of them."""
        for token, queue, held, deadline in self._leases.of_consumer(consumer, now):
            yield Handed(consumer, token, queue, held, deadline)

    def still_held(self, handed: Handed, now: int) -> Handed | None:
        """See `Leases.still_held`."""
        return self._leases.still_held(handed, now)

    def in_flight(self, now: int) -> int:
        """Messages in the hands of consumers, and those that they have credit for."""
        return self._leases.all_in_hand + self.credits.running(now)

    def in_flight_to(self, consumer: int, now: int) -> tuple[int, int]:
        """The two parts of `in_flight` for one consumer: in its hand, and its credit."""
        return self._leases.in_hand(consumer), self.credits.running_of(consumer, now)

    def held_until(self, consumer: int, token: int, messages: Span, now: int) -> int | None:
        """When the lease on all of these messages ends; None: not all are in this hand."""
        return self._leases.held_until(token, consumer, messages, now)

    # Time

    @property
    def next_timer(self) -> int | None:
        """When `pass_time` or `hand_out` is due without a new message or command; None: never."""
        timers = (self._leases.next_deadline, self._retries.next_due, self._cut_at)
        return min((timer for timer in timers if timer is not None), default=None)

    def pass_time(self, now: int) -> bool:
        """Take back leases that ran out, wake due retries, up to a bound; True if there is more."""
        for queue, messages in joined_by_queue(self._leases.take_expired(now, EXPIRIES_MAX)):
            self.backlogs[queue].leased -= messages.size
            assert self.backlogs[queue].leased >= 0, "more messages expire than were leased"
            self._failed(queue, messages, "expired", now, None, NO_CONSUMER)
            self._reopen(queue)
        due = self._retries.take_due(now, EXPIRIES_MAX)
        # In queue order each retry is a block of its own, found by its base: none is joined.
        for queue, messages in due if self.order is Order.QUEUE else joined_by_queue(due):
            self._note(EventKind.READY, queue, messages)
            self.backlogs[queue].wake(messages)
            self._reopen(queue)
        return (timer := self.next_timer) is not None and timer <= now

    # Calls of operators

    def redrive(self, number: int, messages: Span | None = None, *, is_old: bool = False) -> Result:
        """Hand messages of a dead letter out again as if for the first time, all or the named ones;
        the result is how many. Those that retention removed are lost. `is_old`: see `keyed`."""
        letter = self._unbury(number, messages)
        if letter is None:
            return no_letter(number)
        backlog = self.backlogs[letter.queue]
        gone, kept = letter.piece._replace(attempt=0).before(backlog.earliest)
        if gone is not None:
            self._note(EventKind.LOST, letter.queue, gone)
            backlog.lose_dead(gone, is_parked=letter.is_parked)
        if kept is not None:
            self._note(EventKind.REDRIVEN, letter.queue, kept)
            backlog.redrive(kept, is_parked=letter.is_parked, is_old=is_old)
        self._reopen(letter.queue)
        return Changed(0 if kept is None else kept.size)

    def purge(self, number: int, messages: Span | None = None) -> Result:
        """Throw away messages of a dead letter, all or the named ones; the result is how many."""
        letter = self._unbury(number, messages)
        if letter is None:
            return no_letter(number)
        self._note(EventKind.PURGED, letter.queue, letter.piece)
        self.backlogs[letter.queue].purge(letter.piece, is_parked=letter.is_parked)
        self._reopen(letter.queue)
        return Changed(letter.messages.size)

    def _unbury(self, number: int, messages: Span | None) -> DeadLetter | None:
        letter = self.dead.get(number)
        if letter is None:
            return None
        taken, rest = letter.divided(letter.messages if messages is None else messages)
        if taken is None:
            return None
        if rest is None:
            del self.dead[number]
        else:
            self.dead[number] = rest
        if letter.is_parked:
            left = None if rest is None else rest.piece
            self.backlogs[letter.queue].unpark(letter.piece, left)
        return taken

    def reset(self, offsets: Mapping[int, int]) -> None:
        """Go on from these offsets of queues, forward or back. Leases and retries there end, and
        dead letters from the offset on go, as their messages are handed out again."""
        offsets = {queue: at for queue, at in offsets.items() if queue in self.backlogs}
        self._leases.drop(offsets.keys())
        self._retries.drop(offsets.keys())
        dead = keep_before(self.dead, offsets)
        for queue, offset in offsets.items():
            self.events.append(MessageEvent(EventKind.SKIPPED, queue, offset, BEFORE))
            self.events.append(MessageEvent(EventKind.RESET, queue, offset, FROM))
            before = self.backlogs[queue]
            self.backlogs[queue] = self._backlog(offset)
            self.backlogs[queue].replace(before, dead[queue])
            self.came(queue)

    @property
    def is_full(self) -> bool:
        """Whether too much is unsettled for fresh messages to go out."""
        pieces = len(self._leases) + len(self._retries) + len(self.dead)
        return pieces >= PIECES_MAX or len(self.dead) >= LETTERS_MAX

    def counts(self, queue: int) -> Counts:
        """Messages in each state, of a queue that the group reads; from counters, not a scan."""
        return self.backlogs.look(queue).counts

    def audit(self) -> dict[str, int]:
        """Messages in each state, recounted; asserts that each one is in exactly one state."""
        self._leases.audit()
        found: dict[str, list[tuple[int, int]]] = {
            "leased": [(each.queue, each.messages.size) for each in self._leases],
            "waiting": [(queue, messages.size) for queue, messages in self._retries],
            "dead": [(each.queue, each.messages.size) for each in self.dead.values()],
        }
        return self.backlogs.audit(found)

    def dump(self, now: int) -> list[Any]:
        """All of it as plain values, at the time of the last record."""
        return [
            [
                msgspec.to_builtins(self.policy),
                self.mode.value,
                self.is_filtered,
                None if self.order is None else self.order.value,
            ],
            self.backlogs.dump(),
            self._leases.dump(),
            self._retries.dump(),
            [[number, x.queue, list(x.messages), *x[2:]] for number, x in self.dead.items()],
            self.credits.dump(now),
            [list(self._open), self.buried, self._cut_at],
        ]

    @classmethod
    def load(cls, values: list[Any]) -> "PopGroup":
        """The reverse of `dump`."""
        kind, backlogs, leases, retries, dead, credit, rest = values
        group = cls(msgspec.convert(kind[0], Policy), Mode(kind[1]), kind[2])
        group.order = None if kind[3] is None else Order(kind[3])
        group.backlogs.load(backlogs)
        group._leases.load(leases)
        group._retries.load(retries)
        for number, queue, messages, *more in dead:
            group.dead[number] = DeadLetter(queue, Span(*messages), *more)
        group.credits.load(credit)
        is_open, group.buried, group._cut_at = rest
        group._open.update(dict.fromkeys(is_open))
        group._underfed = dict.fromkeys(group.backlogs) if group.is_fed else {}
        # Busy keys are not in the snapshot: the messages under way say which they are.
        if group.order is Order.KEY:
            group._occupy()
        return group

    # -- inside ----------------------------------------------------------------------------------

    def _occupy(self) -> None:
        for lease in self._leases:
            self.backlogs[lease.queue].occupy(lease.messages)
        for queue, messages in self._retries:
            self.backlogs[queue].occupy(messages)
        for letter in self.dead.values():
            if letter.is_parked:
                self.backlogs[letter.queue].occupy(letter.piece, is_parked=True)

    def _settle(
        self,
        consumer: int,
        token: int,
        messages: Span,
        now: int,
        settled: Callable[[int, Piece], None],
        *,
        is_success: bool = False,
    ) -> Result:
        row = self._leases.find(token, consumer, now)
        taken = None if row is None else self._leases.take(row, messages)
        if row is None or taken is None:
            return fenced(token)
        queue = self._leases.queue(row)
        backlog = self.backlogs[queue]
        backlog.leased -= taken.size
        left = None if is_success else self._leases.held(row)
        after = None if left is None else backlog.behind(taken, left)
        if after is None or self.order is Order.QUEUE:
            settled(queue, taken)
        # Messages behind this one must not be settled before its retry: their lease ends too.
        if after is not None:
            self._leases.take(row, after.span)
            backlog.leased -= after.size
            self._not_begun(queue, after)
            # In runs those in hand before the failed one count, so the ones behind it go first.
            if self.order is not Order.QUEUE:
                settled(queue, taken)
        assert backlog.leased >= 0, "more messages leave leases than are leased"
        self._reopen(queue)
        return Changed(told(messages, taken.bits << taken.base - messages.base))

    def _note(
        self, kind: int, queue: int, messages: Piece, by: By = NO_CONSUMER, detail: int = 0
    ) -> None:
        base, bits, attempt, _ = messages
        self.events.append(MessageEvent(kind, queue, base, bits, attempt, *by, detail))

    def _not_begun(self, queue: int, messages: Piece, by: By = NO_CONSUMER) -> None:
        assert messages.attempt > 0, "messages come back that never went out"
        self._note(EventKind.GIVEN_BACK, queue, messages, by)
        self.backlogs[queue].put_back(messages._replace(attempt=messages.attempt - 1))

    def _failed(
        self, queue: int, messages: Piece, reason: str, now: int, delay_ms: int | None, by: By
    ) -> None:
        assert messages.attempt > 0, "messages fail that never went out"
        # Messages behind a failed one wait for it: for them no attempt counts.
        backlog = self.backlogs[queue]
        messages, after = backlog.heads(messages)
        if after is not None:
            self._not_begun(queue, after)
        if messages.attempt >= self.policy.attempts_max:
            self._bury(queue, messages, reason, now, by)
            return
        delay_ms = self.policy.delay_ms(messages.attempt) if delay_ms is None else delay_ms
        kind = EventKind.EXPIRED if by == NO_CONSUMER else EventKind.NACKED
        waiting, ready = (None, messages) if delay_ms <= 0 else backlog.apart(messages)
        if waiting is not None:
            self._note(kind, queue, waiting, by, now + delay_ms)
            backlog.wait(waiting)
            self._retries.add(now + delay_ms, queue, waiting)
        if ready is not None:
            self._note(kind, queue, ready, by, now)
            backlog.put_back(ready)

    def _bury(self, queue: int, messages: Piece, reason: str, now: int, by: By) -> None:
        is_parked = self.order is not None and self.policy.is_blocking
        self.buried += 1
        # A repeated command that names a letter must mean the same messages.
        assert self.buried not in self.dead, f"the number {self.buried} of a letter is used again"
        self._note(EventKind.DEAD, queue, messages, by, self.buried)
        self.dead[self.buried] = DeadLetter(
            queue, messages.span, reason, now, is_parked, messages.keys
        )
        self.backlogs[queue].bury(messages, is_parked=is_parked)

    def _reopen(self, queue: int) -> None:
        if self.backlogs[queue].may_serve:
            self._open[queue] = None
