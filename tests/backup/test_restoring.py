"""The catalog and the members of a restored cluster, as values."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftmq.backup.manifest import BackupFault
from raftmq.backup.replay import Replay, changed
from raftmq.backup.restoring import NewNode, handover, refound
from raftmq.consensus import ConfState
from raftmq.log.segment import Link
from raftmq.machine.catalog.catalog import Bootstrap, Catalog, Node, RemoveNode, RenewNode
from raftmq.machine.catalog.nodes import DrainNode, NoteAbsence, PlaceNode
from raftmq.machine.catalog.replicas import GENERATION_MAX, RetireReplica, member_id, member_of
from raftmq.machine.catalog.topics import CreateTopic
from tests.machine.test_catalog import run


def shop(*more: Any) -> Catalog:
    nodes = [Node(n, "10.0.0.1", 7400 + n, incarnation=f"folder-{n}") for n in (1, 2, 3)]
    catalog = Catalog()
    for command in (Bootstrap(nodes, 2, 3), CreateTopic("orders", 4), *more):
        run(catalog, command)
    return catalog


def new(number: int) -> NewNode:
    return NewNode("again", number, "10.9.9.9", 7400)


def test_restored_catalog_has_one_node_and_the_topics_and_wanted_copies_of_before() -> None:
    catalog = shop(DrainNode(2), PlaceNode(3, "east", ""), NoteAbsence(3))
    topic = catalog.topics["orders"]
    owner = refound(catalog, new(1), "blank")
    assert (owner.cluster, owner.node, owner.incarnation, owner.generation) == (
        "again", 1, "blank", 1,
    )  # fmt: skip
    assert catalog.nodes == {1: Node(1, "10.9.9.9", 7400, incarnation="blank", generation=1)}
    assert sorted(catalog.left) == [2, 3]
    assert (catalog.drained, catalog.absent, catalog.places) == (set(), set(), {})
    assert catalog.topics["orders"] == topic
    assert [(g.members, len(g.founders)) for g in catalog.groups.values()] == [([1], 3)] * 3
    again = Catalog.restore(catalog.snapshot())
    assert again.snapshot() == catalog.snapshot()


@pytest.mark.parametrize(("number", "generation"), [(1, 2), (2, 1), (3, 1), (7, 0)])
def test_restored_node_is_no_member_of_the_old_cluster(number: int, generation: int) -> None:
    catalog = shop(RenewNode(1, "folder-1", "folder-1b"), RetireReplica(1, 2, is_lost=True))
    before = {member_of(catalog, g, n) for g in catalog.groups for n in (1, 2, 3)}
    before |= {1, 2, 3}
    owner = refound(catalog, new(number), "blank")
    assert owner.generation == generation
    assert all(
        member_of(catalog, group, number) == member_id(number, generation)
        for group in catalog.groups
    )
    assert member_id(number, generation) not in before


def test_node_that_was_removed_before_counts_on_its_last_generation() -> None:
    catalog = shop()
    for group in catalog.groups:
        catalog.groups[group].members.remove(3)
    run(catalog, RemoveNode(3))
    assert refound(catalog, new(3), "blank").generation == 1
    assert 3 not in catalog.left


def test_number_without_a_generation_left_is_refused() -> None:
    catalog = shop()
    catalog.nodes[1] = Node(1, "10.0.0.1", 7401, generation=GENERATION_MAX)
    with pytest.raises(BackupFault, match="another number"):
        refound(catalog, new(1), "blank")


@pytest.mark.parametrize(
    "conf",
    [
        ConfState((1,)),
        ConfState((1, 2, 3)),
        ConfState((1, 2), (3,)),
        ConfState((1, 2, 4), (5,), (1, 2, 3), (), True),
        ConfState((1, 2), (), (1, 2, 3), (3,), False),
    ],
)
def test_new_member_is_the_only_one_whatever_the_members_were(conf: ConfState) -> None:
    end, member = Link(10, 3, 0xABCD, 77), member_id(1, 1)
    replay = cast("Replay", SimpleNamespace(conf_state=conf, end=end))
    records = handover(replay, member)
    for record in records:
        conf = changed(conf, record)
    assert conf == ConfState((member,))
    assert [record.index for record in records] == list(range(11, 11 + len(records)))
    assert {(record.term, record.timestamp) for record in records} == {(4, 77)}
    chained = [end.crc, *(record.crc for record in records)]
    assert [record.chain for record in records] == chained[:-1]
