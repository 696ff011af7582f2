"""Plans that even out a cluster."""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.broker.placement.balance import (
    LEAST_RATE,
    TOLERANCE,
    GroupLoad,
    Move,
    NodeRoom,
    balance,
    vacate,
)
from raftmq.broker.placement.places import crowding, crowding_min
from raftmq.machine.catalog.state import Place

MIB = 1 << 20
ROOM = 1 << 50


def nodes(count: int, zones: str = "", drained: Sequence[int] = ()) -> list[NodeRoom]:
    return [
        NodeRoom(n, Place(zones[n % len(zones)] if zones else ""), n in drained, ROOM)
        for n in range(1, count + 1)
    ]


def carried_out(groups: Sequence[GroupLoad], moves: Sequence[Move]) -> list[GroupLoad]:
    after = {move.group: move.members for move in moves}
    return [each._replace(members=after.get(each.id, each.members)) for each in groups]


def shares(groups: Sequence[GroupLoad], count: int, *, leads: bool = False) -> list[float]:
    """The bytes of each node, or the writes to what it leads, as shares of the mean."""
    held = dict.fromkeys(range(1, count + 1), 0.0)
    for group in groups:
        for node in group.members[:1] if leads else group.members:
            held[node] += max(LEAST_RATE, group.rate) if leads else group.bytes
    mean = sum(held.values()) / count
    return [load / mean for load in held.values()]


def skewed(count: int, nodes: int, *, seed: int = 1, few: int = 5) -> list[GroupLoad]:
    """Groups of which each second one is on a few nodes, with sizes and rates of all kinds."""
    random = Random(seed)
    return [
        GroupLoad(
            number,
            random.sample(range(1, (few if number % 2 else nodes) + 1), 3),
            int(random.lognormvariate(0, 1) * 256 * MIB),
            random.lognormvariate(0, 1) * 1e4,
        )
        for number in range(1, count + 1)
    ]


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[NodeRoom], list[GroupLoad]]:
    zone = st.sampled_from(["", "a", "b", "c"])
    machine = st.sampled_from(["", "", "m", "n"])
    room = st.sampled_from([None, 0, 100 * MIB, ROOM])
    count = draw(st.integers(1, 9))
    found = [
        NodeRoom(n, Place(draw(zone), draw(machine)), draw(st.booleans()), draw(room))
        for n in range(1, count + 1)
    ]
    # One that does not stay may still be a member.
    members = st.lists(st.integers(1, count + 1), min_size=1, max_size=5, unique=True)
    size, rate = st.integers(0, 1 << 34), st.floats(0, 1e9)
    groups = [
        GroupLoad(number, draw(members), draw(size), draw(rate))
        for number in range(1, draw(st.integers(0, 12)) + 1)
    ]
    return found, groups


@given(clusters())
def test_plan_neither_overfills_a_node_nor_crowds_a_group(
    cluster: tuple[list[NodeRoom], list[GroupLoad]],
) -> None:
    found, groups = cluster
    places = {node.id: node.place for node in found}
    known = {node.id: node for node in found}
    room = {node.id: node.free_bytes or 0 for node in found}
    sizes = {group.id: group.bytes for group in groups}
    moves = balance(found, groups)
    assert len({move.group for move in moves}) == len(moves)
    for move in moves:
        before = next(group.members for group in groups if group.id == move.group)
        coming = set(move.members) - set(before)
        assert move.before == list(before) != move.members
        assert len(set(move.members)) == len(move.members) == len(before)
        assert crowding(move.members, places) <= crowding(before, places)
        assert move.bytes == len(coming) * sizes[move.group]
        for node in coming:
            assert not known[node].is_drained
            assert known[node].free_bytes is not None
            room[node] -= sizes[move.group]
        if move.members[0] != before[0] and before[0] in move.members:
            assert not known[move.members[0]].is_drained
    assert all(left >= 0 for left in room.values())
    assert balance(found, groups) == moves


@given(st.integers(2, 12), st.integers(1, 40), st.integers(1, 3), st.randoms())
def test_plan_for_equal_groups_ends(count: int, number: int, copies: int, random: Random) -> None:
    """Loads that are sums of equal shares differ by rounding."""
    found, copies = nodes(count), min(count, copies)
    groups = [
        GroupLoad(g, random.sample(range(1, count + 1), copies), 0, 0.0) for g in range(number)
    ]
    after = carried_out(groups, balance(found, groups))
    carried = [sum(node.id in group.members for group in after) for node in found]
    assert max(carried) - min(carried) <= max(1.0, 2 * TOLERANCE * number * copies / count + 1)


