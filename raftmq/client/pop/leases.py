"""Leases of a consumer: the state of each message, as bits of integers, not as objects; and the
settlements of a lease that are under way.

A lease is one hand-out of a partition group: messages of one queue, a token, a deadline. The client
keeps one of these states for each message of the lease:

| a message is | kept in | meaning |
|---|---|---|
| buffered | `held`, `buffered` | it is here and the application has not seen it |
| in hand | `held` | the application has it |
| busy | `busy` | a settlement of it is under way |
| done | `done` | it is settled, and how |
| unlisted | `unlisted` | the leader's list had it no more, and the application was not told so |
| lost | `seen` only | it is no longer ours |

Bit n stands for the message at offset `base + n`.

Invariants:
- A message is buffered at most once under one token: `seen` remembers the message, however often a
  leader lists it. So no answer that comes late or twice hands the message out again.
- `held`, `busy`, `unlisted` and the values of `done` do not overlap, and all are in `seen`;
  `buffered` is in `held`.

Sources: RocketMQ's checkpoints with bitmaps; Kleppmann, "How to do distributed locking" (tokens).
"""

from collections.abc import Collection, Iterator
from math import inf
from typing import TYPE_CHECKING, NamedTuple
from weakref import ref

from raftmq.pop.actions import Action
from raftmq.pop.spans import offsets_of, shifted
from raftmq.wire.popping import SettleItem

from .lease_bits import packed
from .tally import Waiter

if TYPE_CHECKING:
    import numpy as np

LEFT_SHARE = 1 / 3
"""Least share of a lease's time that is left when a message is handed to the application; messages
that lie in the buffer for longer are given back."""


class Holder(NamedTuple):
    """The consumer that holds leases, as its requests name it."""

    topic: str
    """The topic's name."""
    number: int
    """The attachment's number."""
    consumer: int
    """The consumer's random number."""
    subscribed: int
    """The version of the consumer's subscription; 0: it made none."""
    is_ordered: bool
    """True if an ack lets the next message out."""


