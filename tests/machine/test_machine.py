"""The data group's machine: offsets, exactly-once publish, committed offsets, snapshots."""

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftmq.batch import encode
from raftmq.errors import Reason
from raftmq.log.record import Kind, Record
from raftmq.log.record import encode as encode_record
from raftmq.machine.commands import encode_commands
from raftmq.machine.machine import DropQueues, Limits, PartitionMachine, Trim
from raftmq.machine.offsets import CommitOffsets
from raftmq.pop.leases import Handed
from raftmq.pop.spans import Span
from raftmq.results import Appended, Changed, Refused, Result, UnsupportedVersion


class Log:
    """Feeds a machine with records as a leader would number them."""

    def __init__(self, machine: PartitionMachine | None = None) -> None:
        self.machine = machine or PartitionMachine()
        self.records: list[Record] = []

    def add(self, kind: Kind, payload: bytes, *, now: int = 0, version: int = 1) -> list[Result]:
        index = self.machine.applied + 1
        chain = self.records[-1].crc if self.records else 0
        record = encode_record(
            payload, index=index, term=1, kind=kind, timestamp=now, chain=chain, version=version
        )
        self.records.append(record)
        return self.machine.apply(record)

    def send(
        self, first: int, count: int = 1, *, queue: int = 7, producer: int = 1, epoch: int = 0,
        now: int = 0,
    ) -> Result:  # fmt: skip
        sealed = encode([b"x"] * count)
        payload = sealed.to_bytes(queue=queue, producer=producer, epoch=epoch, first_sequence=first)
        (result,) = self.add(Kind.BATCH, payload, now=now)
        return result


def reason(result: Result) -> Reason:
    assert isinstance(result, Refused), result
    return result.reason


def test_batches_take_the_next_offsets_of_their_queue() -> None:
    log = Log()
    assert log.send(0, 3, queue=1) == Appended(1, 0, 3, 0, duplicate=False)
    assert log.send(0, 2, queue=2) == Appended(2, 0, 2, 0, duplicate=False)
    assert log.send(3, 1, queue=1) == Appended(1, 3, 1, 0, duplicate=False)


def test_batch_sent_twice_is_stored_once_and_answers_the_first_offset() -> None:
    log = Log()
    log.send(0, 3)
    log.send(0, 5, producer=2)
    log.send(3, 2)
    assert log.send(0, 3) == Appended(7, 0, 3, 0, duplicate=True)
    assert log.send(3, 2) == Appended(7, 8, 2, 0, duplicate=True)
    assert log.machine.ends[7] == 10


def test_batch_that_overtakes_a_lost_one_is_refused() -> None:
    log = Log()
    log.send(0)
    assert reason(log.send(2)) is Reason.OUT_OF_ORDER
    assert log.machine.ends[7] == 1


def test_session_must_begin_at_zero_or_a_lost_batch_would_look_like_a_repeat() -> None:
    assert reason(Log().send(5)) is Reason.UNKNOWN_PRODUCER


def test_batch_that_overlaps_the_stored_ones_in_part_is_refused() -> None:
    log = Log()
    log.send(0, 3)
    assert reason(log.send(1, 5)) is Reason.OUT_OF_ORDER


def test_older_epoch_is_fenced_for_ever_and_a_newer_one_starts_again_at_zero() -> None:
    log = Log()
    log.send(0, 3, epoch=1)
    assert reason(log.send(3, epoch=0)) is Reason.FENCED
    assert reason(log.send(3, epoch=2)) is Reason.UNKNOWN_PRODUCER
    assert log.send(0, epoch=2) == Appended(7, 3, 1, 0, duplicate=False)


def test_repeat_older_than_all_remembered_runs_is_known_as_a_duplicate() -> None:
    log = Log()
    for sequence in range(100):
        log.send(sequence, producer=1)
        log.send(sequence, producer=2)  # a record between the runs of producer 1
    assert reason(log.send(0, producer=1)) is Reason.DUPLICATE
    assert log.send(99, producer=1) == Appended(7, 198, 1, 0, duplicate=True)


def test_sessions_are_bounded_and_the_one_idle_longest_goes_first() -> None:
    log = Log(PartitionMachine(Limits(sessions_max=2)))
    log.send(0, producer=1)
    log.send(0, producer=2)
    log.send(1, producer=1)
    log.send(0, producer=3)
    assert reason(log.send(1, producer=2)) is Reason.UNKNOWN_PRODUCER
    assert isinstance(log.send(2, producer=1), Appended)


def test_session_idle_for_too_long_is_forgotten_by_record_time() -> None:
    log = Log(PartitionMachine(Limits(session_idle_ms_max=1000)))
    log.send(0, producer=1, now=0)
    log.send(0, producer=2, now=1001)
    assert reason(log.send(1, producer=1, now=1001)) is Reason.UNKNOWN_PRODUCER


def test_damaged_batch_in_the_log_is_refused_the_same_way_everywhere() -> None:
    (result,) = Log().add(Kind.BATCH, b"not a batch")
    assert reason(result) is Reason.CORRUPT_BATCH


def test_damaged_commands_in_the_log_are_refused_not_raised() -> None:
    for payload in (b"", b"\xff", b"\x81\x81\x65other", b"\x01"):
        (result,) = Log().add(Kind.COMMANDS, payload)
        assert reason(result) is Reason.BAD_ARGUMENT


def test_record_of_a_newer_version_stops_the_node() -> None:
    with pytest.raises(UnsupportedVersion, match="upgrade"):
        Log().add(Kind.BATCH, b"", version=PartitionMachine.record_version + 1)


