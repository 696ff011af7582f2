"""The audit log of the catalog, and who owns topics and consumer groups."""

from collections import Counter
from pathlib import Path
from typing import Any

import cbor2
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.access.rules import Operation, Resource, Rule
from raftmq.errors import Reason
from raftmq.machine.catalog import audit
from raftmq.machine.catalog.access import DropUser, PutRule, PutToken, PutUser
from raftmq.machine.catalog.audit import (
    AUTHOR_BYTES_MAX,
    BEGUN,
    DETAIL_BYTES_MAX,
    DONE,
    NAME_BYTES_MAX,
    UNCHANGED,
    WORD_BYTES_MAX,
    AdminAct,
    Audit,
    BeginAct,
    EndAct,
    Entry,
)
from raftmq.machine.catalog.catalog import (
    Authored,
    Bootstrap,
    Catalog,
    Command,
    Group,
    Node,
    Once,
    PutGroup,
    PutNode,
    Reconfigure,
    RemoveNode,
)
from raftmq.machine.catalog.consumer_groups import (
    Attach,
    DeleteConsumerGroup,
    Detach,
    PutConsumerGroup,
)
from raftmq.machine.catalog.membership import JoinGroup
from raftmq.machine.catalog.quotas import DropQuota, PutQuota, Quota, Subject, SubjectKind
from raftmq.machine.catalog.topics import AlterTopic, CreateTopic, DeleteTopic
from raftmq.pop.policy import Mode, Policy
from raftmq.results import Changed, Refused
from tests.access.structs import TEXTS

from .test_catalog import NODES, run

GOLDEN = Path(__file__).parent / "golden"
ALICE = AdminAct("alice", "10.0.0.7", "create_topic", "topic", "orders", "8 queues")
USE = AdminAct("alice", "10.0.0.7")
"""Alice does what makes no entry."""


@pytest.fixture
def catalog() -> Catalog:
    made = Catalog()
    run(made, Bootstrap(NODES, groups=3, replicas=3))
    return made


def entries(catalog: Catalog) -> list[Entry]:
    return list(catalog.audit.entries.values())


def by(user: str) -> AdminAct:
    return msgspec.structs.replace(ALICE, user=user)


def restored(kept: Audit) -> Audit:
    made = Audit()
    made.load(cbor2.loads(cbor2.dumps(msgspec.to_builtins(kept.dump()))))
    return made


def results(catalog: Catalog) -> list[str]:
    return [entry.result for entry in entries(catalog)]


# An act and its entry


def test_act_and_its_entry_are_one_record(catalog: Catalog) -> None:
    before = catalog.applied
    assert run(catalog, Authored(ALICE, Once(7, CreateTopic("orders", 8)))) == Changed(1)
    assert catalog.applied == before + 1
    assert "orders" in catalog.topics
    assert entries(catalog) == [Entry(1, 5, ALICE, DONE)]


def test_repeat_is_answered_and_makes_no_second_entry(catalog: Catalog) -> None:
    command = Authored(ALICE, Once(7, CreateTopic("orders", 8)))
    assert run(catalog, command) == run(catalog, command) == Changed(1)
    assert len(entries(catalog)) == 1
    # After a snapshot, too.
    again = Catalog.restore(catalog.snapshot())
    assert run(again, command) == Changed(1)
    assert len(entries(again)) == 1


def test_refused_act_has_its_reason(catalog: Catalog) -> None:
    for command in (CreateTopic("orders", 8), CreateTopic("orders", 9), CreateTopic("x y", 1)):
        run(catalog, Authored(ALICE, command))
    assert results(catalog) == [DONE, Reason.TOPIC_EXISTS.value, Reason.BAD_NAME.value]


def test_command_without_an_author_or_a_name_of_its_act_makes_no_entry(catalog: Catalog) -> None:
    run(catalog, CreateTopic("orders", 8))
    run(catalog, Authored(USE, Once(7, Attach("orders", "billing", Mode.POP, False))))
    assert entries(catalog) == []
    assert catalog.consumer_groups.groups["billing"].owner == "alice"


