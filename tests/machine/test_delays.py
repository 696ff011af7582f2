"""Delayed messages in the machine: never early, never twice, never lost, cancelled for good."""

from dataclasses import dataclass
from random import Random
from sys import getsizeof

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from raftmq.batch import Batch, Compression, encode
from raftmq.errors import Reason
from raftmq.log.record import Kind
from raftmq.machine.delay_queue import CHUNK_ROWS, DelayQueue, Key
from raftmq.machine.delays import (
    CANCELLED,
    FELL_DUE,
    HORIZON_MS_MAX,
    ITEMS_MAX,
    NOT_WAITING,
    Cancel,
    Carry,
    Delays,
    Run,
)
from raftmq.machine.machine import DropQueues, Limits, PartitionMachine, Trim
from raftmq.machine.producers import RESERVED
from raftmq.machine.releases import batch_of, copy, indexes_of, release
from raftmq.results import Appended, Changed, Delayed, Refused, Result

from .delay_log import DelayLog

QUEUES = (7, 8, 9)


def reason(result: Result | None) -> Reason:
    assert isinstance(result, Refused), result
    return result.reason


# -- A batch is taken ------------------------------------------------------------------------------


def test_delayed_batch_takes_no_offsets_until_it_falls_due() -> None:
    log = DelayLog()
    waiting = log.send([b"late"], [5_000])
    assert isinstance(waiting, Delayed)
    assert isinstance(log.send([b"early"], [0]), Appended)
    assert log.machine.ends == {7: 1}
    log.tick(5_000)
    assert log.release() == Appended(7, 1, 1, 5_000, duplicate=False)
    assert log.placed[7] == [b"early", b"late"]


def test_time_in_the_past_counts_as_now() -> None:
    log = DelayLog()
    assert log.send([b"a", b"b"], [900, 1_000]) == Appended(7, 0, 2, 1_000, duplicate=False)


def test_message_without_a_time_in_a_delayed_batch_is_due_at_once() -> None:
    log = DelayLog()
    log.send([b"now", b"late", b"past"], [0, 9_000, 3])
    log.release_all()
    assert log.placed[7] == [b"now", b"past"]
    assert log.machine.delays.count == 1


def test_delay_of_more_than_ten_years_is_refused_and_not_remembered() -> None:
    log = DelayLog()
    assert reason(log.send([b"x"], [log.now + HORIZON_MS_MAX + 1])) is Reason.BAD_ARGUMENT
    assert isinstance(log.send([b"x"], [log.now + HORIZON_MS_MAX]), Delayed)


def test_delayed_batch_that_is_sent_twice_is_kept_once() -> None:
    log = DelayLog()
    payload = log.payload([b"a", b"b"], [5_000, 5_000])
    (first,) = log.add(Kind.BATCH, payload)
    (again,) = log.add(Kind.BATCH, payload)
    assert isinstance(first, Delayed)
    assert isinstance(again, Delayed)
    assert (again.number, again.duplicate) == (first.number, True)
    log.tick(6_000)
    log.release_all()
    (late,) = log.add(Kind.BATCH, payload)
    assert isinstance(late, Delayed)
    assert late.number == first.number
    assert log.placed[7] == [b"a", b"b"]


def test_too_many_delayed_messages_are_refused_but_a_repeat_is_known() -> None:
    log = DelayLog(Limits(delayed_max=2))
    payload = log.payload([b"a", b"b"], [5_000, 5_000])
    log.add(Kind.BATCH, payload)
    log._sequence[7] = 2
    assert reason(log.send([b"c"], [5_000])) is Reason.TOO_MANY_DELAYED
    (again,) = log.add(Kind.BATCH, payload)
    assert isinstance(again, Delayed)
    assert isinstance(log.send([b"d"], [0]), Appended)
    assert isinstance(log.send([b"e"], [5_000], queue=8), Refused)


