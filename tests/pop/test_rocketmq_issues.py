"""RocketMQ's POP loses and repeats messages: each of its known histories cannot happen here.

The numbers are those of github.com/apache/rocketmq. Where a history was found by reading the code
(POP of early 2026), the test says so.
"""

import pytest

from raftmq.errors import Reason
from raftmq.machine.machine import DropQueues
from raftmq.pop.actions import FENCED, Action
from raftmq.pop.calls import CloseGroups, OpenGroup, Settle, Step
from raftmq.pop.groups import PopGroup
from raftmq.pop.policy import Mode, Order, Policy
from raftmq.results import Refused
from tests.pop.counter import GROUP, POLICY, QUEUE, TOPIC, Counter, offsets, step

ALICE, BOB = 11, 12
HOUR_MS = 3600 * 1000
ORDERED = Policy((1000, 5000), 3, 30_000, Order.KEY)


def test_7914_message_comes_again_however_long_ago_it_was_stored() -> None:
    """#7914: the revive service compared a message's store time and passed over unacked ones."""
    counter = Counter()
    counter.send(3)
    counter.pass_time(48 * HOUR_MS)
    counter.send(3)
    assert offsets(counter.pop(ALICE)) == [0, 1, 2, 3, 4, 5]
    counter.pass_time(30_000)
    counter.pass_time(1000)
    assert sorted(offsets(counter.pop(BOB))) == [0, 1, 2, 3, 4, 5]


def test_10667_retry_waits_until_somebody_has_it() -> None:
    """#10667: staged checkpoints are cleared whatever became of their asynchronous revival."""
    counter = Counter()
    counter.send(2)
    counter.pop(ALICE)
    for _ in range(50):
        # A message is due, no consumer asks, the leader changes: the message stays due.
        counter.pass_time(HOUR_MS)
        counter.fail_over()
    assert counter.audit() == {"ready": 2}
    assert offsets(counter.pop(BOB)) == [0, 1]


def test_4806_lease_is_on_every_replica_that_knows_of_the_hand_out() -> None:
    """#4806: a checkpoint that no slave had counted as stored: a new master had the offset, and
    not the checkpoint. Here both are what one record gives, or neither is."""
    counter = Counter()
    counter.send(4)
    (handed,) = counter.pop(ALICE)
    counter.fail_over()
    assert counter.pop(BOB) == []
    assert counter.settle(ALICE, step(Action.ACK, handed, 0, 1)) == [2]
    counter.fail_over()
    counter.pass_time(30_000)
    counter.pass_time(1000)
    assert offsets(counter.pop(BOB)) == [2, 3]


def test_7117_queue_that_is_new_is_read_from_its_beginning() -> None:
    """#7117: a group that starts at the newest message skips what new brokers have already."""
    counter = Counter(starts={QUEUE: -1})
    counter.send(5)
    counter.open()
    assert counter.pop(ALICE) == []
    counter.send(3, queue=QUEUE | 1)
    counter.send(1)
    handed = counter.pop(ALICE)
    assert {one.queue: offsets([one]) for one in handed} == {QUEUE: [5], QUEUE | 1: [0, 1, 2]}


def test_9318_idle_group_is_not_swept_away() -> None:
    """#9318: a garbage scan drops the state of queues that were idle for five minutes."""
    counter = Counter()
    counter.send(5)
    counter.pop(ALICE, 2)
    counter.pass_time(300 * 24 * HOUR_MS)
    counter.fail_over()
    counter.pass_time(300 * 24 * HOUR_MS)
    assert sorted(offsets([*counter.pop(BOB), *counter.pop(BOB)])) == [0, 1, 2, 3, 4]


def test_crash_at_any_record_leaves_each_message_in_one_state() -> None:
    """By reading: mergeAndRevive commits its offset before the retries are written. Here each
    prefix of the log has all messages, each once."""
    counter = Counter()
    counter.send(9)
    for consumer in (ALICE, BOB, ALICE, BOB):
        for handed in counter.pop(consumer, 3):
            counter.settle(
                consumer,
                step(Action.ACK, handed, handed.messages.base),
                step(Action.NACK, handed, delay_ms=500),
            )
        counter.pass_time(700)
    prefix = Counter(starts={})
    for record in counter.records:
        prefix.machine.apply(record)
        if GROUP in prefix.machine.pop_groups.attached and QUEUE in prefix.group.backlogs:
            following = prefix.group.backlogs[QUEUE].next
            assert sum(prefix.group.audit().values()) == following


