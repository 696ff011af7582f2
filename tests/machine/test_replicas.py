"""Member ids in the catalog, of replicas whose logs were deleted or lost."""

import pytest

from raftmq.errors import Reason
from raftmq.machine.catalog.catalog import (
    Bootstrap,
    Catalog,
    Group,
    PutGroup,
    RemoveNode,
    RenewNode,
)
from raftmq.machine.catalog.replicas import (
    REPLICA_MAX,
    RetireReplica,
    generation_of,
    member_id,
    member_of,
    node_of,
    replica_of,
)
from raftmq.results import Changed

from .test_catalog import NODES, reason, run


@pytest.fixture
def catalog() -> Catalog:
    """Group 1 has moved from nodes 1, 2 and 3 to node 1."""
    catalog = Catalog()
    run(catalog, Bootstrap(NODES, groups=1, replicas=3))
    run(catalog, PutGroup(Group(1, [1])))
    return catalog


def test_member_id_can_be_taken_apart_and_newer_ones_are_higher() -> None:
    ids = [member_id(7, g, r) for g in (0, 1, 2047) for r in (0, 1, REPLICA_MAX)]
    assert ids == sorted(set(ids))
    assert all(0 < member < 2**63 and node_of(member) == 7 for member in ids)
    assert [(generation_of(m), replica_of(m)) for m in ids[3:5]] == [(1, 0), (1, 1)]


def test_retired_replica_comes_back_as_another_member(catalog: Catalog) -> None:
    taker = member_id(2, 0, 1)
    assert run(catalog, RetireReplica(1, 2)) == Changed(taker)
    assert member_of(catalog, 1, 2) == taker
    assert member_of(catalog, 0, 2) == member_of(catalog, 2, 2) == 2
    # A repeat, or a late request, changes nothing.
    assert run(catalog, RetireReplica(1, 2)) == Changed(taker)
    assert run(catalog, PutGroup(Group(1, [1, 2, 3], [], {}))) == Changed()
    assert run(catalog, RetireReplica(1, 2, is_lost=True)) == Changed(taker)
    assert member_of(catalog, 1, 2) == taker


def test_replica_that_is_wanted_again_keeps_its_id_unless_its_log_is_lost(catalog: Catalog) -> None:
    run(catalog, PutGroup(Group(1, [1, 2, 3])))
    assert reason(run(catalog, RetireReplica(1, 2))) is Reason.BAD_ARGUMENT
    assert member_of(catalog, 1, 2) == 2
    assert run(catalog, RetireReplica(1, 2, is_lost=True)) == Changed(member_id(2, 0, 1))


def test_only_the_present_member_can_be_retired(catalog: Catalog) -> None:
    ahead = member_id(2, 0, 3)
    assert reason(run(catalog, RetireReplica(1, ahead))) is Reason.BAD_ARGUMENT
    assert reason(run(catalog, RetireReplica(9, 2))) is Reason.BAD_ARGUMENT
    # The catalog never had node 9, so that nothing counts on it.
    assert run(catalog, RetireReplica(0, 9, is_lost=True)) == Changed(9)
    assert catalog.groups[0].replicas == {}


def test_new_data_folder_counts_its_replicas_from_the_first(catalog: Catalog) -> None:
    run(catalog, RetireReplica(1, 3))
    run(catalog, RetireReplica(1, 2))
    run(catalog, RenewNode(2, "", "new"))
    assert member_of(catalog, 1, 2) == member_id(2, 1)
    assert member_of(catalog, 1, 3) == member_id(3, 0, 1)
    # A late command of the old folder concerns a member that is gone.
    assert run(catalog, RetireReplica(1, member_id(2, 0, 1))) == Changed(member_id(2, 1))


def test_ids_outlive_a_removal_and_a_snapshot(catalog: Catalog) -> None:
    run(catalog, RetireReplica(1, 3))
    run(catalog, RetireReplica(1, 2))
    run(catalog, PutGroup(Group(0, [1, 2])))
    run(catalog, RemoveNode(3))
    assert run(catalog, RetireReplica(0, 3)) == Changed(member_id(3, 0, 1))
    state = catalog.snapshot()
    again = Catalog.restore(state)
    assert again.snapshot() == state
    assert again.groups[1].replicas == {2: 1, 3: 1}
    assert member_of(again, 0, 3) == member_id(3, 0, 1)


def test_equal_states_have_equal_bytes_in_whatever_order_replicas_were_retired() -> None:
    groups = []
    for order in ((2, 3), (3, 2)):
        catalog = Catalog()
        run(catalog, Bootstrap(NODES, groups=1, replicas=1))
        for node in order:
            run(catalog, RetireReplica(1, node))
        groups.append(list(catalog.groups[1].replicas.items()))
    assert groups[0] == groups[1]


def test_replica_that_used_all_its_ids_is_not_retired(catalog: Catalog) -> None:
    catalog.groups[1] = Group(1, [1], [], {2: REPLICA_MAX})
    assert reason(run(catalog, RetireReplica(1, member_id(2, 0, REPLICA_MAX)))) is (
        Reason.BAD_ARGUMENT
    )
