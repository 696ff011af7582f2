"""Backlogs are made when they are first needed, and nothing but the time shows it."""

import gc
import random
import weakref
from collections import OrderedDict
from itertools import count
from typing import Any

import pytest

from raftmq.pop import backlogs
from raftmq.pop.backlog import Backlog
from raftmq.pop.groups import PopGroup
from raftmq.pop.policy import Mode, Order, Policy
from raftmq.pop.spans import run

KINDS = {
    "pop": (Mode.POP, Order.KEY, False),
    "filtered": (Mode.POP, Order.KEY, True),
    "key": (Mode.ORDERED, Order.KEY, False),
    "queue": (Mode.ORDERED, Order.QUEUE, False),
    "filtered queue": (Mode.ORDERED, Order.QUEUE, True),
}
QUEUES = range(20)


def group_of(kind: str) -> PopGroup:
    mode, order, is_filtered = KINDS[kind]
    return PopGroup(Policy((10, 50), 3, 100, order), mode, is_filtered)


class Eager:
    """A group with the same calls as another one, whose backlogs are all made at once."""

    def __init__(self, kind: str) -> None:
        self.lazy, self.eager = group_of(kind), group_of(kind)
        self.ends: dict[int, int] = {}
        self.tokens = [count(1), count(1)]
        self.leases: list[Any] = []

    def begin(self, starts: dict[int, int]) -> None:
        self.both("begin", starts)
        for queue in starts:
            assert self.eager.backlogs[queue].begun == starts[queue]

    def both(self, name: str, *arguments: Any, **named: Any) -> Any:
        lazy, eager = (
            getattr(group, name)(*arguments, **named) for group in (self.lazy, self.eager)
        )
        assert lazy == eager, name
        return lazy

    def hand_out(self, now: int) -> None:
        lazy, eager = (
            group.hand_out(self.ends, now, tokens.__next__, 4)
            for group, tokens in zip((self.lazy, self.eager), self.tokens, strict=True)
        )
        assert lazy == eager
        self.leases += lazy

    def check(self, now: int) -> None:
        if self.lazy.is_fed:
            assert self.lazy.wants_feed(self.ends) == self.eager.wants_feed(self.ends)
        assert self.lazy.next_timer == self.eager.next_timer
        assert self.lazy.dump(now) == self.eager.dump(now)
        assert PopGroup.load(self.lazy.dump(now)).dump(now) == self.eager.dump(now)
        assert self.lazy.audit() == self.eager.audit()
        assert self.lazy.events == self.eager.events
        self.lazy.events.clear()
        self.eager.events.clear()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(8))
def test_a_group_does_the_same_whenever_its_backlogs_are_made(kind: str, seed: int) -> None:
    draw = random.Random(f"{kind} {seed}")
    pair, now = Eager(kind), 1000
    pair.ends = {queue: draw.choice([0, 0, 1, 5, 30]) for queue in QUEUES}
    pair.begin({queue: draw.randint(0, end) for queue, end in pair.ends.items() if queue < 15})
    for _ in range(120):
        now += draw.choice([0, 1, 30])
        queue = draw.choice(QUEUES)
        if draw.random() < 0.1:
            # It restarts from a snapshot.
            pair.lazy = PopGroup.load(pair.lazy.dump(now))
        match draw.randrange(10):
            case 0:
                if queue not in pair.lazy.backlogs:
                    pair.begin({queue: 0})
                pair.ends[queue] += 3
                pair.both("came", queue)
            case 1 | 2:
                pair.both("ask", draw.choice([7, 8]), 6, invisible_ms=40, until=now + 50, now=now)
                pair.hand_out(now)
            case 3 | 4 if pair.lazy.is_fed:
                for each, base in pair.lazy.wants_feed(pair.ends)[: draw.randint(1, 9)]:
                    size = min(9, pair.ends[each] - base)
                    keys = bytes([*draw.choices(range(3), k=4 * size)])
                    mask = draw.getrandbits(size) if pair.lazy.is_filtered else None
                    pair.both("feed", each, base, size, mask=mask, keys=keys)
            case 5 | 6 if pair.leases:
                lease = pair.leases.pop(draw.randrange(len(pair.leases)))
                name = draw.choice(["ack", "nack", "give_back"])
                pair.both(name, lease.consumer, lease.token, lease.messages, now)
            case 7:
                pair.both("trim", queue, draw.randint(0, pair.ends[queue]))
            case 8:
                some = draw.sample(QUEUES, 3)
                pair.both("reset", {each: draw.randint(0, pair.ends[each]) for each in some})
            case _:
                pair.both("set_filtered", draw.random() < 0.5)
        pair.both("pass_time", now)
        pair.hand_out(now)
        pair.check(now)


def test_a_group_that_begins_makes_no_backlog_and_a_hand_out_only_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    make = Backlog.__init__

    def counting(self: Backlog, begun: int, **more: Any) -> None:
        made.append(begun)
        make(self, begun, **more)

    monkeypatch.setattr(Backlog, "__init__", counting)
    group = group_of("pop")
    group.begin(dict.fromkeys(range(1000), 0))
    group.ask(1, 6, invisible_ms=100, until=10**9, is_kept=True)
    handed = group.hand_out({600: 2, 601: 3}, 0, count(1).__next__)
    assert [(each.queue, each.messages) for each in handed] == [
        (600, run(0, 2, 1)),
        (601, run(0, 3, 1)),
    ]
    assert len(made) == 2
    # What is only looked at is not kept.
    assert group.counts(7).leased == 0
    assert len(made) == 3
    assert 7 not in dict(group.backlogs.made())


def test_a_group_is_fed_some_queues_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlogs, "FED_QUEUES_MAX", 3)
    group, ends = group_of("filtered"), dict.fromkeys(range(8), 2)
    group.begin(dict.fromkeys(range(8), 0))
    fed: list[int] = []
    while wanted := group.wants_feed(ends):
        assert len(wanted) <= 3
        for queue, base in wanted:
            assert group.feed(queue, base, 2, mask=None, keys=None) == 2
            fed.append(queue)
    assert fed == list(range(8))


def test_queues_that_have_nothing_are_passed_over_until_the_first_that_has_some() -> None:
    group = group_of("pop")
    group.begin({1: 0, 2: 5, 3: 0, 4: 0})
    queues = OrderedDict.fromkeys([2, 3, 1, 4])
    group.backlogs.drop_idle(queues, {1: 1, 2: 5}, is_fed=False)
    assert list(queues) == [1, 4]
    group.backlogs.drop_idle(queues, {1: 1, 2: 5}, is_fed=True)
    assert not queues


def test_a_group_that_is_gone_leaves_nothing_to_the_collector() -> None:
    gc.disable()
    try:
        group = group_of("key")
        group.begin({1: 0, 2: 0})
        seen = weakref.ref(group.backlogs[1])
        del group
        assert seen() is None
    finally:
        gc.enable()
