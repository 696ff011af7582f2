"""One message's life in one consumer group, as clients saw it: the input of all rules.

A group's messages are independent of each other, save order by key: so each message is judged by
itself, and judging is linear in the history. Tokens order the hand-outs of a message, as tokens
grow with every hand-out of a partition group; rows of the history order clients' calls.

Invariants:
- `deliveries` are the hand-outs that an application got. There may have been others: to a consumer
  that died, or that took messages ahead and gave them back.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, Protocol, TypeAlias

from raftmq.checkers.history import Value
from raftmq.checkers.verdict import EXAMPLES_MAX, Anomaly

from .calls import Buried, Call, Delivery, QueueTraffic, Revival, Sent, Settlement

Ordering: TypeAlias = Literal["", "key", "runs", "queue"]
"""A group's order: none; by key, one message in hand; by key, several in one lease; by queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PopRules:
    """The promises of a group beyond those of every group, and how well the clocks were known."""

    attempts_max: int | None = None
    """After this number of failed attempts a message is a dead letter. None: not judged."""
    schedule_ms: tuple[int, ...] = ()
    """How long a message waits after its first failure, the second, …; empty: not judged."""
    clock_ms_max: int | None = None
    """The most by which two times of different machines differ, through clocks and the travel of
    answers. None: nothing is judged by times."""
    handing_ms_max: int = 0
    """Milliseconds by which a lease may have run out before the application gets its messages."""
    late_ms_max: int | None = None
    """Milliseconds within which a due message is handed out again while a consumer pops all the
    time. None: not judged, as after faults."""
    is_ahead: bool = True
    """Consumers take messages ahead, and hand them to the application later."""
    is_complete: bool = False
    """Every hand-out is in the history: no consumer died, or gave messages back unseen."""
    order: Ordering = ""
    """The messages that are handed out one after the other."""
    is_wanted: Callable[[Value], bool] | None = None
    """Whether the group's filter lets a message through; None: the group has no filter."""
    begun: int = 0
    """The offset at which the group began in each queue; negative: its books are not judged."""

    @property
    def has_shared_leases(self) -> bool:
        """Whether a lease may hold messages that are in order with each other."""
        return self.order in ("queue", "runs")

    def turn_of(self, value: Value) -> Value:
        """Messages with the same turn go out in order; None: no order holds for this one."""
        if self.order == "queue":
            return "the queue"
        has_key = self.order and isinstance(value, tuple) and len(value) > 1
        return value[1] if has_key and isinstance(value, tuple) else None


@dataclass(slots=True)
class Message:
    """A message in a group, with all calls about it."""

    traffic: QueueTraffic
    offset: int
    sent: Sent | None = None
    deliveries: list[Delivery] = field(default_factory=list)
    """By token."""
    settlements: list[Settlement] = field(default_factory=list)
    """In the order of their invokes; calls refused for other reasons than a stale lease are left
    out."""
    buried: list[Buried] = field(default_factory=list)
    revivals: list[Revival] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The message in words, for people."""
        value = self.value
        what = f"message {value!r}" if value is not None else "the message"
        return f"{what} at offset {self.offset} of {self.traffic.name}"

    @property
    def value(self) -> Value:
        """The message's value; None: unknown."""
        if self.sent is not None:
            return self.sent.value
        return self.deliveries[0].value if self.deliveries else None

    def settled_by(self, token: int, *functions: str) -> Iterator[Settlement]:
        """Calls with this token that happened or may have."""
        for one in self.settlements:
            if one.token == token and one.function in functions and not one.is_refused:
                yield one

    def surely(self, *functions: str) -> Iterator[Settlement]:
        """Calls that happened."""
        return (one for one in self.settlements if one.function in functions and one.is_done)

    def maybe(self, *functions: str) -> Iterator[Settlement]:
        """Calls that happened or may have."""
        return (one for one in self.settlements if one.function in functions and not one.is_refused)

    def pairs(self) -> Iterator[tuple[Delivery, Delivery]]:
        """Each hand-out with the next one in the history."""
        return pairwise(self.deliveries)


class Shown(Protocol):
    """A part of a history that shows something."""

    @property
    def call(self) -> Call:
        """The call that it belongs to."""

    @property
    def codes(self) -> tuple[int, ...]:
        """Codes of the values in its rows."""


