"""The law of a bucket that leaks, over random requests."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.broker.quotas.buckets import BURST_SECONDS, ROUNDING_SECONDS, Bucket, Meter, Reserved
from raftmq.machine.catalog.quotas import Quota, Subject, SubjectKind

RATE = 100
Request = tuple[float, int, float]
"""When it came, its amount, and when it started."""


def starts(arrivals: list[tuple[float, int]]) -> list[Request]:
    """Requests as `Lane` starts them: the first one that waits, whenever its wait is over."""
    bucket, now = Bucket(RATE), 0.0
    waiting: list[tuple[float, int, int]] = []
    started: list[Request] = []

    def pass_until(time: float) -> None:
        nonlocal now
        while waiting:
            came, amount, position = waiting[0]
            due = now + bucket.wait_seconds(position, now)
            if due > time:
                break
            now = max(now, due)
            started.append((came, amount, now))
            del waiting[0]
        now = max(now, time)

    for gap, amount in arrivals:
        pass_until(now + gap)
        waiting.append((now, amount, bucket.pour(amount, now)))
        pass_until(now)
    pass_until(float("inf"))
    return started


arrivals = st.lists(st.tuples(st.floats(0, 3), st.integers(1, 400)), min_size=1, max_size=30)


@given(arrivals)
def test_in_any_time_the_rate_its_burst_and_one_request_pass_at_the_most(
    asked: list[tuple[float, int]],
) -> None:
    done = starts(asked)
    assert len(done) == len(asked)
    for first, last in combinations(range(len(done)), 2):
        seconds = done[last][2] - done[first][2]
        amount = sum(each[1] for each in done[first:last])
        assert amount <= RATE * (seconds + BURST_SECONDS + 2 * ROUNDING_SECONDS) + 1e-3


@given(arrivals)
def test_requests_keep_their_order_and_wait_no_longer_than_their_debt(
    asked: list[tuple[float, int]],
) -> None:
    done = starts(asked)
    assert [start for *_, start in done] == sorted(start for *_, start in done)
    for at, (came, _, start) in enumerate(done):
        # All that came before, less what leaked, is the most that can be in the bucket.
        debt = sum(amount for _, amount, _ in done[:at])
        assert start - came <= debt / RATE + 1e-3


@given(arrivals, st.integers(1, 1000))
def test_another_rate_keeps_the_order_of_those_that_wait(
    asked: list[tuple[float, int]], rate: int
) -> None:
    bucket, now = Bucket(RATE), 0.0
    positions = []
    for gap, amount in asked:
        now += gap
        positions.append(bucket.pour(amount, now))
    bucket.set_rate(rate, now, seconds_max=4.0)
    waits = [bucket.wait_seconds(position, now) for position in positions]
    assert waits == sorted(waits)
    if rate < RATE:
        assert max(waits) <= 4.0 - BURST_SECONDS + 1e-6


requests = st.lists(st.tuples(st.integers(1, 400), st.integers(0, 2)), min_size=1, max_size=30)


@given(requests, st.floats(0, 1), st.floats(0, 1))
def test_requests_that_are_taken_back_leave_others_as_if_they_had_never_come(
    asked: list[tuple[int, int]], first: float, then: float
) -> None:
    bucket, without = Bucket(RATE), Bucket(RATE)
    for each in (bucket, without):
        # So much that all others wait.
        each.pour(4 * RATE, 0.0)
    kept: list[tuple[int, int]] = []
    gone: dict[int, list[tuple[int, int]]] = {1: [], 2: []}
    for amount, round_ in asked:
        position = bucket.pour(amount, 0.0)
        if round_:
            gone[round_].append((position, amount))
        else:
            kept.append((position, without.pour(amount, 0.0)))
    now = first
    bucket.take_back(gone[1], now)
    now += then
    bucket.take_back(reversed(gone[2]), now)
    kept.append((bucket.pour(1, now), without.pour(1, now)))
    for mine, other in kept:
        assert bucket.wait_seconds(mine, now) == pytest.approx(without.wait_seconds(other, now))
    assert bucket.level(now) == pytest.approx(without.level(now))


def test_what_has_leaked_of_a_request_is_not_taken_back() -> None:
    bucket = Bucket(10)
    first, second = bucket.pour(30, 0.0), bucket.pour(30, 0.0)
    bucket.take_back([(first, 30)], 4.0)
    assert bucket.level(4.0) == 20
    bucket.take_back([(second, 30)], 4.0)
    assert bucket.level(4.0) == 0


def test_an_idle_bucket_takes_a_burst_and_then_the_rate() -> None:
    bucket = Bucket(10)
    first, second, third = (bucket.pour(amount, 0.0) for amount in (25, 5, 5))
    assert bucket.wait_seconds(first, 0.0) == 0.0
    assert bucket.wait_seconds(second, 0.0) == pytest.approx(1.5)
    assert bucket.wait_seconds(third, 0.0) == pytest.approx(2.0)
    assert bucket.wait_seconds(third, 1.0) == pytest.approx(1.0)
    # It is empty after 3.5 s, and saves up no more than a burst.
    assert bucket.room(100.0) == 10


def test_without_a_rate_nothing_waits_and_a_later_rate_asks_nothing_of_the_past() -> None:
    bucket = Bucket(0)
    position = bucket.pour(1_000_000, 0.0)
    assert bucket.wait_seconds(bucket.poured, 0.0) == 0.0
    bucket.set_rate(1, 1.0, seconds_max=4.0)
    assert bucket.wait_seconds(position, 1.0) == 0.0
    assert bucket.wait_seconds(bucket.poured, 1.0) == 0.0


def test_a_higher_rate_shortens_the_wait_and_none_ends_it() -> None:
    bucket = Bucket(10)
    bucket.pour(30, 0.0)
    position = bucket.pour(1, 0.0)
    assert bucket.wait_seconds(position, 0.0) == pytest.approx(2.0)
    # 20 are left before it.
    assert bucket.wait_seconds(position, 1.0) == pytest.approx(1.0)
    bucket.set_rate(16, 1.0, seconds_max=4.0)
    assert bucket.wait_seconds(position, 1.0) == pytest.approx(0.25)
    bucket.set_rate(0, 1.0, seconds_max=4.0)
    assert bucket.wait_seconds(position, 1.0) == 0.0


def test_a_meter_knows_the_mean_size_of_what_went_out_and_when_it_is_as_new() -> None:
    meter = Meter(Subject(SubjectKind.USER, "alice"), Quota(read_bytes=1000))
    assert meter.is_empty(0.0)
    meter.pour_read(1000, 10, 0.0)
    assert meter.read_mean_bytes == 100
    meter.pour_read(2000, 10, 0.0)
    assert meter.read_mean_bytes == 125
    assert not meter.is_empty(2.9)
    assert meter.is_empty(3.1)


def test_what_is_reserved_and_has_not_leaked_is_given_back() -> None:
    bucket = Bucket(10)
    bucket.pour(10, 0.0)
    first, second = Reserved(bucket, 20, 0.0), Reserved(bucket, 5, 0.0)
    assert bucket.level(0.0) == 35
    second.give_back(0.5)
    assert bucket.level(0.5) == pytest.approx(25)
    # All before it has leaked, and 5 of its own.
    first.give_back(1.5)
    assert bucket.level(1.5) == pytest.approx(0)
    late = Reserved(bucket, 10, 2.0)
    bucket.pour(30, 2.5)
    late.give_back(4.0)
    assert bucket.level(4.0) == pytest.approx(20)


def test_what_is_given_back_before_a_reservation_lets_that_one_leak_sooner() -> None:
    bucket = Bucket(100)
    first, second = Reserved(bucket, 100, 0.0), Reserved(bucket, 25, 0.0)
    first.give_back(0.0)
    bucket.pour(100, 0.0)
    # All of it has leaked by now: what others have poured in stays.
    second.give_back(0.25)
    assert bucket.level(0.25) == pytest.approx(100)
    # What is behind a reservation has no part in that.
    first, second = Reserved(bucket, 50, 0.25), Reserved(bucket, 50, 0.25)
    second.give_back(0.25)
    first.give_back(1.5)
    assert bucket.level(1.5) == pytest.approx(0)
    first = Reserved(bucket, 50, 1.5)
    first.give_back(1.75)
    assert bucket.level(1.75) == pytest.approx(0)