RULE = Rule("alice", True, Operation.READ, Resource.TOPIC, "orders")
TOKEN = PutToken("alice", "a" * 16, bytes(32))
SUBJECT = Subject(SubjectKind.USER, "alice")
ACTS: list[tuple[Any, str]] = [
    (CreateTopic("t", 2), DONE),
    (CreateTopic("t", 2), UNCHANGED),
    (AlterTopic("t", 3), DONE),
    (AlterTopic("t", 3), UNCHANGED),
    (PutConsumerGroup("g", Mode.POP, Policy()), DONE),
    (PutConsumerGroup("g", Mode.POP, Policy()), UNCHANGED),
    (PutConsumerGroup("g", Mode.POP, Policy(attempts_max=3)), DONE),
    (Detach("t", "g"), UNCHANGED),
    (Detach("t", "attached", 1), DONE),
    (Detach("t", "attached", 1), UNCHANGED),
    (DeleteConsumerGroup("g", is_whole=True, seen=0), DONE),
    # It was deleted after that: a repeat.
    (DeleteConsumerGroup("g", is_whole=True, seen=0), UNCHANGED),
    # Only offsets are kept of it.
    (DeleteConsumerGroup("reader", is_whole=True, has_offsets=True), DONE),
    (DeleteConsumerGroup("nobody", is_whole=True), Reason.UNKNOWN_GROUP.value),
    (DeleteTopic("t", 1), DONE),
    (DeleteTopic("t", 1), UNCHANGED),
    (PutUser("alice"), DONE),
    (PutUser("alice"), UNCHANGED),
    (TOKEN, DONE),
    (TOKEN, Reason.BAD_ARGUMENT.value),
    (PutRule(RULE), DONE),
    (PutRule(RULE), UNCHANGED),
    (DropUser("alice"), DONE),
    (DropUser("alice"), UNCHANGED),
    (PutQuota(SUBJECT, Quota(write_bytes=1)), DONE),
    (PutQuota(SUBJECT, Quota(write_bytes=1)), UNCHANGED),
    (DropQuota(SUBJECT), DONE),
    (DropQuota(SUBJECT), UNCHANGED),
    (PutNode(Node(4, "d", 4)), DONE),
    (PutNode(Node(4, "d", 4)), UNCHANGED),
    (RemoveNode(4), DONE),
    (RemoveNode(4), UNCHANGED),
    (RemoveNode(1), Reason.BAD_ARGUMENT.value),
    (PutGroup(Group(1, [2, 1, 3])), DONE),
    (PutGroup(Group(1, [2, 1, 3])), UNCHANGED),
    (Reconfigure([PutNode(Node(5, "e", 5)), PutGroup(Group(1, [5, 1, 2]))]), DONE),
    (Reconfigure([PutNode(Node(5, "e", 5)), PutGroup(Group(1, [5, 1, 2]))]), UNCHANGED),
    # One part changes something.
    (Reconfigure([PutNode(Node(5, "e", 5)), PutGroup(Group(1, [1, 2, 5]))]), DONE),
]


def test_entry_tells_whether_the_act_changed_anything(catalog: Catalog) -> None:
    for number, (command, wanted) in enumerate(ACTS):
        if number == 7:
            run(catalog, Attach("t", "attached", Mode.POP, False))
        before = catalog.snapshot()
        result = run(catalog, Authored(ALICE, command))
        assert results(catalog)[-1] == wanted, command
        assert isinstance(result, Refused) == (wanted not in (DONE, UNCHANGED))
        if wanted != DONE:
            assert facts(catalog.snapshot()) == facts(before), command


def facts(snapshot: bytes) -> list[Any]:
    """A state without its index, digest, version and audit log."""
    state: list[Any] = cbor2.loads(snapshot)
    return [*state[4:-2], state[-1]]


# An act of another log


def test_act_of_another_log_has_begun_until_its_outcome_is_known(catalog: Catalog) -> None:
    assert run(catalog, BeginAct(ALICE)) == Changed(1)
    assert run(catalog, BeginAct(ALICE)) == Changed(2)
    assert results(catalog) == [BEGUN, BEGUN]
    assert run(catalog, EndAct(2, DONE)) == Changed(True)
    assert results(catalog) == [BEGUN, DONE]
    # The first outcome holds.
    assert run(catalog, EndAct(2, "unavailable")) == Changed(False)
    assert run(catalog, EndAct(3, DONE)) == run(catalog, EndAct(0, DONE)) == Changed(False)
    assert results(catalog) == [BEGUN, DONE]


