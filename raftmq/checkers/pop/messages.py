"""One message's life in one consumer group, as clients saw it: what all rules are about.

A group's messages have nothing to do with each other, save order by key: so each is judged by
itself, and judging is linear in the history. Its hand-outs are ordered by their tokens, which grow
with every hand-out of a partition group; rows of the history order what clients did.

Invariants:
- `deliveries` are those that an application got. There may have been others: of a consumer that
  died, or that took messages ahead and gave them back.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import Literal, Protocol, TypeAlias

from raftmq.checkers.history import Value
from raftmq.checkers.verdict import EXAMPLES_MAX, Anomaly

from .calls import Buried, Call, Delivery, QueueTraffic, Revival, Sent, Settlement

Ordering: TypeAlias = Literal["", "key", "queue"]
"""What a group keeps in order: nothing, messages of a key, messages of a queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PopRules:
    """What a group promises beyond what all do, and how well the clocks were known."""

    attempts_max: int | None = None
    """A message that failed for so many times is a dead letter. None: not judged."""
    schedule_ms: tuple[int, ...] = ()
    """How long a message waits after its first failure, the second, …; empty: not judged."""
    clock_ms_max: int | None = None
    """Clocks of clients and leaders, and the time of an answer on its way, make two times of
    different machines differ by so much at the most. None: nothing is judged by times."""
    handing_ms_max: int = 0
    """A lease may have run out so long before an application came to look at its messages."""
    late_ms_max: int | None = None
    """A message that is due is handed out again so soon, if somebody pops all the time. None: not
    judged, as after faults."""
    is_ahead: bool = True
    """Consumers take messages ahead, and hand them to the application later."""
    is_complete: bool = False
    """Every hand-out is in the history: no consumer died or gave back what nobody saw."""
    order: Ordering = ""
    """What is handed out one after the other."""
    is_wanted: Callable[[Value], bool] | None = None
    """Whether the group's filter lets a message through; None: it has none."""
    begun: int = 0
    """Where the group began to read each queue."""


@dataclass(slots=True)
class Message:
    """All that is known of a message in a group."""

    traffic: QueueTraffic
    offset: int
    sent: Sent | None = None
    deliveries: list[Delivery] = field(default_factory=list)
    """By token."""
    settlements: list[Settlement] = field(default_factory=list)
    """In the order of their invokes; those that were refused for another reason than a stale lease
    are left out."""
    buried: list[Buried] = field(default_factory=list)
    revivals: list[Revival] = field(default_factory=list)

    @property
    def name(self) -> str:
        """For people."""
        value = self.value
        what = f"message {value!r}" if value is not None else "the message"
        return f"{what} at offset {self.offset} of {self.traffic.name}"

    @property
    def value(self) -> Value:
        """What it says; None: nobody knows."""
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
        """Each hand-out and the next one that was seen."""
        return pairwise(self.deliveries)


class Shown(Protocol):
    """A part of a history that shows something."""

    @property
    def call(self) -> Call:
        """The call that it belongs to."""

    @property
    def codes(self) -> tuple[int, ...]:
        """Of the values in its rows."""


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
        """An anomaly, the parts of the history that show it, and other calls that matter."""
        self.counts[name] += 1
        if self.counts[name] > EXAMPLES_MAX:
            return
        shown = list(parts)
        operations = {one.call.operation for one in shown}
        operations |= {call.operation for call in calls if call is not None}
        codes = sorted({code for one in shown for code in one.codes})
        self.anomalies.append(Anomaly(name, fact, tuple(sorted(operations)), tuple(codes)))


def messages_of(traffic: QueueTraffic, sends: Sequence[Sent]) -> dict[int, Message]:
    """By offset: every message of a queue that a group has to do with."""
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
    """Whether somebody gave a message back, or may have, before its lease ran out."""
    token = delivery.token
    if any(message.settled_by(token, "nack", "give_back")):
        return True
    # The rest of a lease comes back with a message that failed.
    return rules.order == "queue" and lease.failed_from < message.offset


@dataclass(slots=True)
class Lease:
    """All that is known of one token in one queue."""

    token: int
    deliveries: list[Delivery] = field(default_factory=list)
    settlements: list[Settlement] = field(default_factory=list)
    extensions: list[Settlement] = field(default_factory=list)
    """Each once, of whichever message it was said."""
    holders: dict[int, Delivery] = field(default_factory=dict)
    """By process: what it was handed last."""
    first_offset: float = inf
    """The lowest that was handed out."""
    failed_from: float = inf
    """The lowest offset that somebody settled otherwise than by an ack, or may have."""


def leases_of(traffic: QueueTraffic) -> dict[int, Lease]:
    """By token."""
    leases: dict[int, Lease] = defaultdict(lambda: Lease(0))
    for delivery in traffic.deliveries:
        lease = leases[delivery.token]
        lease.deliveries.append(delivery)
        lease.holders[delivery.call.process] = delivery
        lease.first_offset = min(lease.first_offset, delivery.offset)
    for settlement in traffic.settlements:
        lease = leases[settlement.token]
        lease.settlements.append(settlement)
        if settlement.function != "ack" and not settlement.is_refused:
            lease.failed_from = min(lease.failed_from, settlement.offset)
    extensions = {(one.token, one.call.operation, one.result): one for one in traffic.extensions}
    for extension in extensions.values():
        leases[extension.token].extensions.append(extension)
    for token, lease in leases.items():
        lease.token = token
    return dict(leases)
