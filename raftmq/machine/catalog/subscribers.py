"""The filters of consumer groups on topics: the subscriptions in the catalog.

A consumer group may have one subscription to a topic: a filter's text (`raftmq.filters`). A group
without one wants everything. Each change gets a *number* that is never used again; the data groups
take the changes over into their own logs (`subscriptions`), and everything that is derived from a
filter is kept under its number.

    Subscribe("orders", "billing", "amount > 5")   -> number 7, version: the record's index
    Subscribe("orders", "billing", "amount > 5")   -> nothing changes, the same version again
    Subscribe("orders", "billing", "paid")         -> number 8
    Unsubscribe("orders", "billing")               -> forgotten

Invariants:
- Every text here was read by the parser; one that cannot be read is refused alike on all replicas.
- Every text here is tags or SQL alone. Signs such as `&&` are spellings that clients write as SQL
  before they subscribe (`Filter.sql`). A replica of older software refuses signs, so one of newer
  software must refuse them as well, in the records of any leader.
- `version` grows with every change that a data group must hear of.

Left out: kinds of filters. Tags and SQL are told apart by the text alone.
"""

from typing import Any

import msgspec

from raftmq.errors import Reason
from raftmq.filters import FilterSyntaxError, is_sql
from raftmq.filters import compile as compile_filter
from raftmq.machine.names import NAME_CHARACTERS_MAX
from raftmq.results import Changed, Refused, Result

SUBSCRIPTIONS_MAX = 100_000
"""Subscriptions of a cluster: each node keeps them all in memory."""
CHARACTERS_MAX = 16 * 1024 * 1024
"""Characters of all filters together; one has `EXPRESSION_CHARACTERS_MAX` at the most."""


class Subscribe(msgspec.Struct, frozen=True, array_like=True, tag="subscribe"):
    """Say what a consumer group wants of a topic, in place of what it said before."""

    topic: str
    """The topic's name."""
    consumer_group: str
    """The consumer group's name; it need not have read anything."""
    expression: str
    """The filter: tags, or SQL without signs such as `&&` and `==`."""


class Unsubscribe(msgspec.Struct, frozen=True, array_like=True, tag="unsubscribe"):
    """A consumer group wants everything again."""

    topic: str
    """The topic's name."""
    consumer_group: str
    """The consumer group's name."""


class Subscription(msgspec.Struct, frozen=True, array_like=True):
    """A consumer group's filter on a topic."""

    consumer_group: str
    """The consumer group's name."""
    number: int
    """The filter's number; a changed filter has another one."""
    expression: str
    """The filter."""
    version: int
    """Index of the catalog's record that made it."""


class Subscribers:
    """All subscriptions of the catalog."""

    def __init__(self) -> None:
        self.version = 0
        """Index of the catalog's last record after which data groups have something to take over:
        a subscription, or the queues of a topic that has some."""
        self.number_last = 0
        """The highest number given so far."""
        self.of_topic: dict[int, dict[str, Subscription]] = {}
        """Topic number → consumer group → its subscription."""
        self._count = 0
        self._characters = 0

    def subscribe(self, topic: int, command: Subscribe, index: int) -> Result:
        """Carry out a command for a topic that exists; the result's value is the version."""
        name, text = command.consumer_group, command.expression
        if not 1 <= len(name) <= NAME_CHARACTERS_MAX:
            message = f"a consumer group's name has 1 to {NAME_CHARACTERS_MAX} characters"
            return Refused(Reason.BAD_NAME, message)
        before = self.of_topic.get(topic, {}).get(name)
        if before is not None and before.expression == text:
            return Changed(before.version)
        try:
            compile_filter(text)
        except FilterSyntaxError as error:
            return Refused(Reason.BAD_FILTER, str(error))
        if not is_sql(text):
            message = "the catalog keeps tags and SQL: subscribe with the `sql` of the filter"
            return Refused(Reason.BAD_FILTER, message)
        more = len(text) - (len(before.expression) if before is not None else 0)
        if self._characters + more > CHARACTERS_MAX:
            message = f"the filters of a cluster have {CHARACTERS_MAX} characters at the most"
            return Refused(Reason.TOO_LARGE, message)
        if before is None and self._count >= SUBSCRIPTIONS_MAX:
            message = f"a cluster has {SUBSCRIPTIONS_MAX} subscriptions at the most"
            return Refused(Reason.TOO_LARGE, message)
        assert self.version <= index, f"record {index} comes after {self.version}"
        self.number_last += 1
        self._put(topic, Subscription(name, self.number_last, text, index))
        self.version = index
        return Changed(index)

    def unsubscribe(self, topic: int, name: str, index: int) -> Result:
        """Forget a subscription; the result's value is the version from which on it is gone."""
        if self._forget(topic, name):
            self.version = index
        return Changed(self.version)

    def topic_changed(self, topic: int, index: int) -> None:
        """A topic has more queues: perhaps in data groups that had none of it."""
        if topic in self.of_topic:
            self.version = index

    def drop_topic(self, topic: int, index: int) -> None:
        """A topic is deleted."""
        for name in list(self.of_topic.get(topic, ())):
            self._forget(topic, name)
            self.version = index

    def drop_group(self, name: str, index: int) -> bool:
        """A consumer group is deleted; False if it had no subscription."""
        topics = [topic for topic, found in self.of_topic.items() if name in found]
        for topic in topics:
            self._forget(topic, name)
            self.version = index
        return bool(topics)

    def _put(self, topic: int, subscription: Subscription) -> None:
        self._forget(topic, subscription.consumer_group)
        self.of_topic.setdefault(topic, {})[subscription.consumer_group] = subscription
        self._count += 1
        self._characters += len(subscription.expression)

    def _forget(self, topic: int, name: str) -> bool:
        of_topic = self.of_topic.get(topic, {})
        gone = of_topic.pop(name, None)
        if gone is None:
            return False
        self._count -= 1
        self._characters -= len(gone.expression)
        if not of_topic:
            del self.of_topic[topic]
        # Counts that drift would let in too many filters, or none.
        assert bool(self._count) == bool(self.of_topic), f"{self._count} filters are counted"
        assert self._characters >= 0, "more characters are forgotten than were kept"
        return True

    def dump(self) -> list[Any]:
        """The whole state as plain values, alike on every replica."""
        topics = [[topic, list(found.values())] for topic, found in self.of_topic.items()]
        return [self.version, self.number_last, topics]

    def load(self, state: list[Any]) -> None:
        """Take the state that `dump` gave."""
        self.version, self.number_last, topics = state
        for topic, found in topics:
            for subscription in msgspec.convert(found, list[Subscription]):
                self._put(topic, subscription)