def test_leases_of_different_topics_and_groups_do_not_collide() -> None:
    """By reading: revivals under way are kept in a map whose keys compare by offset alone."""
    counter = Counter()
    other, again = 2, 3
    counter.call(OpenGroup(other, TOPIC, "h", 1, Mode.POP, POLICY, [], []))
    counter.call(OpenGroup(again, TOPIC + 1, "g", 1, Mode.POP, POLICY, [], []))
    for queue in (QUEUE, QUEUE | 1, TOPIC + 1 << 16):
        counter.send(2, queue=queue)
    numbers = [GROUP, other, again]
    handed = {number: counter.pop(ALICE, number=number) for number in numbers}
    assert [len(offsets(handed[number])) for number in numbers] == [4, 4, 2]
    tokens = [one.token for all_of in handed.values() for one in all_of]
    assert len(set(tokens)) == len(tokens)
    counter.pass_time(30_000)
    counter.pass_time(1000)
    assert [len(offsets(counter.pop(BOB, number=number))) for number in numbers] == [4, 4, 2]


def test_10582_order_holds_beyond_32_bits() -> None:
    """#10582, #10852: a sort casts the difference of two longs to an int."""
    group, far = PopGroup(POLICY), 1 << 33
    tokens = iter(range(1 << 60, 1 << 61))
    for queue, start in ((1, 0), (2, far)):
        group.follow(queue, start)
    ends = {1: 1, 2: far + 1}
    for consumer, now in ((1, 0), (2, 1 << 34)):
        group.ask(consumer, 1, invisible_ms=1000, until=now + 1)
        group.hand_out(ends, now, tokens.__next__)
    assert group.next_timer == 1000
    group.pass_time(2000)
    assert group.counts(1).waiting == 1
    assert group.counts(2).leased == 1


def test_10736_ack_is_not_undone_by_what_was_about_to_happen() -> None:
    """#10736, #11016: an ack that comes while a cache is swept is undone by the stale state."""
    counter = Counter()
    counter.send(2)
    (handed,) = counter.pop(ALICE)
    counter.now = handed.deadline - 1
    assert counter.settle(ALICE, step(Action.ACK, handed, 0)) == [1]
    # The next record takes the rest of the lease back.
    counter.pass_time(1)
    counter.fail_over()
    assert counter.audit() == {"acked": 1, "waiting": 1}
    assert counter.settle(ALICE, step(Action.ACK, handed, 1)) == [FENCED]
    counter.pass_time(1000)
    assert offsets(counter.pop(BOB)) == [1]


def test_10256_settlements_of_one_record_do_not_share_anything() -> None:
    """#10256: the list of a batch of acks is cleared before its callback has read it."""
    counter = Counter()
    counter.send(6)
    (one,), (two,) = counter.pop(ALICE, 3), counter.pop(ALICE, 3)
    steps = [step(Action.ACK, one, 0, 2), step(Action.ACK, two, 4), step(Action.ACK, one, 1)]
    assert counter.settle(ALICE, *steps, step(Action.ACK, two)) == [2, 1, 1, 2]
    assert counter.audit() == {"acked": 6}


def test_8835_what_was_acked_of_a_lease_does_not_come_with_the_rest() -> None:
    """#8835: a checkpoint that is stored after some acks brings N - 1 messages again."""
    counter = Counter()
    counter.send(10)
    (handed,) = counter.pop(ALICE)
    counter.settle(ALICE, step(Action.ACK, handed, 0, 3, 9))
    counter.fail_over()
    counter.pass_time(30_000)
    counter.pass_time(1000)
    assert offsets(counter.pop(BOB)) == [1, 2, 4, 5, 6, 7, 8]


def test_3787_slow_consumer_has_its_messages_until_its_deadline() -> None:
    """#3787: checkpoints leave their buffer after ten seconds, and slow consumers see repeats."""
    counter = Counter()
    counter.send(1)
    (handed,) = counter.pop(ALICE, invisible_ms=60_000)
    for _ in range(59):
        counter.pass_time(1000)
        assert counter.pop(BOB) == []
    counter.now += 999
    assert counter.settle(ALICE, step(Action.ACK, handed)) == [1]


