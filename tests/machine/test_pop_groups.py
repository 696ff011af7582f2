"""Consumer groups that pop, through the machine: deliveries without records of their own."""

import random
from typing import Any

import cbor2
import pytest

from raftmq.batch import encode
from raftmq.errors import Reason
from raftmq.log.record import Kind, Record
from raftmq.log.record import encode as encode_record
from raftmq.machine.commands import encode_commands
from raftmq.machine.machine import DropQueues, PartitionMachine
from raftmq.machine.pop_groups import Delivery
from raftmq.machine.settlements import Settlements, Settling
from raftmq.pop.actions import FENCED, OVER_LIMIT, Action
from raftmq.pop.calls import (
    Ask,
    Call,
    ChangeDead,
    CloseGroups,
    Leave,
    Lose,
    OpenGroup,
    Settle,
    Step,
    Tick,
)
from raftmq.pop.leases import Handed
from raftmq.pop.policy import Mode, Policy
from raftmq.pop.spans import Span, run
from raftmq.results import Changed, Refused, Result
from raftmq.wire.popping import SETTLE_ITEMS_MAX

TOPIC = 1
QUEUE = TOPIC << 16
ALICE, BOB = 11, 12
POLICY = Policy(schedule_ms=(10, 50), attempts_max=3, invisible_ms=100)


class Log:
    """A log and the machine that applies it."""

    def __init__(self) -> None:
        self.machine = PartitionMachine()
        self.records: list[Record] = []
        self.now = 1000
        self._sent: dict[int, int] = {}
        self.held: list[Delivery] = []

    def add(self, kind: Kind, payload: bytes) -> list[Result]:
        chain = self.records[-1].crc if self.records else 0
        record = encode_record(
            payload,
            index=self.machine.applied + 1,
            term=1,
            kind=kind,
            timestamp=self.now,
            chain=chain,
            version=1,
        )
        self.records.append(record)
        return self.machine.apply(record)

    def send(self, count: int = 1, *, queue: int = QUEUE) -> list[Handed]:
        first = self._sent.get(queue, 0)
        self._sent[queue] = first + count
        payload = encode([b"x"] * count).to_bytes(
            queue=queue, producer=1, epoch=0, first_sequence=first
        )
        self.add(Kind.BATCH, payload)
        return self.handed()

    def call(self, *calls: Call | DropQueues) -> list[Any]:
        """The values of the results, or the reasons of refusals."""
        results = self.add(Kind.COMMANDS, encode_commands(calls))
        return [r.reason if isinstance(r, Refused) else r.value for r in results]  # type: ignore[union-attr]

    def handed(self) -> list[Handed]:
        self.held += (deliveries := self.machine.pop_groups.take_handed())
        return [delivery.handed for delivery in deliveries]

    def open(self, number: int = 1, *, starts: dict[int, int] | None = None) -> None:
        queues = starts or {}
        call = OpenGroup(
            number, TOPIC, "billing", 1, Mode.POP, POLICY, list(queues), list(queues.values())
        )
        assert self.call(call) == [None]

    def ask(self, consumer: int, count: int, *, wait_ms: int = 1000) -> list[Handed]:
        assert self.call(Ask(1, consumer, count, wait_ms, 0)) == [None]
        return self.handed()

    def settle(self, sequence: int, *steps: Step, consumer: int = ALICE) -> list[int | bytes]:
        (values,) = self.call(Settle(1, consumer, sequence, list(steps)))
        assert isinstance(values, list)
        return values

    def pass_time(self, milliseconds: int) -> list[Handed]:
        self.now += milliseconds
        self.call(Tick())
        return self.handed()


