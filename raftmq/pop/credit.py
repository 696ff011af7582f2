"""Wishes: which consumers want messages, and whose turn it is.

A wish stands up to its time. A *kept* wish is credit: each hand-out takes from it until it is used
up. Any other wish is for one hand-out, and the consumer must ask again. Consumers take turns: a
consumer that was served goes to the end.

Invariants:
- A consumer has one wish at the most; a new wish keeps the place of the last one, if that runs.
- A wish whose time is over is the same as none: no place, answer or snapshot depends on whether it
  is still in memory. Replicas forget them at different moments, as their timers differ.
- At most `RUNNING_MAX` wishes run; a wish beyond them is refused.
- Wishes whose time is over are forgotten before they are more than half of all.

Sources: RabbitMQ's rabbit_fifo (a queue of consumers that have credit).
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, NamedTuple

RUNNING_MAX = 10_000
"""Consumers of one group whose wishes run in one partition group: each is in every snapshot."""
_SWEEP_MIN = 64
"""With fewer wishes no sweep looks for those whose time is over."""


class Wish(NamedTuple):
    """How many messages a consumer wants, until when, and how long its leases run."""

    size: int
    """The largest number of messages to hand out."""
    invisible_ms: int
    """How long the leases run."""
    until: int
    """From this time on the wish is void, in milliseconds."""
    is_kept: bool
    """True: the part that is not handed out goes on standing."""


class Wishes:
    """The wishes of one consumer group."""

    def __init__(self) -> None:
        self._wishes: OrderedDict[int, Wish] = OrderedDict()
        self._sweep_at = _SWEEP_MIN

    def __len__(self) -> int:
        return len(self._wishes)

    def has_room(self, consumer: int, now: int) -> bool:
        """Whether there is capacity for a wish of this consumer; to replace a wish needs none."""
        if len(self._wishes) >= RUNNING_MAX:
            # Replicas forget at different moments, so only wishes that run may be counted.
            self._forget_ended(now)
        return len(self._wishes) < RUNNING_MAX or consumer in self._wishes

    def put(self, consumer: int, wish: Wish, now: int) -> None:
        """Add a consumer's wish in place of its last one; at the end if that one's time is over."""
        before = self._wishes.get(consumer)
        if before is not None and before.until <= now:
            # Another replica may have forgotten it: its place must not be inherited here.
            del self._wishes[consumer]
        self._wishes[consumer] = wish
        self._sweep(now)

    def drop(self, consumer: int) -> None:
        """Remove a consumer's wish."""
        self._wishes.pop(consumer, None)

    def of(self, consumer: int) -> Wish | None:
        """A consumer's wish, whose time may be over; None: the consumer has none."""
        return self._wishes.get(consumer)

    def first(self, now: int) -> tuple[int, Wish] | None:
        """The consumer whose turn it is, and its wish; None: no wish runs."""
        while self._wishes:
            consumer, wish = next(iter(self._wishes.items()))
            if wish.until > now:
                return consumer, wish
            del self._wishes[consumer]
        return None

    def serve(self, consumer: int, wish: Wish, count: int) -> None:
        """A consumer was handed `count` messages: it goes to the end with the rest of its wish."""
        if count < wish.size:
            self._wishes[consumer] = wish._replace(size=wish.size - count)
            self._wishes.move_to_end(consumer)
        else:
            del self._wishes[consumer]

    def end_hand_out(self, consumers: Iterable[int]) -> None:
        """These consumers were served: their wishes for one hand-out end."""
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
        """The wishes that run at this time, as plain values; the zero has no meaning."""
        running = [(consumer, wish) for consumer, wish in self._wishes.items() if wish.until > now]
        return [0, [[consumer, *wish] for consumer, wish in running]]

    def load(self, values: list[Any]) -> None:
        """The reverse of `dump`."""
        _, wishes = values
        self._wishes = OrderedDict((consumer, Wish(*wish)) for consumer, *wish in wishes)
        self._sweep_at = max(2 * len(self._wishes), _SWEEP_MIN)
