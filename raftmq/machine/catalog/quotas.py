"""Quotas: the share of each node's work that a user or a topic may take; a part of the catalog.

    PutQuota(user alice, Quota(write_bytes=10_000_000))   -> alice sends 10 MB a second to a node
    PutQuota(user *, Quota(requests=100))                 -> every user without a quota of its own
    DropQuota(user alice)                                 -> for alice the quota of `*` holds

A subject has one quota: its own, or that of `*`, never a mix of both. A quota is about a name: it
may be put before its user or topic exists, and stays when they are deleted.

A topic or consumer group belongs to the user that created it. What a user owned before it got a
quota stays; it creates no more until it owns less. Topics and groups without an owner count for no
user.

Invariants:
- `version` grows with every change, so a node sees that its meters are old.

Sources: Kafka's client quotas (KIP-13, KIP-124, KIP-612) for rates, requests and connections.
"""

from enum import StrEnum
from typing import Any

import msgspec

from raftmq.errors import Reason
from raftmq.machine.names import why_no_name
from raftmq.results import Changed, Refused, Result

EVERY = "*"
"""The name that stands for each user, or each topic, without a quota of its own."""
QUOTAS_MAX = 100_000
"""Quotas of a cluster: each node keeps them all in memory."""
AMOUNT_MAX = 1 << 53
"""The largest amount: up to there a floating point number is exact."""


class SubjectKind(StrEnum):
    """The two kinds of things that have quotas."""

    # An enum's own hash is a call of Python, and each request looks for meters by kind.
    __hash__ = str.__hash__

    USER = "user"
    TOPIC = "topic"


class Subject(msgspec.Struct, frozen=True, array_like=True):
    """A user or a topic."""

    kind: SubjectKind
    name: str
    """Its name, or `EVERY`."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class Quota(msgspec.Struct, frozen=True, array_like=True):
    """The amounts of one subject; 0: without a bound. Each node counts for itself, but for what a
    user owns."""

    write_bytes: int = 0
    """Bytes of batches that are sent to a node in a second."""
    write_messages: int = 0
    """Messages in them."""
    read_bytes: int = 0
    """Bytes of batches that a node sends out in a second."""
    read_messages: int = 0
    """Messages in them."""
    connections: int = 0
    """Open connections of the user to a node."""
    requests: int = 0
    """Requests of the user that wait for an answer of a node, those that wait for messages among
    them."""
    topics: int = 0
    """Topics that the user owns, in the whole cluster."""
    queues: int = 0
    """Queues of these topics."""
    groups: int = 0
    """Consumer groups that the user owns, in the whole cluster."""
    in_flight: int = 0
    """Messages that consumers which pop have in hand or have asked for: the user's consumers, or
    all consumers of the topic."""

    def __str__(self) -> str:
        amounts = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return ", ".join(f"{name} {amount}" for name, amount in amounts if amount) or "no bound"


OF_USERS = frozenset(("connections", "requests", "topics", "queues", "groups"))
"""The amounts that only users have."""


class PutQuota(msgspec.Struct, frozen=True, array_like=True, tag="put_quota"):
    """Give a subject a quota, in place of the one before."""

    subject: Subject
    """The user or topic."""
    quota: Quota
    """The amounts."""


class DropQuota(msgspec.Struct, frozen=True, array_like=True, tag="drop_quota"):
    """Remove the quota of a subject; that of `EVERY` holds for it then."""

    subject: Subject
    """The user or topic."""


QuotaCommand = PutQuota | DropQuota


class QuotaState:
    """All quotas of a cluster."""

    def __init__(self) -> None:
        self.version = 0
        """Index of the last record that changed anything here; 0: none did."""
        self.users: dict[str, Quota] = {}
        """Quotas of users by name."""
        self.topics: dict[str, Quota] = {}
        """Quotas of topics by name."""

    def __len__(self) -> int:
        return len(self.users) + len(self.topics)

    def of(self, kind: SubjectKind) -> dict[str, Quota]:
        """The quotas of a kind of subjects, by name."""
        return self.users if kind is SubjectKind.USER else self.topics

    def find(self, kind: SubjectKind, name: str) -> Quota | None:
        """The quota that holds for a subject; None: none does."""
        quotas = self.of(kind)
        return quotas.get(name) or quotas.get(EVERY)

    def over(self, owner: str, **wanted: tuple[int, int]) -> Refused | None:
        """The refusal of things that a user is to own; None: it may have them.

        Args:
            owner: the user; empty: not known, and nothing is refused.
            wanted: by amount (`topics`, `queues`, `groups`) how many the user owns, and how many
                it would get.
        """
        quota = self.find(SubjectKind.USER, owner) if owner else None
        if quota is None:
            return None
        for name, (owned, more) in wanted.items():
            bound = getattr(quota, name)
            if more and 0 < bound < owned + more:
                message = (
                    f"user {owner!r} owns {owned} {name} and would own {owned + more}, and its "
                    f"quota is {bound}: delete some, or let an administrator raise it with "
                    f"`raftmq quota set user {owner} --{name} N` and all other amounts of the "
                    "quota, which it replaces"
                )
                return Refused(Reason.OVER_QUOTA, message)
        return None

    def apply(self, command: QuotaCommand, *, index: int) -> Result:
        """Carry out a command of the record at `index`; the value says whether it changed
        anything."""
        subject = command.subject
        quotas = self.of(subject.kind)
        if isinstance(command, DropQuota):
            is_change = quotas.pop(subject.name, None) is not None
        else:
            problem = why_no_quota(subject, command.quota)
            if not problem and subject.name not in quotas and len(self) >= QUOTAS_MAX:
                problem = f"the cluster has {QUOTAS_MAX} quotas already: drop some"
            if problem:
                return Refused(Reason.BAD_ARGUMENT, problem)
            is_change = quotas.get(subject.name) != command.quota
            quotas[subject.name] = command.quota
        if is_change:
            self.version = index
        return Changed(is_change)

    def dump(self) -> list[Any]:
        """All of it as plain values."""
        return [self.version, *(sorted(each.items()) for each in (self.users, self.topics))]

    def load(self, state: list[Any]) -> None:
        """Take the state that `dump` gave."""
        self.version, *kinds = state
        self.users, self.topics = (
            dict(msgspec.convert(each, list[tuple[str, Quota]])) for each in kinds
        )


def why_no_quota(subject: Subject, quota: Quota) -> str:
    """Why a quota is refused; empty: it is not."""
    if subject.name != EVERY and (problem := why_no_name(subject.name, subject.kind.value)):
        return problem
    for name in Quota.__struct_fields__:
        amount = getattr(quota, name)
        if not 0 <= amount <= AMOUNT_MAX:
            return f"{name} must be 0 (no bound) to {AMOUNT_MAX}, not {amount}"
        if amount and name in OF_USERS and subject.kind is not SubjectKind.USER:
            return f"{name} is counted by user: a topic has none"
    return ""


class OwnedCounts:
    """How many things each user owns, without zeros; the owner "" is not counted."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def of(self, owner: str) -> int:
        """How many are the owner's."""
        return self._counts.get(owner, 0)

    def add(self, owner: str, more: int) -> None:
        """Add to an owner's count; negative for a deletion."""
        if not owner or not more:
            return
        count = self.of(owner) + more
        assert count >= 0, f"{owner!r} owns {count}"
        if count:
            self._counts[owner] = count
        else:
            del self._counts[owner]