def test_offsets_are_committed_per_group_and_may_go_back() -> None:
    log = Log()
    log.send(0, 10)
    commit = encode_commands([CommitOffsets("g", [7], [9])])
    assert log.add(Kind.COMMANDS, commit, now=5) == [Changed()]
    assert log.machine.committed == {"g": {7: (9, 5)}}
    log.add(Kind.COMMANDS, encode_commands([CommitOffsets("g", [7], [2])]), now=6)
    assert log.machine.committed == {"g": {7: (2, 6)}}


@pytest.mark.parametrize("offset", [-1, 11])
def test_offset_outside_the_queue_is_refused_and_nothing_changes(offset: int) -> None:
    log = Log()
    log.send(0, 10)
    (result,) = log.add(Kind.COMMANDS, encode_commands([CommitOffsets("g", [7, 7], [3, offset])]))
    assert reason(result) is Reason.OFFSET_OUT_OF_RANGE
    assert log.machine.committed == {}


def test_committed_offsets_are_bounded() -> None:
    log = Log(PartitionMachine(Limits(offsets_max=1)))
    log.send(0, 1, queue=1)
    log.send(0, 1, queue=2)
    assert log.add(Kind.COMMANDS, encode_commands([CommitOffsets("g", [1], [1])])) == [Changed()]
    (result,) = log.add(Kind.COMMANDS, encode_commands([CommitOffsets("g", [2], [1])]))
    assert reason(result) is Reason.BAD_ARGUMENT


def test_trim_moves_the_start_of_the_log_forward_only_and_not_past_what_is_applied() -> None:
    log = Log()
    log.send(0)
    for index, start in ((2, 2), (1, 2), (50, 4)):
        assert log.add(Kind.COMMANDS, encode_commands([Trim(index)])) == [Changed(start)]


def test_dropped_queues_leave_nothing_behind() -> None:
    log = Log()
    log.send(0, queue=1)
    log.send(0, queue=2)
    log.add(Kind.COMMANDS, encode_commands([CommitOffsets("g", [1, 2], [1, 1])]))
    log.add(Kind.COMMANDS, encode_commands([DropQueues([1])]))
    assert log.machine.ends == {2: 1}
    assert log.machine.committed == {"g": {2: (1, 0)}}
    assert log.send(0, queue=1) == Appended(1, 0, 1, 0, duplicate=False)


SENDS = st.tuples(
    st.integers(0, 6),  # first sequence
    st.integers(1, 3),  # count
    st.integers(0, 2),  # queue
    st.integers(1, 3),  # producer
    st.integers(0, 1),  # epoch
)
STEPS = st.one_of(
    SENDS,
    st.tuples(st.just("g"), st.integers(0, 2), st.integers(0, 4)),
    st.lists(st.integers(0, 2), max_size=2),
)


def step(log: Log, action: Any, now: int) -> list[Result]:
    match action:
        case (int() as first, count, queue, producer, epoch):
            return [log.send(first, count, queue=queue, producer=producer, epoch=epoch, now=now)]
        case (str() as group, queue, offset):
            commit = CommitOffsets(group, [queue], [offset])
            return log.add(Kind.COMMANDS, encode_commands([commit]), now=now)
        case list() as queues:
            return log.add(Kind.COMMANDS, encode_commands([DropQueues(queues)]), now=now)
    raise AssertionError(action)


@settings(max_examples=150)
@given(st.lists(STEPS, max_size=40), st.integers(0, 40))
def test_snapshot_and_replay_equals_replay(actions: list[object], cut: int) -> None:
    limits = Limits(sessions_max=4, session_idle_ms_max=20)
    whole = Log(PartitionMachine(limits))
    results = [step(whole, action, now) for now, action in enumerate(actions)]
    half = PartitionMachine(limits)
    for record in whole.records[:cut]:
        half.apply(record)
    resumed = PartitionMachine.restore(half.snapshot(), limits)
    assert resumed.snapshot() == half.snapshot()
    rest = [resumed.apply(record) for record in whole.records[cut:]]
    assert rest == results[cut:]
    assert resumed.digest == whole.machine.digest
    assert resumed.snapshot() == whole.machine.snapshot()


def test_repeat_of_what_never_was_one_batch_is_refused() -> None:
    log = Log()
    log.send(0, 2)
    log.send(0, 1, producer=2)
    log.send(2, 1)
    result = log.send(0, 3)
    assert isinstance(result, Refused)
    assert result.reason is Reason.OUT_OF_ORDER


@settings(max_examples=150)
@given(st.lists(SENDS, max_size=60))
def test_each_accepted_message_has_one_offset_and_offsets_have_no_gap(
    sends: list[tuple[int, int, int, int, int]],
) -> None:
    log = Log()
    stored: dict[int, list[tuple[int, int, int]]] = {0: [], 1: [], 2: []}
    for first, count, queue, producer, epoch in sends:
        result = log.send(first, count, queue=queue, producer=producer, epoch=epoch)
        names = [(producer, epoch, first + n) for n in range(count)]
        if isinstance(result, Appended) and not result.duplicate:
            assert result.base_offset == len(stored[queue])
            stored[queue] += names
        elif isinstance(result, Appended):
            base = result.base_offset
            assert stored[queue][base : base + count] == names
    for names in stored.values():
        assert len(set(names)) == len(names)
        for producer in (1, 2, 3):
            sequence = [name[1:] for name in names if name[0] == producer]
            assert sequence == sorted(sequence)


def test_time_of_a_record_grows_with_the_leases_that_begin_and_not_with_their_square(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Log()
    handed = [(1, Handed(2, token, 7, Span(token, 1, 1), 9)) for token in range(40_000)]
    monkeypatch.setattr(log.machine.pop_groups, "finish", lambda *_: handed)
    began = time.process_time()
    log.send(0)
    # As long as bytes were added to bytes, it took more than a minute.
    assert time.process_time() - began < 2
