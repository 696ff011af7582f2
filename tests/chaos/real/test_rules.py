"""The verdict of rules on a frame."""

from random import Random

from raftmq.chaos.faults.partitions import between
from raftmq.chaos.real.network.rules import Kind, Rules


def test_rule_that_ended_says_nothing_any_more() -> None:
    changes = []
    rules = Rules(on_change=lambda: changes.append(1))
    rule = rules.add(Kind.BLOCK, between([1], [2]))
    assert rules.is_blocked((1, 2))
    assert not rules.is_blocked((1, 3))
    rules.remove(rule)
    rules.remove(rule)
    assert not rules.is_blocked((1, 2))
    assert len(changes) == 2


def test_rule_for_one_frame_is_gone_after_it() -> None:
    rules = Rules()
    rule = rules.add(Kind.CUT, between([1], [2]))
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
    rules.add(Kind.RATE, between([1], [2]), 1000)
    rules.add(Kind.RATE, between([1], [2]), 500)
    assert rules.rate_bytes((2, 1)) == 500
    assert rules.rate_bytes((2, 3)) == 0