def test_7724_next_message_is_not_revived_in_the_place_of_one_that_is_gone() -> None:
    """#7724: if the original was deleted, a read "from its offset on" revives the next one."""
    counter = Counter()
    counter.send(4)
    (first,), (rest,) = counter.pop(ALICE, 2), counter.pop(BOB, 2)
    assert counter.settle(BOB, step(Action.ACK, rest)) == [2]
    counter.lose(2)
    counter.pass_time(30_000)
    counter.pass_time(1000)
    assert counter.pop(ALICE) == []
    assert counter.audit() == {"acked": 2, "lost": 2}
    assert counter.settle(ALICE, step(Action.ACK, first)) == [FENCED]


def test_crash_between_two_flushes_does_not_give_a_message_two_leases() -> None:
    """By reading: offsets are flushed every five seconds, so that a crash hands messages out again
    whose checkpoints live on. Here a token of before the crash is as good as ever, and alone."""
    counter = Counter()
    counter.send(6)
    (handed,) = counter.pop(ALICE, 3)
    counter.fail_over()
    (other,) = counter.pop(BOB)
    assert (offsets([handed]), offsets([other])) == ([0, 1, 2], [3, 4, 5])
    assert [one.token for one in counter.group.held_by(ALICE, counter.now)] == [handed.token]
    assert counter.settle(ALICE, step(Action.ACK, handed)) == [3]


def test_3503_group_does_not_go_back_to_the_beginning() -> None:
    """#3503: a read that gives null sets the offset to 0."""
    counter = Counter()
    counter.send(3)
    (handed,) = counter.pop(ALICE)
    counter.settle(ALICE, step(Action.ACK, handed))
    # There is nothing, then retention takes all there was.
    assert counter.pop(ALICE) == []
    counter.lose(3)
    counter.fail_over()
    assert counter.pop(ALICE) == []
    counter.send(1)
    assert offsets(counter.pop(ALICE)) == [3]


def test_5408_acks_without_a_lease_stall_nothing() -> None:
    """#5408, #3443: more acks than checkpoints stop the revive offset."""
    counter = Counter()
    counter.send(2)
    counter.pop(ALICE)
    strange = [Step(Action.ACK, token, 0, b"\xff") for token in range(5000)]
    assert set(counter.settle(BOB, *strange[:4000])) == {FENCED}
    counter.pass_time(30_000)
    counter.pass_time(1000)
    assert offsets(counter.pop(BOB)) == [0, 1]


def test_8479_topic_that_is_made_anew_knows_nothing_of_the_old_one() -> None:
    """#8479: checkpoints of a deleted topic are retried for ever against the new one."""
    counter = Counter()
    counter.send(3)
    (handed,) = counter.pop(ALICE)
    counter.call(DropQueues([QUEUE]))
    assert counter.machine.pop_groups.next_timer is None
    # A new topic has a new number; even if it had the old one, nothing would be left.
    counter.forget_sent(QUEUE)
    counter.open()
    counter.send(2)
    (again,) = counter.pop(BOB)
    assert (offsets([again]), again.messages.attempt) == ([0, 1], 1)
    assert counter.settle(ALICE, step(Action.ACK, handed)) == [FENCED]


def test_9956_many_leases_with_one_deadline_all_come_again() -> None:
    """#9956: the revive thread does not get beyond many equal deadlines."""
    counter = Counter()
    counter.send(2000)
    for _ in range(2000):
        counter.pop(ALICE, 1)
    assert counter.audit() == {"leased": 2000}
    counter.pass_time(30_000)
    assert counter.audit() == {"waiting": 2000}
    counter.pass_time(1000)
    assert len(offsets(counter.pop(BOB, 5000))) == 2000


