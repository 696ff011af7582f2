"""Requests of every kind, about things that a cluster has, as plain values to bend and encode.

`request` draws one: each field by its name, if the name says what belongs there (`queue`,
`consumer_group`), else by its type. So most requests reach the code behind the first checks.

>>> request(FrameKind.METADATA, Things(topics=["orders"]), Random(1))[1]
[['orders', 'orders', 'orders'], True, 5]
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any

import msgspec
import msgspec.inspect as mi

from raftmq.batch import encode
from raftmq.batch.compression import Compression
from raftmq.machine.catalog.catalog import Command
from raftmq.machine.queue_numbers import QUEUE_BITS
from raftmq.wire import (
    access,
    assignment,
    consumer_groups,
    directory,
    fetches,
    messages,
    popping,
    producing,
    raft,
    settings,
    traces,
)
from raftmq.wire.messages import FrameKind

HEADERS: Mapping[FrameKind, type[msgspec.Struct] | None] = {
    FrameKind.HELLO: messages.Hello,
    FrameKind.PRODUCE: None,
    FrameKind.FETCH: fetches.Fetch,
    FrameKind.METADATA: messages.Metadata,
    FrameKind.COMMIT: assignment.CommitOffsets,
    FrameKind.COMMITTED: assignment.Committed,
    FrameKind.OFFSETS: messages.FindOffsets,
    FrameKind.KEY: messages.FindKey,
    FrameKind.ADMIN: messages.Admin,
    FrameKind.STATUS: messages.Status,
    FrameKind.TRANSFER: messages.Transfer,
    FrameKind.CHANGE_NODE: messages.ChangeNode,
    FrameKind.FORGET: None,
    FrameKind.SUBSCRIBED: messages.FindSubscriptions,
    FrameKind.POP: popping.Pop,
    FrameKind.SETTLE: popping.Settle,
    FrameKind.LEAVE: popping.Leave,
    FrameKind.BACKLOGS: popping.FindBacklogs,
    FrameKind.DEAD: popping.FindDead,
    FrameKind.CHANGE_DEAD: popping.ChangeDead,
    FrameKind.GROUPS: consumer_groups.FindConsumerGroups,
    FrameKind.HEARTBEAT: assignment.Heartbeat,
    FrameKind.MEMBERS: assignment.FindMembers,
    FrameKind.CLAIM: popping.Claim,
    FrameKind.CANCEL: producing.CancelDelayed,
    FrameKind.BEGIN: producing.BeginTransaction,
    FrameKind.END: producing.EndTransaction,
    FrameKind.TRANSACTIONS: producing.FindTransactions,
    FrameKind.WHY: traces.FindTrace,
    FrameKind.RESET: popping.ResetGroup,
    FrameKind.SESSIONS: producing.ClaimSessions,
    FrameKind.RAFT: raft.RaftHeader,
    FrameKind.SNAPSHOT: messages.SnapshotChunk,
    FrameKind.PROBE: messages.Probe,
    FrameKind.REPAIR: messages.RepairRange,
    FrameKind.EVENTS: traces.FindEvents,
    FrameKind.FORGET_GROUP: consumer_groups.ForgetGroup,
    FrameKind.LOG_IN: access.LogIn,
    FrameKind.USERS: access.FindUsers,
    FrameKind.RULES: access.FindRules,
    FrameKind.JUDGE: access.JudgeAct,
    FrameKind.AUDIT: access.FindAudit,
    FrameKind.QUOTAS: access.FindQuotas,
    FrameKind.LOG: traces.FindLog,
    FrameKind.SETTINGS: settings.FindSettings,
    FrameKind.SETTINGS_HISTORY: settings.FindSettingsHistory,
    FrameKind.DIRECTORY: directory.DirectoryMessage,
    FrameKind.CLIENTS: directory.FindClients,
    FrameKind.DIRECTORY_NODES: directory.FindDirectoryNodes,
    FrameKind.LEASE: directory.AskLease,
}
"""The header of each kind of request; None: it has none."""

ANSWERS: Mapping[FrameKind, type[msgspec.Struct]] = {
    FrameKind.HELLO: messages.Welcome,
    FrameKind.PRODUCE: messages.Produced,
    FrameKind.FETCH: fetches.Fetched,
    FrameKind.METADATA: messages.ClusterView,
    FrameKind.COMMIT: assignment.OffsetsCommitted,
    FrameKind.COMMITTED: assignment.CommittedOffsets,
    FrameKind.OFFSETS: messages.FoundOffsets,
    FrameKind.KEY: messages.FoundKey,
    FrameKind.ADMIN: messages.AdminDone,
    FrameKind.STATUS: messages.NodeStatus,
    FrameKind.TRANSFER: messages.Done,
    FrameKind.CHANGE_NODE: messages.Done,
    FrameKind.SUBSCRIBED: messages.FoundSubscriptions,
    FrameKind.POP: popping.Popped,
    FrameKind.SETTLE: popping.Settled,
    FrameKind.LEAVE: messages.Done,
    FrameKind.BACKLOGS: popping.FoundBacklogs,
    FrameKind.DEAD: popping.FoundDead,
    FrameKind.CHANGE_DEAD: popping.DeadChanged,
    FrameKind.GROUPS: consumer_groups.FoundConsumerGroups,
    FrameKind.HEARTBEAT: assignment.Assigned,
    FrameKind.MEMBERS: assignment.FoundMembers,
    FrameKind.CLAIM: popping.Claimed,
    FrameKind.CANCEL: producing.DelayedCancelled,
    FrameKind.BEGIN: messages.Done,
    FrameKind.END: producing.TransactionEnded,
    FrameKind.TRANSACTIONS: producing.FoundTransactions,
    FrameKind.WHY: traces.FoundTrace,
    FrameKind.RESET: messages.Done,
    FrameKind.SESSIONS: producing.SessionsClaimed,
    FrameKind.SNAPSHOT: messages.SnapshotProgress,
    FrameKind.PROBE: messages.ProbeReply,
    FrameKind.REPAIR: messages.RepairedRange,
    FrameKind.EVENTS: traces.FoundEvents,
    FrameKind.FORGET_GROUP: messages.Done,
    FrameKind.LOG_IN: access.LoggedIn,
    FrameKind.USERS: access.FoundUsers,
    FrameKind.RULES: access.FoundRules,
    FrameKind.JUDGE: access.Judged,
    FrameKind.AUDIT: access.FoundAudit,
    FrameKind.QUOTAS: access.FoundQuotas,
    FrameKind.LOG: traces.FoundLog,
    FrameKind.SETTINGS: settings.FoundSettings,
    FrameKind.SETTINGS_HISTORY: settings.FoundSettingsHistory,
    FrameKind.CLIENTS: directory.FoundClients,
    FrameKind.DIRECTORY_NODES: directory.FoundDirectoryNodes,
    FrameKind.LEASE: directory.LeaseAnswer,
}
"""The header of the answer to each kind of request that is answered."""

KINDS = tuple(HEADERS)
FILTERS = (
    "a", "a || b", "*", "color = 'red'", "size BETWEEN 1 AND 9 OR color LIKE 'r%'",
    "NOT (color IN ('red', 'blue')) AND size IS NOT NULL", "((((size > 1", "size = ",
)  # fmt: skip
LOGINS = (
    "n,,n=few,r=abcdefgh", "n,,n=nobody,r=abcdefgh", "c=biws,r=abcdefgh,p=AAAA",
    f"raftmq_{'0' * 16}_{'A' * 43}", f"raftmq_{'a' * 16}_{'A' * 43}", "y,,n=few,r=x",
    "n,,m=x,n=few",
)  # fmt: skip


@dataclass
class Things:
    """Names and numbers of a cluster, as far as an attacker knows them or can guess them."""

    topics: list[str] = field(default_factory=lambda: ["none"])
    groups: list[str] = field(default_factory=lambda: ["none"])
    """Consumer groups and producer groups."""
    users: list[str] = field(default_factory=lambda: ["few"])
    queues: list[int] = field(default_factory=lambda: [1 << 16])
    attachments: list[int] = field(default_factory=lambda: [1])
    tokens: list[int] = field(default_factory=lambda: [1])
    """Tokens of leases."""
    numbers: list[int] = field(default_factory=lambda: [1, 2, 3, 7])
    """Consumers, producers, members and transactions."""


_Draw = Callable[[Things, Random], Any]


def _one_of(name: str) -> _Draw:
    return lambda things, random: random.choice(getattr(things, name))


def _number(low: int, high: int) -> _Draw:
    return lambda _, random: random.randint(low, high)


def _choice(*values: Any) -> _Draw:
    return lambda _, random: random.choice(values)


_BY_NAME: Mapping[str, _Draw] = {
    **dict.fromkeys(("topic", "topics", "beside"), _one_of("topics")),
    **dict.fromkeys(("consumer_group", "producer_group"), _one_of("groups")),
    # A name of the attacker's own: lists show it again.
    "instance": _choice("", "i", "own-instance"),
    **dict.fromkeys(("user", "incarnation"), _one_of("users")),
    **dict.fromkeys(("queue", "queues"), _one_of("queues")),
    "number": _one_of("attachments"),
    "token": _one_of("tokens"),
    **dict.fromkeys(
        ("consumer", "claimant", "producer", "member", "transaction"), _one_of("numbers")
    ),
    "partition_group": _number(1, 3),
    "group": _number(0, 3),
    "expression": _choice(*FILTERS),
    "mechanism": _choice(access.SCRAM, access.TOKEN),
    "data": _choice(*LOGINS),
    "protocol": _choice(messages.PROTOCOL),
    "cluster": _choice(""),
    "wait_ms": _choice(0, 0, 0, 1, 5, 1000),
    "bytes_max": _choice(1, 1000, 1 << 20),
    "bits": _choice(b"\x01", b"\xff", b"\xff" * 20, b""),
    "ttl_ms": _choice(0, 1000),
    "session_ms": _choice(10_000, 60_000),
    "invisible_ms": _choice(0, 1000, 30_000),
    "action": _choice("add", "remove", "replace"),
    "host": _choice("", "nowhere"),
    "operation": _choice("read", "write", "any", "admin"),
    "resource": _choice("topic", "group", "cluster"),
}
"""By the name of a field: what belongs there."""
_BY_OWNER: Mapping[tuple[str, str], _Draw] = {
    ("SettleItem", "action"): _number(0, 6),
    ("CreateTopic", "queues"): _choice(1, 2, 16),
    ("AlterTopic", "queues"): _choice(1, 3, 17),
    ("CreateTopic", "name"): _one_of("topics"),
    ("AlterTopic", "name"): _one_of("topics"),
    ("DeleteTopic", "name"): _one_of("topics"),
    ("PutConsumerGroup", "name"): _one_of("groups"),
    ("DeleteConsumerGroup", "name"): _one_of("groups"),
    ("PutUser", "name"): _one_of("users"),
    ("DropUser", "name"): _one_of("users"),
    ("Hello", "node"): _choice(0, 0, 0, 1, 2),
    ("FindKey", "topic"): lambda things, random: random.choice(things.queues) >> QUEUE_BITS,
    ("Rule", "name"): _one_of("topics"),
    ("AskLease", "act"): _choice("take", "keep", "release"),
    ("AskLease", "name"): _choice("report", "mirror"),
    ("Doing", "client"): _choice("c1", "c2"),
    ("Use", "group"): _one_of("groups"),
}
"""By struct and field, where the name alone does not say it."""


def request(kind: FrameKind, things: Things, random: Random) -> tuple[int, Any, bytes]:
    """A request: its kind, its header as plain values (None: there is none), its body."""
    if kind == FrameKind.PRODUCE:
        return kind, None, batch(things, random)
    type_ = HEADERS[kind]
    if type_ is None:
        return kind, None, b""
    header = _drawn_from(type_)(things, random)
    if kind == FrameKind.ADMIN:
        header[0] = _commands()(things, random)
    return kind, header, b""


_BATCHES = (
    {"bodies": [b"hello"]},
    {"bodies": [b"a" * 40] * 9, "keys": ["k", "l", None] * 3, "tags": ["a", "b", None] * 3},
    {"bodies": [b"b" * 200] * 40, "compression": Compression.ZSTD},
    {"bodies": [b"c" * 200] * 40, "compression": Compression.LZ4, "keys": ["k"] * 40},
    {"bodies": [b"d"] * 4, "deliver_at_ms": [0, 1, 10**12, 1_700_000_500_000]},
    {"bodies": [b"e"] * 3, "created_ms": [1, 2, 10**12]},
    {"bodies": [b"f"] * 3, "props": [{"color": "red", "size": 5}, {"x": 1.5, "y": b"z"}, None]},
)


@cache
def _sealed(index: int) -> Any:
    return encode(**_BATCHES[index])


def batch(things: Things, random: Random) -> bytes:
    """A batch of messages for a queue."""
    sealed = _sealed(random.randrange(len(_BATCHES)))
    data: bytes = sealed.to_bytes(
        queue=random.choice(things.queues),
        producer=random.choice((0, 0, *things.numbers)),
        epoch=random.choice((0, 0, 1)),
        first_sequence=random.choice((0, 0, 1, 9)),
    )
    return data


@cache
def _drawn_from(type_: type[msgspec.Struct]) -> _Draw:
    return _drawn("", "", mi.type_info(type_))


@cache
def _commands() -> _Draw:
    return _drawn("", "", mi.type_info(Command))


def _drawn(owner: str, name: str, kind: mi.Type) -> _Draw:
    """The drawing of a field's value, made once for each field."""
    named = _BY_OWNER.get((owner, name)) or _BY_NAME.get(name)
    match kind:
        case mi.StructType(cls=cls, fields=fields, tag=tag):
            draws = [_drawn(cls.__name__, each.name, each.type) for each in fields]
            first = [tag] if tag is not None else []
            return lambda things, random: first + [draw(things, random) for draw in draws]
        case mi.ListType(item_type=item) | mi.VarTupleType(item_type=item):
            drawn = _drawn(owner, name, item)
            return lambda things, random: [
                drawn(things, random) for _ in range(random.choice((0, 1, 1, 2, 3)))
            ]
        case mi.UnionType(types=types):
            options = [_drawn(owner, name, each) for each in types]
            return lambda things, random: random.choice(options)(things, random)
        case mi.NoneType():
            return _choice(None)
    return named or _by_type(kind)


def _by_type(kind: mi.Type) -> _Draw:
    match kind:
        case mi.BoolType():
            return _choice(False, True)
        case mi.IntType(ge=low):
            low = 0 if low is None else low
            return _choice(*(number for number in (0, 1, 2, 5, 1000) if number >= low))
        case mi.FloatType():
            return _choice(0.0, 0.5, 1.0)
        case mi.EnumType(cls=cls):
            return _choice(*(member.value for member in cls))
        case mi.StrType():
            return _choice("", "x", "note")
        case mi.BytesType():
            return _choice(b"", b"k", bytes(32))
        case mi.AnyType():
            return _choice(None)
        case mi.DictType():
            return _choice({})
        case _:
            raise AssertionError(f"no drawing for {kind}")