def test_delayed_batch_whose_times_cannot_be_read_is_refused() -> None:
    log = DelayLog()
    payload = bytearray(log.payload([b"a"], [5_000]))
    at = bytes(payload).index((5_000).to_bytes(8, "little"))
    payload[at : at + 8] = (2**62).to_bytes(8, "little")
    (result,) = log.add(Kind.BATCH, bytes(payload))
    assert reason(result) is Reason.CORRUPT_BATCH


# -- A release -------------------------------------------------------------------------------------


def test_release_keeps_everything_of_a_message_but_its_delivery_time() -> None:
    log = DelayLog()
    sealed = encode(
        [b"one" * 400, b"two" * 400],
        keys=["k", None],
        tags=[None, "paid"],
        props=[{"n": 1}, {"s": "x", "b": b"y"}],
        deliver_at_ms=[4_000, 3_000],
        created_ms=[11, 12],
        base_ms=11,
        compression=Compression.ZSTD,
    )
    log.add(Kind.BATCH, sealed.to_bytes(queue=7, producer=5))
    log.tick(4_000)
    payload = log.release_payload()
    batch = Batch.decode(payload)
    batch.validate()
    found = [(m.body, m.key, m.tag, m.props, m.created_ms, m.deliver_at_ms) for m in batch]
    assert found == [
        (b"two" * 400, None, "paid", {"s": "x", "b": b"y"}, 12, 0),
        (b"one" * 400, "k", None, {"n": 1}, 11, 0),
    ]
    assert batch.head.stored_bytes < batch.head.body_bytes


def test_release_is_refused_before_its_messages_are_due() -> None:
    log = DelayLog()
    log.send([b"a", b"b"], [2_000, 3_000])
    log.tick(2_500)
    rows = log.machine.delays.due(7, 10)
    assert list(rows.dues) == [2_000]
    (shelf,) = log.machine.delays._queues.values()
    early = release(7, shelf.head(10, until=9_999), log.records)
    (result,) = log.add(Kind.BATCH, early)
    assert reason(result) is Reason.OUT_OF_ORDER
    assert log.machine.ends == {}
    assert isinstance(log.release(), Appended)


def test_release_of_the_same_messages_by_two_leaders_places_them_once() -> None:
    log = DelayLog()
    log.send([b"a", b"b", b"c"], [2_000] * 3)
    log.tick(2_000)
    one, other = log.release_payload(limit=2), log.release_payload(limit=3)
    assert isinstance(log.add(Kind.BATCH, one)[0], Appended)
    assert reason(log.add(Kind.BATCH, other)[0]) is Reason.OUT_OF_ORDER
    assert reason(log.add(Kind.BATCH, one)[0]) is Reason.OUT_OF_ORDER
    log.release_all()
    assert log.placed[7] == [b"a", b"b", b"c"]


def test_reserved_producer_that_releases_nothing_is_refused() -> None:
    log = DelayLog()
    payload = encode([b"x"]).to_bytes(queue=7, producer=RESERVED | 99)
    assert reason(log.add(Kind.BATCH, payload)[0]) is Reason.OUT_OF_ORDER


def test_release_leaves_out_what_does_not_fit_into_one_batch() -> None:
    log = DelayLog()
    for number in range(3):
        names = {f"p{number}_{n}": n for n in range(100)}
        payload = encode([b"%d" % number], props=[names], deliver_at_ms=[2_000])
        log.add(Kind.BATCH, payload.to_bytes(queue=7, producer=9 + number))
    log.tick(2_000)
    log.release_all()
    assert log.placed[7] == [b"0", b"1", b"2"]


def test_release_is_cut_at_its_bytes_and_goes_on() -> None:
    log = DelayLog()
    bodies = [bytes([n]) * 400_000 for n in range(7)]
    log.send(bodies, [2_000] * 7)
    log.tick(2_000)
    first = log.release()
    assert isinstance(first, Appended)
    assert first.count == 2
    log.release_all()
    assert log.placed[7] == bodies


def test_messages_that_fall_due_together_are_placed_as_they_were_sent() -> None:
    log = DelayLog()
    for n in range(20):
        log.send([b"%d" % n, b"%d'" % n], [5_000 - n % 3, 5_000])
    log.tick(9_000)
    log.release_all()
    wanted = [b"%d" % n for part in (2, 1) for n in range(20) if n % 3 == part]
    wanted += [b for n in range(20) for b in ([b"%d" % n] if n % 3 == 0 else []) + [b"%d'" % n]]
    assert log.placed[7] == wanted


