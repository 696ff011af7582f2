"""Replicas of one log never differ, whatever timers they had; and if one does, its digest tells."""

from random import Random
from typing import Any

import pytest

from raftmq.chaos.ledger.play import ORDERED, PLAIN
from raftmq.chaos.ledger.random_log import RandomLog
from raftmq.chaos.ledger.twins import woken_in_vain
from raftmq.errors import Reason
from raftmq.machine import pop_groups
from raftmq.machine.claims import Claims
from raftmq.machine.machine import PartitionMachine
from raftmq.pop import groups
from raftmq.pop.actions import FENCED, Action
from raftmq.pop.calls import Ask, Lose, OpenGroup, Tick
from raftmq.pop.credit import Credit
from raftmq.pop.groups import PopGroup
from raftmq.pop.policy import Mode, Policy
from raftmq.results import Changed, Refused

from .counter import GROUP, QUEUE, TOPIC, Counter, step


def restored(log: Counter) -> PartitionMachine:
    twin = PartitionMachine.restore(log.machine.snapshot())
    log.machine.pop_groups.take_handed()
    log.machine.pop_groups.take_traced()
    return twin


def follow(log: Counter, twin: PartitionMachine) -> None:
    for record in log.records[twin.applied :]:
        twin.apply(record)


def test_place_of_a_consumer_that_waits_does_not_depend_on_stale_timers() -> None:
    log = Counter()
    log.send(1)
    (one,) = log.pop(1000, 1, invisible_ms=5_000)
    # The lease is over, its timer stays.
    log.settle(1000, step(Action.ACK, one))
    log.call(Ask(GROUP, 1, 10, 4_000, 0, True))
    for consumer in range(2, 65):
        log.call(Ask(GROUP, consumer, 10, 60_000, 0, True))
    twin = restored(log)
    log.now += 6_000
    log.call(Tick())
    # Its credit ran out: a replica that still had the credit in memory must drop its place, too.
    log.call(Ask(GROUP, 1, 10, 60_000, 0, True))
    log.send(1)
    follow(log, twin)
    handed = log.machine.pop_groups.take_handed()
    assert handed == twin.pop_groups.take_handed()
    assert [each.handed.consumer for each in handed] == [2]
    assert log.machine.snapshot() == twin.snapshot()


def test_snapshot_has_no_credits_whose_time_is_over() -> None:
    log = Counter()
    log.call(Ask(GROUP, 1, 10, 1_000, 0, True))
    log.now += 1_000
    log.call(Tick())
    (attached,) = log.machine.pop_groups.attached.values()
    assert attached.group.credits.of(1) is not None
    twin = restored(log)
    assert twin.pop_groups.attached[GROUP].group.credits.of(1) is None
    assert twin.snapshot() == log.machine.snapshot()


def test_group_that_is_full_is_not_changed_by_a_timer_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(groups, "PIECES_MAX", 2)
    log = Counter()
    for queue in (QUEUE, QUEUE + 1, QUEUE + 2):
        log.send(3, queue=queue)
    for consumer in range(1, 9):
        log.call(Ask(GROUP, consumer, 2, 10 * consumer, 60_000, True))
    log.now += 45
    log.call(Tick())
    group = log.machine.pop_groups.attached[GROUP].group
    assert group.is_full
    before = group.dump(log.now)
    assert not woken_in_vain(group, log.machine.ends, log.now)
    assert group.dump(log.now) == before


def test_stale_timer_touches_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the bound of one record's leases would cut its hand-out short on this replica alone."""
    log = Counter()
    log.send(1)
    (one,) = log.pop(1, 1, invisible_ms=1_000)
    log.settle(1, step(Action.ACK, one))
    log.now += 2_000
    monkeypatch.delattr(PopGroup, "pass_time")
    monkeypatch.delattr(PopGroup, "hand_out")
    log.call(Tick())
    assert log.machine.next_timer is None


def test_opening_a_group_is_traced_under_its_own_record() -> None:
    log = Counter(starts={QUEUE: 0})
    log.send(5)
    log.call(Lose([QUEUE], [2]))
    log.machine.pop_groups.take_traced()
    log.call(OpenGroup(GROUP, TOPIC, "g", 1, Mode.POP, Policy(), [QUEUE], [0]))
    (traced,) = log.machine.pop_groups.take_traced()
    assert traced.index == log.machine.applied
    twin = restored(log)
    log.call(Ask(GROUP, 1, 1, 0, 0))
    follow(log, twin)
    assert log.machine.pop_groups.take_traced() == twin.pop_groups.take_traced()


@pytest.mark.parametrize("crowd", [0, 30, 120])
@pytest.mark.parametrize("modes", [PLAIN, ORDERED], ids=["plain", "ordered"])
def test_twin_with_another_history_of_timers_never_differs(modes: Any, crowd: int) -> None:
    for seed in range(3):
        log = RandomLog(Random(f"twins {seed}"), modes, crowd)
        assert not log.play(250).breaches
        assert log.twin.compared > 5
        assert log.twin.woken > 20


# Differences that a digest must show


def another_consumer(group: PopGroup) -> None:
    (consumer, credit), *_ = [(at, credit) for at, credit in group.credits._credits.items()]
    group.credits._credits.clear()
    group.credits.put(consumer + 1, credit, 0)


def another_queue(group: PopGroup) -> None:
    group._open.move_to_end(next(iter(group._open)))


@pytest.mark.parametrize("differ", [another_consumer, another_queue])
def test_digest_tells_who_was_handed_what(differ: Any) -> None:
    log = Counter()
    for queue in (QUEUE, QUEUE + 1):
        log.send(1, queue=queue)
    twin = restored(log)
    group = twin.pop_groups.attached[GROUP].group
    log.call(Ask(GROUP, 7, 1, 1000, 0, True))

    def touched(*_: object) -> Changed:
        twin.pop_groups._touched.add(GROUP)
        return Changed()

    for record in log.records[twin.applied :]:
        group.credits.put(7, Credit(1, 30_000, log.now + 1000, True), 0)
        differ(group)
        ask, twin.pop_groups._ask = twin.pop_groups._ask, touched  # type: ignore[assignment,method-assign]
        twin.apply(record)
        twin.pop_groups._ask = ask  # type: ignore[method-assign]
    assert len(twin.pop_groups.take_handed()) == len(log.machine.pop_groups.take_handed()) == 1
    assert twin.digest != log.machine.digest


def test_digest_tells_results(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Counter()
    log.send(1)
    (one,) = log.pop(1)
    twin = restored(log)
    log.settle(1, step(Action.ACK, one))
    monkeypatch.setattr(pop_groups, "_step", lambda *_: FENCED)
    follow(log, twin)
    assert twin.digest != log.machine.digest


def test_digest_does_not_depend_on_the_words_of_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Counter()
    twin = restored(log)
    log.call(Ask(99, 1, 1, 0, 0))
    refused = Refused(Reason.UNKNOWN_GROUP, "in other words")
    monkeypatch.setattr(pop_groups, "_unknown", lambda _: refused)
    follow(log, twin)
    assert twin.digest == log.machine.digest


def test_claims_forget_what_was_released() -> None:
    claims = Claims()
    for number in range(5_000):
        claims.claim(1, b"%d" % number, 1, ttl_ms=86_400_000, now=0)
        claims.release(1, b"%d" % number, 1)
    assert len(claims) == 0
    assert len(claims._due) < 1_000
