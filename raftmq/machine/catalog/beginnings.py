"""Where groups with members begin in a topic: a part of the catalog.

A group that begins at the latest message begins so in the queues that the topic had then. A queue
that is added later has nothing that is older than the group, and is read from its beginning. So the
catalog notes how many queues a topic had when the group's first member joined for it, and tells it
to each member.

    join "billing", which is new to "orders" with 8 queues  -> noted: 8
    all members leave; "orders" gets 4 more queues          -> still 8
    join "billing"                                          -> 0 to 7 are old, 8 to 11 are new

An entry stays until the group or the topic is deleted, like the committed offsets of the group.

Invariants:
- A noted number never changes.
- There are `BEGINNINGS_MAX` of them at the most. For a group beyond there is none: its members take
  for old what the topic has when they are opened.

Left out: groups that had committed offsets before their first member (of readers without
membership, by a reset or a clone), and groups whose members joined before the catalog noted it.
Each of these begins with its first join after that.
"""

from typing import Any

BEGINNINGS_MAX = 100_000
"""Entries of a cluster: each node keeps them all in memory."""


class Beginnings:
    """How many queues topics had when groups began there."""

    def __init__(self) -> None:
        # Consumer group → topic's number → queues.
        self._queues: dict[str, dict[int, int]] = {}
        self._count = 0

    def find(self, consumer_group: str, topic: int) -> int | None:
        """How many queues a topic had when a group began there; None: that was not noted."""
        return self._queues.get(consumer_group, {}).get(topic)

    def note(self, consumer_group: str, topic: int, queues: int) -> None:
        """A group has a member for a topic; nothing changes if it had one before."""
        if self.find(consumer_group, topic) is None and self._count < BEGINNINGS_MAX:
            self._queues.setdefault(consumer_group, {})[topic] = queues
            self._count += 1
        self._check()

    def drop_group(self, consumer_group: str) -> None:
        """A group is deleted."""
        self._count -= len(self._queues.pop(consumer_group, {}))
        self._check()

    def drop_topic(self, topic: int) -> None:
        """A topic is deleted."""
        for name in [name for name, topics in self._queues.items() if topic in topics]:
            del self._queues[name][topic]
            self._count -= 1
            if not self._queues[name]:
                del self._queues[name]
        self._check()

    def _check(self) -> None:
        # A count that drifts would let in too many entries, or none.
        assert bool(self._count) == bool(self._queues), f"{self._count} entries are counted"

    def dump(self) -> list[Any]:
        """The whole state as plain values, alike on every replica."""
        return [[name, list(topics.items())] for name, topics in self._queues.items()]

    def load(self, state: list[Any]) -> None:
        """Take the state that `dump` gave."""
        self._queues = {name: dict(topics) for name, topics in state}
        self._count = sum(map(len, self._queues.values()))
