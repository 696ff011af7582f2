"""The consumers that pop from data groups which this node leads: how each one is reached.

A consumer is known from its first request until it leaves, its connection closes, another node
leads, or it is pruned. A consumer is idle if it wants nothing and has nothing in hand; idle ones
are pruned, since a service may open one for each of its requests, over a connection that lasts. A
pruned consumer that comes back is met again, and is sent all that it has in hand.

Invariants:
- A connection has at most `CONSUMERS_MAX` consumers; one more is not met.
- A consumer belongs to one connection: the last one on which it came.
"""

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import NamedTuple

from raftmq.broker.serve.connection import Connection
from raftmq.broker.timers import Timer
from raftmq.pop.leases import Handed
from raftmq.wire.popping import Pop, Popped

CONSUMERS_MAX = 16_384
"""Consumers of one connection, about 1 KiB each: 1,000 consumers of a process at 16 partition
groups that one node leads."""
PRUNE_MIN = 256
"""Consumers of a connection from which idle ones are pruned: at this number, and at each doubling.
At `CONSUMERS_MAX`, each consumer that comes makes the node check this many, in turn: a check of all
would hold the loop for each consumer that is refused."""


class Key(NamedTuple):
    """A consumer as a data group knows it."""

    partition_group: int
    number: int
    consumer: int


class OrderFlags(NamedTuple):
    """The messages of a lease that leave it with one that is not acked: see `Popped`."""

    is_serial: bool = False
    has_runs: bool = False


class OpenPop(NamedTuple):
    """A POP without an answer yet."""

    correlation: int
    """Ties the answer to it."""
    request: Pop
    """The consumer's request, cut to its quotas."""
    wanted: int
    """The messages that it wants, before quotas of messages in flight cut it."""
    came_at: float
    """When it came, by trio's clock."""


class Consumer:
    """The way to reach a consumer of an attachment, and what it is sent next."""

    __slots__ = (
        "connection",
        "is_hurried",
        "is_reading",
        "key",
        "open_pop",
        "order",
        "since",
        "throttle_ms",
        "timer",
        "unsent",
    )

    def __init__(self, key: Key, connection: Connection) -> None:
        self.key = key
        self.connection = connection
        # The POP that waits for an answer; None: no POP waits.
        self.open_pop: OpenPop | None = None
        # Milliseconds for which a quota held that POP.
        self.throttle_ms = 0
        # Fires when the wait of that POP is over.
        self.timer: Timer | None = None
        # True: answer the POP even if there is no message for it.
        self.is_hurried = False
        # True while batches are read from disk for the answer.
        self.is_reading = False
        # The flags of its group's order, as `Popped` has them; known once `since` is.
        self.order = OrderFlags()
        # Leases that no answer has brought, and the first token that was never among them; None:
        # not known yet.
        self.unsent: deque[Handed] = deque()
        self.since: int | None = None

    def nothing(self) -> Popped:
        """An empty answer to the POP that waits."""
        # The consumer may be resumed, and takes the end of a list for the end of leases that the
        # list lacks: until the list is known, more is to come.
        return Popped([], [], self.since is None or bool(self.unsent), *self.order)

    def end_wait(self) -> int:
        """End the wait of the consumer's POP, and return the correlation to answer."""
        assert self.open_pop is not None
        assert self.timer is not None
        correlation = self.open_pop.correlation
        self.open_pop = None
        self.timer.cancel()
        return correlation


class Consumers:
    """All consumers that this node reaches. `is_idle` asks the machine of a consumer's group."""

    def __init__(self, is_idle: Callable[[Key], bool]) -> None:
        self._is_idle = is_idle
        self._by_key: dict[Key, Consumer] = {}
        # In the order of the next check: pruning moves a key that it keeps to the end.
        self._of_connection: dict[Connection, dict[Key, None]] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, key: Key) -> Consumer | None:
        """The consumer, if it is known."""
        return self._by_key.get(key)

    def of_connection(self, connection: Connection) -> list[Key]:
        """Keys of the consumers of a connection."""
        return list(self._of_connection.get(connection, ()))

    def of_group(self, partition_group: int) -> list[Consumer]:
        """The consumers of a partition group."""
        return [x for x in self._by_key.values() if x.key.partition_group == partition_group]

    def has_place(self, key: Key, connection: Connection) -> bool:
        """Is there a place for a consumer on a connection? Idle ones are pruned to make place."""
        mine = self._of_connection.get(connection, {})
        if key in mine or len(mine) < PRUNE_MIN:
            return True
        if len(mine) >= CONSUMERS_MAX or not len(mine) % PRUNE_MIN:
            self._prune(mine, list(islice(mine, PRUNE_MIN)))
        return len(mine) < CONSUMERS_MAX

    def meet(self, key: Key, connection: Connection) -> Consumer:
        """Register a consumer that came, perhaps again and on another connection. The caller asks
        `has_place` first."""
        self.forget(key)
        mine = self._of_connection.setdefault(connection, {})
        assert len(mine) < CONSUMERS_MAX, "no place for a consumer"
        mine[key] = None
        consumer = self._by_key[key] = Consumer(key, connection)
        return consumer

    def forget(self, key: Key) -> None:
        """Drop a consumer, if it is known."""
        consumer = self._by_key.pop(key, None)
        if consumer is None:
            return
        # Batches that are read for this POP have no receiver now.
        consumer.open_pop = None
        if consumer.timer is not None:
            consumer.timer.cancel()
        mine = self._of_connection[consumer.connection]
        del mine[key]
        if not mine:
            del self._of_connection[consumer.connection]

    def _prune(self, mine: dict[Key, None], keys: Iterable[Key]) -> None:
        for key in keys:
            consumer = self._by_key[key]
            is_busy = consumer.open_pop is not None or consumer.unsent or consumer.is_reading
            if not is_busy and self._is_idle(key):
                self.forget(key)
            else:
                mine[key] = mine.pop(key)
