"""Wishes: which consumers want messages, whose turn it is, and which queues may have some.

A wish stands up to its time. One that is *kept* is credit: each hand-out takes from it until it is
used up. Any other is for one hand-out, and the consumer must ask again. Consumers and queues each
take turns: a consumer that was served goes to the end.

Invariants:
- A consumer has one wish at the most; a new one keeps the place of the one before, if that runs.
- A wish whose time is over is the same as none: no place, answer or snapshot depends on whether it
  is still in memory. Replicas forget them at different moments, as their timers differ.
- At most `RUNNING_MAX` wishes run; what is over that is refused, not put.
- Wishes whose time is over are forgotten before they are more than half of all.

Sources: RabbitMQ's rabbit_fifo (a queue of consumers that have credit).
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, NamedTuple

RUNNING_MAX = 10_000
"""Consumers of one group whose wishes run in one partition group: each is in every snapshot."""
_SWEEP_MIN = 64
"""Fewer wishes are not looked through."""


class Wish(NamedTuple):
    """What a consumer may be handed, and how."""

    size: int
    """The largest number of messages to hand out."""
    invisible_ms: int
    """How long they are its alone."""
    until: int
    """From this time on it wants nothing, in milliseconds."""
    is_kept: bool
    """True: what is not handed out at once goes on standing."""


class Wishes:
    """The wishes of one consumer group."""

    def __init__(self) -> None:
        self._wishes: OrderedDict[int, Wish] = OrderedDict()
        self._sweep_at = _SWEEP_MIN

    def __len__(self) -> int:
        return len(self._wishes)

    def has_room(self, consumer: int, now: int) -> bool:
        """Whether a wish of this consumer may run: it has one that does, or there are few."""
        if len(self._wishes) >= RUNNING_MAX:
            # Replicas forget at different moments, so only what runs may be counted.
            self._forget_ended(now)
        return len(self._wishes) < RUNNING_MAX or consumer in self._wishes

    def put(self, consumer: int, wish: Wish, now: int) -> None:
        """A consumer's wish, in place of the one before; at the end if that one's time is over."""
        before = self._wishes.get(consumer)
        if before is not None and before.until <= now:
            # Another replica may have forgotten it: its place must not be inherited here.
            del self._wishes[consumer]
        self._wishes[consumer] = wish
        self._sweep(now)

    def drop(self, consumer: int) -> None:
        """A consumer wants nothing any more."""
        self._wishes.pop(consumer, None)

    def of(self, consumer: int) -> Wish | None:
        """What a consumer wants, if it wants anything; its time may be over."""
        return self._wishes.get(consumer)

    def first(self, now: int) -> tuple[int, Wish] | None:
        """Whose turn it is, and what it wants; None if nobody wants anything."""
        while self._wishes:
            consumer, wish = next(iter(self._wishes.items()))
            if wish.until > now:
                return consumer, wish
            del self._wishes[consumer]
        return None

    def serve(self, consumer: int, wish: Wish, count: int) -> None:
        """A consumer was handed `count` messages: the next one's turn comes."""
        if count < wish.size:
            self._wishes[consumer] = wish._replace(size=wish.size - count)
            self._wishes.move_to_end(consumer)
        else:
            del self._wishes[consumer]

    def end_hand_out(self, consumers: Iterable[int]) -> None:
        """These were served: wishes for one hand-out are over."""
        for consumer in consumers:
            wish = self._wishes.get(consumer)
            if wish is not None and not wish.is_kept:
                del self._wishes[consumer]

    def _sweep(self, now: int) -> None:
        """Forget wishes whose time is over, if they may be many."""
        if len(self._wishes) < self._sweep_at:
            return
        self._forget_ended(now)
        self._sweep_at = max(2 * len(self._wishes), _SWEEP_MIN)

    def _forget_ended(self, now: int) -> None:
        for consumer in [each for each, wish in self._wishes.items() if wish.until <= now]:
            del self._wishes[consumer]

    def dump(self, now: int) -> list[Any]:
        """The wishes that run at this time, as plain values; the zero stands for nothing."""
        running = [(consumer, wish) for consumer, wish in self._wishes.items() if wish.until > now]
        return [0, [[consumer, *wish] for consumer, wish in running]]

    def load(self, values: list[Any]) -> None:
        """The reverse of `dump`."""
        _, wishes = values
        self._wishes = OrderedDict((consumer, Wish(*wish)) for consumer, *wish in wishes)
        self._sweep_at = max(2 * len(self._wishes), _SWEEP_MIN)