def all_of(handed: Handed, action: Action = Action.ACK, **more: Any) -> Step:
    base, bits, _ = handed.messages
    return Step(
        action, handed.token, base, bits.to_bytes(bits.bit_length() // 8 + 1, "little"), **more
    )


def test_batch_is_handed_out_by_its_own_record_if_somebody_waits() -> None:
    log = Log()
    log.open()
    assert log.ask(ALICE, 10) == []
    (handed,) = log.send(3)
    assert handed == Handed(ALICE, log.machine.applied << 20, QUEUE, run(0, 3, 1), log.now + 100)


def test_credit_that_does_not_wait_ends_with_its_record() -> None:
    log = Log()
    log.open()
    assert log.ask(ALICE, 10, wait_ms=0) == []
    assert log.send(3) == []


def test_group_begins_where_it_is_told_and_new_queues_at_their_beginning() -> None:
    log = Log()
    log.send(5)
    log.send(5, queue=QUEUE | 1)
    log.open(starts={QUEUE: -1, QUEUE | 1: 2})
    (first,) = log.ask(ALICE, 100)
    assert (first.queue, first.messages) == (QUEUE | 1, run(2, 3, 1))
    assert log.ask(BOB, 100) == []
    assert [(h.queue, h.messages) for h in log.send(1, queue=QUEUE | 2)] == [
        (QUEUE | 2, run(0, 1, 1))
    ]


def test_group_does_not_begin_with_what_retention_took_before_it_was_opened() -> None:
    log = Log()
    log.send(10)
    log.send(10, queue=QUEUE | 1)
    assert log.call(Lose([QUEUE, QUEUE | 1], [4, 10])) == [None]
    log.open(starts={QUEUE: 2})
    (first,) = log.ask(ALICE, 100)
    assert (first.queue, first.messages) == (QUEUE, run(4, 6, 1))
    assert log.ask(BOB, 100) == []
    group = log.machine.pop_groups.attached[1].group
    assert (group.counts(QUEUE).lost, group.backlogs[QUEUE].begun) == (0, 4)
    group.audit()
    assert [(h.queue, h.messages) for h in log.send(1, queue=QUEUE | 1)] == [
        (QUEUE | 1, run(10, 1, 1))
    ]


def test_settlement_that_is_repeated_gets_the_first_answer() -> None:
    log = Log()
    log.open()
    log.send(3)
    (handed,) = log.ask(ALICE, 3)
    assert log.settle(1, all_of(handed)) == [3]
    assert log.settle(1, all_of(handed)) == [3]
    assert log.settle(2, all_of(handed)) == [FENCED]
    assert log.call(Settle(1, ALICE, 1, [all_of(handed)])) == [Reason.OUT_OF_ORDER]


def test_settlement_of_which_a_part_was_settled_before_names_the_others() -> None:
    log = Log()
    log.open()
    log.send(12)
    (handed,) = log.ask(ALICE, 12)
    by_others = [Step(Action.ACK, handed.token, n, b"\1") for n in (3, 9)]
    assert log.call(Settle(1, ALICE, 1 << 60, by_others, by_handle=True)) == [[1, 1]]
    rest = Step(Action.ACK, handed.token, 0, b"\xfc\x0f")
    for _ in range(2):
        # Bit 0 is the first named message, at offset 2.
        assert log.settle(1, rest) == [b"\x7d\x03"]
        log.machine = PartitionMachine.restore(log.machine.snapshot())


def test_each_deed_does_what_it_says() -> None:
    log = Log()
    log.open()
    log.send(5)
    (handed,) = log.ask(ALICE, 5)
    step = [Step(action, handed.token, n, b"\1") for n, action in enumerate(Action)]
    assert log.settle(1, *step[:4], Step(Action.EXTEND, handed.token, delay_ms=500)) == [
        1,
        1,
        1,
        1,
        500,
    ]
    audit = log.machine.pop_groups.attached[1].group.audit()
    assert audit == audit | {"acked": 1, "waiting": 1, "dead": 1, "ready": 1, "leased": 1}
    too_long = Step(Action.EXTEND, handed.token, delay_ms=10**12)
    assert (
        log.settle(2, too_long, Step(9, handed.token, 4, b"\1"), Step(Action.ACK, 0))
        == [OVER_LIMIT] * 3
    )


def test_lease_that_runs_out_is_taken_back_by_any_record() -> None:
    log = Log()
    log.open()
    log.send(1)
    (handed,) = log.ask(ALICE, 1)
    assert log.machine.pop_groups.next_timer == handed.deadline
    assert log.ask(BOB, 1, wait_ms=10_000) == []
    log.now += 100
    assert log.send(0 + 1, queue=QUEUE | 9)[0].queue == QUEUE | 9
    assert log.settle(1, all_of(handed)) == [FENCED]
    assert log.ask(BOB, 1, wait_ms=10_000) == []
    (again,) = log.pass_time(10)
    assert again.consumer == BOB
    assert again.messages == Span(0, 1, 2)
    assert again.token > handed.token


def test_unknown_and_closed_attachments_are_refused() -> None:
    log = Log()
    log.open()
    log.send(1)
    (handed,) = log.ask(ALICE, 1)
    assert log.call(CloseGroups([1])) == [None]
    assert (
        log.call(Ask(1, ALICE, 1, 0, 0), Settle(1, ALICE, 1, [all_of(handed)]))
        == [Reason.UNKNOWN_GROUP] * 2
    )
    assert log.call(Leave(1, ALICE), Tick(), ChangeDead(1, [1], False)) == [
        None, None, Reason.UNKNOWN_GROUP
    ]  # fmt: skip
    assert log.machine.pop_groups.next_timer is None


def test_deleted_topic_takes_its_attachments_with_it() -> None:
    log = Log()
    log.open()
    log.send(1)
    log.ask(ALICE, 1)
    log.call(DropQueues([QUEUE]))
    assert log.machine.pop_groups.attached == {}


def test_record_opens_a_bounded_number_of_leases_and_the_next_one_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("raftmq.machine.pop_groups.LEASES_MAX", 3)
    log = Log()
    for number in range(1, 6):
        log.open(number)
    log.call(*[Ask(n, who, 1, 1000, 0) for n in range(1, 6) for who in (ALICE, BOB)])
    log.send(2)
    replica = PartitionMachine.restore(log.machine.snapshot())
    assert [number for number, _ in log.held] == [1, 1, 2]
    assert log.machine.pop_groups.next_timer == log.now
    for _ in range(3):
        log.pass_time(0)
        replica.apply(log.records[-1])
        assert replica.digest == log.machine.digest
    assert [number for number, _ in log.held] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert log.machine.pop_groups.next_timer == log.now + 100


def test_messages_that_retention_took_are_lost_and_counted() -> None:
    log = Log()
    log.open()
    log.send(10)
    log.ask(ALICE, 4)
    log.call(Lose([QUEUE], [6]))
    assert log.machine.pop_groups.attached[1].group.audit()["lost"] == 6
    (handed,) = log.ask(BOB, 10)
    assert handed.messages == run(6, 4, 1)


def test_dead_letters_are_handed_out_again_or_thrown_away() -> None:
    log = Log()
    log.open()
    log.send(2)
    (handed,) = log.ask(ALICE, 2)
    log.settle(
        1, Step(Action.REJECT, handed.token, 0, b"\1"), Step(Action.REJECT, handed.token, 1, b"\1")
    )
    assert log.call(ChangeDead(1, [1, 7], False), ChangeDead(1, [1, 2], True)) == [1, 1]
    (again,) = log.ask(ALICE, 2)
    assert again.messages == run(0, 1, 1)


def bits(*places: int) -> bytes:
    return sum(1 << place for place in places).to_bytes(4, "little")


def bury_ten(log: Log) -> None:
    """Letter 1 holds the messages 0 to 9."""
    log.open()
    log.send(10)
    (handed,) = log.ask(ALICE, 10)
    log.settle(1, all_of(handed, Action.REJECT, reason="no"))


def test_some_messages_of_a_dead_letter_are_handed_out_or_thrown_away_and_the_rest_stays() -> None:
    log = Log()
    bury_ten(log)
    redriven, purged = [2, 3, 7], [0, 9]
    assert log.call(
        ChangeDead(1, [1], False, [2], [bits(0, 1, 5)]), ChangeDead(1, [1], True, [0], [bits(0, 9)])
    ) == [3, 2]
    group = log.machine.pop_groups.attached[1].group
    left = sorted({*range(10)} - {*redriven, *purged})
    assert list(group.dead[1].messages.offsets()) == left
    assert group.dead[1].reason == "no"
    (again,) = log.ask(ALICE, 10)
    assert (list(again.messages.offsets()), again.messages.attempt) == (redriven, 1)
    assert group.audit() == group.audit() | {"dead": 5, "purged": 2, "leased": 3}


def test_change_of_a_part_of_a_dead_letter_that_is_said_again_changes_nothing() -> None:
    log = Log()
    bury_ten(log)
    change = ChangeDead(1, [1], False, [0], [bits(0, 1)])
    assert log.call(change) == [2]
    # The letter now begins with other messages than were named.
    assert log.call(change) == [0]
    assert log.machine.pop_groups.attached[1].group.dead[1].messages == run(2, 8, 1)


def test_parts_of_dead_letters_that_name_nothing_change_nothing() -> None:
    log = Log()
    bury_ten(log)
    far = (1 << 62, -(1 << 62), 10, -4)
    letters = [1] * len(far)
    before = log.machine.pop_groups.dump(0)
    assert log.call(ChangeDead(1, letters, True, [*far], [bits(0, 3)] * len(far))) == [0]
    assert log.call(ChangeDead(1, [1], True, [0], [b""])) == [0]
    assert log.call(ChangeDead(1, [1, 1], True, [0], [bits(0)])) == [Reason.BAD_ARGUMENT]
    assert log.call(ChangeDead(1, [1], True, [], [bits(0)])) == [Reason.BAD_ARGUMENT]
    assert log.machine.pop_groups.dump(0) == before


def test_letter_of_which_a_part_has_left_is_alike_in_a_replica_from_a_snapshot() -> None:
    log = Log()
    bury_ten(log)
    log.call(ChangeDead(1, [1], False, [0], [bits(0, 4)]))
    replica = PartitionMachine.restore(log.machine.snapshot())
    for change in (
        ChangeDead(1, [1], True, [1], [bits(0)]),
        Ask(1, BOB, 20, 0, 0),
        ChangeDead(1, [1], False),
        Ask(1, BOB, 20, 0, 0),
    ):
        log.call(change)
        replica.apply(log.records[-1])
        assert replica.digest == log.machine.digest
        assert replica.pop_groups.dump(0) == log.machine.pop_groups.dump(0)
    audit = log.machine.pop_groups.attached[1].group.audit()
    assert audit == {**dict.fromkeys(audit, 0), "leased": 9, "purged": 1}


def test_record_of_software_that_knew_whole_letters_only_means_whole_ones() -> None:
    log = Log()
    bury_ten(log)
    # The array ended after `is_purge` then.
    log.add(Kind.COMMANDS, cbor2.dumps([["change_dead", 1, [1], True]]))
    assert log.machine.pop_groups.attached[1].group.audit()["purged"] == 10


def test_replica_from_a_snapshot_goes_on_like_the_others() -> None:
    draw = random.Random(5)
    log = Log()
    for number in (1, 2, 3):
        log.open(number)
    held = log.held
    sequence = 0
    replica = PartitionMachine.restore(log.machine.snapshot())
    for step in range(1500):
        log.now += draw.choice([0, 0, 1, 7, 40])
        number, consumer = draw.randint(1, 3), draw.choice([ALICE, BOB])
        match draw.randint(0, 3):
            case 0:
                log.send(draw.randint(1, 9), queue=QUEUE | draw.randint(0, 3))
            case 1 | 2:
                count, wait_ms = draw.randint(0, 9), draw.choice([0, 60])
                log.call(Ask(number, consumer, count, wait_ms, 0, draw.random() < 0.5))
            case _ if held:
                sequence += 1
                number, handed = held.pop(-draw.randint(1, min(9, len(held))))
                action = draw.choice([*Action])
                delay_ms = draw.choice([5, 30])
                call = Settle(
                    number, handed.consumer, sequence, [all_of(handed, action, delay_ms=delay_ms)]
                )
                log.call(call)
        log.handed()
        replica.apply(log.records[-1])
        assert replica.digest == log.machine.digest, step
        assert replica.pop_groups.dump(0) == log.machine.pop_groups.dump(0)
        if step % 100 == 50:
            replica = PartitionMachine.restore(replica.snapshot())
    for attached in log.machine.pop_groups.attached.values():
        audit = attached.group.audit()
        assert audit["acked"]
        assert audit["dead"]


def test_settlements_by_handle_are_counted_apart_from_the_consumers_own() -> None:
    log = Log()
    log.open()
    for _ in range(4):
        log.send(1)
    one, two, three, four = (log.ask(ALICE, 1)[0] for _ in range(4))
    assert log.settle(1, all_of(one)) == [1]
    by_handle = Settle(1, ALICE, 1 << 60, [all_of(two)], by_handle=True)
    assert log.call(by_handle) == [[1]]
    assert log.settle(2, all_of(three)) == [1]
    assert log.call(by_handle) == [[1]], "a repeat has the first answer"
    replica = PartitionMachine.restore(log.machine.snapshot())
    assert replica.snapshot() == log.machine.snapshot()
    log.machine = replica
    assert log.call(by_handle) == [[1]]
    assert log.settle(3, all_of(two), all_of(four)) == [FENCED, 1]
    late = Settle(1, ALICE, 7, [all_of(one)], by_handle=True)
    assert log.call(late) == [Reason.OUT_OF_ORDER]
    log.call(CloseGroups([1]))
    assert len(log.machine.pop_groups._settlements) == 0


def test_repeats_are_forgotten_by_the_results_of_others_too() -> None:
    settlements, mine = Settlements(), Settling(1, ALICE, by_handle=False)
    assert settlements.once(mine, 1, lambda: [1], now=0) == Changed([1])
    for number in range(1, 490):
        other = Settling(1, ALICE + number, by_handle=False)
        settlements.once(other, 1, lambda: [1] * SETTLE_ITEMS_MAX, now=number)
        assert (mine in settlements._last) == (number < 489)
    # Results that say which messages were settled count by their length.
    settlements = Settlements()
    settlements.once(mine, 1, lambda: [1, bytes(8), bytes(7)], now=0)
    assert settlements._weight == 4


def test_running_credits_of_a_group_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftmq.pop.credit.RUNNING_MAX", 3)
    log = Log()
    log.open()
    for consumer in (1, 2, 3):
        log.ask(consumer, 1)
    assert log.call(Ask(1, 4, 1, 1000, 0)) == [Reason.TOO_LARGE]
    # A running request may be renewed, and an ended one makes room.
    assert log.call(Ask(1, 3, 2, 2000, 0), Leave(1, 2), Ask(1, 4, 1, 1000, 0)) == [None] * 3
    assert log.call(Ask(1, 5, 1, 1000, 0)) == [Reason.TOO_LARGE]
    log.pass_time(1500)
    # Only the renewed credit still runs.
    assert log.call(*(Ask(1, consumer, 1, 1000, 0) for consumer in (5, 6, 7))) == [
        None,
        None,
        Reason.TOO_LARGE,
    ]
    # A restored machine has the same state.
    again = PartitionMachine.restore(log.machine.snapshot())
    assert again.snapshot() == log.machine.snapshot()