# -- Cancelling ------------------------------------------------------------------------------------


def test_cancelled_message_is_never_placed() -> None:
    log = DelayLog()
    waiting = log.send([b"a", b"b", b"c"], [5_000] * 3)
    assert isinstance(waiting, Delayed)
    assert log.cancel(7, 5_000, waiting.number + 1) == CANCELLED
    assert log.cancel(7, 5_000, waiting.number + 1) == NOT_WAITING
    log.tick(5_000)
    log.release_all()
    assert log.placed[7] == [b"a", b"c"]


def test_message_that_is_due_cannot_be_cancelled_even_if_it_is_not_placed_yet() -> None:
    log = DelayLog()
    waiting = log.send([b"a"], [5_000])
    assert isinstance(waiting, Delayed)
    log.tick(5_000)
    assert log.cancel(7, 5_000, waiting.number) == FELL_DUE
    log.release_all()
    assert log.cancel(7, 5_000, waiting.number) == FELL_DUE
    assert log.placed[7] == [b"a"]


def test_release_under_way_is_not_disturbed_by_what_comes_between() -> None:
    log = DelayLog()
    log.send([b"a", b"b"], [2_000, 2_100])
    later = log.send([b"z"], [9_000])
    assert isinstance(later, Delayed)
    log.tick(2_100)
    payload = log.release_payload()
    log.send([b"past", b"late"], [100, 8_000])
    log.cancel(7, 9_000, later.number)
    assert isinstance(log.add(Kind.BATCH, payload)[0], Appended)
    log.tick(9_000)
    log.release_all()
    assert log.placed[7] == [b"a", b"b", b"past", b"late"]


@pytest.mark.parametrize(
    "command",
    [
        Cancel([1], [], []),
        Cancel([7] * (ITEMS_MAX + 1), [5] * (ITEMS_MAX + 1), [6] * (ITEMS_MAX + 1)),
    ],
)
def test_malformed_cancellation_is_refused(command: Cancel) -> None:
    assert reason(DelayLog().run(command)[0]) is Reason.BAD_ARGUMENT


def test_cancellation_of_what_never_was_changes_nothing() -> None:
    log = DelayLog()
    log.send([b"a"], [5_000])
    for item in [(7, 5_000, 2**80), (7, 2**70, 1), (-1, 5_000, 1), (8, 5_000, 1)]:
        assert log.cancel(*item) == NOT_WAITING
    assert log.machine.delays.count == 1


# -- Retention -------------------------------------------------------------------------------------


def test_log_is_not_trimmed_beyond_the_first_message_that_waits() -> None:
    log = DelayLog()
    for _ in range(150):
        log.tick(1_000)
    waiting = log.send([b"a"], [9_000])
    assert isinstance(waiting, Delayed)
    for _ in range(150):
        log.tick(1_000)
    log.run(Trim(200))
    assert log.machine.log_start <= waiting.number >> 16
    assert log.machine.log_start > 64
    log.tick(9_000)
    log.release_all()
    log.run(Trim(200))
    assert log.machine.log_start == 200


def test_carried_messages_outlive_their_records_and_keep_their_numbers() -> None:
    log = DelayLog()
    sent = [log.send([b"%d" % n, b"%d'" % n], [9_000 + n, 8_000]) for n in range(200)]
    end = log.machine.applied + 1
    while isinstance(result := log.carry(end, limit=150), Changed):
        assert result.value == 150 or log.carry(end) is None
    log.run(Trim(end))
    assert log.machine.log_start > end - 64
    log.forget_trimmed()
    for at in range(min(log.records), log.machine.log_start):
        del log.records[at]
    assert isinstance(sent[5], Delayed)
    assert log.cancel(7, 9_005, sent[5].number) == CANCELLED
    assert log.carry(log.machine.applied + 1, limit=1_000) == Changed(399)
    log.tick(9_999)
    log.release_all()
    wanted = [b"%d'" % n for n in range(200)] + [b"%d" % n for n in range(200) if n != 5]
    assert log.placed[7] == wanted


