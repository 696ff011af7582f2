"""Leases: what consumers have in hand, and the timers that take it back.

A *token* names a lease for ever: the Raft index of the record that handed the messages out, and a
slot within it. So tokens grow with every hand-out, no two are equal across leaders and restarts,
and what a token says is about that hand-out and no other: a stale one finds nothing.

Invariants:
- A lease whose deadline has come is nobody's, whether it was taken back already or not: taking
  back a million of them is done in portions.
- Nothing depends on anything but the calls and their order.

Sources: Amazon SQS (visibility timeout); RocketMQ's checkpoints, whose handle is a position and a
wall-clock time and so cannot tell one hand-out from the next; Kleppmann, "How to do distributed
locking" (fencing tokens).
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Any

from .spans import Span, run, span

SLOT_BITS = 20
"""A token is `index << SLOT_BITS | slot`."""


class Lease:
    """Messages of one queue in the hand of one consumer."""

    __slots__ = ("attempt", "base", "bits", "consumer", "deadline", "queue")

    def __init__(self, queue: int, held: Span, consumer: int, deadline: int) -> None:
        self.queue = queue
        """The queue's number."""
        self.base, self.bits, self.attempt = held
        self.consumer = consumer
        """Whose."""
        self.deadline = deadline
        """From this time on it is nobody's, in milliseconds."""

    @property
    def held(self) -> Span:
        """What is left of it."""
        held = span(self.base, self.bits, self.attempt)
        assert held is not None, "an empty lease was kept"
        return held


class Leases:
    """The leases of one consumer group."""

    def __init__(self) -> None:
        self._leases: dict[int, Lease] = {}
        # Deadline → tokens; a token may stand under deadlines that it does not have any more.
        self._due: dict[int, list[int]] = {}
        self._deadlines: list[int] = []
        # The deadline whose tokens are in order already: replicas take back in the same order,
        # whichever way they came to their state.
        self._in_order = -1

    def __len__(self) -> int:
        return len(self._leases)

    def __iter__(self) -> Iterator[tuple[int, Lease]]:
        return iter(self._leases.items())

    @property
    def next_deadline(self) -> int | None:
        """When the next lease may have to be taken back; None if there is none."""
        return self._deadlines[0] if self._deadlines else None

    def open(self, token: int, lease: Lease) -> None:
        """A new lease."""
        assert token not in self._leases, token
        self._leases[token] = lease
        self._note(token, lease.deadline)

    def find(self, token: int, consumer: int, now: int) -> Lease | None:
        """A consumer's lease that runs; None if the token is stale, or never was."""
        lease = self._leases.get(token)
        if lease is None or lease.consumer != consumer or lease.deadline <= now:
            return None
        return lease

    def take(self, token: int, lease: Lease, messages: Span) -> Span | None:
        """Take messages out of a lease; those that it still holds."""
        shift = messages.base - lease.base
        bits = messages.bits << shift if shift >= 0 else messages.bits >> -shift
        taken = lease.bits & bits
        lease.bits ^= taken
        if not lease.bits:
            del self._leases[token]
        return span(lease.base, taken, lease.attempt)

    def extend(self, token: int, lease: Lease, deadline: int) -> None:
        """Let a lease run until another time."""
        lease.deadline = deadline
        self._note(token, deadline)

    def take_expired(self, now: int, count: int) -> list[tuple[int, Span]]:
        """Take back up to `count` leases whose deadline has come, the oldest first: (queue,
        messages) each."""
        taken: list[tuple[int, Span]] = []
        while self._deadlines and self._deadlines[0] <= now and len(taken) < count:
            deadline = self._deadlines[0]
            tokens = self._due[deadline]
            if self._in_order != deadline:
                tokens.sort(reverse=True)
                self._in_order = deadline
            while tokens and len(taken) < count:
                token = tokens.pop()
                lease = self._leases.get(token)
                if lease is None or lease.deadline != deadline:
                    continue
                del self._leases[token]
                taken.append((lease.queue, lease.held))
            if not tokens:
                del self._due[heappop(self._deadlines)]
        return taken

    def drop_before(self, queue: int, offset: int) -> int:
        """Forget what stands before an offset of a queue; how many messages that was."""
        dropped = 0
        for token, lease in list(self._leases.items()):
            if lease.queue == queue and lease.base < offset:
                gone = self.take(token, lease, run(lease.base, offset - lease.base))
                dropped += gone.size if gone is not None else 0
        return dropped

    def dump(self) -> list[list[Any]]:
        """The leases as plain values."""
        return [
            [token, x.queue, x.base, x.bits, x.attempt, x.consumer, x.deadline]
            for token, x in self._leases.items()
        ]

    def load(self, rows: list[list[Any]]) -> None:
        """The reverse of `dump`."""
        for token, queue, base, bits, attempt, consumer, deadline in rows:
            self.open(token, Lease(queue, Span(base, bits, attempt), consumer, deadline))

    def _note(self, token: int, deadline: int) -> None:
        tokens = self._due.get(deadline)
        if tokens is None:
            self._due[deadline] = [token]
            heappush(self._deadlines, deadline)
        else:
            tokens.append(token)
