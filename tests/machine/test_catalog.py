"""The system group's machine: nodes, groups, topics."""

import cbor2
import msgspec
import pytest

from raftmq.errors import Reason
from raftmq.log.record import Kind
from raftmq.log.record import encode as encode_record
from raftmq.machine.catalog import catalog as catalog_module
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
    parse_command,
)
from raftmq.machine.catalog.consumer_groups import Attach, DeleteConsumerGroup
from raftmq.machine.catalog.membership import JoinGroup, LeaveGroup, RenewMembers
from raftmq.machine.catalog.nodes import AddGroup, NameNode
from raftmq.machine.catalog.topics import AlterTopic, CreateTopic, DeleteTopic
from raftmq.machine.commands import encode_commands
from raftmq.machine.repeats import DONE_MAX
from raftmq.pop.policy import Mode
from raftmq.results import Changed, Refused, Result

NODES = [Node(1, "a", 1), Node(2, "b", 2), Node(3, "c", 3)]


def run(catalog: Catalog, command: Command) -> Result:
    index = catalog.applied + 1
    payload = encode_commands([command])
    record = encode_record(payload, index=index, term=1, kind=Kind.COMMANDS, timestamp=5, chain=0)
    (result,) = catalog.apply(record)
    return result


def reason(result: Result) -> Reason:
    assert isinstance(result, Refused), result
    return result.reason


@pytest.fixture
def catalog() -> Catalog:
    catalog = Catalog()
    run(catalog, Bootstrap(NODES, groups=3, replicas=3))
    return catalog


def test_bootstrap_spreads_preferred_leaders_over_the_nodes(catalog: Catalog) -> None:
    assert {g.id: g.members for g in catalog.groups.values()} == {
        0: [1, 2, 3],
        1: [1, 2, 3],
        2: [2, 3, 1],
        3: [3, 1, 2],
    }


def test_second_bootstrap_changes_nothing(catalog: Catalog) -> None:
    before = catalog.groups.copy()
    assert run(catalog, Bootstrap([Node(9, "z", 9)], groups=1, replicas=1)) == Changed()
    assert catalog.groups == before
    assert 9 not in catalog.nodes


def test_groups_have_no_more_members_than_there_are_nodes() -> None:
    catalog = Catalog()
    run(catalog, Bootstrap(NODES[:1], groups=2, replicas=3))
    assert [g.members for g in catalog.groups.values()] == [[1], [1], [1]]


def test_queues_of_a_topic_are_spread_evenly_and_numbered_by_topic(catalog: Catalog) -> None:
    assert run(catalog, CreateTopic("orders", 8)) == Changed(1)
    topic = catalog.topics["orders"]
    assert sorted(topic.groups) == [1, 1, 1, 2, 2, 2, 3, 3]
    assert topic.queues == [65536 + n for n in range(8)]
    assert [catalog.group_of(queue) for queue in topic.queues] == topic.groups
    assert catalog.group_of(65536 + 8) is None
    assert catalog.topic_of(65536) == topic


def test_create_may_be_repeated_but_not_with_other_settings(catalog: Catalog) -> None:
    run(catalog, CreateTopic("orders", 8))
    assert run(catalog, CreateTopic("orders", 8)) == Changed(1)
    assert reason(run(catalog, CreateTopic("orders", 9))) is Reason.TOPIC_EXISTS


def test_catalog_has_so_many_topics_and_no_more(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_module, "TOPICS_MAX", 2)
    for name in ("orders", "bills"):
        run(catalog, CreateTopic(name, 1))
    assert reason(run(catalog, CreateTopic("one-too-many", 1))) is Reason.BAD_ARGUMENT
    assert run(catalog, CreateTopic("bills", 1)) == Changed(2)
    run(catalog, DeleteTopic("orders"))
    assert run(catalog, CreateTopic("next", 1)) == Changed(3)


