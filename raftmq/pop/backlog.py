"""A backlog: what one consumer group has not settled of one queue.

    offset   0 ....... 100 101 102 103 104 105 106 ... 130
             acked     ^waits  ^leased ^acked  ^next       ^end
             or dead    (a retry that is not due)          (of the queue)

| a message is | when it is | kept in |
|---|---|---|
| fresh | at or after `next`: never handed out | - |
| leased | in the hand of a consumer | `leases` |
| waiting | in a retry that is not due | `groups` |
| ready | in a retry that is due: handed out before all that is fresh | here |
| dead | in a dead letter | `groups` |
| acked | in none of these, before `next` | - |

A retry stays in place: the message keeps its offset and is never written a second time.

Invariants:
- Each offset before `next` is in at most one lease, retry or dead letter.

Left out: order by key, and messages that a filter passes over.

Sources: RocketMQ copies a retry to a topic of its own, and loses it between two writes (#10985,
#7914) or revives the next message (#7724); RabbitMQ's rabbit_fifo keeps returns in the machine.
"""

from collections import deque
from typing import Any

from .spans import Span, run


class Backlog:
    """What a group has not settled of one queue."""

    def __init__(self, begun: int) -> None:
        self.begun = begun
        """Where the group began to read."""
        self.next = begun
        """The first offset that was never handed out."""
        self.acked = 0
        """Messages settled by a consumer."""
        self.lost = 0
        """Messages that retention took before they were settled."""
        self._ready: deque[Span] = deque()

    @property
    def ready(self) -> int:
        """Messages in retries that are due."""
        return sum(each.size for each in self._ready)

    def has_some(self, end: int) -> bool:
        """Whether there is something to hand out, given the queue's end."""
        return bool(self._ready) or self.next < end

    def take(self, count: int, end: int) -> Span | None:
        """The next messages to hand out, at most `count`: a retry that is due, or fresh ones.

        Their attempt counts this time too.
        """
        if self._ready:
            taken, rest = self._ready.popleft().split(count)
            if rest is not None:
                self._ready.appendleft(rest)
            return taken._replace(attempt=taken.attempt + 1)
        count = min(count, end - self.next)
        if count <= 0:
            return None
        taken = run(self.next, count, 1)
        self.next += count
        return taken

    def give_back(self, messages: Span) -> None:
        """Hand these messages out again, after those that are ready."""
        self._ready.append(messages)

    def trim(self, earliest: int) -> None:
        """Retention: messages before an offset are gone."""
        self.lost += max(earliest - self.next, 0)
        self.next = max(self.next, earliest)
        parts = [each.before(earliest) for each in self._ready]
        self.lost += sum(gone.size for gone, _ in parts if gone is not None)
        self._ready = deque(kept for _, kept in parts if kept is not None)

    def dump(self) -> list[Any]:
        """All of it as plain values."""
        ready = [list(each) for each in self._ready]
        return [self.begun, self.next, self.acked, self.lost, ready]

    @classmethod
    def load(cls, values: list[Any]) -> "Backlog":
        """The reverse of `dump`."""
        begun, following, acked, lost, ready = values
        backlog = cls(begun)
        backlog.next, backlog.acked, backlog.lost = following, acked, lost
        backlog._ready = deque(Span(*each) for each in ready)
        return backlog
