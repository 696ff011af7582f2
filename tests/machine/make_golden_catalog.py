"""Writes a golden log of the catalog: `python -m tests.machine.make_golden_catalog FOLDER/v4`.

Run once for each version of the catalog's records, by the software of that version; the files are
committed, and every later version must come to the same. The log has each command that there was
in version 4, some of them repeated or refused; the other files what a catalog makes of it.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raftmq.access.rules import Operation, Resource, Rule
from raftmq.log.record import Kind, Record, encode
from raftmq.machine.catalog.access import DropRule, DropToken, DropUser, PutRule, PutToken, PutUser
from raftmq.machine.catalog.catalog import (
    Bootstrap,
    Catalog,
    Command,
    Group,
    Node,
    Once,
    PutGroup,
    PutNode,
    RemoveNode,
    RenewNode,
)
from raftmq.machine.catalog.consumer_groups import (
    Attach,
    DeleteConsumerGroup,
    Detach,
    PutConsumerGroup,
)
from raftmq.machine.catalog.deletions import PruneDeletions
from raftmq.machine.catalog.membership import (
    JoinGroup,
    LeaveGroup,
    RegrantQueues,
    ReleaseQueues,
    RenewMembers,
)
from raftmq.machine.catalog.nodes import NameNode
from raftmq.machine.catalog.replicas import RetireReplica
from raftmq.machine.catalog.subscribers import Subscribe, Unsubscribe
from raftmq.machine.catalog.topics import AlterTopic, CreateTopic, DeleteTopic
from raftmq.machine.commands import encode_commands
from raftmq.pop.policy import Mode, Policy
from raftmq.results import Changed, Refused, Result

SECOND_MS = 1000
"""Time between two records."""
SNAPSHOT_BEFORE = 12
"""Records after the snapshot."""
SALT, KEYS = bytes(16), (bytes([1]) * 32, bytes([2]) * 32)
READ = Rule("alice", True, Operation.READ, Resource.TOPIC, "or", is_prefix=True)
DENY = Rule("*", False, Operation.ANY, Resource.TOPIC, "secret")
NODES: list[Command] = [
    Bootstrap([Node(1, "a", 1), Node(2, "b", 2), Node(3, "c", 3)], groups=3, replicas=3),
    NameNode(1, "one"),
    NameNode(2, "two"),
    NameNode(3, "three"),
    NameNode(3, "another"),
    RenewNode(3, "three", "third"),
    PutNode(Node(4, "d", 4)),
    NameNode(4, "four"),
    PutGroup(Group(1, [2, 3, 4])),
    PutGroup(Group(1, [2, 9])),
    RetireReplica(1, 1),
    RetireReplica(2, 2, is_lost=True),
    RemoveNode(2),
    PutNode(Node(5, "e", 5)),
    RemoveNode(5),
]
USERS: list[Command] = [
    PutUser("alice", SALT, 4096, *KEYS, seed=bytes(32)),
    PutUser("bob"),
    PutUser("alice", SALT, 4096, KEYS[1], KEYS[0], old_until_ms=900_000),
    PutToken("bob", f"{1:016x}", bytes([3]) * 32),
    PutToken("alice", f"{2:016x}", bytes([4]) * 32, 900_000, "nightly"),
    PutToken("carol", f"{3:016x}", bytes([5]) * 32),
    PutRule(READ),
    PutRule(DENY),
    PutRule(DENY),
    PutRule(Rule("bob", True, Operation.ADMIN, Resource.CLUSTER)),
    DropRule(DENY),
    PutUser("dave"),
    PutRule(Rule("dave", True, Operation.WRITE, Resource.TOPIC, "orders")),
    DropUser("dave"),
    DropToken(f"{1:016x}"),
]
TOPICS: list[Command] = [
    Once(11, CreateTopic("orders", 4)),
    Once(11, CreateTopic("orders", 4)),
    CreateTopic("bills", 2, "orders"),
    CreateTopic("gone", 1),
    CreateTopic("x y", 1),
    AlterTopic("orders", 6, 1),
    AlterTopic("orders", 5),
    Subscribe("orders", "audit", "amount > 100"),
    Subscribe("bills", "audit", "region = 'eu'"),
    Subscribe("bills", "audit", "amount >"),
    Subscribe("gone", "audit", "x = 1"),
    Unsubscribe("bills", "audit"),
]
GROUPS: list[Command] = [
    PutConsumerGroup("billing", Mode.POP, Policy(attempts_max=3)),
    PutConsumerGroup("billing", Mode.PULL, Policy()),
    PutConsumerGroup("in-order", Mode.ORDERED, Policy(run=0)),
    Attach("orders", "billing", Mode.POP, False),
    Attach("bills", "billing", Mode.POP, True),
    Attach("orders", "in-order", Mode.ORDERED, False, 0),
    Attach("gone", "shipping", Mode.POP, False),
    Detach("bills", "billing"),
    Detach("gone", "shipping", 9),
    DeleteTopic("gone", 3),
    DeleteTopic("gone"),
    JoinGroup("orders", "readers", 7, 30_000, host="h", notes_beginning=True, replaces=0),
    JoinGroup("orders", "readers", 8, 1_000, "b", notes_beginning=True, replaces=0),
    JoinGroup("orders", "everybody", 9, 30_000, "a", mode=Mode.BROADCAST),
    JoinGroup("bills", "temporary", 10, 30_000),
    ReleaseQueues(7, [3, 4, 5], [48, 48, 48]),
    RenewMembers([7], [8, 9]),
    JoinGroup("orders", "readers", 11, 30_000, "b", notes_beginning=True, replaces=8),
    RegrantQueues("orders", "readers"),
    LeaveGroup(9),
    DeleteConsumerGroup("temporary"),
    DeleteConsumerGroup("temporary", is_whole=True, is_forced=True, seen=2),
    DeleteConsumerGroup("shipping", is_whole=True, seen=2),
    PruneDeletions(1_000),
    DeleteConsumerGroup("nobody", is_whole=True, has_offsets=True, seen=2),
]


def records() -> list[Record]:
    """The log; two of the records hold several commands."""
    steps = [[command] for command in NODES + USERS[:10]]
    steps += [USERS[10:], TOPICS[:3], *([command] for command in TOPICS[3:] + GROUPS)]
    made: list[Record] = []
    for index, commands in enumerate(steps, 1):
        made.append(
            encode(
                encode_commands(commands),
                index=index,
                term=1,
                kind=Kind.COMMANDS,
                timestamp=index * SECOND_MS,
                chain=made[-1].crc if made else 0,
                version=Catalog.record_version,
            )
        )
    return made


def play(catalog: Catalog, log: Sequence[Record]) -> dict[str, Any]:
    """The answers to all commands, and what the catalog says at the end."""
    answers = [[_told(result) for result in catalog.apply(record)] for record in log]
    found: dict[str, Any] = json.loads(json.dumps({"answers": answers, **_said(catalog)}))
    return found


def _told(result: Result) -> Any:
    if isinstance(result, Refused):
        return result.reason.value
    assert isinstance(result, Changed)
    return [result.value]


def _said(catalog: Catalog) -> dict[str, Any]:
    """The state, field by field: later versions may have more fields."""
    groups, access, members = catalog.consumer_groups, catalog.access, (7, 8, 9, 10, 11)
    return {
        "versions": [catalog.version, catalog.digest, access.version, groups.version],
        "nodes": [
            [n.id, n.host, n.port, n.is_leaving, n.incarnation, n.generation, n.has_left]
            for n in [*catalog.nodes.values(), *catalog.left.values()]
        ],
        "groups": [
            [g.id, g.members, g.founders, sorted(g.replicas.items())]
            for g in catalog.groups.values()
        ],
        "topics": [[t.name, t.id, t.groups, t.created] for t in catalog.topics.values()],
        "filters": [
            [topic, each.consumer_group, each.number, each.expression, each.version]
            for topic, of in catalog.subscribers.of_topic.items()
            for each in of.values()
        ],
        "consumer groups": [
            [g.name, g.mode, g.version, g.policy.attempts_max, g.policy.run]
            for g in groups.groups.values()
        ],
        "attachments": [
            [a.number, a.topic_id, a.consumer_group, a.is_latest, a.queues, a.version]
            for a in groups.attachments.values()
        ],
        "holdings": [[number, catalog.memberships.holding(number)] for number in members],
        "deletions": [[d.name, d.index, d.has_instances] for d in catalog.deletions.after(0)],
        "users": [
            [u.name, len(u.salt), u.iterations, [key.until_ms for key in u.keys], u.created]
            for u in access.users.values()
        ],
        "tokens": [[t.id, t.user, t.until_ms, t.created, t.note] for t in access.tokens.values()],
        "rules": [str(rule) for rule in access.rules],
    }


def make(base: Path) -> None:
    """Write `base`.log, `base`.snapshot, taken some records before its end, and `base`.json."""
    log = records()
    base.with_suffix(".json").write_text(json.dumps(play(Catalog(), log), indent=1) + "\n")
    base.with_suffix(".log").write_bytes(b"".join(record.encoded for record in log))
    catalog = Catalog()
    for record in log[:-SNAPSHOT_BEFORE]:
        catalog.apply(record)
    base.with_suffix(".snapshot").write_bytes(catalog.snapshot())


if __name__ == "__main__":
    make(Path(sys.argv[1]))