def test_topic_beside_another_one_has_its_queues_in_the_same_groups(catalog: Catalog) -> None:
    for name in ("orders", "other"):
        run(catalog, CreateTopic(name, 4))
    assert run(catalog, CreateTopic("bills", 2, "orders")) == Changed(3)
    orders, bills = (catalog.topics[name] for name in ("orders", "bills"))
    assert bills.groups == orders.groups[:2]
    for name in ("orders", "bills"):
        run(catalog, AlterTopic(name, 9))
    orders, bills = (catalog.topics[name] for name in ("orders", "bills"))
    assert bills.groups == orders.groups
    # The turn of the groups goes on as before.
    run(catalog, CreateTopic("next", 1))
    assert catalog.topics["next"].groups == [orders.groups[0]]
    # A repeat changes nothing.
    assert run(catalog, CreateTopic("bills", 9, "orders")) == Changed(3)
    assert reason(run(catalog, CreateTopic("bills", 9, "other"))) is Reason.TOPIC_EXISTS
    assert reason(run(catalog, CreateTopic("new", 9, "nope"))) is Reason.UNKNOWN_TOPIC
    assert "new" not in catalog.topics


@pytest.mark.parametrize("bad", ["", ".hidden", "-x", "a b", "a/b", "ü", "x" * 128])
def test_topic_name_outside_the_rule_is_refused(catalog: Catalog, bad: str) -> None:
    assert reason(run(catalog, CreateTopic(bad, 1))) is Reason.BAD_NAME


@pytest.mark.parametrize("queues", [0, -1, 65537])
def test_number_of_queues_is_bounded(catalog: Catalog, queues: int) -> None:
    assert reason(run(catalog, CreateTopic("t", queues))) is Reason.BAD_ARGUMENT


def test_alter_adds_queues_and_never_moves_or_removes_one(catalog: Catalog) -> None:
    run(catalog, CreateTopic("t", 2))
    before = catalog.topics["t"].groups
    run(catalog, AlterTopic("t", 5))
    assert catalog.topics["t"].groups[:2] == before
    assert len(catalog.topics["t"].groups) == 5
    assert reason(run(catalog, AlterTopic("t", 4))) is Reason.BAD_ARGUMENT
    assert reason(run(catalog, AlterTopic("nope", 4))) is Reason.UNKNOWN_TOPIC


def test_number_of_a_deleted_topic_is_never_used_again(catalog: Catalog) -> None:
    run(catalog, CreateTopic("t", 2))
    assert run(catalog, DeleteTopic("t")) == Changed(1)
    assert catalog.group_of(65536) is None
    assert reason(run(catalog, DeleteTopic("t"))) is Reason.UNKNOWN_TOPIC
    assert run(catalog, CreateTopic("t", 2)) == Changed(2)


def test_change_that_names_a_topic_spares_the_next_one_of_its_name(catalog: Catalog) -> None:
    run(catalog, CreateTopic("t", 2))
    assert run(catalog, AlterTopic("t", 3, 1)) == Changed(1)
    assert run(catalog, DeleteTopic("t", 1)) == Changed(1)
    run(catalog, CreateTopic("t", 2))
    for again in (AlterTopic("t", 3, 1), DeleteTopic("t", 1)):
        assert run(catalog, again) == Changed(1)
    assert catalog.topics["t"].queues == [2 << 16, 2 << 16 | 1]


def test_node_that_carries_a_group_is_not_forgotten(catalog: Catalog) -> None:
    run(catalog, PutNode(Node(4, "d", 4)))
    assert reason(run(catalog, RemoveNode(1))) is Reason.BAD_ARGUMENT
    for number in (0, 1, 2, 3):
        run(catalog, PutGroup(Group(number, [2, 3, 4])))
    assert run(catalog, RemoveNode(1)) == Changed()
    assert sorted(catalog.nodes) == [2, 3, 4]


def test_node_keeps_the_first_data_folder_that_it_was_seen_with(catalog: Catalog) -> None:
    assert run(catalog, NameNode(1, "ab")) == Changed()
    assert run(catalog, NameNode(1, "ab")) == Changed()
    assert reason(run(catalog, NameNode(1, "cd"))) is Reason.BAD_ARGUMENT
    assert reason(run(catalog, NameNode(9, "ab"))) is Reason.UNKNOWN_NODE
    run(catalog, PutNode(Node(1, "elsewhere", 7, incarnation="cd")))
    assert Catalog.restore(catalog.snapshot()).nodes[1] == Node(1, "elsewhere", 7, False, "ab")


