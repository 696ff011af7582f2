"""A data group's subscriptions: which filter holds for which batch."""

import cbor2

from raftmq.log.record import Kind
from raftmq.machine.commands import encode_commands
from raftmq.machine.machine import PartitionMachine, Trim
from raftmq.machine.subscriptions import VERSIONS_MAX, Change, Resubscribe, valid_at
from raftmq.results import Changed

from .test_machine import Log

TOPIC = 3


def change(log: Log, version: int, *changes: Change, base: int | None = None) -> int:
    """Apply a change; the index of its record."""
    start = log.machine.subscriptions.version if base is None else base
    log.add(Kind.COMMANDS, encode_commands([Resubscribe(start, version, list(changes))]))
    return log.machine.applied


def held(log: Log, index: int, group: str = "g") -> int:
    return valid_at(log.machine.subscriptions.of(TOPIC, group), index).number


def test_first_subscription_holds_for_all_that_is_there() -> None:
    log = Log()
    log.send(0)
    index = change(log, 10, Change(TOPIC, "g", 1, "a"))
    assert held(log, 1) == held(log, index) == held(log, 99) == 1
    assert log.machine.subscriptions.widened == index


def test_changed_subscription_holds_from_its_entry_on() -> None:
    log = Log()
    first = change(log, 10, Change(TOPIC, "g", 1, "a"))
    log.send(0)
    second = change(log, 20, Change(TOPIC, "g", 2, "b"))
    assert [held(log, index) for index in (1, second - 1, second, 99)] == [1, 1, 2, 2]
    assert log.machine.subscriptions.widened == first
    assert log.machine.subscriptions.filters(TOPIC) == {1: "a", 2: "b"}


def test_unsubscribed_group_wants_everything_and_is_forgotten() -> None:
    log = Log()
    change(log, 10, Change(TOPIC, "g", 1, "a"), Change(TOPIC, "h", 2, "b"))
    change(log, 20, Change(TOPIC, "g", 0))
    assert log.machine.subscriptions.of(TOPIC, "g") == ()
    assert log.machine.subscriptions.name(1) is None
    assert log.machine.subscriptions.name(2) == "h"
    assert list(log.machine.subscriptions.latest()) == [(TOPIC, "h", 2)]


def test_change_made_from_another_version_does_nothing() -> None:
    log = Log()
    change(log, 10, Change(TOPIC, "g", 1, "a"))
    change(log, 30, Change(TOPIC, "g", 3, "c"), base=0)
    change(log, 5, Change(TOPIC, "g", 4, "d"))
    assert held(log, 99) == 1
    assert log.machine.subscriptions.version == 10


def test_change_in_parts_reaches_its_version_with_the_last() -> None:
    log = Log()
    change(log, 0, Change(TOPIC, "g", 1, "a"), base=0)
    assert log.machine.subscriptions.version == 0
    change(log, 10, Change(TOPIC, "h", 2, "b"), base=0)
    assert log.machine.subscriptions.version == 10
    assert held(log, 1, "g") == 1
    assert held(log, 1, "h") == 2


def test_filters_that_hold_for_nothing_kept_are_forgotten() -> None:
    log = Log()
    change(log, 10, Change(TOPIC, "g", 1, "a"))
    boundary = change(log, 20, Change(TOPIC, "g", 2, "b"))
    log.add(Kind.COMMANDS, encode_commands([Trim(boundary - 1)]))
    assert log.machine.subscriptions.filters(TOPIC) == {1: "a", 2: "b"}
    log.add(Kind.COMMANDS, encode_commands([Trim(boundary)]))
    assert log.machine.subscriptions.filters(TOPIC) == {2: "b"}
    assert held(log, 1) == 2


def test_only_so_many_filters_of_a_group_are_kept() -> None:
    log = Log()
    boundaries = [
        change(log, 10 * n, Change(TOPIC, "g", n, str(n))) for n in range(1, VERSIONS_MAX + 2)
    ]
    assert len(log.machine.subscriptions.of(TOPIC, "g")) == VERSIONS_MAX
    assert held(log, boundaries[0]) == held(log, boundaries[1]) == 2
    assert held(log, boundaries[2]) == 3
    assert log.machine.subscriptions.widened == boundaries[-1]


def test_snapshot_holds_the_history() -> None:
    log = Log()
    change(log, 10, Change(TOPIC, "g", 1, "a"), Change(TOPIC, "h", 2, "b"))
    change(log, 20, Change(TOPIC, "g", 3, "c"))
    other = PartitionMachine.restore(log.machine.snapshot())
    assert other.subscriptions.of(TOPIC, "g") == log.machine.subscriptions.of(TOPIC, "g")
    assert other.subscriptions.name(3) == "g"
    assert other.subscriptions.version == 20
    assert other.snapshot() == log.machine.snapshot()


def test_change_answers_with_the_version() -> None:
    log = Log()
    command = Resubscribe(0, 10, [])
    assert log.add(Kind.COMMANDS, encode_commands([command])) == [Changed(10)]


def test_snapshot_from_before_subscriptions_is_read() -> None:
    log = Log()
    log.send(0)
    _, *state = cbor2.loads(log.machine.snapshot())
    older = PartitionMachine.restore(cbor2.dumps([1, *state[:-1]]))
    assert older.ends == log.machine.ends
    assert older.subscriptions.version == 0