def test_plan_is_empty_where_all_is_even() -> None:
    groups = [GroupLoad(g, [(g + n) % 3 + 1 for n in range(3)], MIB, 1e6) for g in range(3)]
    assert balance(nodes(3), groups) == []


def test_members_are_set_apart_by_zones() -> None:
    found = nodes(6, "aab")
    groups = [GroupLoad(1, [1, 3, 4], MIB, 0.0), GroupLoad(2, [3, 6, 1], MIB, 0.0)]
    moved = carried_out(groups, balance(found, groups))
    places = {node.id: node.place for node in found}
    for group in moved:
        assert crowding(group.members, places) == crowding_min(3, places.values())


def test_no_two_replicas_on_one_machine_while_there_are_others() -> None:
    # Three machines with two nodes each.
    found = [NodeRoom(n, Place("", f"m{(n - 1) // 2}"), free_bytes=ROOM) for n in range(1, 7)]
    groups = [GroupLoad(g, [1, 2, 3], MIB, 0.0) for g in range(1, 13)]
    for group in carried_out(groups, balance(found, groups)):
        assert len({(node - 1) // 2 for node in group.members}) == 3


def test_replicas_that_fit_on_no_other_node_stay() -> None:
    found = [NodeRoom(1, free_bytes=0), NodeRoom(2, free_bytes=10 * MIB), NodeRoom(3)]
    groups = [GroupLoad(g, [1], 20 * MIB, 0.0) for g in range(1, 10)]
    assert balance(found, groups) == []


def test_drained_node_gives_replicas_and_receives_none() -> None:
    found = nodes(3, drained=[3])
    for full, share in ((3, [2, 2, 2]), (1, [3, 3, 0])):
        groups = [GroupLoad(g, [full], MIB, 1e6) for g in range(1, 7)]
        after = carried_out(groups, balance(found, groups))
        carried = [group.members[0] for group in after]
        assert [carried.count(node) for node in (1, 2, 3)] == share


def test_drained_node_gets_no_leadership() -> None:
    found = nodes(4, drained=[3])
    groups = [GroupLoad(g, [1, 2, 3], MIB, 1e6) for g in range(1, 9)]
    after = carried_out(groups, balance(found, groups))
    assert {group.members[0] for group in after} == {1, 2, 4}


def test_emptied_node_keeps_what_no_other_can_take() -> None:
    found = [NodeRoom(n, Place("ab"[n % 2]), n == 1, ROOM if n < 5 else 0) for n in range(1, 6)]
    groups = [GroupLoad(1, [1, 2, 3], MIB, 0.0), GroupLoad(2, [2, 3, 4], MIB, 0.0)]
    groups += [GroupLoad(3, [1, 2, 3, 4], MIB, 0.0)]
    after = carried_out(groups, vacate(found, groups, 1))
    assert [sorted(group.members) for group in after] == [[2, 3, 4], [2, 3, 4], [1, 2, 3, 4]]


def test_leaderships_that_no_member_can_take_are_handed_on() -> None:
    # Node 1 leads too much, and only node 2 can take it, which is as loaded as the mean allows.
    groups = [GroupLoad(g, [1, 2], MIB, 1e6) for g in range(1, 9)]
    groups += [GroupLoad(g, [2, 3], MIB, 1e6) for g in range(9, 13)]
    moves = balance([NodeRoom(n) for n in (1, 2, 3)], groups)
    assert all(move.bytes == 0 for move in moves)
    assert max(shares(carried_out(groups, moves), 3, leads=True)) <= 1.01


@pytest.mark.parametrize("zones", ["", "abc"])
@pytest.mark.parametrize("seed", range(3))
def test_thousand_groups_are_even_after_a_skew(zones: str, seed: int) -> None:
    groups, found = skewed(1000, 25, seed=seed), nodes(25, zones)
    moves = balance(found, groups)
    after = carried_out(groups, moves)
    assert max(shares(groups, 25, leads=True)) > 2
    led = shares(after, 25, leads=True)
    assert 1 - TOLERANCE <= min(led) <= max(led) <= 1 + TOLERANCE
    # Weights are of bytes and rates together: each alone is only near.
    held = shares(after, 25)
    assert 0.7 < min(held) <= max(held) < 1.4
    places = {node.id: node.place for node in found}
    assert all(
        crowding(group.members, places) <= crowding_min(3, places.values()) for group in after
    )


def test_second_plan_leaves_alone_what_the_first_one_did() -> None:
    groups, found = skewed(200, 9, few=3), nodes(9, "abc")
    after = carried_out(groups, balance(found, groups))
    assert balance(found, after) == []