def test_10827_failing_key_blocks_itself_alone() -> None:
    """#10827: in FIFO mode one message that fails blocks its queue, for hours with renewal."""
    counter = Counter(mode=Mode.ORDERED, policy=ORDERED)
    counter.send(6, keys=["a", "b", "a", "b", "c", None])
    (handed,) = counter.pop(ALICE)
    assert offsets([handed]) == [0, 1, 4, 5]
    counter.settle(ALICE, step(Action.NACK, handed, 0), step(Action.ACK, handed, 1, 4, 5))
    assert offsets(counter.pop(BOB)) == [3]
    counter.pass_time(1000)
    (again,) = counter.pop(BOB)
    assert (offsets([again]), again.messages.attempt) == ([0], 2)
    counter.settle(BOB, step(Action.ACK, again))
    assert offsets(counter.pop(BOB)) == [2]


@pytest.mark.parametrize("order", Order)
def test_8154_first_message_does_not_come_last(order: Order) -> None:
    """#8154, #8268, rocketmq-clients#708: the order was 1..9, 0; offsets came twice."""
    policy = Policy((1000,), 5, 30_000, order)
    counter = Counter(mode=Mode.ORDERED, policy=policy)
    counter.send(10, keys=["k"] * 10)
    done: list[int] = []
    failed: set[int] = set()
    while len(done) < 10:
        handed = [*counter.pop(ALICE, 10), *counter.pop(BOB, 10)]
        assert len(handed) <= 1, "of one key one lease at a time"
        for one in handed:
            first = one.messages.base
            consumer = one.consumer
            if first % 3 == 0 and first not in failed:
                failed.add(first)
                counter.settle(consumer, step(Action.NACK, one, first))
                continue
            assert counter.settle(consumer, step(Action.ACK, one)) == [one.messages.size]
            done += offsets([one])
        counter.fail_over()
        counter.pass_time(1000)
    assert done == list(range(10))


def test_10229_group_that_begins_anew_is_not_held_up_by_the_old_one() -> None:
    """#10229: an offset that is reset is ignored while the old checkpoints live."""
    counter = Counter(mode=Mode.ORDERED, policy=ORDERED)
    counter.send(3, keys=["k"] * 3)
    (old,) = counter.pop(ALICE)
    counter.call(CloseGroups([GROUP]))
    counter.open()
    assert counter.group.wants_feed(counter.machine.ends) == [(QUEUE, 0)]
    counter.feed(QUEUE, b"\1\0\0\0" * 3)
    (new,) = counter.pop(BOB)
    assert (offsets([old]), offsets([new])) == ([0], [0])
    assert counter.settle(ALICE, step(Action.ACK, old)) == [FENCED]
    assert counter.settle(BOB, step(Action.ACK, new)) == [1]


def test_6598_group_that_settles_nothing_stops_at_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """#6598: a store that refuses writes lets the buffer of checkpoints grow without end."""
    monkeypatch.setattr("raftmq.pop.groups.PIECES_MAX", 20)
    counter = Counter()
    counter.send(100)
    for _ in range(100):
        counter.pop(ALICE, 1)
    assert counter.audit() == {"leased": 20}
    first = next(counter.group.held_by(ALICE, counter.now))
    counter.settle(ALICE, step(Action.ACK, first))
    assert offsets(counter.pop(BOB, 1)) == [20]
    assert counter.pop(BOB, 1) == []


def test_4815_retry_comes_when_the_schedule_says() -> None:
    """#4815, #9106: the first retry came after two minutes at the earliest; the back-off did not
    hold."""
    counter = Counter()
    counter.send(1)
    for attempt, delay in ((1, 1000), (2, 5000)):
        (handed,) = counter.pop(ALICE)
        assert handed.messages.attempt == attempt
        counter.settle(ALICE, step(Action.NACK, handed))
        counter.pass_time(delay - 1)
        assert counter.pop(BOB) == []
        counter.pass_time(1)
    (last,) = counter.pop(ALICE)
    counter.settle(ALICE, step(Action.NACK, last))
    assert counter.audit() == {"dead": 1}
    (letter,) = counter.group.dead.values()
    assert (letter.reason, letter.messages.attempt) == ("failed", 3)


def test_ack_that_cannot_be_done_is_not_called_a_success() -> None:
    """By reading: an ack whose write fails is logged, and its client hears of success."""
    counter = Counter()
    counter.send(1)
    (handed,) = counter.pop(ALICE)
    counter.call(CloseGroups([GROUP]))
    (refused,) = counter.call(Settle(GROUP, ALICE, 1, [step(Action.ACK, handed)]))
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.UNKNOWN_GROUP
