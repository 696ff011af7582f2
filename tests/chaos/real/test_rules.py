"""Shapes of partitions, and what rules say about a frame."""

from random import Random

import pytest

from raftmq.chaos.real.network.rules import (
    CLIENTS,
    Kind,
    Rules,
    both,
    bridge,
    chain,
    deaf,
    isolate,
    mute,
    ring,
    star,
)

THREE, FIVE = [1, 2, 3], [1, 2, 3, 4, 5]


def reached(node: int, everyone: list[int], cut: set[tuple[int, int]]) -> set[int]:
    """Whom a node reaches in both directions, itself included."""
    return {o for o in everyone if not both(node, o) & cut}


def test_isolated_nodes_reach_each_other_and_clients_reach_them() -> None:
    cut = isolate([1, 2], FIVE)
    assert reached(1, FIVE, cut) == {1, 2}
    assert reached(3, FIVE, cut) == {3, 4, 5}
    assert not any(CLIENTS in flow for flow in cut)


def test_mute_node_hears_and_deaf_node_speaks() -> None:
    assert mute(1, THREE) == {(1, 0), (1, 2), (1, 3)}
    assert deaf(1, THREE) == {(0, 1), (2, 1), (3, 1)}


def test_bridge_is_reached_from_both_sides() -> None:
    cut = bridge(3, FIVE)
    assert reached(3, FIVE, cut) == {1, 2, 3, 4, 5}
    assert reached(1, FIVE, cut) == {1, 2, 3}
    assert reached(5, FIVE, cut) == {3, 4, 5}


def test_star_leaves_only_the_hub_with_a_majority() -> None:
    cut = star(2, FIVE)
    assert reached(2, FIVE, cut) == set(FIVE)
    assert all(reached(node, FIVE, cut) == {node, 2} for node in (1, 3, 4, 5))


@pytest.mark.parametrize("everyone", [THREE, FIVE])
def test_every_node_of_a_ring_sees_a_majority_and_no_two_the_same(everyone: list[int]) -> None:
    cut = ring(everyone)
    seen = [frozenset(reached(node, everyone, cut)) for node in everyone]
    assert all(len(side) > len(everyone) / 2 for side in seen)
    assert cut
    if len(everyone) > 3:
        assert len(set(seen)) == len(seen)


def test_ends_of_a_chain_never_meet() -> None:
    assert chain([3, 1, 2]) == {(3, 2), (2, 3)}


def test_rule_that_ended_says_nothing_any_more() -> None:
    changes = []
    rules = Rules(on_change=lambda: changes.append(1))
    rule = rules.add(Kind.BLOCK, both(1, 2))
    assert rules.is_blocked((1, 2))
    assert not rules.is_blocked((1, 3))
    rules.remove(rule)
    rules.remove(rule)
    assert not rules.is_blocked((1, 2))
    assert len(changes) == 2


def test_rule_for_one_frame_is_gone_after_it() -> None:
    rules = Rules()
    rule = rules.add(Kind.CUT, both(1, 2))
    assert not rules.strikes_once(Kind.CUT, (3, 1))
    assert rules.strikes_once(Kind.CUT, (2, 1))
    assert not rules.strikes_once(Kind.CUT, (1, 2))
    assert rule.struck == 1


def test_shares_delays_and_rates_follow_their_levels() -> None:
    rules, random = Rules(), Random(1)
    rules.add(Kind.LOSS, None, 0.25)
    hits = sum(rules.strikes(Kind.LOSS, (0, 1), random) for _ in range(2_000))
    assert 400 < hits < 600
    assert rules.delay_seconds((1, 2), random) == 0
    rules.add(Kind.DELAY, None, 100)
    assert 0.05 <= rules.delay_seconds((1, 2), random) <= 0.6
    rules.add(Kind.RATE, both(1, 2), 1000)
    rules.add(Kind.RATE, both(1, 2), 500)
    assert rules.rate_bytes((2, 1)) == 500
    assert rules.rate_bytes((2, 3)) == 0
