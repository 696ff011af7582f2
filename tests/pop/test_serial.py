"""A group in the order of its queues: single facts; the duel is in test_groups."""

from itertools import count

import pytest

from raftmq.pop.groups import PopGroup
from raftmq.pop.leases import Handed
from raftmq.pop.pieces import Piece
from raftmq.pop.policy import Mode, Order, Policy
from raftmq.pop.serial import SerialBacklog
from raftmq.pop.spans import Span, run
from raftmq.results import Changed, Refused

TOKENS = count(1)


@pytest.fixture
def group() -> PopGroup:
    group = PopGroup(Policy((10, 50), 3, 100, Order.QUEUE), Mode.ORDERED)
    group.follow(7, 0)
    return group


def serve(group: PopGroup, size: int = 10, now: int = 0, consumer: int = 1) -> list[Handed]:
    group.ask(consumer, size, invisible_ms=100, until=10**9)
    return group.hand_out({7: 100}, now, TOKENS.__next__)


def test_one_run_is_out_at_a_time(group: PopGroup) -> None:
    (first,) = serve(group)
    assert first.messages == run(0, 10, 1)
    assert serve(group, consumer=2) == []
    assert group.ack(1, first.token, run(0, 9), 0) == Changed(9)
    assert group.hand_out({7: 100}, 0, TOKENS.__next__) == []
    group.ack(1, first.token, run(9, 1), 0)
    (second,) = group.hand_out({7: 100}, 0, TOKENS.__next__)
    assert (second.consumer, second.messages) == (2, run(10, 10, 1))


def test_failure_takes_what_comes_after_it_out_of_hand(group: PopGroup) -> None:
    (first,) = serve(group)
    assert group.nack(1, first.token, run(3, 1), 0) == Changed(1)
    assert isinstance(group.ack(1, first.token, run(4, 6), 0), Refused)
    assert serve(group) == []
    assert group.ack(1, first.token, run(0, 3), 0) == Changed(3)
    assert serve(group) == []
    group.pass_time(10)
    (again,) = serve(group, now=10)
    assert again.messages == run(3, 1, 2)
    group.ack(1, again.token, again.messages, 10)
    (rest,) = serve(group, now=10)
    assert rest.messages == run(4, 6, 1)


def test_lease_that_runs_out_counts_for_its_first_message_alone(group: PopGroup) -> None:
    for attempt in (1, 2, 3):
        now = 1000 * attempt
        group.pass_time(now)
        (one,) = serve(group, now=now)
        assert (one.messages.base, one.messages.attempt) == (0, attempt)
        group.pass_time(now + 100)
    # It is a dead letter now, and the next one's turn comes, for the first time.
    (other,) = serve(group, now=4000)
    assert other.messages == run(1, 9, 1)
    assert group.counts(7).dead == 1


def test_blocking_group_waits_for_an_operator() -> None:
    group = PopGroup(Policy((10,), 1, 100, Order.QUEUE, is_blocking=True), Mode.ORDERED)
    group.follow(7, 0)
    (one,) = serve(group)
    group.nack(1, one.token, run(0, 1), 0)
    assert serve(group, now=10**6) == []
    assert group.counts(7).dead == 1
    group = PopGroup.load(group.dump(0))
    assert serve(group, now=10**6) == []
    (number,) = group.dead
    group.redrive(number)
    (again,) = serve(group, now=10**6)
    assert again.messages == run(0, 10, 1)


def test_rest_of_a_parked_letter_is_in_the_way_of_what_comes_after_it() -> None:
    group = PopGroup(Policy((10,), 9, 100, Order.QUEUE, is_blocking=True), Mode.ORDERED)
    group.follow(7, 0)
    (one,) = serve(group)
    group.reject(1, one.token, run(0, 3), 0, reason="no")
    # The middle message waits for the first one, the first one for none.
    assert group.redrive(1, run(1, 1)) == Changed(1)
    group = PopGroup.load(group.dump(0))
    assert serve(group) == []
    assert group.redrive(1, run(0, 1)) == Changed(1)
    (two,) = serve(group)
    assert two.messages == run(0, 2, 1)
    group.ack(1, two.token, two.messages, 0)
    assert serve(group) == []
    assert group.purge(1, run(2, 1)) == Changed(1)
    (rest,) = serve(group)
    assert rest.messages == run(3, 7, 1)


def test_purged_letter_of_a_blocking_group_is_out_of_the_way() -> None:
    group = PopGroup(Policy((10,), 1, 100, Order.QUEUE, is_blocking=True), Mode.ORDERED)
    group.follow(7, 0)
    (one,) = serve(group)
    group.reject(1, one.token, Span(0, 0b101), 0, reason="poison")
    assert serve(group) == []
    group.purge(1)
    assert [each.messages for each in serve(group)] == [Span(1, 0b111111101, 1)]


def test_pieces_stay_in_order_when_retention_takes_the_beginning_of_one() -> None:
    backlog = SerialBacklog(0)
    backlog.next = 10
    for each in (Piece(3, 0b1000001), Piece(5, 1, 1)):
        backlog.put_back(each)
    backlog.trim(4)
    taken = [backlog.take(9, 10), backlog.take(9, 10)]
    backlog.leased = 0
    taken.append(backlog.take(9, 10))
    assert taken == [Piece(5, 1, 2), None, Piece(9, 1, 1)]


def test_consumer_that_settles_out_of_order_gets_the_failed_one_alone(group: PopGroup) -> None:
    (first,) = serve(group, 3)
    group.ack(1, first.token, run(2, 1), 0)
    group.nack(1, first.token, run(1, 1), 0, delay_ms=0)
    group.ack(1, first.token, run(0, 1), 0)
    (again,) = serve(group)
    assert again.messages == run(1, 1, 2)
    group.ack(1, again.token, again.messages, 0)
    assert [each.messages for each in serve(group, 2)] == [run(3, 2, 1)]
