"""Turns: the queue for messages without a key, by the weights of the queues' leaders.

The queues have their turns one after the other. A queue whose leader has the weight 1 takes each of
its turns; one whose leader has less saves its weight at each turn, and takes a turn for a saving of
1. So equal leaders get equal numbers of turns, in a fixed order, and a weight of 1/10 leaves a
queue every tenth turn. Of queues 0, 1 and 2, the leader of 1 has the weight 1/2:

    0 1 2 0 2 0 1 2 0 2 ...

A turn ends after `TURN_BYTES`, when nothing is under way to the queue any longer, and when the
leader becomes slow or fails: messages would gather behind a batch that is not answered.

Invariants:
- With equal weights the queues have turns one after the other, each as often as any other.
- Each queue that can be sent to, and whose leader has a weight, has a turn after 1 / weight rounds
  at the latest.
- The choice depends only on the weights, not on chance.

Sources: deficit round robin (Shreedhar and Varghese), with turns in place of bytes; KIP-794.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from raftmq.client.routing.weights import Weights

TURN_BYTES = 64 * 1024
"""Bytes of a turn: larger turns make a batch no cheaper."""

_GOLDEN = 0.618033988749895


class Sender(Protocol):
    """The sender to a queue, as the turns need it."""

    @property
    def is_idle(self) -> bool:
        """True if no batch is under way."""

    @property
    def is_recovering(self) -> bool:
        """True while no batch leaves."""


class Turns:
    """Whose turn it is, among the queues of a topic."""

    def __init__(
        self,
        first: int,
        senders: Mapping[int, Sender],
        weights: Weights,
        leader_of: Callable[[int], int],
    ) -> None:
        # The queue to look at next, modulo the number of queues.
        self._next = first
        # Queue → its sender, if the queue is in use.
        self._senders = senders
        self._weights = weights
        # Partition group → the node that leads it; 0: not known.
        self._leader_of = leader_of
        # The queue that has the turn, and those that have the next ones.
        self._chosen: deque[int] = deque()
        # Bytes that went out since the turn began.
        self._bytes = 0
        # Queue → the weights that it saved.
        self._saved: dict[int, float] = {}
        self._leaders: set[int] = set()
        # The value of `_next` at which the leaders are looked up again.
        self._leaders_until = first
        self._late_seconds = 0.0
        self.pushed_weights: Mapping[int, float] = {}
        """Node → the weight that operators push, by which the measured one is multiplied; a node
        that is not named has 1."""

    def queue(self, groups: Sequence[int], now: float, n: int = 0) -> int:
        """The queue that has the turn, or has the n-th turn after it.

        Args:
            groups: the partition group of each queue.
            now: the time, as for `Weights`.
            n: how many turns later.
        """
        if self._chosen and n == 0:
            self._end_if_over(groups, now)
        while len(self._chosen) <= n:
            queue = self._choose(groups, now)
            if queue is None:
                queue = self._next % len(groups)
                self._next += 1
            self._chosen.append(queue)
        return self._chosen[n]

    def note_full(self, queue: int) -> None:
        """A batch is full: pass the turn on, if the batch's queue has it."""
        if self._chosen and self._chosen[0] == queue:
            self._pass_on()

    def note_sent(self, queue: int, size: int) -> None:
        """A batch goes out: pass the turn on after `TURN_BYTES`."""
        if self._chosen and self._chosen[0] == queue:
            self._bytes += size
            if self._bytes >= TURN_BYTES:
                self._pass_on()

    def weights(self, groups: Sequence[int], now: float) -> dict[int, float]:
        """The weights of the nodes that lead these partition groups, as they are now."""
        leaders = {self._leader_of(group) for group in set(groups)} - {0}
        return self._with_pushed(self._weights.among(leaders, now).weights)

    def _pass_on(self) -> None:
        self._chosen.popleft()
        self._bytes = 0

    def _end_if_over(self, groups: Sequence[int], now: float) -> None:
        queue = self._chosen[0]
        sender = self._senders.get(queue)
        if self._bytes and sender is not None and sender.is_idle:
            self._pass_on()
            return
        is_stuck = sender is not None and sender.is_recovering
        if not is_stuck and not self._is_slow(self._leader_of(groups[queue]), now):
            return
        # If no other queue can be sent to, the turn stays: a batch is to hold what gathers.
        other = self._choose(groups, now)
        if other is not None:
            self._chosen[0], self._bytes = other, 0

    def _is_slow(self, leader: int, now: float) -> bool:
        """Has the leader become slower than others since the turn began?"""
        if not self._weights.is_late(leader, self._late_seconds, now):
            return False
        # If all nodes are late alike, the turn stays: more queues would get smaller batches.
        return self._weights_with(leader, now)[leader] < 1.0

    def _choose(self, groups: Sequence[int], now: float) -> int | None:
        """The queue of the next turn; None: no queue can be sent to."""
        if self._next >= self._leaders_until:
            # Once a round, as the groups may be many.
            self._leaders = {self._leader_of(group) for group in set(groups)}
            self._leaders_until = self._next + len(groups)
        weights: dict[int, float] = {}
        first, spare = self._next, -1
        for at in range(first, first + len(groups)):
            queue = at % len(groups)
            sender = self._senders.get(queue)
            if sender is not None and sender.is_recovering:
                continue
            leader = self._leader_of(groups[queue])
            if leader not in weights:
                weights = self._weights_with(leader, now)
            weight = weights[leader]
            if weight >= 1.0 or self._saves(queue, weight):
                self._next = at + 1
                return queue
            if spare < 0 and weight:
                spare = at
        if spare < 0:
            return None
        # No queue of a leader with the weight 1 can be sent to now: the next best begins.
        self._next = spare + 1
        return spare % len(groups)

    def _saves(self, queue: int, weight: float) -> bool:
        """Save a weight; True if that is enough for a turn, which uses it up."""
        # The queues of a slow leader start with different savings, so their turns are spread.
        saved = self._saved.get(queue, queue * _GOLDEN % 1.0) + weight
        self._saved[queue] = saved - 1.0 if saved >= 1.0 else saved
        return saved >= 1.0

    def _weights_with(self, leader: int, now: float) -> dict[int, float]:
        """The weights of the leaders, this one among them."""
        self._leaders.add(leader)
        weights, self._late_seconds = self._weights.among(self._leaders, now)
        return self._with_pushed(weights)

    def _with_pushed(self, weights: dict[int, float]) -> dict[int, float]:
        given = self.pushed_weights
        if not given:
            return weights
        both = {node: weight * given.get(node, 1.0) for node, weight in weights.items()}
        highest = max(both.values(), default=0.0)
        # If no leader had a weight left, messages would stop; only a pause may stop them.
        return {node: each / highest for node, each in both.items()} if highest else weights
