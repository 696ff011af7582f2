"""Transactions in the machine: all messages of one are seen, or none, by its first outcome."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from raftmq.batch import encode
from raftmq.errors import Reason
from raftmq.log.record import Kind
from raftmq.machine import transactions
from raftmq.machine.delays import NEVER, NOT_WAITING
from raftmq.machine.machine import DropQueues, Limits, Trim
from raftmq.machine.transactions import ENDED_MS_MAX, MESSAGES_MAX, Begin, End, Outcome
from raftmq.results import Appended, Changed, Delayed, Refused, Result

from .delay_log import DelayLog

COMMIT, ROLLBACK = Outcome.COMMITTED, Outcome.ROLLED_BACK


def reason(result: Result) -> Reason:
    assert isinstance(result, Refused), result
    return result.reason


class Log(DelayLog):
    """A log in which transactions send."""

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__(limits)
        self.sequences: dict[tuple[int, int], int] = {}

    def begin(self, number: int, note: str = "") -> Result:
        return self.run(Begin(number, "shop", note))[0]

    def end(self, number: int, outcome: int = COMMIT) -> Result:
        return self.run(End(number, outcome))[0]

    def half(self, number: int, bodies: list[bytes], *, queue: int = 7) -> Result:
        first = self.sequences.get((number, queue), 0)
        sealed = encode(bodies, deliver_at_ms=[NEVER] * len(bodies))
        payload = sealed.to_bytes(queue=queue, producer=number, first_sequence=first)
        (result,) = self.add(Kind.BATCH, payload)
        if isinstance(result, Delayed):
            self.sequences[number, queue] = first + len(bodies)
        return result


def test_messages_of_a_transaction_are_seen_once_it_commits() -> None:
    log = Log()
    assert log.begin(5, "order 17") == Changed()
    assert isinstance(log.half(5, [b"a", b"b"]), Delayed)
    assert isinstance(log.half(5, [b"c"], queue=8), Delayed)
    assert isinstance(log.half(5, [b"d"]), Delayed)
    log.tick(10**6)
    assert log.machine.delays.next_due is None
    assert log.machine.delays.due_queues(9) == []
    log.restore_twin()
    assert log.end(5) == Changed([COMMIT, 4, True])
    log.release_all()
    assert log.placed == {7: [b"a", b"b", b"d"], 8: [b"c"]}
    assert log.machine.delays.count == 0


def test_messages_of_a_transaction_that_rolls_back_are_never_seen() -> None:
    log = Log()
    log.begin(5)
    log.half(5, [b"a", b"b"])
    assert log.end(5, ROLLBACK) == Changed([ROLLBACK, 2, True])
    log.tick(10**6)
    log.release_all()
    assert log.placed == {}
    assert log.machine.delays.count == 0
    assert log.machine.delays.floor is None


@pytest.mark.parametrize("first", [COMMIT, ROLLBACK])
def test_first_outcome_wins_and_is_told_to_all_others(first: Outcome) -> None:
    log = Log()
    log.begin(5)
    log.half(5, [b"a"])
    log.end(5, first)
    log.restore_twin()
    for again in (COMMIT, ROLLBACK, first):
        assert log.end(5, again) == Changed([first, 0, False])
    log.release_all()
    assert log.placed == ({7: [b"a"]} if first is COMMIT else {})


def test_half_message_of_a_transaction_that_is_not_open_is_refused() -> None:
    log = Log()
    assert reason(log.half(5, [b"a"])) is Reason.UNKNOWN_TRANSACTION
    log.begin(5)
    log.end(5)
    assert reason(log.half(5, [b"a"])) is Reason.TRANSACTION_ENDED
    assert reason(log.begin(5)) is Reason.TRANSACTION_ENDED
    # Rolled back before it began: a late begin is refused.
    assert log.end(6, ROLLBACK) == Changed([ROLLBACK, 0, True])
    assert reason(log.begin(6)) is Reason.TRANSACTION_ENDED
    assert reason(log.end(7)) is Reason.UNKNOWN_TRANSACTION


def test_transactions_do_not_crowd_out_the_sessions_of_producers() -> None:
    log = Log(Limits(sessions_max=3))
    log.add(Kind.BATCH, encode([b"first"]).to_bytes(queue=7, producer=99, first_sequence=0))
    for number in range(1, 9):
        log.begin(number)
        assert isinstance(log.half(number, [b"%d" % number]), Delayed)
        log.end(number, COMMIT if number % 2 else ROLLBACK)
    payload = encode([b"second"]).to_bytes(queue=7, producer=99, first_sequence=1)
    assert isinstance(log.add(Kind.BATCH, payload)[0], Appended)


@pytest.mark.parametrize("is_first", [True, False])
def test_half_batch_that_comes_again_after_the_end_is_told_so(is_first: bool) -> None:
    log = Log()
    log.begin(5)
    log.half(5, [b"a"])
    if not is_first:
        log.half(5, [b"b"])
    log.end(5)
    log.sequences[5, 7] = 0 if is_first else 1
    assert reason(log.half(5, [b"a" if is_first else b"b"])) is Reason.TRANSACTION_ENDED


def test_half_batch_that_is_sent_twice_is_stored_once() -> None:
    log = Log()
    log.begin(5)
    log.half(5, [b"a"])
    log.sequences.clear()
    again = log.half(5, [b"a"])
    assert isinstance(again, Delayed)
    assert again.duplicate
    log.end(5)
    log.release_all()
    assert log.placed == {7: [b"a"]}


@pytest.mark.parametrize(
    "command",
    [Begin(0, "g", ""), Begin(1 << 63, "g", ""), Begin(1, "", ""), Begin(1, "g", "x" * 1001)],
)
def test_malformed_beginning_is_refused(command: Begin) -> None:
    assert reason(Log().run(command)[0]) is Reason.BAD_ARGUMENT


def test_malformed_end_is_refused() -> None:
    log = Log()
    log.begin(5)
    assert reason(log.end(5, 2)) is Reason.BAD_ARGUMENT
    assert reason(log.end(-1, ROLLBACK)) is Reason.UNKNOWN_TRANSACTION


def test_transaction_has_a_bounded_number_of_messages() -> None:
    log = Log()
    log.begin(5)
    assert isinstance(log.half(5, [b"%d" % n for n in range(MESSAGES_MAX)]), Delayed)
    assert reason(log.half(5, [b"one more"])) is Reason.TOO_LARGE
    assert log.end(5) == Changed([COMMIT, MESSAGES_MAX, True])
    log.release_all()
    assert log.placed[7] == [b"%d" % n for n in range(MESSAGES_MAX)]


def test_half_messages_do_not_mix_with_delayed_ones_in_a_batch() -> None:
    log = Log()
    log.begin(1)
    assert reason(log.send([b"a", b"b"], [NEVER, 5_000])) is Reason.BAD_ARGUMENT


def test_half_message_cannot_be_cancelled() -> None:
    log = Log()
    log.begin(5)
    half = log.half(5, [b"a"])
    assert isinstance(half, Delayed)
    assert log.cancel(7, NEVER, half.number) == NOT_WAITING
    assert log.machine.delays.count == 1


def test_open_transaction_outlives_retention() -> None:
    log = Log()
    log.begin(5)
    log.half(5, [b"a", b"b"])
    for _ in range(200):
        log.tick(log.now)
    end = log.machine.applied + 1
    assert log.carry(end) == Changed(2)
    log.run(Trim(end))
    log.forget_trimmed()
    assert 3 not in log.records
    log.end(5)
    log.release_all()
    assert log.placed == {7: [b"a", b"b"]}


def test_two_commits_in_one_record_keep_apart() -> None:
    log = Log()
    for number in (5, 6):
        log.begin(number)
        log.half(number, [b"%d" % number])
    log.run(End(6, COMMIT), End(5, COMMIT))
    log.release_all()
    assert log.placed == {7: [b"6", b"5"]}


def test_transaction_of_a_deleted_topic_commits_nothing() -> None:
    log = Log()
    log.begin(5)
    log.half(5, [b"a"])
    log.half(5, [b"b"], queue=8)
    log.run(DropQueues([7]))
    assert log.end(5) == Changed([COMMIT, 2, True])
    log.release_all()
    assert log.placed == {8: [b"b"]}


def test_outcomes_are_forgotten_after_a_week() -> None:
    log = Log()
    log.end(5, ROLLBACK)
    log.tick(log.now + ENDED_MS_MAX + 1)
    log.end(6, ROLLBACK)
    assert reason(log.end(5)) is Reason.UNKNOWN_TRANSACTION


def test_open_transactions_are_bounded_and_none_of_them_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transactions, "OPEN_MAX", 3)
    log = Log()
    assert [log.begin(number) for number in (1, 2, 3)] == [Changed()] * 3
    assert isinstance(log.begin(4), Refused)
    assert log.begin(2) == Changed(), "a repeat is no new one"
    assert log.end(1) == Changed([COMMIT, 0, True])
    assert log.begin(4) == Changed()


def test_outcomes_are_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "ENDED_MAX", 3)
    log = Log()
    for number in range(1, 6):
        log.end(number, ROLLBACK)
    log.restore_twin()
    assert [reason(log.end(number)) for number in (1, 2)] == [Reason.UNKNOWN_TRANSACTION] * 2
    assert [log.end(number, ROLLBACK) for number in (3, 4, 5)] == [
        Changed([ROLLBACK, 0, False])
    ] * 3


class TransactionMachine(RuleBasedStateMachine):
    """Transactions, delayed and ordinary messages at once, against a plain picture."""

    def __init__(self) -> None:
        super().__init__()
        self.log = Log()
        self.open: dict[int, list[tuple[int, bytes]]] = {}
        self.ended: dict[int, Outcome] = {}
        self.seen: set[bytes] = set()
        self.hidden: set[bytes] = set()
        self.sent = 0

    @rule(number=st.integers(1, 6))
    def begin(self, number: int) -> None:
        result = self.log.begin(number)
        if number in self.ended:
            assert reason(result) is Reason.TRANSACTION_ENDED
        else:
            self.open.setdefault(number, [])

    @rule(number=st.integers(1, 6), queue=st.sampled_from((7, 8)), count=st.integers(1, 3))
    def send(self, number: int, queue: int, count: int) -> None:
        bodies = [b"%d" % (self.sent + n) for n in range(count)]
        self.sent += count
        result = self.log.half(number, bodies, queue=queue)
        assert isinstance(result, Delayed) == (number in self.open)
        if number in self.open:
            self.open[number] += [(queue, body) for body in bodies]

    @rule(number=st.integers(1, 6), outcome=st.sampled_from((COMMIT, ROLLBACK)))
    def end(self, number: int, outcome: Outcome) -> None:
        result = self.log.end(number, outcome)
        if number in self.ended:
            assert result == Changed([self.ended[number], 0, False])
        elif number in self.open or outcome is ROLLBACK:
            messages = self.open.pop(number, [])
            assert result == Changed([outcome, len(messages), True])
            self.ended[number] = outcome
            bodies = {body for _, body in messages}
            (self.seen if outcome is COMMIT else self.hidden).update(bodies)
        else:
            assert reason(result) is Reason.UNKNOWN_TRANSACTION

    @rule(delay=st.integers(-5, 20), queue=st.sampled_from((7, 8)))
    def send_delayed(self, delay: int, queue: int) -> None:
        body = b"%d" % self.sent
        self.sent += 1
        # Another producer than those of the transactions: number 1 of this log has begun one.
        first = self.log.sequences.get((99, queue), 0)
        sealed = encode([body], deliver_at_ms=[self.log.now + delay])
        payload = sealed.to_bytes(queue=queue, producer=99, first_sequence=first)
        self.log.add(Kind.BATCH, payload)
        self.log.sequences[99, queue] = first + 1
        self.seen.add(body)

    @rule(milliseconds=st.integers(0, 10))
    def pass_time(self, milliseconds: int) -> None:
        self.log.tick(self.log.now + milliseconds)

    @precondition(lambda self: self.log.machine.delays.due_queues(1))
    @rule(limit=st.integers(1, 4))
    def release(self, limit: int) -> None:
        for queue in self.log.machine.delays.due_queues(9):
            assert isinstance(self.log.release(queue, limit=limit), Appended)

    @rule(data=st.data())
    def carry(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(1, self.log.machine.applied + 1))
        for queue in (7, 8):
            self.log.carry(index, queue=queue)
        self.log.run(Trim(index))
        self.log.forget_trimmed()

    @rule()
    def restore(self) -> None:
        self.log.restore_twin()

    @invariant()
    def only_committed_messages_are_placed(self) -> None:
        assert self.log.placed_at.keys() <= self.seen

    def teardown(self) -> None:
        self.log.tick(self.log.now + 100)
        self.log.release_all()
        assert self.log.placed_at.keys() == self.seen
        waiting = sum(map(len, self.open.values()))
        assert self.log.machine.delays.count == waiting
        assert self.log.machine.transactions.open.keys() == self.open.keys()


TestTransactionMachine = TransactionMachine.TestCase
TestTransactionMachine.settings = settings(max_examples=60, stateful_step_count=40)
