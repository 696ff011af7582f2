"""Which filter holds for which batch: the subscriptions as a data group's log has them.

The catalog says what each consumer group wants, but it is another log: two replicas of a data group
may hear of a change at different moments. So the data group's leader takes each change over into
its own log (`Resubscribe`), and *there* it has its place:

    index   90        95                        98
            batch     Resubscribe(B for g)      batch
            A holds   the boundary              B holds

- A group's first subscription holds for all that the log keeps: a group that subscribes to an
  existing topic does not want the rest of the topic first.
- A changed subscription holds from its entry on; batches before it stay with the filter before.
- Without a subscription a group gets everything, also batches before its `Unsubscribe`.

A `Resubscribe` says which version of the catalog it started from (`base`). If the machine is at
another version, the command is by a leader that did not know the latest, and changes nothing.

Invariants:
- For each index that the log keeps, a subscribed group has exactly one filter.
- A subscription's number stands for one filter text for ever.

Left out: more than `VERSIONS_MAX` changes within the kept log; the oldest filter gives way, and its
batches follow the next one.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from raftmq.results import Changed, Result

VERSIONS_MAX = 8
"""Filters that are kept for one group and topic."""


class Change(msgspec.Struct, frozen=True, array_like=True):
    """One consumer group's filter of one topic from now on."""

    topic: int
    """The topic's number."""
    consumer_group: str
    """The consumer group's name."""
    number: int
    """The number of the subscription; 0: the group's subscription has ended."""
    expression: str = ""
    """The filter."""


class Resubscribe(msgspec.Struct, frozen=True, array_like=True, tag="resubscribe"):
    """Take over what changed in the catalog's subscriptions."""

    base: int
    """The version of the catalog's subscriptions that this log has so far."""
    version: int
    """The version after the changes; equal to `base`: more changes follow."""
    changes: list[Change]
    """Changes for topics that have queues in this data group."""


class Wanted(NamedTuple):
    """One filter of a group, and from where on it holds."""

    since: int
    """The first index of the log for which it holds."""
    number: int
    """The number of the subscription."""
    expression: str
    """The filter."""


class Subscriptions:
    """The subscriptions of one data group's machine."""

    def __init__(self) -> None:
        self.version = 0
        """The version up to which the catalog's changes were taken over: `Subscribers.version`."""
        self.changed = 0
        """Index of the last record that changed anything; 0: none."""
        self.widened = 0
        """Index of the last record after which some filter holds for batches before it."""
        self._of_topic: dict[int, dict[str, list[Wanted]]] = {}
        self._names: dict[int, str] = {}

    def apply(self, command: Resubscribe, index: int) -> Result:
        """Carry out a command of the record at `index`; the result's value is the version."""
        if command.base == self.version <= command.version:
            for change in command.changes:
                self._change(change, index)
            self.version = command.version
            self.changed = index
            assert self.widened <= self.changed, "a filter of a later record"
        return Changed(self.version)

    def _change(self, change: Change, index: int) -> None:
        of_topic = self._of_topic.setdefault(change.topic, {})
        kept = of_topic.pop(change.consumer_group, [])
        if change.number:
            self._names[change.number] = change.consumer_group
            since = index if kept else 0
            kept.append(Wanted(since, change.number, change.expression))
            assert len(kept) < 2 or kept[-2].since <= since, "filters out of the log's order"
            if since == 0:
                self.widened = index
            if len(kept) > VERSIONS_MAX:
                del self._names[kept.pop(0).number]
                # The batches of the filter that gives way follow the next one from now on.
                kept[0] = kept[0]._replace(since=0)
                self.widened = index
            of_topic[change.consumer_group] = kept
        else:
            for wanted in kept:
                del self._names[wanted.number]
        if not of_topic:
            del self._of_topic[change.topic]

    def trim(self, log_start: int) -> None:
        """Forget filters that hold for no record from index `log_start` on."""
        for of_topic in self._of_topic.values():
            for kept in of_topic.values():
                while len(kept) > 1 and kept[1].since <= log_start:
                    del self._names[kept.pop(0).number]

    def of(self, topic: int, consumer_group: str) -> Sequence[Wanted]:
        """A group's filters, oldest first; empty: the group gets everything."""
        return self._of_topic.get(topic, {}).get(consumer_group, ())

    def number_of(self, topic: int, consumer_group: str) -> int:
        """The number of a group's latest subscription; 0: it has none."""
        kept = self.of(topic, consumer_group)
        return kept[-1].number if kept else 0

    def has(self, topic: int) -> bool:
        """Whether any group has a filter of this topic."""
        return topic in self._of_topic

    def filters(self, topic: int) -> dict[int, str]:
        """Number → text of all filters of a topic that hold for a record in the log."""
        of_topic = self._of_topic.get(topic, {})
        return {wanted.number: wanted.expression for kept in of_topic.values() for wanted in kept}

    def name(self, number: int) -> str | None:
        """The consumer group with a subscription's number; None: the number is forgotten."""
        return self._names.get(number)

    def latest(self) -> Iterator[tuple[int, str, int]]:
        """Topic, consumer group and number of each subscription as it is now."""
        for topic, of_topic in self._of_topic.items():
            for name, kept in of_topic.items():
                yield topic, name, kept[-1].number

    def dump(self) -> list[Any]:
        """The whole state as plain values, alike on every replica."""
        topics = [
            [topic, [[name, [list(wanted) for wanted in kept]] for name, kept in of_topic.items()]]
            for topic, of_topic in self._of_topic.items()
        ]
        return [self.version, self.changed, self.widened, topics]

    def load(self, state: list[Any]) -> None:
        """Take the state that `dump` gave."""
        self.version, self.changed, self.widened, topics = state
        for topic, of_topic in topics:
            self._of_topic[topic] = {
                name: [Wanted(*wanted) for wanted in kept] for name, kept in of_topic
            }
            for name, kept in of_topic:
                self._names |= {number: name for _, number, _ in kept}


def valid_at(kept: Sequence[Wanted], index: int) -> Wanted:
    """The filter that holds for a record, out of a group's filters, oldest first."""
    for wanted in reversed(kept):
        if index >= wanted.since:
            return wanted
    return kept[0]