class HeldLease:
    """One lease."""

    __slots__ = (
        "attempt",
        "base",
        "buffered",
        "busy",
        "clock_ms",
        "deadline",
        "done",
        "extended_at",
        "grips",
        "group",
        "has_runs",
        "held",
        "invisible_ms",
        "is_serial",
        "items",
        "keys",
        "queue_number",
        "seen",
        "stale_at",
        "stopped",
        "stopped_at",
        "token",
        "unlisted",
    )

    def __init__(
        self,
        *,
        group: int,
        token: int,
        queue_number: int,
        attempt: int,
        base: int,
        is_serial: bool = False,
        has_runs: bool = False,
    ) -> None:
        self.group = group
        """The partition group."""
        self.token = token
        """The token that a settlement names."""
        self.queue_number = queue_number
        """The cluster-wide number of the queue."""
        self.attempt = attempt
        """Number of hand-outs of its messages, this one included."""
        self.base = base
        """The offset of bit 0."""
        self.is_serial = is_serial
        """Whether the consumer group keeps the order of queues."""
        self.has_runs = has_runs
        """Whether the consumer group keeps the order of keys, with several messages in a lease."""
        self.stopped_at: int | None = None
        """The bit from which on messages go back that the application has not seen, to keep the
        order of queues; None: all may be handed on."""
        self.stopped: dict[int, int] = {}
        """Hashes of keys whose messages go back in the same way, to keep the order of keys, and the
        bit from which on."""
        self.keys: list[tuple[int, np.ndarray]] = []
        """Of batches with its messages, if the lease has runs: first offset, hashes of the keys."""
        self.seen = 0
        """All messages that ever came under this token."""
        self.held = 0
        """Messages that are this consumer's and have no settlement under way."""
        self.buffered = 0
        """Messages of `held` that the application has not seen."""
        self.busy = 0
        """Messages with a settlement under way."""
        self.unlisted = 0
        """Messages that count as lost, and are in hand again if the leader lists them later."""
        self.done: dict[Action, int] = {}
        """Settled messages, by the action."""
        self.items: list[Item] = []
        """The settlements under way."""
        self.deadline = 0.0
        """The end of the lease, by the event loop's clock."""
        self.extended_at = -inf
        """When an extension was answered last, by the event loop's clock."""
        self.clock_ms = 0.0
        """The leader's clock less the event loop's, in milliseconds."""
        self.stale_at = inf
        """From then on the time is too short to begin with a message; never after the deadline."""
        self.invisible_ms = 0
        """The length that the consumer asked for, in milliseconds; 0: by the policy."""
        self.grips: list[tuple[ref[Grip], int]] = []
        """The application's grips and their messages, if leases are renewed."""

    @property
    def is_over(self) -> bool:
        """True if no message is left to settle."""
        return not self.held and not self.busy

    @property
    def deadline_ms(self) -> int:
        """The end of the lease, by the leader's clock, in milliseconds since 1970."""
        return round(self.deadline * 1000 + self.clock_ms)

    def place(self, base: int, bits: int) -> int:
        """Shift `bits`, which count from offset `base`, to count from the lease's base."""
        shift = base - self.base
        if shift < 0:
            self._rebase(base)
            shift = 0
        return bits << shift

    def mask(self, start: int, stop: int) -> int:
        """The bits of the messages at offsets from `start` to before `stop`."""
        return ((1 << (stop - start)) - 1) << (start - self.base)

    def mark_buffered(self, bits: int) -> int:
        """Mark messages that came as buffered; returns the new ones among them."""
        new = bits & ~self.seen
        self.seen |= new
        self.held |= new
        self.buffered |= new
        return new

    def run_until(self, deadline: float) -> None:
        """Set the end of the lease, by the event loop's clock."""
        self.deadline = deadline
        self.stale_at = min(self.stale_at, deadline)

    def extended(self, now: float, milliseconds: int) -> None:
        """An extension was answered: the lease runs for this time from now on."""
        self.extended_at = now
        self.run_until(now + milliseconds / 1000)

    def told(self, *, asked_at: float, now: float, remaining_ms: int, deadline_ms: int) -> None:
        """Take the leader's word on the time left, and on the end by the leader's clock, from the
        answer to a request that was sent at `asked_at`."""
        deadline = now + remaining_ms / 1000
        # The answer may have been made before an extension that was answered since.
        if asked_at <= self.extended_at and deadline < self.deadline:
            return
        if deadline_ms == self.deadline_ms:
            # An answer about the same end that came later does not make the lease longer.
            deadline = min(deadline, self.deadline)
        self.run_until(deadline)
        self.clock_ms = deadline_ms - deadline * 1000

    def latest_deadline(self, now: float) -> float:
        """The latest possible end of the lease, if the extensions under way arrive now."""
        extensions = [item.delay_ms for item in self.items if item.action is Action.EXTEND]
        return max([self.deadline, *(now + each / 1000 for each in extensions)])

    def set_stale(self, now: float) -> None:
        """Set when buffered messages become stale: when `LEFT_SHARE` of the asked time is left."""
        whole = max(self.deadline - now, self.invisible_ms / 1000)
        self.stale_at = self.deadline - whole * LEFT_SHARE

    def lost(self, bits: int) -> int:
        """Those of `bits` that are no longer this consumer's, and that it did not settle."""
        kept = self.held | self.busy
        for done in self.done.values():
            kept |= done
        return bits & ~kept

    def unlist(self, listed: int) -> None:
        """The leader has listed all messages of the lease: those not listed count as lost."""
        gone = self.held & ~listed
        # A message that the application has not seen may be buffered again, as a new one.
        self.seen &= ~(gone & self.buffered)
        self.unlisted |= gone & ~self.buffered
        self.lose(gone)

    def relist(self, listed: int) -> None:
        """The leader lists these messages: an earlier list without them was wrong."""
        self.held |= listed & self.unlisted
        self.unlisted &= ~listed

    @property
    def keeps_order(self) -> bool:
        """Whether messages of the lease wait for earlier ones of it."""
        return self.is_serial or self.has_runs

    @property
    def is_withholding(self) -> bool:
        """Whether messages that are yet to come may have to go back."""
        return self.stopped_at is not None or bool(self.stopped)

    def note_unread(self, bits: int) -> None:
        """The leader sent these messages: those that did not enter the buffer cannot be read."""
        unread = bits & ~self.seen
        # Their keys are not known: any message behind them may have to wait for their retry.
        if unread and self.keeps_order:
            self._stop_from(unread)

    def stop(self, bits: int) -> int:
        """These messages were not acked: returns the ones that the application has not seen and
        that may not come before them. They go back, and those that are yet to come, too."""
        if self.is_serial:
            self._stop_from(bits)
        for hash_, at in self._first_of(bits).items():
            self.stopped[hash_] = min(at, self.stopped.get(hash_, at))
        return self.withheld

    @property
    def withheld(self) -> int:
        """The messages that the application has not seen and that have to go back."""
        if not self.buffered:
            return 0
        found = 0
        if self.stopped_at is not None:
            found = self.buffered >> self.stopped_at << self.stopped_at
        # Most leases have no stopped key, and need no numpy.
        for at, hash_ in self._with(self.stopped) if self.stopped else ():
            if at >= self.stopped[hash_]:
                found |= 1 << at
        return found & self.buffered

    def _stop_from(self, bits: int) -> None:
        first = (bits & -bits).bit_length() - 1
        self.stopped_at = first if self.stopped_at is None else min(first, self.stopped_at)

    def behind(self, bits: int) -> int:
        """The messages that leave the lease with these, which leave it by other means than an
        ack."""
        if self.is_serial:
            width = (bits & -bits).bit_length()
            return self.held >> width << width
        first, found = self._first_of(bits), 0
        for at, hash_ in self._with(first):
            if at > first[hash_]:
                found |= 1 << at
        return found & self.held

    def _first_of(self, bits: int) -> dict[int, int]:
        """The keys of these messages of a lease with runs: hash → bit of the first message."""
        first: dict[int, int] = {}
        for base, hashes in self.keys:
            of_batch = shifted(bits, self.base - base) & (1 << len(hashes)) - 1
            for offset in offsets_of(base, of_batch):
                hash_ = int(hashes[offset - base])
                if hash_:
                    first[hash_] = min(first.get(hash_, offset - self.base), offset - self.base)
        return first

    def _with(self, keys: Collection[int]) -> Iterator[tuple[int, int]]:
        """Messages of the batches whose key has one of these hashes: bit and hash."""
        import numpy as np

        wanted = np.fromiter(keys, np.uint32, len(keys))
        for base, hashes in self.keys:
            for place in np.flatnonzero(np.isin(hashes, wanted)).tolist():
                # A batch may hold messages before the lease's first one.
                if base + place >= self.base:
                    yield base + place - self.base, int(hashes[place])

    def lose(self, bits: int) -> None:
        """These messages are no longer this consumer's."""
        self.held &= ~bits
        self.buffered &= ~bits

    def start(self, bits: int) -> None:
        """A settlement of messages that are held begins."""
        self.held ^= bits
        self.buffered &= ~bits
        self.busy |= bits

    def undo(self, bits: int) -> None:
        """A settlement was taken back: nothing happened."""
        self.busy &= ~bits
        self.held |= bits

    def finish(self, action: Action, settled: int, lost: int) -> None:
        """A settlement is over."""
        self.busy &= ~(settled | lost)
        if settled:
            self.done[action] = self.done.get(action, 0) | settled

    def set_done(self, action: Action, bits: int) -> None:
        """Mark messages settled by a request of another kind, such as a transaction's commit."""
        self.lose(bits)
        self.unlisted &= ~bits
        # A settlement that is under way is decided by its own answer.
        self.done[action] = self.done.get(action, 0) | bits & ~self.busy

    def in_hand(self) -> int:
        """Messages that the application still has an object of."""
        self.grips = [(grip, bits) for grip, bits in self.grips if grip() is not None]
        kept = 0
        for _, bits in self.grips:
            kept |= bits
        return kept & self.held

    def _rebase(self, base: int) -> None:
        """Let bit 0 stand for an earlier offset."""
        shift = self.base - base
        self.base = base
        self.seen <<= shift
        self.held <<= shift
        self.buffered <<= shift
        self.busy <<= shift
        self.unlisted <<= shift
        if self.stopped_at is not None:
            self.stopped_at += shift
        self.stopped = {hash_: at + shift for hash_, at in self.stopped.items()}
        self.done = {action: bits << shift for action, bits in self.done.items()}
        self.grips = [(grip, bits << shift) for grip, bits in self.grips]
        for item in self.items:
            item.shift(shift)


