"""How many queues a topic had when a group with members began there, as the catalog notes it."""

from typing import Any

import cbor2
import pytest

from raftmq.machine.catalog import beginnings
from raftmq.machine.catalog.catalog import Bootstrap, Catalog, Node
from raftmq.machine.catalog.consumer_groups import DeleteConsumerGroup
from raftmq.machine.catalog.membership import JoinGroup, LeaveGroup, RegrantQueues
from raftmq.machine.catalog.topics import AlterTopic, CreateTopic, DeleteTopic
from raftmq.pop.policy import Mode
from raftmq.results import Changed

from .test_catalog import run


@pytest.fixture
def catalog() -> Catalog:
    catalog = Catalog()
    run(catalog, Bootstrap([Node(1, "a", 1)], groups=3, replicas=1))
    run(catalog, CreateTopic("orders", 8))
    return catalog


def join(catalog: Catalog, member: int, topic: str = "orders", **options: Any) -> int | None:
    options = {"notes_beginning": True, **options}
    command = JoinGroup(topic, options.pop("group", "g"), member, 10_000, **options)
    assert isinstance(run(catalog, command), Changed)
    return catalog.memberships.old_queue_count(member)


def test_number_of_queues_stays_what_it_was_with_the_first_member(catalog: Catalog) -> None:
    assert join(catalog, 1) == 8
    run(catalog, AlterTopic("orders", 10))
    assert join(catalog, 2) == 8
    run(catalog, LeaveGroup(1))
    run(catalog, LeaveGroup(2))
    run(catalog, AlterTopic("orders", 12))
    catalog = Catalog.restore(catalog.snapshot())
    assert join(catalog, 3) == join(catalog, 1) == 8
    run(catalog, RegrantQueues("orders", "g"))
    assert catalog.memberships.old_queue_count(3) == 8


def test_each_group_and_each_topic_has_its_own(catalog: Catalog) -> None:
    run(catalog, CreateTopic("bills", 2))
    assert join(catalog, 1) == 8
    assert join(catalog, 2, "bills") == 2
    run(catalog, AlterTopic("orders", 10))
    run(catalog, AlterTopic("bills", 4))
    assert join(catalog, 3, group="other") == 10
    assert [catalog.memberships.old_queue_count(member) for member in (1, 2, 3)] == [8, 2, 10]
    again = Catalog.restore(catalog.snapshot())
    assert again.snapshot() == catalog.snapshot()
    assert [again.memberships.old_queue_count(member) for member in (1, 2, 3)] == [8, 2, 10]


@pytest.mark.parametrize("is_whole", [True, False])
def test_group_that_is_deleted_and_made_again_begins_again(
    catalog: Catalog, *, is_whole: bool
) -> None:
    join(catalog, 1)
    run(catalog, AlterTopic("orders", 10))
    delete = DeleteConsumerGroup("g", is_whole=is_whole, is_forced=True)
    assert isinstance(run(catalog, delete), Changed)
    assert catalog.memberships.beginnings.dump() == []
    assert join(catalog, 2) == 10


def test_topic_that_is_deleted_and_made_again_is_another_one(catalog: Catalog) -> None:
    run(catalog, CreateTopic("bills", 2))
    join(catalog, 1, "bills")
    join(catalog, 2)
    join(catalog, 3, group="other")
    run(catalog, DeleteTopic("orders"))
    bills = catalog.topics["bills"].id
    assert catalog.memberships.beginnings.dump() == [["g", [(bills, 2)]]]
    run(catalog, CreateTopic("orders", 10))
    assert join(catalog, 4) == 10
    assert catalog.memberships.old_queue_count(1) == 2


def test_nothing_is_noted_of_instances_and_by_records_of_older_software(catalog: Catalog) -> None:
    assert join(catalog, 1, group="cache", mode=Mode.BROADCAST, instance="host-7") is None
    assert join(catalog, 2, notes_beginning=False) is None
    assert catalog.memberships.beginnings.dump() == []
    # A member of newer software, which came later, says it for the group.
    assert join(catalog, 3) == catalog.memberships.old_queue_count(2) == 8


def test_member_that_is_none_has_no_number(catalog: Catalog) -> None:
    assert catalog.memberships.old_queue_count(7) is None


def test_groups_beyond_the_bound_have_none(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beginnings, "BEGINNINGS_MAX", 2)
    run(catalog, CreateTopic("bills", 2))
    assert [join(catalog, 1), join(catalog, 2, group="b")] == [8, 8]
    catalog = Catalog.restore(catalog.snapshot())
    assert join(catalog, 3, group="c") is None
    assert join(catalog, 4) == 8
    for name in ("g", "b"):
        run(catalog, DeleteConsumerGroup(name, is_whole=True, is_forced=True))
        assert join(catalog, ord(name), "bills", group=name) == 2
    run(catalog, DeleteTopic("bills"))
    assert [join(catalog, 5, group="d"), join(catalog, 6, group="e")] == [8, 8]
    assert join(catalog, 7, group="f") is None


def test_snapshot_of_before_the_beginnings_is_read(catalog: Catalog) -> None:
    join(catalog, 1, notes_beginning=False)
    version, *values = cbor2.loads(catalog.snapshot())
    assert version == 11
    restored = Catalog.restore(cbor2.dumps([7, *values[:-3]]))
    assert restored.snapshot() == catalog.snapshot()
    assert restored.memberships.old_queue_count(1) is None
