"""A second, simple model of consumer groups that pop: one word for each message.

The machine keeps spans, heaps and windows; the model keeps a dictionary from offset to `Entry`. The
model does not choose hand-outs: it follows the machine's, and says whether each was allowed
(`PopModel.why_not`). The model works out all else itself: leases that run out, waits that end, the
results of settlements.

| word | a message is |
|---|---|
| (no entry) | fresh |
| leased | in hand, until a time |
| waiting | failed, until a time |
| ready | to be handed out again |
| dead | in a dead letter |
| acked, purged, lost | done with, thrown away, taken by retention |
| passed | not for this group: a filter says so |
| skipped | still open when the group was set to go on after it |

Invariants:
- The model uses no part of the machine but the commands and the policy.

Sources: RabbitMQ's property tests of rabbit_fifo against a list.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from raftmq.pop.policy import Mode, Order, Policy

FENCED = -1
"""The result of settling messages that the consumer does not hold."""


@dataclass(slots=True)
class Entry:
    """A message that was handed out at least once, or is gone."""

    word: str
    attempt: int = 0
    token: int = 0
    consumer: int = 0
    until: int = 0
    """End of the lease, or of the wait."""
    letter: int = 0
    is_parked: bool = False
    is_redriven: bool = False
    """The message may come late, in an ordered group."""
    is_like_fresh: bool = False
    """The message left its dead letter, or came back before its consumer began it, and was not
    handed out since: it stands in line as if it had never gone out."""


class PopQueue:
    """The messages of one queue in a group."""

    def __init__(self, begun: int, end: int, key_of: Callable[[int], str | None]) -> None:
        self.begun = begun
        self.end = end
        """The offset that the queue's next message gets."""
        self.fresh_from = begun
        """No message before it is fresh, in a group that is not ordered by key."""
        self.earliest = 0
        """Retention took all messages before it, as far as the group knows."""
        self.key_of = key_of
        """A message's ordering key."""
        self.entries: dict[int, Entry] = {}
        self.counts: Counter[str] = Counter()
        """By word; it leaves out fresh ones."""
        self.by_token: dict[int, set[int]] = {}
        """By token: the offsets that are leased with it."""
        self.was_reset = False
        """True: after a reset the machine may count fewer messages as passed than the model."""
        self.waiting: set[int] = set()
        self.ready: set[int] = set()
        self.parked: set[int] = set()

    def move(self, offset: int, word: str) -> Entry:
        """Give a message another word."""
        entry = self.entries.get(offset)
        if entry is None:
            entry = self.entries[offset] = Entry(word)
        else:
            self.counts[entry.word] -= 1
            if entry.word == "leased":
                held = self.by_token[entry.token]
                held.discard(offset)
                if not held:
                    del self.by_token[entry.token]
            self.waiting.discard(offset)
            self.ready.discard(offset)
            self.parked.discard(offset)
        entry.word = word
        self.counts[word] += 1
        if word == "waiting":
            self.waiting.add(offset)
        elif word == "ready":
            self.ready.add(offset)
        return entry

    def forget_passed(self, since: int) -> None:
        """Messages from an offset on that a filter passed over are fresh again."""
        for offset, entry in list(self.entries.items()):
            if offset >= since and entry.word == "passed":
                self.counts["passed"] -= 1
                del self.entries[offset]
        self.fresh_from = min(self.fresh_from, since)

    @property
    def fresh(self) -> int:
        """How many messages are fresh."""
        return self.end - self.begun - len(self.entries)

    def first_fresh(self) -> int:
        """Offset of the first fresh message; `end`: none is fresh."""
        while self.fresh_from < self.end and self.fresh_from in self.entries:
            self.fresh_from += 1
        return self.fresh_from

    def lease(self, offset: int, *, token: int, consumer: int, until: int) -> None:
        """Hand a message out under a lease."""
        entry = self.move(offset, "leased")
        entry.token, entry.consumer, entry.until, entry.is_like_fresh = (
            token,
            consumer,
            until,
            False,
        )
        entry.attempt += 1
        self.by_token.setdefault(token, set()).add(offset)


class CreditModel(NamedTuple):
    """A consumer's request for messages."""

    size: int
    """The largest number of messages to hand out."""
    invisible_ms: int
    """Length of their leases."""
    until: int
    """When the credit ends."""
    is_kept: bool
    """False: the credit ends with the first record that hands messages out for it."""


