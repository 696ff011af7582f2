"""Credit: how many messages each consumer may be handed, and whose turn it is.

A consumer that asks for messages has credit for them up to a time. Each hand-out takes from credit
that is *kept*, until it is used up. Other credit is for one hand-out, and the consumer must ask
again. Consumers take turns: a consumer that was served goes to the end.

Invariants:
- A consumer's new credit replaces the last one, and keeps its place if that runs.
- Credit whose time is over is the same as none: no place, answer or snapshot depends on whether it
  is still in memory. Replicas forget it at different moments, as their timers differ.
- At most `RUNNING_MAX` consumers have credit that runs; a consumer beyond them is refused.
- Above `_SWEEP_MIN` consumers, credit whose time is over is forgotten before it is more than half.

Sources: RabbitMQ's rabbit_fifo (a queue of consumers that have credit).
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, NamedTuple

RUNNING_MAX = 10_000
"""Consumers of one group whose credit runs in one partition group: each is in every snapshot."""
_SWEEP_MIN = 64
"""Below this number of consumers, expired credit is not swept."""


class Credit(NamedTuple):
    """How many messages a consumer may be handed, until when, and how long its leases run."""

    size: int
    """The largest number of messages to hand out."""
    invisible_ms: int
    """How long the leases run."""
    until: int
    """From this time on the credit is void, in milliseconds."""
    is_kept: bool = False
    """True: the part that is not handed out stays credit. Snapshots of older software lack it."""


class Credits:
    """The credit of the consumers of one group."""

    def __init__(self) -> None:
        self._credits: OrderedDict[int, Credit] = OrderedDict()
        self._sweep_at = _SWEEP_MIN

    def __len__(self) -> int:
        return len(self._credits)

    def has_room(self, consumer: int, now: int) -> bool:
        """Whether there is capacity for credit of this consumer; to replace credit needs none."""
        if len(self._credits) >= RUNNING_MAX:
            # Replicas forget at different moments, so only credit that runs may be counted.
            self._forget_ended(now)
        return len(self._credits) < RUNNING_MAX or consumer in self._credits

    def put(self, consumer: int, credit: Credit, now: int) -> None:
        """Set a consumer's credit in place of the last; at the end if the time of that is over."""
        before = self._credits.get(consumer)
        if before is not None and before.until <= now:
            # Another replica may have forgotten it: its place must not be inherited here.
            del self._credits[consumer]
        self._credits[consumer] = credit
        # Only a consumer's first credit takes a place: snapshots of older software may hold more.
        assert before or len(self._credits) <= RUNNING_MAX, "`has_room` was not asked"
        self._sweep(now)

    def drop(self, consumer: int) -> None:
        """Remove a consumer's credit."""
        self._credits.pop(consumer, None)

    def of(self, consumer: int) -> Credit | None:
        """A consumer's credit, whose time may be over; None: the consumer has none."""
        return self._credits.get(consumer)

    def running(self, now: int) -> int:
        """The messages that all consumers together may still be handed."""
        return sum(credit.size for credit in self._credits.values() if credit.until > now)

    def running_by_consumer(self, now: int) -> dict[int, int]:
        """The messages that each consumer may still be handed."""
        return {each: credit.size for each, credit in self._credits.items() if credit.until > now}

    def running_of(self, consumer: int, now: int) -> int:
        """The messages that a consumer may still be handed."""
        credit = self._credits.get(consumer)
        return 0 if credit is None or credit.until <= now else credit.size

    def first(self, now: int) -> tuple[int, Credit] | None:
        """The consumer whose turn it is, and its credit; None: no credit runs."""
        while self._credits:
            consumer, credit = next(iter(self._credits.items()))
            if credit.until > now:
                return consumer, credit
            del self._credits[consumer]
        return None

    def serve(self, consumer: int, credit: Credit, count: int) -> None:
        """A consumer was handed `count` messages: it goes to the end, with the rest as credit."""
        assert 0 < count <= credit.size, f"{count} messages for a credit of {credit.size}"
        assert consumer in self._credits, "a consumer without credit is served"
        if count < credit.size:
            self._credits[consumer] = credit._replace(size=credit.size - count)
            self._credits.move_to_end(consumer)
        else:
            del self._credits[consumer]

    def end_hand_out(self, consumers: Iterable[int]) -> None:
        """These consumers were served: their credit for one hand-out ends."""
        for consumer in consumers:
            credit = self._credits.get(consumer)
            if credit is not None and not credit.is_kept:
                del self._credits[consumer]

    def _sweep(self, now: int) -> None:
        """Forget credit whose time is over, if it may be much."""
        if len(self._credits) < self._sweep_at:
            return
        self._forget_ended(now)
        self._sweep_at = max(2 * len(self._credits), _SWEEP_MIN)

    def _forget_ended(self, now: int) -> None:
        for consumer in [each for each, credit in self._credits.items() if credit.until <= now]:
            del self._credits[consumer]

    def dump(self, now: int) -> list[Any]:
        """The credit that runs at this time, as plain values; the zero has no meaning."""
        running = [
            (consumer, credit) for consumer, credit in self._credits.items() if credit.until > now
        ]
        return [0, [[consumer, *credit] for consumer, credit in running]]

    def load(self, values: list[Any]) -> None:
        """The reverse of `dump`."""
        _, rows = values
        self._credits = OrderedDict((consumer, Credit(*credit)) for consumer, *credit in rows)
        self._sweep_at = max(2 * len(self._credits), _SWEEP_MIN)
