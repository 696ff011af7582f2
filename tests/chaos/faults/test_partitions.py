"""Shapes of partitions."""

import pytest

from raftmq.chaos.faults.arena import Pair
from raftmq.chaos.faults.partitions import between, bridge, chain, deaf, isolate, mute, ring, star

THREE, FOUR, FIVE, SEVEN = [1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 7]


def reached(node: int, everyone: list[int], cut: list[Pair]) -> set[int]:
    """Nodes that a node reaches in both directions, itself included."""
    return {o for o in everyone if not {(node, o), (o, node)} & set(cut)}


def test_isolated_nodes_reach_each_other_and_clients_reach_them() -> None:
    cut = isolate([1, 2], FIVE)
    assert reached(1, FIVE, cut) == {1, 2}
    assert reached(3, FIVE, cut) == {3, 4, 5}
    assert {party for pair in cut for party in pair} == set(FIVE)


def test_mute_node_hears_and_deaf_node_speaks() -> None:
    assert mute([1], THREE) == [(1, 2), (1, 3)]
    assert deaf([1], THREE) == [(2, 1), (3, 1)]


def test_bridge_is_reached_from_both_sides() -> None:
    cut = bridge([3], FIVE)
    assert reached(3, FIVE, cut) == {1, 2, 3, 4, 5}
    assert reached(1, FIVE, cut) == {1, 2, 3}
    assert reached(5, FIVE, cut) == {3, 4, 5}


def test_star_leaves_only_the_hub_with_a_majority() -> None:
    cut = star([2], FIVE)
    assert reached(2, FIVE, cut) == set(FIVE)
    assert all(reached(node, FIVE, cut) == {node, 2} for node in (1, 3, 4, 5))


@pytest.mark.parametrize("everyone", [FOUR, FIVE, SEVEN])
def test_every_node_of_a_ring_sees_a_majority_and_no_two_the_same(everyone: list[int]) -> None:
    seen = [frozenset(reached(node, everyone, ring(everyone))) for node in everyone]
    assert all(len(side) > len(everyone) / 2 for side in seen)
    assert len(set(seen)) == len(seen)


def test_three_nodes_are_no_ring_and_two_no_chain() -> None:
    assert ring(THREE) == chain([1, 2]) == []


def test_ends_of_a_chain_never_meet() -> None:
    assert sorted(chain([3, 1, 2])) == [(2, 3), (3, 2)]


def test_no_pair_is_cut_twice() -> None:
    for cut in (between([1, 2], [3, 0]), star([1], FIVE), ring(SEVEN), chain(FIVE)):
        assert len(set(cut)) == len(cut)