def test_blank_folder_takes_the_place_of_the_lost_one_and_no_other(catalog: Catalog) -> None:
    run(catalog, NameNode(1, "aa"))
    assert reason(run(catalog, RenewNode(9, "aa", "bb"))) is Reason.UNKNOWN_NODE
    assert reason(run(catalog, RenewNode(1, "xx", "bb"))) is Reason.BAD_ARGUMENT
    for _ in range(2):
        assert run(catalog, RenewNode(1, "aa", "bb")) == Changed()
        assert (catalog.nodes[1].incarnation, catalog.nodes[1].generation) == ("bb", 1)
    # A late request of another folder for the same place.
    assert reason(run(catalog, RenewNode(1, "aa", "cc"))) is Reason.BAD_ARGUMENT
    assert run(catalog, RenewNode(1, "bb", "cc")) == Changed()
    assert catalog.nodes[1].generation == 2
    assert Catalog.restore(catalog.snapshot()).nodes == catalog.nodes


def test_folder_that_was_named_before_the_lost_one_was_missed_is_renewed(catalog: Catalog) -> None:
    run(catalog, NameNode(1, "bb"))
    assert run(catalog, RenewNode(1, "aa", "bb")) == Changed()
    assert (catalog.nodes[1].incarnation, catalog.nodes[1].generation) == ("bb", 1)
    assert run(catalog, RenewNode(2, "aa", "bb")) == Changed()
    assert catalog.nodes[2].generation == 1


def test_leaving_node_cannot_be_renewed(catalog: Catalog) -> None:
    run(catalog, NameNode(1, "aa"))
    run(catalog, PutNode(Node(1, "h", 1, is_leaving=True)))
    assert reason(run(catalog, RenewNode(1, "aa", "bb"))) is Reason.BAD_ARGUMENT


def test_removed_node_that_is_added_again_is_known_by_its_folder(catalog: Catalog) -> None:
    run(catalog, NameNode(1, "aa"))
    run(catalog, RenewNode(1, "aa", "bb"))
    for number in (0, 1, 2, 3):
        run(catalog, PutGroup(Group(number, [2, 3])))
    assert run(catalog, RemoveNode(1)) == Changed()
    assert run(catalog, RemoveNode(1)) == Changed()
    again = Catalog.restore(catalog.snapshot())
    assert (again.nodes, again.left) == (catalog.nodes, catalog.left)
    run(again, PutNode(Node(1, "h", 1)))
    assert again.nodes[1] == Node(1, "h", 1, False, "bb", 1)
    assert again.left == {}


def test_group_of_unknown_or_repeated_nodes_is_refused(catalog: Catalog) -> None:
    assert reason(run(catalog, PutGroup(Group(1, [1, 9])))) is Reason.UNKNOWN_NODE
    assert reason(run(catalog, PutGroup(Group(1, [1, 1])))) is Reason.BAD_ARGUMENT
    assert reason(run(catalog, PutGroup(Group(1, [])))) is Reason.BAD_ARGUMENT


def test_snapshot_restores_the_same_catalog(catalog: Catalog) -> None:
    run(catalog, CreateTopic("t", 3))
    run(catalog, CreateTopic("gone", 3))
    run(catalog, DeleteTopic("gone"))
    twin = Catalog.restore(catalog.snapshot())
    assert twin.snapshot() == catalog.snapshot()
    assert run(twin, CreateTopic("next", 1)) == run(catalog, CreateTopic("next", 1)) == Changed(3)
    assert twin.digest == catalog.digest


def test_members_share_out_a_topic_and_its_new_queues(catalog: Catalog) -> None:
    run(catalog, CreateTopic("orders", 2))
    run(catalog, JoinGroup("orders", "g", 7, 10_000))
    run(catalog, AlterTopic("orders", 3))
    assert run(catalog, JoinGroup("orders", "g", 7, 10_000)) == Changed(
        [4, [0, 1, 2], [3, 3, 4], []]
    )
    assert reason(run(catalog, JoinGroup("nothing", "g", 8, 10_000))) is Reason.UNKNOWN_TOPIC
    run(catalog, DeleteTopic("orders"))
    assert catalog.memberships.member(7) is None


