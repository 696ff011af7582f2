"""The meter's counts, and the events that it leaves out."""

import pytest

from bench.system import Meter, percentile, rates_at_ends


class Clock:
    """A clock that stands where it is put."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_acks_in_the_warm_up_and_after_the_deadline_are_not_counted() -> None:
    clock = Clock()
    meter = Meter(size=10, seconds=4.0, warm_up_seconds=1.0, clock=clock)
    for at in (100.5, 101.0, 104.9, 105.0, 106.0):
        clock.now = at
        meter.on_ack(100, at - 0.002)
    sample = meter.sample()
    assert sample.messages == 200
    assert sample.messages_per_s == 50.0
    assert sample.mb_per_s == pytest.approx(0.0005)
    assert sample.p50_ms == pytest.approx(2.0)


def test_work_that_ran_out_is_measured_until_its_last_delivery() -> None:
    clock = Clock()
    meter = Meter(size=1, seconds=10.0, warm_up_seconds=0.0, clock=clock)
    clock.now = 102.0
    meter.on_delivery(300)
    clock.now = 109.0
    sample = meter.sample(until_last=True)
    assert sample.seconds == pytest.approx(2.0)
    assert sample.p50_ms is None


def test_reads_are_timed_from_open_consumers_on() -> None:
    clock = Clock()
    meter = Meter(size=1, seconds=4.0, warm_up_seconds=0.0, clock=clock)
    clock.now = 103.0
    meter.restart()
    clock.now = 105.0
    meter.on_delivery(300)
    # A second consumer of the same work opens: the clock goes on.
    meter.restart()
    assert meter.deadline == 107.0
    assert meter.sample(until_last=True).seconds == pytest.approx(2.0)


def test_meter_is_over_at_its_deadline_and_not_before() -> None:
    clock = Clock()
    meter = Meter(size=1, seconds=4.0, warm_up_seconds=1.0, clock=clock)
    clock.now = 104.999
    assert not meter.is_over()
    clock.now = 105.0
    assert meter.is_over()


def test_no_ack_at_all_is_an_error_and_not_a_zero() -> None:
    with pytest.raises(RuntimeError, match="nothing was acknowledged"):
        Meter(size=1, seconds=1.0, clock=Clock()).sample()


@pytest.mark.parametrize(
    ("fraction", "expected"), [(0.5, 50_000.0), (0.99, 99_000.0), (1.0, 100_000.0), (0.0, 1000.0)]
)
def test_percentile_is_the_nearest_rank(fraction: float, expected: float) -> None:
    assert percentile([float(i) for i in range(1, 101)], fraction) == expected


def test_meter_with_a_number_of_messages_has_no_warm_up_and_ends_with_the_last() -> None:
    clock = Clock()
    meter = Meter(size=1, seconds=10.0, messages_max=300, clock=clock)
    for at in (100.05, 100.06, 100.35):
        assert not meter.is_over()
        clock.now = at
        meter.on_ack(100, at)
    assert meter.is_over()
    sample = meter.sample()
    assert sample.counts == [200, 0, 0, 100]
    assert sample.seconds == pytest.approx(0.35)


def test_meter_with_a_number_of_messages_ends_at_its_deadline_too() -> None:
    clock = Clock()
    meter = Meter(size=1, seconds=2.0, messages_max=300, clock=clock)
    clock.now = 101.0
    meter.on_ack(100, 100.0)
    clock.now = 102.0
    assert meter.is_over()
    assert meter.sample().messages == 100


def test_rates_at_the_ends_leave_out_the_step_that_ended_early() -> None:
    counts = [10] * 2 + [50] * 16 + [20] * 2 + [1]
    assert rates_at_ends(counts) == (100.0, 200.0)
    assert rates_at_ends([7]) == (70.0, 70.0)