def test_carry_moves_only_what_still_waits() -> None:
    log = DelayLog()
    sent = log.send([b"a", b"b", b"c"], [2_000, 9_000, 9_000])
    assert isinstance(sent, Delayed)
    rows = log.machine.delays.standing_before(99, queue=7, after=Key(0, 0), limit=9)
    command = copy(7, rows, log.records)
    log.tick(2_000)
    log.release_all()
    log.cancel(7, 9_000, sent.number + 1)
    assert log.run(command) == [Changed(1)]
    log.tick(9_000)
    log.release_all()
    assert log.placed[7] == [b"a", b"c"]


def test_two_carries_in_one_record_are_not_both_taken() -> None:
    log = DelayLog()
    log.send([b"a"], [9_000])
    rows = log.machine.delays.standing_before(99, queue=7, after=Key(0, 0), limit=9)
    command = copy(7, rows, log.records)
    first, second = log.run(command, command)
    assert first == Changed(1)
    assert reason(second) is Reason.BAD_ARGUMENT


@pytest.mark.parametrize(
    "command",
    [
        Carry(b"", b"no batch"),
        Carry(b"1234567", encode([b"x"], deliver_at_ms=[5]).to_bytes(queue=7)),
        Carry(b"12345678", encode([b"x"]).to_bytes(queue=7)),
    ],
)
def test_malformed_carry_is_refused(command: Carry) -> None:
    assert isinstance(DelayLog().run(command)[0], Refused)


def test_messages_of_a_deleted_topic_go_and_are_counted() -> None:
    log = DelayLog()
    log.send([b"a", b"b"], [9_000] * 2)
    log.send([b"c"], [9_000], queue=8)
    log.run(DropQueues([7]))
    assert log.machine.delays.dropped == 2
    assert log.machine.delays.queues == [8]
    log.tick(9_000)
    log.release_all()
    assert log.placed == {8: [b"c"]}


# -- Snapshots -------------------------------------------------------------------------------------


def test_snapshot_before_there_were_delays_is_read() -> None:
    import cbor2

    log = DelayLog()
    log.send([b"a"], [0])
    state = cbor2.loads(log.machine.snapshot())
    old = cbor2.dumps([4, *state[1:-2]])
    assert PartitionMachine.restore(old).ends == {7: 1}


# -- The law, against a naive model ----------------------------------------------------------------


@dataclass
class Waiting:
    """A message as the naive model keeps it."""

    body: bytes
    queue: int
    due: int
    number: int