def test_notes_change_nothing_that_nodes_and_clients_follow(catalog: Catalog) -> None:
    version = catalog.version
    run(catalog, BeginAct(ALICE))
    run(catalog, EndAct(1, DONE))
    assert catalog.version == version
    run(catalog, Authored(ALICE, CreateTopic("orders", 1)))
    assert catalog.version == catalog.applied
    version = catalog.version
    run(catalog, JoinGroup("orders", "readers", 1, 10_000))
    version = catalog.version
    run(catalog, Authored(USE, JoinGroup("orders", "readers", 2, 10_000)))
    assert catalog.version == version


# Owners


def test_what_is_created_has_its_author_as_owner(catalog: Catalog) -> None:
    run(catalog, CreateTopic("nobodys", 1))
    run(catalog, Authored(ALICE, Once(1, CreateTopic("orders", 1))))
    run(catalog, Authored(ALICE, PutConsumerGroup("put", Mode.POP, Policy())))
    run(catalog, Authored(USE, Attach("orders", "attached", Mode.POP, False)))
    run(catalog, Authored(USE, JoinGroup("orders", "joined", 1, 10_000)))
    for state in (catalog, Catalog.restore(catalog.snapshot())):
        assert {topic.name: topic.owner for topic in state.topics.values()} == {
            "nobodys": "",
            "orders": "alice",
        }
        groups = state.consumer_groups.groups
        assert {name: group.owner for name, group in groups.items()} == dict.fromkeys(
            ("put", "attached", "joined"), "alice"
        )


def test_owner_stays_when_others_change_or_use_a_thing(catalog: Catalog) -> None:
    bob, use = AdminAct("bob", "", "alter_topic"), AdminAct("bob", "")
    run(catalog, Authored(ALICE, CreateTopic("orders", 1)))
    run(catalog, Authored(bob, CreateTopic("orders", 1)))
    run(catalog, Authored(bob, AlterTopic("orders", 4)))
    run(catalog, Authored(ALICE, PutConsumerGroup("g", Mode.POP, Policy())))
    run(catalog, Authored(bob, PutConsumerGroup("g", Mode.POP, Policy(attempts_max=3))))
    run(catalog, Authored(use, Attach("orders", "g", Mode.POP, False)))
    assert catalog.topics["orders"].owner == "alice"
    assert catalog.consumer_groups.groups["g"].owner == "alice"
    assert catalog.consumer_groups.groups["g"].policy.attempts_max == 3


# Bounds


def test_oldest_entries_of_a_user_alone_go_and_numbers_rise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(audit, "ENTRIES_MAX", 3)
    kept = Audit()
    assert kept.last == 0
    assert [kept.add(ALICE, 5, BEGUN) for _ in range(5)] == [1, 2, 3, 4, 5]
    assert (kept.last, list(kept.entries)) == (5, [3, 4, 5])
    assert kept.end(2, DONE) == Changed(False)
    assert kept.end(4, DONE) == Changed(True)
    assert list(kept.entries) == [3, 4, 5], "the order of the entries is that of their numbers"
    again = restored(kept)
    assert again.dump() == kept.dump()
    assert again.add(ALICE, 6, DONE) == 6
    assert list(again.entries) == [4, 5, 6]


def test_user_who_makes_many_entries_pushes_out_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "ENTRIES_MAX", 10)
    kept = Audit()
    for user in "aaabbc":
        kept.add(by(user), 5, DONE)
    for _ in range(1000):
        kept.add(by("mallory"), 5, DONE)
    assert list(kept.entries) == [1, 2, 3, 4, 5, 6, 1003, 1004, 1005, 1006]
    # A user with fewer entries than mallory takes the places of mallory's, then of its own.
    for _ in range(3):
        kept.add(by("dave"), 5, DONE)
    assert list(kept.entries) == [2, 3, 4, 5, 6, 1005, 1006, 1007, 1008, 1009]


