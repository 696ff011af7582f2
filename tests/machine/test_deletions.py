"""Deleted consumer groups in the catalog: deletions wait for data groups within bounds."""

import pytest

from raftmq.errors import Reason
from raftmq.machine.catalog import deletions, group_deletion
from raftmq.machine.catalog.catalog import Catalog
from raftmq.machine.catalog.consumer_groups import DeleteConsumerGroup, PutConsumerGroup
from raftmq.machine.catalog.deletions import Deletion, PruneDeletions
from raftmq.machine.catalog.membership import JoinGroup
from raftmq.machine.catalog.topics import CreateTopic
from raftmq.pop.policy import Mode, Policy
from raftmq.results import Changed, Result

from .test_catalog import catalog, reason, run

__all__ = ["catalog"]


def delete(catalog: Catalog, name: str, *, forced: bool = False, offsets: bool = False) -> Result:
    command = DeleteConsumerGroup(name, is_whole=True, is_forced=forced, has_offsets=offsets)
    return run(catalog, command)


def waiting(catalog: Catalog) -> list[Deletion]:
    return list(catalog.deletions.after(0))


def test_deletion_waits_until_all_data_groups_have_carried_it_out(catalog: Catalog) -> None:
    for name in ("a", "b"):
        run(catalog, PutConsumerGroup(name, Mode.PULL, Policy()))
        assert delete(catalog, name) == Changed(catalog.applied)
    first, second = waiting(catalog)
    assert (first.name, second.name) == ("a", "b")
    assert first.index < second.index == catalog.deletions.last == catalog.applied
    assert run(catalog, PruneDeletions(first.index)) == Changed(1)
    assert waiting(catalog) == [second]
    assert run(catalog, PruneDeletions(first.index)) == Changed(0)
    again = Catalog.restore(catalog.snapshot())
    assert again.snapshot() == catalog.snapshot()
    assert waiting(again) == [second]


def test_deletion_is_unknown_if_there_is_no_trace_of_the_group(catalog: Catalog) -> None:
    assert reason(delete(catalog, "g")) is Reason.UNKNOWN_GROUP
    assert waiting(catalog) == []


def test_group_that_has_only_committed_can_be_deleted(catalog: Catalog) -> None:
    assert delete(catalog, "g", offsets=True) == Changed(catalog.applied)
    assert [each.name for each in waiting(catalog)] == ["g"]


def test_later_deletion_of_a_name_does_the_work_of_the_earlier_one(catalog: Catalog) -> None:
    run(catalog, PutConsumerGroup("g", Mode.BROADCAST, Policy()))
    delete(catalog, "g")
    assert reason(delete(catalog, "g")) is Reason.UNKNOWN_GROUP
    assert delete(catalog, "g", offsets=True) == Changed(catalog.applied)
    assert waiting(catalog) == [Deletion("g", catalog.applied, has_instances=True)]


def test_forced_deletion_expels_members(catalog: Catalog) -> None:
    run(catalog, CreateTopic("orders", 2))
    run(catalog, JoinGroup("orders", "g", 7, 10_000))
    run(catalog, JoinGroup("orders", "b", 8, 10_000, "i", mode=Mode.BROADCAST))
    run(catalog, JoinGroup("orders", "other", 9, 10_000))
    for name in ("g", "b"):
        assert reason(delete(catalog, name)) is Reason.BAD_ARGUMENT
        assert delete(catalog, name, forced=True) == Changed(catalog.applied)
    members = catalog.memberships
    assert [members.holding(n) for n in (7, 8)] == [None, None]
    assert members.holding(9) is not None
    assert [each.has_instances for each in waiting(catalog)] == [False, True]


def test_member_that_was_expelled_does_not_create_the_group_again(catalog: Catalog) -> None:
    run(catalog, CreateTopic("orders", 2))
    run(catalog, JoinGroup("orders", "g", 7, 10_000))
    delete(catalog, "g", forced=True)
    again = JoinGroup("orders", "g", 7, 10_000, is_again=True, must_exist=True)
    assert reason(run(catalog, again)) is Reason.UNKNOWN_GROUP
    assert "g" not in catalog.consumer_groups.groups
    deletion = catalog.deletions.last
    assert isinstance(run(catalog, JoinGroup("orders", "g", 8, 10_000)), Changed)
    holding = catalog.memberships.holding(8)
    assert holding is not None
    assert min(holding.epochs) > deletion
    assert isinstance(run(catalog, again), Changed)


def test_broadcast_group_is_not_deleted_while_a_group_has_the_name_of_an_instance(
    catalog: Catalog,
) -> None:
    run(catalog, PutConsumerGroup("b", Mode.BROADCAST, Policy()))
    run(catalog, PutConsumerGroup("b@home", Mode.PULL, Policy()))
    assert reason(delete(catalog, "b")) is Reason.BAD_NAME
    assert isinstance(delete(catalog, "b@home"), Changed)
    assert isinstance(delete(catalog, "b"), Changed)


def test_deletions_that_wait_are_bounded(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_deletion, "DELETIONS_MAX", 2)
    for name in ("a", "b"):
        delete(catalog, name, offsets=True)
    assert reason(delete(catalog, "c", offsets=True)) is Reason.TOO_LARGE
    assert isinstance(delete(catalog, "b", offsets=True), Changed)
    run(catalog, PruneDeletions(catalog.applied))
    assert isinstance(delete(catalog, "c", offsets=True), Changed)


def test_deletion_that_is_asked_for_again_spares_what_came_since(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletions, "DONE_MAX", 2)

    def asked(name: str, seen: int) -> Result:
        command = DeleteConsumerGroup(name, is_whole=True, has_offsets=True, seen=seen)
        return run(catalog, command)

    seen = catalog.applied
    run(catalog, PutConsumerGroup("g", Mode.PULL, Policy()))
    deleted = asked("g", seen)
    assert deleted == Changed(catalog.applied)
    run(catalog, PutConsumerGroup("g", Mode.PULL, Policy()))
    assert asked("g", seen) == deleted
    run(catalog, PruneDeletions(catalog.applied))
    catalog = Catalog.restore(catalog.snapshot())
    assert asked("g", seen) == deleted
    assert "g" in catalog.consumer_groups.groups
    later = catalog.applied
    for name in ("a", "b"):
        asked(name, later)
    run(catalog, PruneDeletions(catalog.applied))
    # It is no longer known whether this is a repeat.
    assert reason(asked("g", seen)) is Reason.TOO_LARGE
    assert asked("g", catalog.applied) == Changed(catalog.applied)
    assert "g" not in catalog.consumer_groups.groups