class DelayMachine(RuleBasedStateMachine):
    """The machine does what a plain list of messages does."""

    def __init__(self) -> None:
        super().__init__()
        self.log = DelayLog(Limits(delayed_max=60))
        self.waiting: list[Waiting] = []
        self.cancelled: set[int] = set()
        self.expected: dict[int, list[bytes]] = {}
        self.ids: list[tuple[int, int, int]] = []
        self.payloads: list[bytes] = []
        self.sent = 0
        self.dropped = 0

    @rule(
        delays=st.lists(st.integers(-20, 60), min_size=1, max_size=5),
        queue=st.sampled_from(QUEUES),
    )
    def send(self, delays: list[int], queue: int) -> None:
        bodies = [b"%d" % (self.sent + n) for n in range(len(delays))]
        dues = [self.log.now + delay for delay in delays]
        is_late = max(dues) > self.log.now
        result = self.log.send(bodies, dues, queue=queue)
        if is_late and len(self.waiting) + len(dues) > 60:
            assert reason(result) is Reason.TOO_MANY_DELAYED
            return
        self.sent += len(delays)
        if not is_late:
            assert isinstance(result, Appended)
            self.expected.setdefault(queue, []).extend(bodies)
            return
        assert isinstance(result, Delayed)
        for n, (body, due) in enumerate(zip(bodies, dues, strict=True)):
            due = max(due, self.log.now)
            self.waiting.append(Waiting(body, queue, due, result.number + n))
            self.ids.append((queue, due, result.number + n))

    @rule(milliseconds=st.integers(0, 30))
    def pass_time(self, milliseconds: int) -> None:
        self.log.tick(self.log.now + milliseconds)

    @precondition(lambda self: self.ids)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        queue, due, number = data.draw(st.sampled_from(self.ids))
        found = [w for w in self.waiting if w.number == number]
        outcome = self.log.cancel(queue, due, number)
        if number in self.cancelled:
            assert outcome == NOT_WAITING
        elif due <= self.log.now:
            assert outcome == FELL_DUE
        else:
            assert outcome == (CANCELLED if found else NOT_WAITING)
            self.cancelled |= {number} if found else set()
            self.waiting = [w for w in self.waiting if w.number != number]

    @rule(limit=st.integers(1, 6), is_late=st.booleans())
    def release(self, limit: int, is_late: bool) -> None:
        """A leader releases; its record may be overtaken, and come later."""
        for queue in self.log.machine.delays.due_queues(9):
            payload = self.log.release_payload(queue, limit=limit)
            self.payloads.append(payload)
            if not is_late:
                self.propose(payload)

    @precondition(lambda self: self.payloads)
    @rule(data=st.data())
    def propose_again(self, data: st.DataObject) -> None:
        self.propose(data.draw(st.sampled_from(self.payloads)))

    def propose(self, payload: bytes) -> None:
        batch = Batch.decode(payload)
        queue, bodies = batch.head.queue, batch.bodies
        due = [w for w in self.waiting if w.queue == queue and w.due <= self.log.now]
        due.sort(key=lambda w: (w.due, w.number))
        (result,) = self.log.add(Kind.BATCH, payload)
        if due and due[0].number == batch.head.first_sequence:
            assert [w.body for w in due[: len(bodies)]] == bodies
            assert isinstance(result, Appended)
            self.expected.setdefault(queue, []).extend(bodies)
            self.waiting = [w for w in self.waiting if w not in due[: len(bodies)]]
        else:
            assert isinstance(result, Refused)

    @rule(data=st.data(), limit=st.integers(1, 8))
    def carry_and_trim(self, data: st.DataObject, limit: int) -> None:
        index = data.draw(st.integers(1, self.log.machine.applied + 1))
        for queue in QUEUES:
            self.log.carry(index, queue=queue, limit=limit)
        self.log.run(Trim(index))
        self.log.forget_trimmed()

    @rule(queue=st.sampled_from(QUEUES))
    def drop(self, queue: int) -> None:
        if self.sent % 7:
            return
        self.log.run(DropQueues([queue]))
        self.dropped += sum(w.queue == queue for w in self.waiting)
        self.waiting = [w for w in self.waiting if w.queue != queue]
        self.log.placed.pop(queue, None)
        self.expected.pop(queue, None)
        self.log._sequence.pop(queue, None)

    @rule()
    def restore(self) -> None:
        self.log.restore_twin()

    @invariant()
    def machine_and_model_agree(self) -> None:
        delays = self.log.machine.delays
        assert {q: b for q, b in self.log.placed.items() if b} == {
            q: b for q, b in self.expected.items() if b
        }
        assert delays.count == len(self.waiting)
        assert delays.dropped == self.dropped
        assert delays.next_due == min((w.due for w in self.waiting), default=None)
        due = {w.queue for w in self.waiting if w.due <= self.log.now}
        assert set(delays.due_queues(9)) == due
        assert sorted(delays.queues) == sorted({w.queue for w in self.waiting})
        for queue in delays.queues:
            rows = delays.standing_before(2**40, queue=queue, after=Key(0, 0), limit=99)
            floor = delays.floor
            assert floor is not None
            assert floor <= min(indexes_of(rows))
            for place in rows.places:
                bodies = batch_of(self.log.records[place >> 16]).bodies
                assert bodies[place & 0xFFFF] in {w.body for w in self.waiting}