class Grip:
    """Held by the application's message objects; lives while one of them lives."""

    __slots__ = ("__weakref__", "lease")

    def __init__(self, lease: HeldLease) -> None:
        self.lease = lease
        """The lease of the messages."""


Part = tuple[HeldLease, int]
"""Some messages of a lease, as bits."""


class Item:
    """Messages of one lease that are settled alike; for an extension: the lease."""

    __slots__ = ("action", "bits", "delay_ms", "is_kept", "lease", "quiet", "reason", "waiters")

    def __init__(self, lease: HeldLease, action: Action, delay_ms: int, reason: str) -> None:
        self.lease = lease
        self.action = action
        self.delay_ms = delay_ms
        self.reason = reason
        self.bits = 0
        """The messages, counted from the lease's base; 0 for an extension."""
        self.quiet = 0
        """Those of `bits` from calls that do not wait."""
        self.is_kept = False
        """True for an extension that no call waits for."""
        self.waiters: list[tuple[Waiter, int]] = []
        """Waiting calls, each with the bits it waits for."""

    def shift(self, count: int) -> None:
        """The lease's base has moved down by `count`."""
        self.bits <<= count
        self.quiet <<= count
        self.waiters = [(waiter, bits << count) for waiter, bits in self.waiters]

    def join(self, waiter: Waiter, bits: int) -> None:
        """A call waits for some messages of the item."""
        self.waiters.append((waiter, bits))
        waiter.open += 1

    def leave(self, waiter: Waiter, *, take_back: bool) -> bool:
        """A call stops waiting; with `take_back` messages that only this call wanted are taken out.

        Returns:
            True if some of the call's messages may be settled nevertheless.
        """
        mine = others = 0
        kept = []
        for each, bits in self.waiters:
            if each is waiter:
                mine |= bits
                waiter.open -= 1
            else:
                others |= bits
                kept.append((each, bits))
        if len(kept) == len(self.waiters):
            return False
        self.waiters = kept
        if not take_back:
            return True
        taken = mine & ~(others | self.quiet)
        self.bits ^= taken
        self.lease.undo(taken)
        return mine != taken

    @property
    def is_empty(self) -> bool:
        """True if the item settles no message and no call waits for it."""
        return not self.bits and not self.waiters and not self.is_kept

    def wire(self) -> SettleItem:
        """The item as `Settle` carries it."""
        lease, bits = self.lease, self.bits
        if self.action is Action.EXTEND:
            return SettleItem(Action.EXTEND, lease.token, delay_ms=self.delay_ms)
        base, data = packed(lease.base, bits)
        return SettleItem(int(self.action), lease.token, base, data, self.delay_ms, self.reason)
