"""Links between nodes: each has a delay, an order, and whatever a fault does to it.

A message is put on the heap with the time of its arrival. A cut is looked at on arrival, so a
message that is on its way when its link is cut is lost as well. Without faults a link keeps the
order, as a stream does. Nodes are known here by their place (`node_of`), so a node that replaces
another inherits its links. All clients are at `CLIENTS`, and cuts are the one fault that hits them.

| fault | what it is here |
|---|---|
| cut, one way or both | a count for each direction: several faults may cut the same link |
| delay, loss, duplication, reordering | shares over all links |
| kinds that are lost, or late | sets of `MessageKind`; chunks have a kind of their own |

Invariants:
- No fault: every message arrives once, in order, if the receiver is up.
"""

from collections import Counter, deque
from collections.abc import Callable
from random import Random

from raftmq.broker.replica.group import node_of
from raftmq.chaos.core.faults.effects import (
    DELAYED,
    DOUBLED,
    DROPPED,
    HELD,
    LATE,
    LOST,
    OVERTAKEN,
    SLOWED,
)
from raftmq.chaos.core.loop import Loop
from raftmq.consensus import Message

CHUNK = 100
"""The kind of a snapshot's chunk and of its answer, beside the `MessageKind`s."""

BASE_US, SPREAD_US = 200, 1000
"""Delay of a message without faults: at least the first, at most both together."""

LATE_US_MAX, LATE_SHARE = 1_500_000, 0.3
"""The longest extra delay of a late message; the share of messages that come late, and the equal
share that come both in time and late."""

OLD_MESSAGES = 512
"""Messages of the past that are kept for a replay."""

Deliver = Callable[[Message], None]


class Network:
    """All links. It is state."""

    def __init__(self, loop: Loop, random: Random, deliver: Deliver) -> None:
        self._loop = loop
        self._random = random.random
        self._deliver = deliver
        self._last_us: dict[tuple[int, int], int] = {}
        self.cuts: Counter[tuple[int, int]] = Counter()
        """By direction: how many faults cut it."""
        self.delay_ms = 0.0
        """Mean extra delay of each message; few messages are up to ten times later."""
        self.loss = self.duplication = self.reordering = 0.0
        """Shares of all messages."""
        self.lost_kinds: set[int] = set()
        """Kinds of messages that never arrive."""
        self.late_kinds: Counter[int] = Counter()
        """By kind of messages that come late, or twice: how many faults ask for that."""
        self.lag_us: dict[int, int] = {}
        """By place: extra time for each message to or from the node there."""
        self.is_rough = False
        """Whether any fault above but a cut is set; call `settle` after changing the fields."""
        self.old: deque[Message] = deque(maxlen=OLD_MESSAGES)
        """The last messages that were sent, if `keeps_old`."""
        self.keeps_old = False
        self.lost = 0

    def roughen(self, *, delay_ms: float, duplication: float, reordering: float) -> None:
        """Set the delay and the shares that hold until `heal`, and to which faults add."""
        self.delay_ms, self.duplication, self.reordering = delay_ms, duplication, reordering
        self.settle()

    def settle(self) -> None:
        """Work out `is_rough` after the fields were changed."""
        shares = (self.delay_ms, self.loss, self.duplication, self.reordering)
        kinds = (self.lost_kinds, self.late_kinds)
        self.is_rough = any(shares) or any(kinds) or bool(self.lag_us)

    def send(self, message: Message) -> None:
        """Put a message on its way."""
        link = (node_of(message.sender), node_of(message.to))
        if self.keeps_old:
            self.old.append(message)
        self.carry(link, message.kind, self._arrive, message)

    def carry(
        self, link: tuple[int, int], kind: int, call: Callable[..., None], *args: object
    ) -> None:
        """Make a call at the other end of a link after its delay, unless a fault loses the call."""
        loop = self._loop
        at = loop.now_us + BASE_US + int(self._random() * SPREAD_US)
        if self.is_rough:
            self._carry_roughly(link, kind, at, call, args)
            return
        last = self._last_us.get(link, 0)
        if at <= last:
            at = last + 1
        self._last_us[link] = at
        loop.at(at, call, *args)

    def _carry_roughly(
        self,
        link: tuple[int, int],
        kind: int,
        at: int,
        call: Callable[..., None],
        args: tuple[object, ...],
    ) -> None:
        random, effects = self._random, self._loop.effects
        is_dropped = kind in self.lost_kinds
        if is_dropped or (self.loss and random() < self.loss):
            self.lost += 1
            effects[DROPPED if is_dropped else LOST] += 1
            return
        if kind in self.late_kinds and (dice := random()) < 2 * LATE_SHARE:
            effects[LATE] += 1
            self._loop.at(at + int(random() * LATE_US_MAX), call, *args)
            if dice < LATE_SHARE:
                return
        if self.delay_ms:
            effects[DELAYED] += 1
            # Mostly around the mean, sometimes ten times as much.
            factor = 10.0 if random() < 0.03 else 2.0
            at += int(random() * factor * self.delay_ms * 1000)
        lag_us = self.lag_us.get(link[1], 0) + self.lag_us.get(link[0], 0)
        if lag_us:
            effects[SLOWED] += 1
            at += lag_us
        # The arrival of a reordered message is not noted: messages after it may overtake it.
        if self.reordering and random() < self.reordering:
            effects[OVERTAKEN] += 1
            at += int(random() * 50_000)
        else:
            at = max(at, self._last_us.get(link, 0) + 1)
            self._last_us[link] = at
        self._loop.at(at, call, *args)
        if self.duplication and random() < self.duplication:
            effects[DOUBLED] += 1
            self._loop.at(at + int(random() * 200_000), call, *args)

    def _arrive(self, message: Message) -> None:
        if self.holds(node_of(message.sender), node_of(message.to)):
            self.lost += 1
        else:
            self._deliver(message)

    def holds(self, sender: int, to: int) -> bool:
        """Whether what arrives now in that direction is lost to a cut; count the loss."""
        if not self.cuts or not self.is_cut(sender, to):
            return False
        self._loop.effects[HELD] += 1
        return True

    def is_cut(self, sender: int, to: int) -> bool:
        """Whether nothing gets through in that direction."""
        return self.cuts[sender, to] > 0

    def cut(self, pairs: list[tuple[int, int]]) -> None:
        """Cut these directions."""
        self.cuts.update(pairs)

    def mend(self, pairs: list[tuple[int, int]]) -> None:
        """Undo one `cut` of each."""
        for pair in pairs:
            self.cuts[pair] -= 1
            if self.cuts[pair] <= 0:
                del self.cuts[pair]

    def heal(self) -> None:
        """End all faults, and what `roughen` set."""
        self.cuts.clear()
        self.delay_ms = self.loss = self.duplication = self.reordering = 0.0
        self.lost_kinds.clear()
        self.late_kinds.clear()
        self.lag_us.clear()
        self.settle()
