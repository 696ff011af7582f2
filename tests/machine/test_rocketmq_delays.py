"""RocketMQ's delayed and transaction messages: known histories that cannot happen here.

The numbers are those of github.com/apache/rocketmq.
"""

from raftmq.errors import Reason
from raftmq.log.record import Kind
from raftmq.machine.delays import CANCELLED, NEVER
from raftmq.machine.machine import Trim
from raftmq.machine.transactions import Begin, End, Outcome
from raftmq.results import Appended, Changed, Delayed, Refused

from .delay_log import DelayLog

COMMIT, ROLLBACK = Outcome.COMMITTED, Outcome.ROLLED_BACK


def with_open_transaction() -> DelayLog:
    """A log in which producer 1 has begun transaction 1 and sent a message."""
    log = DelayLog()
    log.run(Begin(1, "shop", "order"))
    assert isinstance(log.send([b"paid"], [NEVER]), Delayed)
    return log


def test_3473_delayed_messages_are_not_repeated_after_a_restart() -> None:
    """#3473: the levels' positions are saved now and then; after a restart some come again."""
    log = DelayLog()
    log.send([b"a", b"b", b"c"], [2_000] * 3)
    log.tick(2_000)
    payload = log.release_payload(limit=2)
    log.add(Kind.BATCH, payload)
    log.restore_twin()
    # The proposal of the leader before, and that of the next one.
    assert isinstance(log.add(Kind.BATCH, payload)[0], Refused)
    log.release_all()
    assert log.placed == {7: [b"a", b"b", b"c"]}


def test_8006_messages_fall_due_under_another_leader() -> None:
    """#8006: while the master is down nothing is delivered that was to be."""
    log = DelayLog()
    log.send([b"a"], [2_000])
    log.restore_twin()
    # The new leader has the same rows, and its first record lets their time pass.
    log.machine, log.twin = log.twin, log.machine
    log.tick(2_000)
    assert isinstance(log.release(), Appended)


def test_7927_messages_that_change_their_place_are_not_lost_or_repeated() -> None:
    """#7927: messages that another broker takes over get lost after a few attempts."""
    log = DelayLog()
    log.send([b"%d" % n for n in range(200)], [90_000 + n for n in range(200)])
    for _ in range(4):
        for _ in range(130):
            log.tick(log.now)
        end = log.machine.applied + 1
        assert log.carry(end) == Changed(200)
        assert log.carry(end) is None
        log.run(Trim(end))
        log.forget_trimmed()
    log.tick(99_000)
    log.release_all()
    assert log.placed[7] == [b"%d" % n for n in range(200)]


def test_10668_no_row_points_to_what_the_log_has_lost() -> None:
    """#10668: stale references after the log was cut stick the delivery."""
    log = DelayLog()
    log.send([b"a"], [90_000])
    for _ in range(200):
        log.tick(log.now)
    log.run(Trim(150))
    log.forget_trimmed()
    log.tick(90_000)
    assert isinstance(log.release(), Appended)


def test_cancellation_needs_nothing_but_the_id() -> None:
    """A cancellation is a message that works if it lands in the same slot of the wheel."""
    log = DelayLog()
    first = log.send([b"a", b"b"], [90_000, 90_001])
    assert isinstance(first, Delayed)
    log.carry(log.machine.applied + 1)
    assert log.cancel(7, 90_001, first.number + 1) == CANCELLED
    log.tick(99_000)
    log.release_all()
    assert log.placed == {7: [b"a"]}


def test_5574_second_commit_delivers_nothing() -> None:
    """#5574: two commits store the message in the real topic twice."""
    log = with_open_transaction()
    for _ in range(3):
        log.run(End(1, COMMIT))
        log.release_all()
    assert log.placed == {7: [b"paid"]}


def test_8158_commit_after_a_rollback_changes_nothing() -> None:
    """#8158: a commit is accepted although a check-back rolled the transaction back."""
    log = with_open_transaction()
    log.run(End(1, ROLLBACK))
    assert log.run(End(1, COMMIT)) == [Changed([ROLLBACK, 0, False])]
    log.tick(10**6)
    log.release_all()
    assert log.placed == {}


def test_2117_decided_transaction_is_not_asked_for_again() -> None:
    """#2117, #9500: after a restart, or an exception, decided transactions are checked again."""
    log = with_open_transaction()
    log.run(End(1, COMMIT))
    log.restore_twin()
    assert not log.machine.transactions.open
    assert not log.twin.transactions.open
    (again,) = log.run(Begin(1, "shop", "order"))
    assert isinstance(again, Refused)
    assert again.reason is Reason.TRANSACTION_ENDED
