"""A cancellation reports the message's fate, also late and in every repeat."""

import pytest

from raftmq.machine import delays
from raftmq.machine.delays import CANCELLED, FELL_DUE, NOT_WAITING, Cancel
from raftmq.machine.machine import PartitionMachine
from raftmq.results import Changed, Delayed

from .delay_log import DelayLog


def test_cancellation_that_is_repeated_after_the_time_does_not_say_that_it_is_delivered() -> None:
    log = DelayLog()
    waiting = log.send([b"a"], [5_000])
    assert isinstance(waiting, Delayed)
    assert log.cancel(7, 5_000, waiting.number) == CANCELLED
    log.tick(5_000)
    for machine in (log.machine, PartitionMachine.restore(log.machine.snapshot())):
        again = machine.delays.cancel(Cancel([7], [5_000], [waiting.number]))
        assert again == Changed([NOT_WAITING])
    log.release_all()
    assert log.placed.get(7, []) == []


def test_cancelled_messages_are_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delays, "CANCELLED_MAX", 3)
    log = DelayLog()
    waiting = log.send([b"a"] * 5, [5_000] * 5)
    assert isinstance(waiting, Delayed)
    numbers = range(waiting.number, waiting.number + 5)
    assert [log.cancel(7, 5_000, number) for number in numbers] == [CANCELLED] * 5
    log.tick(5_000)
    outcomes = [log.cancel(7, 5_000, number) for number in numbers]
    assert outcomes == [FELL_DUE] * 2 + [NOT_WAITING] * 3


def test_cancellation_that_arrives_again_gets_its_answer_and_another_one_does_not() -> None:
    log = DelayLog()
    waiting = log.send([b"a"], [5_000])
    assert isinstance(waiting, Delayed)
    mine, other = (Cancel([7], [5_000], [waiting.number], request) for request in (1, 2))
    assert log.run(mine) == [Changed([CANCELLED])]
    log.tick(5_000)
    for machine in (log.machine, PartitionMachine.restore(log.machine.snapshot())):
        assert machine.delays.cancel(mine) == Changed([CANCELLED])
        assert machine.delays.cancel(other) == Changed([NOT_WAITING])
