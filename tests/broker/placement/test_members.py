"""Which nodes carry which group after changes of nodes, and why such a change is refused."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from raftmq.broker.cluster.reconfiguration import plan
from raftmq.broker.placement.members import copies
from raftmq.log.record import Kind
from raftmq.log.record import encode as encode_record
from raftmq.machine.catalog.catalog import (
    SYSTEM_GROUP,
    Bootstrap,
    Catalog,
    Command,
    Node,
    RemoveNode,
)
from raftmq.machine.commands import encode_commands
from raftmq.results import Refused, Result
from raftmq.wire.messages import ChangeNode

NUMBERS = st.integers(1, 6)


def apply(catalog: Catalog, commands: list[Command]) -> list[Result]:
    payload = encode_commands(commands)
    index = catalog.applied + 1
    record = encode_record(payload, index=index, term=1, kind=Kind.COMMANDS, timestamp=5, chain=0)
    return catalog.apply(record)


def founded(nodes: int, *, replicas: int = 3) -> Catalog:
    catalog = Catalog()
    listed = [Node(n, f"node{n}", 7400) for n in range(1, nodes + 1)]
    apply(catalog, [Bootstrap(listed, groups=3, replicas=replicas)])
    return catalog


def change(catalog: Catalog, action: str, node: int, new: int = 0, host: str = "") -> str:
    """Carry out a request as a leader does; why it was refused, or nothing."""
    comes = new or node
    at = () if action == "remove" else (host or f"node{comes}", 7400, new)
    command = plan(ChangeNode(action, node, *at), catalog)
    if isinstance(command, Refused):
        return command.message
    results = apply(catalog, [command])
    assert not [result for result in results if isinstance(result, Refused)]
    return ""


def forget_left(catalog: Catalog) -> None:
    """Act as the leader of the system group does when all groups have moved."""
    apply(catalog, [RemoveNode(node) for node in leaving(catalog)])


def leaving(catalog: Catalog) -> list[int]:
    return [node.id for node in catalog.nodes.values() if node.is_leaving]


def members(catalog: Catalog) -> dict[int, list[int]]:
    return {number: group.members for number, group in catalog.groups.items()}


def test_node_that_joins_fills_the_groups_that_a_removal_left_with_fewer_copies() -> None:
    catalog = founded(3)
    assert not change(catalog, "remove", 3)
    forget_left(catalog)
    assert members(catalog) == {0: [1, 2], 1: [1, 2], 2: [2, 1], 3: [1, 2]}
    assert not change(catalog, "add", 4)
    assert members(catalog) == {0: [1, 2, 4], 1: [1, 2, 4], 2: [2, 1, 4], 3: [1, 2, 4]}


def test_node_that_is_added_again_stays_and_carries_groups_again() -> None:
    catalog = founded(3)
    assert not change(catalog, "remove", 3)
    assert leaving(catalog) == [3]
    assert not change(catalog, "add", 3)
    assert leaving(catalog) == []
    assert {tuple(sorted(each)) for each in members(catalog).values()} == {(1, 2, 3)}


def test_replacement_fills_groups_with_too_few_copies_from_nodes_that_are_free() -> None:
    catalog = founded(4)
    for node in (3, 4):
        assert not change(catalog, "remove", node)
        forget_left(catalog)
    # As after a removal under older software: two nodes have come, and groups have two copies.
    catalog.nodes[5] = Node(5, "node5", 7400)
    assert not change(catalog, "replace", 1, 6)
    carriers = [sorted(each) for group, each in members(catalog).items() if group]
    assert carriers == [[2, 5, 6]] * 3


def test_running_member_is_no_replacement_for_another_and_nothing_happens() -> None:
    catalog = founded(3)
    before = catalog.snapshot()
    told = "node 2 is a member, at node2:7400: give another number"
    assert change(catalog, "replace", 1, 2) == told
    assert change(catalog, "replace", 1, 2, "node9") == told
    assert change(catalog, "replace", 1, 2, "node1") == told
    assert change(catalog, "replace", 1, 1) == "the new node needs a number of its own"
    assert change(catalog, "add", 2, host="node9") == told
    assert change(catalog, "replace", 1, 9, "node2").startswith("node2:7400 is the address of node")
    assert catalog.snapshot() == before


def test_removal_that_is_asked_for_again_is_granted_when_one_node_stays() -> None:
    catalog = founded(2)
    assert not change(catalog, "remove", 1)
    before = members(catalog)
    assert not change(catalog, "remove", 1)
    assert members(catalog) == before
    told = "node 2 is the last one that is not leaving: it cannot be removed; add one first"
    assert change(catalog, "remove", 2) == told


REQUESTS = st.one_of(
    st.tuples(st.just("add"), NUMBERS, st.just(0)),
    st.tuples(st.just("remove"), NUMBERS, st.just(0)),
    st.tuples(st.just("replace"), NUMBERS, NUMBERS),
    st.tuples(st.just("forget"), st.just(0), st.just(0)),
)


@given(st.integers(1, 5), st.integers(1, 3), st.lists(REQUESTS, max_size=12))
def test_request_happens_as_a_whole_or_not_at_all_and_leaves_no_group_short(
    nodes: int, replicas: int, requests: list[tuple[str, int, int]]
) -> None:
    catalog = founded(nodes, replicas=replicas)
    for action, node, new in requests:
        if action == "forget":
            forget_left(catalog)
            continue
        before = members(catalog)
        listed = dict(catalog.nodes)
        if change(catalog, action, node, new):
            assert (members(catalog), catalog.nodes) == (before, listed)
            continue
        staying = {each.id for each in catalog.nodes.values() if not each.is_leaving}
        for group in catalog.groups.values():
            assert len(set(group.members)) == len(group.members)
            assert staying.issuperset(group.members)
            if group.id == SYSTEM_GROUP:
                assert staying == set(group.members)
            else:
                assert len(group.members) == min(copies(group), len(staying))
        # The answer was lost, and the client asks again.
        after, listed = members(catalog), dict(catalog.nodes)
        assert not change(catalog, action, node, new)
        assert catalog.nodes == listed
        if action != "add":
            assert members(catalog) == after


def test_founders_tell_how_many_copies_are_wanted_and_members_do_if_there_are_none() -> None:
    group = founded(3).groups[1]
    assert copies(msgspec.structs.replace(group, members=[1])) == 3
    assert copies(msgspec.structs.replace(group, members=[1, 2], founders=[])) == 2