class PopModel:
    """One attachment of a consumer group to a topic."""

    def __init__(self, mode: Mode, policy: Policy, version: int) -> None:
        self.policy = policy
        self.version = version
        self.order = policy.order if mode is Mode.ORDERED else None
        self.run = policy.run if self.order is Order.KEY else 1
        self.queues: dict[int, PopQueue] = {}
        self.letters = 0
        """Dead letters so far, as the machine counted them."""
        self.credits: dict[int, CreditModel] = {}
        """By consumer."""

    # Time

    def pass_time(self, now: int) -> None:
        """Leases that ran out fail; waits that are over end."""
        for queue in self.queues.values():
            for offsets in [sorted(held) for held in queue.by_token.values()]:
                if queue.entries[offsets[0]].until <= now:
                    self._failed(queue, offsets, now, None)
            for offset in sorted(queue.waiting):
                if queue.entries[offset].until <= now:
                    queue.move(offset, "ready")
        self.credits = {who: credit for who, credit in self.credits.items() if credit.until > now}

    # Settling

    def settle(
        self, consumer: int, token: int, offsets: list[int], now: int, what: str, delay_ms: int
    ) -> int | bytes:
        """The result of a settlement's step: the number of messages, their bits if only some of the
        named ones were in hand, or `FENCED`."""
        queue = self._queue_of(token)
        if queue is None:
            return FENCED
        held = sorted(queue.by_token[token] & set(offsets))
        first = queue.entries[min(queue.by_token[token])]
        if not held or first.consumer != consumer or first.until <= now:
            return FENCED
        if what == "ack":
            for offset in held:
                queue.move(offset, "acked")
            return _told(offsets, held)
        # Later messages in the same order go back from the lease, without a failure of theirs.
        rest = [
            offset
            for offset in sorted(queue.by_token[token] - set(held))
            if any(self._is_behind(queue, offset, other) for other in held)
        ]
        if what == "nack":
            self._failed(queue, held, now, None if delay_ms < 0 else delay_ms)
        for offset in held if what == "reject" else []:
            self._bury(queue, offset)
        for offset in [*(held if what == "give_back" else []), *rest]:
            self._not_begun(queue, offset)
        return _told(offsets, held)

    def extend(self, consumer: int, token: int, now: int, length: int) -> int:
        """Extend a lease; returns how long it runs from now on, or `FENCED`."""
        queue = self._queue_of(token)
        if queue is None:
            return FENCED
        held = [queue.entries[offset] for offset in queue.by_token[token]]
        if held[0].consumer != consumer or held[0].until <= now:
            return FENCED
        for entry in held:
            entry.until = now + length
        return length

    def held_until(self, consumer: int, token: int, offsets: Iterable[int]) -> int | None:
        """Until when a consumer has all these messages in hand; None: the consumer has not."""
        queue = self._queue_of(token)
        if queue is None or not queue.by_token[token].issuperset(offsets):
            return None
        first = queue.entries[min(queue.by_token[token])]
        return first.until if first.consumer == consumer else None

    def _queue_of(self, token: int) -> PopQueue | None:
        return next((one for one in self.queues.values() if token in one.by_token), None)

    def _failed(self, queue: PopQueue, offsets: list[int], now: int, delay_ms: int | None) -> None:
        """These messages of one lease failed; where an order holds, only the first ones did."""
        rest = {
            offset
            for offset in offsets
            if any(self._is_behind(queue, offset, other) for other in offsets)
        }
        for offset in sorted(rest):
            self._not_begun(queue, offset)
        leased = queue.by_token.get(queue.entries[offsets[0]].token, set())
        stay = [each for each in leased if each not in offsets]
        for offset in [each for each in offsets if each not in rest]:
            attempt = queue.entries[offset].attempt
            if attempt >= self.policy.attempts_max:
                self._bury(queue, offset)
                continue
            schedule = self.policy.schedule_ms
            wait = schedule[min(attempt, len(schedule)) - 1] if delay_ms is None else delay_ms
            # In runs it waits for earlier ones of its key in hand, and not for its delay.
            if any(self._is_behind(queue, offset, other) for other in stay if self.run > 1):
                wait = 0
            queue.move(offset, "waiting" if wait > 0 else "ready").until = now + wait

    def _is_behind(self, queue: PopQueue, offset: int, other: int) -> bool:
        """Whether a message leaves its lease with an earlier one that leaves it without an ack."""
        if self.order is Order.QUEUE:
            return offset > other
        key = queue.key_of(offset) if self.run > 1 else None
        return key is not None and offset > other and queue.key_of(other) == key

    def _not_begun(self, queue: PopQueue, offset: int) -> None:
        entry = queue.move(offset, "ready")
        entry.attempt -= 1
        # In runs such a message stands in line as if it had never gone out.
        has_line = self.run > 1 and queue.key_of(offset) is not None
        entry.is_like_fresh = has_line and not entry.attempt

    def _bury(self, queue: PopQueue, offset: int) -> None:
        entry = queue.move(offset, "dead")
        # The number comes from the machine after this record; the one of an earlier letter is void.
        entry.letter = 0
        entry.is_parked = self.order is not None and self.policy.is_blocking
        if entry.is_parked:
            queue.parked.add(offset)

    # Dead letters

    def change_dead(self, queue: PopQueue, offset: int, *, is_purge: bool) -> None:
        """A dead message is purged, or may go out as if for the first time if retention kept it."""
        entry = queue.entries[offset]
        assert entry.word == "dead", entry
        was_parked = entry.is_parked
        kept = "ready" if offset >= queue.earliest else "lost"
        queue.move(offset, "purged" if is_purge else kept)
        entry.attempt, entry.is_parked, entry.is_redriven = 0, False, not was_parked
        entry.is_like_fresh = entry.word == "ready"

    # Filters

    def tell(self, queue: PopQueue, offset: int) -> None:
        """A message does not match. In a group that is ordered by key, a first filter also holds
        for redriven messages: they stand in line as if they had never gone out."""
        entry = queue.entries.get(offset)
        is_held = entry is not None and entry.word == "ready" and entry.is_like_fresh
        if entry is None or (is_held and self.order is Order.KEY):
            queue.move(offset, "passed")

    # Retention

    def lose(self, queue: PopQueue, earliest: int) -> None:
        """Retention took the messages before an offset, dead letters excepted."""
        queue.earliest = max(queue.earliest, earliest)
        for offset in range(queue.begun, min(earliest, queue.end)):
            entry = queue.entries.get(offset)
            if entry is None or entry.word in ("leased", "waiting", "ready"):
                queue.move(offset, "lost")

    # Going on elsewhere

    def reset(self, queue: PopQueue, offset: int) -> None:
        """All messages from an offset on are fresh; open messages before it are skipped. Counts of
        settled messages stay."""
        for at, entry in sorted(queue.entries.items()):
            if entry.word in ("leased", "waiting", "ready") or (
                entry.word == "dead" and at >= offset
            ):
                queue.move(at, "skipped")
            entry.is_parked = False
            queue.parked.discard(at)
            if at >= offset:
                del queue.entries[at]
        for at in range(queue.begun, offset):
            if at not in queue.entries:
                queue.move(at, "skipped")
        queue.begun = queue.fresh_from = min(queue.begun, offset)
        queue.was_reset = True

    # Checks of hand-outs

    def hungry(self) -> bool:
        """Whether a consumer wants messages that may go out; not for order by key."""
        return bool(self.credits) and any(map(self._is_open, self.queues.values()))

    def _is_open(self, queue: PopQueue) -> bool:
        if self.order is None:
            return bool(queue.ready) or queue.fresh > 0
        if queue.by_token:
            return False
        first = min([*queue.ready, queue.first_fresh()])
        return first < queue.end and all(first < at for at in (*queue.waiting, *queue.parked))

    def why_not(self, queue: PopQueue, offsets: list[int]) -> Iterator[str]:
        """Why these messages, in one lease, must not be handed out now."""
        taken = set(offsets)
        for offset in offsets:
            entry = queue.entries.get(offset)
            if not queue.begun <= offset < queue.end:
                yield f"Q2 offset {offset} is not within {queue.begun}..{queue.end}"
            elif entry is not None and entry.word != "ready":
                number = {"leased": "Q10", "acked": "Q9", "waiting": "Q16"}.get(entry.word, "Q8")
                yield f"{number} offset {offset} is handed out and is {entry.word}: {entry}"
        if self.order is Order.QUEUE:
            yield from self._out_of_turn(queue, offsets, taken)
        elif self.order is Order.KEY:
            yield from self._out_of_keys(queue, offsets)

    def _out_of_turn(self, queue: PopQueue, offsets: list[int], taken: set[int]) -> Iterator[str]:
        last = offsets[-1]
        if queue.by_token:
            yield f"Q19 offset {offsets[0]} is handed out while {queue.by_token} are leased"
        blocking = [at for at in (*queue.waiting, *queue.parked) if at < last]
        if blocking:
            yield f"Q19 offset {last} is handed out before {min(blocking)} is settled"
        passed = [at for at in queue.ready if at < last and at not in taken]
        passed = [at for at in passed if not queue.entries[at].is_redriven]
        fresh = queue.first_fresh()
        while fresh in taken or fresh in queue.entries:
            fresh += 1
        if passed or fresh < last:
            yield f"Q19 offset {last} is handed out before {min([*passed, fresh])}"

    def _out_of_keys(self, queue: PopQueue, offsets: list[int]) -> Iterator[str]:
        seen = Counter[str]()
        for offset in offsets:
            key = queue.key_of(offset)
            if key is None:
                continue
            if seen[key] == self.run:
                yield f"Q19 offset {offset} of key {key} is handed out with {self.run} other ones"
            seen[key] += 1
            is_redriven = offset in queue.entries and queue.entries[offset].is_redriven
            for other in range(queue.begun, queue.end):
                if other in offsets or queue.key_of(other) != key:
                    continue
                entry = queue.entries.get(other)
                # With runs a parked letter holds up the messages after it alone.
                is_blocked = self.run == 1 or other < offset
                is_busy = entry is not None and (
                    entry.word in ("leased", "waiting") or (entry.is_parked and is_blocked)
                )
                is_open = entry is None or (entry.word == "ready" and not entry.is_redriven)
                if is_busy or (is_open and other < offset and not is_redriven):
                    what = "fresh" if entry is None else entry.word
                    yield f"Q19 offset {offset} of key {key} is handed out, and {other} is {what}"


def _told(named: list[int], held: list[int]) -> int | bytes:
    if held == named:
        return len(held)
    data = bytearray((held[-1] - named[0]) // 8 + 1)
    for offset in held:
        data[(offset - named[0]) // 8] |= 1 << (offset - named[0]) % 8
    return bytes(data)