def test_of_users_with_equally_many_entries_the_oldest_entry_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(audit, "ENTRIES_MAX", 4)
    kept = Audit()
    for user in "baab":
        kept.add(by(user), 5, DONE)
    assert kept.add(by("c"), 5, DONE) == 5
    assert list(kept.entries) == [2, 3, 4, 5]
    assert kept.add(by("d"), 5, DONE) == 6
    assert list(kept.entries) == [3, 4, 5, 6]
    # Each user has one: the newest entry stays.
    assert kept.add(by("e"), 5, DONE) == 7
    assert list(kept.entries) == [4, 5, 6, 7]


@given(
    st.lists(st.sampled_from("aaaaaabbbcde") | st.none(), min_size=20, max_size=60),
    st.integers(1, 8),
)
def test_entries_equal_a_search_for_the_user_with_most_and_survive_snapshots(
    users: list[str | None], bound: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(audit, "ENTRIES_MAX", bound)
        kept = Audit()
        model: list[tuple[int, str]] = []
        for user in users:
            if user is None:
                kept = restored(kept)
                continue
            model.append((kept.add(by(user), 5, DONE), user))
            if len(model) > bound:
                counts = Counter(user for _, user in model)
                most = max(counts.values())
                model.remove(min(row for row in model if counts[row[1]] == most))
            assert [(number, entry.act.user) for number, entry in kept.entries.items()] == model


def test_entries_of_a_longer_log_are_kept_as_far_as_they_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = Audit()
    for _ in range(9):
        kept.add(ALICE, 5, DONE)
    kept.add(by("bob"), 5, DONE)
    monkeypatch.setattr(audit, "ENTRIES_MAX", 3)
    for made in (kept, restored(kept)):
        made.add(ALICE, 5, DONE)
        assert list(made.entries) == [9, 10, 11]


@given(st.lists(TEXTS | st.just("ü€𝄞" * 200), min_size=6, max_size=6), TEXTS)
def test_texts_of_any_kind_are_cut_to_their_bounds(texts: list[str], result: str) -> None:
    catalog = Catalog()
    run(catalog, BeginAct(AdminAct(*texts)))
    run(catalog, EndAct(1, result * 50))
    (entry,) = entries(catalog)
    bounds: tuple[int, ...] = (AUTHOR_BYTES_MAX, AUTHOR_BYTES_MAX, WORD_BYTES_MAX, WORD_BYTES_MAX)
    bounds += (NAME_BYTES_MAX, DETAIL_BYTES_MAX)
    kept = msgspec.structs.astuple(entry.act)
    for text, bound, asked in zip(kept, bounds, texts, strict=True):
        assert asked.startswith(text)
        assert len(text.encode()) <= bound
        assert text == asked or len(text.encode()) > bound - 4
    assert len(entry.result.encode()) <= WORD_BYTES_MAX
    assert Catalog.restore(catalog.snapshot()).snapshot() == catalog.snapshot()


def test_whole_rule_and_the_longest_names_fit() -> None:
    name = "x" * 127
    rule = Rule(name, False, Operation.DESCRIBE, Resource.TOPIC, name, True)
    assert len(str(rule)) <= DETAIL_BYTES_MAX
    assert len(f"{name}@{name}") <= NAME_BYTES_MAX


# Snapshots


def test_snapshot_of_state_10_is_read_and_has_no_entries(catalog: Catalog) -> None:
    run(catalog, CreateTopic("orders", 1))
    version, *state = cbor2.loads(catalog.snapshot())
    assert version == 11
    older = Catalog.restore(cbor2.dumps([10, *state[:-1]]))
    assert older.audit.dump() == Audit().dump()
    assert older.snapshot() == catalog.snapshot()


def test_snapshot_that_software_of_state_10_wrote_goes_on() -> None:
    # Written by that software: a topic, a filter, consumer groups, a user with a token and a rule.
    state = (GOLDEN / "catalog-state-10.snapshot").read_bytes()
    version, *before = cbor2.loads(state)
    assert version == 10
    catalog = Catalog.restore(state)
    assert catalog.applied == before[0]
    assert catalog.topics["orders"].owner == ""
    assert catalog.consumer_groups.groups["billing"].owner == ""
    assert catalog.audit.dump() == Audit().dump()
    assert run(catalog, Once(7, CreateTopic("orders", 8))) == Changed(1)
    create: Command = Authored(ALICE, CreateTopic("bills", 8))
    assert run(catalog, create) == Changed(2)
    assert Catalog.restore(catalog.snapshot()).snapshot() == catalog.snapshot()