class Findings:
    """Anomalies, all counted and the first few kept."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.anomalies: list[Anomaly] = []

    def add(
        self,
        name: str,
        fact: str,
        parts: Iterable[Shown],
        calls: Iterable[Call | None] = (),
    ) -> None:
        """Add an anomaly, the parts of the history that show it, and other calls that matter."""
        self.counts[name] += 1
        if self.counts[name] > EXAMPLES_MAX:
            return
        shown = list(parts)
        operations = {one.call.operation for one in shown}
        operations |= {call.operation for call in calls if call is not None}
        codes = sorted({code for one in shown for code in one.codes})
        self.anomalies.append(Anomaly(name, fact, tuple(sorted(operations)), tuple(codes)))


def messages_of(traffic: QueueTraffic, sends: Sequence[Sent]) -> dict[int, Message]:
    """By offset: every message of a queue that a send's answer or the group's calls name."""
    messages: dict[int, Message] = {}

    def at(offset: int) -> Message:
        message = messages.get(offset)
        if message is None:
            message = messages[offset] = Message(traffic, offset)
        return message

    for sent in sends:
        if sent.offset >= 0:
            at(sent.offset).sent = sent
    for delivery in traffic.deliveries:
        at(delivery.offset).deliveries.append(delivery)
    for settlement in traffic.settlements:
        if settlement.is_fenced or not settlement.is_refused:
            at(settlement.offset).settlements.append(settlement)
    for buried in traffic.buried:
        at(buried.offset).buried.append(buried)
    for revival in traffic.revivals:
        at(revival.offset).revivals.append(revival)
    for message in messages.values():
        message.deliveries.sort(key=lambda one: (one.token, one.call.begin))
    return messages


def returned(message: Message, delivery: Delivery, rules: PopRules, lease: "Lease") -> bool:
    """Whether a consumer gave a message back, or may have, before its lease ran out."""
    token = delivery.token
    if any(message.settled_by(token, "nack", "give_back")):
        return True
    # Where an order holds, the rest of a lease comes back with the first message that failed.
    return rules.has_shared_leases and lease.is_behind_any(message.offset, lease.failed, rules)


@dataclass(slots=True)
class Lease:
    """One token in one queue, with all calls about it."""

    token: int
    deliveries: list[Delivery] = field(default_factory=list)
    settlements: list[Settlement] = field(default_factory=list)
    extensions: list[Settlement] = field(default_factory=list)
    """Each extension once: a call that names several messages extends one lease."""
    holders: dict[int, Delivery] = field(default_factory=dict)
    """By process: the last message of the lease that it was handed."""
    values: dict[int, Value] = field(default_factory=dict)
    """By offset: the messages that were handed out."""
    failed: set[int] = field(default_factory=set)
    """Offsets that a call settled, or may have settled, otherwise than by an ack."""

    def is_behind_any(self, offset: int, others: Iterable[int], rules: PopRules) -> bool:
        """Whether the message at an offset is in order after one of these of the lease. A message
        that no answer brought may have any key."""
        value = self.values[offset]
        turn = rules.turn_of(value)
        if turn is None:
            return False
        earlier = (self.values.get(other, value) for other in others if other < offset)
        return any(rules.turn_of(each) == turn for each in earlier)


def leases_of(traffic: QueueTraffic) -> dict[int, Lease]:
    """By token."""
    leases: dict[int, Lease] = defaultdict(lambda: Lease(0))
    for delivery in traffic.deliveries:
        lease = leases[delivery.token]
        lease.deliveries.append(delivery)
        lease.holders[delivery.call.process] = delivery
        lease.values[delivery.offset] = delivery.value
    for settlement in traffic.settlements:
        lease = leases[settlement.token]
        lease.settlements.append(settlement)
        if settlement.function != "ack" and not settlement.is_refused:
            lease.failed.add(settlement.offset)
    extensions = {(one.token, one.call.operation, one.result): one for one in traffic.extensions}
    for extension in extensions.values():
        leases[extension.token].extensions.append(extension)
    for token, lease in leases.items():
        lease.token = token
    return dict(leases)