TestDelayMachine = DelayMachine.TestCase
TestDelayMachine.settings = settings(max_examples=60, stateful_step_count=40)


# -- The shelf -------------------------------------------------------------------------------------


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 20), st.integers(1, 3 * CHUNK_ROWS)), min_size=1, max_size=12
    ),
    taken=st.integers(0, 6 * CHUNK_ROWS),
    after=st.tuples(st.integers(0, 20), st.integers(0, 9 * CHUNK_ROWS)),
)
@settings(max_examples=60)
def test_shelf_is_a_sorted_list(
    steps: list[tuple[int, int]], taken: int, after: tuple[int, int]
) -> None:
    shelf, model, number = DelayQueue(), [], 0
    for due, count in steps:
        shelf.put(due=due, number=number, place=2 * number, count=count)
        model += [(due, number + n, 2 * number + n) for n in range(count)]
        number += count
    model.sort()
    assert rows_of(shelf) == model
    # Some from the middle go, one from each chunk stands elsewhere.
    for due, each, place in model[:: CHUNK_ROWS // 3]:
        assert shelf.remove(due, each) == place
        assert shelf.remove(due, each) is None
    del model[:: CHUNK_ROWS // 3]
    for due, each, place in model[:: CHUNK_ROWS // 2]:
        assert shelf.move(due, each, -1) == place
    model[:: CHUNK_ROWS // 2] = [(*row[:2], -1) for row in model[:: CHUNK_ROWS // 2]]
    assert shelf.count == len(model)
    taken = min(taken, len(model))
    if taken:
        assert shelf.is_due(taken, until=model[taken - 1][0])
        assert not shelf.is_due(taken, until=model[taken - 1][0] - 1)
    head = shelf.head(taken, until=99)
    assert list(zip(*head, strict=True)) == model[:taken]
    assert list(shelf.take(taken)) == [row[2] for row in model[:taken]]
    assert rows_of(shelf) == model[taken:]
    model = model[taken:]
    found = shelf.before(CHUNK_ROWS, after=Key(*after), limit=1_000)
    wanted = [row for row in model if row[2] < CHUNK_ROWS and row[:2] > after][:1_000]
    assert list(zip(*found, strict=True)) == wanted
    if model:
        assert shelf.first == model[0][:2]
        columns = [b"".join(chunk[n] for chunk in shelf.chunks()) for n in range(3)]
        assert rows_of(DelayQueue.load(b"".join(columns))) == model


def rows_of(shelf: DelayQueue) -> list[tuple[int, ...]]:
    chunks = list(shelf.chunks())
    assert all(0 < len(chunk.dues) <= CHUNK_ROWS for chunk in chunks)
    return [row for chunk in chunks for row in zip(*chunk, strict=True)]


def test_timers_that_went_void_do_not_pile_up() -> None:
    log = DelayLog()
    for n in range(500):
        waiting = log.send([b"x"], [log.now + 100_000 - n])
        assert isinstance(waiting, Delayed)
        log.cancel(7, log.now + 100_000 - n, waiting.number)
    log.send([b"x"], [log.now + 5])
    assert log.machine.delays.next_due == log.now + 5
    assert len(log.machine.delays._timers) < 200


def test_empty_delays_answer_for_nothing() -> None:
    delays = Delays(5)
    assert (delays.next_due, delays.floor, delays.due_queues(5), delays.queues) == (None,) * 2 + (
        [],
        [],
    )


@pytest.mark.parametrize("spread", [1, 10**9])
def test_waiting_message_takes_no_more_than_48_bytes(spread: int) -> None:
    log = PartitionMachine()
    random, count = Random(1), 100
    for index in range(1, 1_001):
        dues = [1 + random.randrange(spread) for _ in range(500)]
        log.delays.put(7, index, [Run(due, 1) for due in dues])
    assert log.delays.count == 500_000
    (shelf,) = log.delays._queues.values()
    chunks = list(shelf.chunks())
    size = sum(getsizeof(column) for chunk in chunks for column in chunk)
    assert size + count * len(chunks) < 48 * 500_000
    assert len(log.snapshot()) < 25 * 500_000