def test_group_with_members_has_a_mode(catalog: Catalog) -> None:
    run(catalog, CreateTopic("orders", 2))
    run(catalog, JoinGroup("orders", "g", 7, 10_000))
    run(catalog, JoinGroup("orders", "b", 8, 10_000, "i", mode=Mode.BROADCAST))
    assert reason(run(catalog, Attach("orders", "g", Mode.POP, False))) is Reason.GROUP_MODE
    refused = run(catalog, JoinGroup("orders", "b", 9, 10_000))
    assert reason(refused) is Reason.GROUP_MODE
    assert {n: g.mode for n, g in catalog.consumer_groups.groups.items()} == {
        "g": Mode.PULL,
        "b": Mode.BROADCAST,
    }


def test_group_with_members_is_not_deleted(catalog: Catalog) -> None:
    run(catalog, CreateTopic("orders", 2))
    run(catalog, JoinGroup("orders", "g", 7, 10_000))
    run(catalog, JoinGroup("orders", "b", 8, 10_000, "i", mode=Mode.BROADCAST))
    for name, member in (("g", 7), ("b", 8)):
        assert reason(run(catalog, DeleteConsumerGroup(name, is_whole=True))) is Reason.BAD_ARGUMENT
        run(catalog, LeaveGroup(member))
        deleted = run(catalog, DeleteConsumerGroup(name, is_whole=True))
        assert deleted == Changed(catalog.applied)


def test_members_that_come_and_go_do_not_change_the_version(catalog: Catalog) -> None:
    run(catalog, CreateTopic("orders", 2))
    run(catalog, JoinGroup("orders", "g", 7, 10_000))
    version = catalog.version
    run(catalog, JoinGroup("orders", "g", 8, 10_000))
    run(catalog, RenewMembers([7, 8], []))
    run(catalog, LeaveGroup(8))
    assert catalog.version == version
    again = Catalog.restore(catalog.snapshot())
    assert again.snapshot() == catalog.snapshot()
    assert again.memberships.holding(7) == catalog.memberships.holding(7)


def test_change_with_a_number_is_carried_out_once(catalog: Catalog) -> None:
    create = Once(7, CreateTopic("orders", 8))
    assert run(catalog, create) == Changed(1)
    assert run(catalog, Once(8, DeleteTopic("orders", 1))) == Changed(1)
    catalog = Catalog.restore(catalog.snapshot())
    assert run(catalog, create) == Changed(1)
    assert catalog.topics == {}
    # A refused command is not remembered as carried out.
    beside = Once(9, CreateTopic("bills", 1, "orders"))
    assert reason(run(catalog, beside)) is Reason.UNKNOWN_TOPIC
    assert run(catalog, CreateTopic("orders", 8)) == Changed(2)
    assert run(catalog, beside) == run(catalog, beside) == Changed(3)


def test_changes_that_are_remembered_are_bounded(catalog: Catalog) -> None:
    for n in range(1, DONE_MAX + 2):
        run(catalog, Once(n, CreateTopic(f"t{n % 9}", 1)))
    assert [n for n, _ in catalog.repeats.dump()] == list(range(2, DONE_MAX + 2))


def test_number_of_a_request_goes_with_changes_alone() -> None:
    create = CreateTopic("orders", 8)
    assert parse_command(msgspec.to_builtins(create), 7) == Once(7, create)
    assert parse_command(msgspec.to_builtins(create)) == create
    remove = RemoveNode(3)
    assert parse_command(msgspec.to_builtins(remove), 7) == remove


def test_snapshot_of_before_the_numbers_is_read(catalog: Catalog) -> None:
    run(catalog, CreateTopic("orders", 8))
    version, *values = cbor2.loads(catalog.snapshot())
    assert version == 11
    restored = Catalog.restore(cbor2.dumps([6, *values[:-4]]))
    assert restored.snapshot() == catalog.snapshot()


def test_a_topic_beside_another_one_follows_it_also_after_groups_were_added(
    catalog: Catalog,
) -> None:
    run(catalog, CreateTopic("orders", 4))
    nodes = list(catalog.groups[1].members)
    for node in nodes:
        run(catalog, NameNode(node, f"folder-{node}"))
    assert run(catalog, AddGroup(4, nodes)) == Changed(True)
    run(catalog, CreateTopic("bills", 4, "orders"))
    for name in ("orders", "bills"):
        run(catalog, AlterTopic(name, 7))
    orders, bills = (catalog.topics[name] for name in ("orders", "bills"))
    assert orders.groups == bills.groups == [1, 2, 3, 1, 4, 2, 3]
