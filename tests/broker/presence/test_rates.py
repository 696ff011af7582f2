"""Rates of topics: what a node's leaders store, as a mean over a minute."""

from types import SimpleNamespace
from typing import Any

import pytest

from raftmq.broker.presence.rates import LOOK_SECONDS, RATE_MIN, TOPICS_MAX, TopicRates
from raftmq.machine.machine import PartitionMachine
from raftmq.machine.queue_numbers import QUEUE_BITS


def group(number: int, ends: dict[tuple[int, int], int], *, is_leader: bool = True) -> Any:
    """A group whose queues (topic, queue) end at these offsets."""
    machine: Any = PartitionMachine.__new__(PartitionMachine)
    machine.ends = {(topic << QUEUE_BITS) + queue: end for (topic, queue), end in ends.items()}
    return SimpleNamespace(number=number, machine=machine, is_leader=is_leader)


def looked(*looks: list[Any]) -> TopicRates:
    rates = TopicRates()
    for turn, groups in enumerate(looks):
        rates.look(groups, turn * LOOK_SECONDS)
    return rates


def test_rate_is_of_all_queues_that_are_led_here() -> None:
    before = [group(1, {(1, 0): 10, (1, 1): 0}), group(2, {(1, 2): 5})]
    after = [group(1, {(1, 0): 110, (1, 1): 50}), group(2, {(1, 2): 55})]
    assert looked(before, after).largest() == {1: 20.0}


def test_group_that_was_not_led_counts_from_the_second_look() -> None:
    before = [group(1, {(1, 0): 0}, is_leader=False)]
    after = [group(1, {(1, 0): 10_000})]
    rates = looked(before, after)
    assert rates.largest() == {}
    rates.look([group(1, {(1, 0): 10_100})], 2 * LOOK_SECONDS)
    assert rates.largest() == {1: pytest.approx(10.0)}


def test_topic_that_is_silent_falls_and_goes() -> None:
    rates = looked([group(1, {(1, 0): 0})], [group(1, {(1, 0): 1000})])
    assert rates.largest() == {1: 100.0}
    still = [group(1, {(1, 0): 1000})]
    rates.look(still, 2 * LOOK_SECONDS)
    assert 0 < rates.largest()[1] < 100
    for turn in range(3, 100):
        rates.look(still, turn * LOOK_SECONDS)
    assert rates.largest() == {}


def test_largest_are_told_and_small_ones_are_not() -> None:
    wanted = {(topic, 0): 1000 * topic for topic in range(1, TOPICS_MAX + 50)}
    wanted[1, 0] = int(RATE_MIN * LOOK_SECONDS / 2)
    rates = looked([group(1, dict.fromkeys(wanted, 0))], [group(1, wanted)]).largest()
    assert len(rates) == TOPICS_MAX
    assert min(rates) == 50
