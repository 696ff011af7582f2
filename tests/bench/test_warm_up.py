"""A warm-up goes on while the rate rises, and within its bounds."""

from collections.abc import Callable

from bench.system import NothingCounted, Sample
from bench.warm_up import SLICE_SECONDS, Bounds, until_steady

BOUNDS = Bounds(4.0, 20.0)


def rising(*rates: int, seconds: float = SLICE_SECONDS) -> Callable[[float], Sample]:
    """Slices with these rates, the last one for ever."""
    left = list(rates)

    def work(wanted: float) -> Sample:
        assert wanted == SLICE_SECONDS
        rate = left.pop(0) if len(left) > 1 else left[0]
        return Sample(int(rate * seconds), 100, seconds, None, None, 0.0)

    return work


def test_warm_up_ends_when_two_slices_bring_no_gain() -> None:
    assert until_steady(rising(100, 150, 200, 204, 206), BOUNDS) == 5 * SLICE_SECONDS


def test_slices_in_which_nothing_comes_are_worked_time_without_a_gain() -> None:
    slices = rising(100, 100)
    empty = [True, False, False, False]

    def work(wanted: float) -> Sample:
        if empty.pop(0):
            raise NothingCounted
        return slices(wanted)

    assert until_steady(work, BOUNDS) == 4 * SLICE_SECONDS


def test_one_slow_slice_does_not_end_the_warm_up() -> None:
    assert until_steady(rising(100, 200, 150, 300, 300), BOUNDS) == 6 * SLICE_SECONDS


def test_slices_after_a_dip_are_compared_with_those_before_it() -> None:
    assert until_steady(rising(200, 100, 110, 120), BOUNDS) == 3 * SLICE_SECONDS


def test_slow_rise_of_less_than_the_gain_a_slice_adds_up() -> None:
    rates = [round(1000 * 1.04**n) for n in range(6)]
    assert until_steady(rising(*rates), BOUNDS) == 7 * SLICE_SECONDS


def test_warm_up_has_at_least_its_time() -> None:
    assert until_steady(rising(100), Bounds(10.0, 20.0)) == 10.0


def test_rate_that_keeps_rising_has_a_bound() -> None:
    assert until_steady(rising(*(2**n for n in range(40))), BOUNDS) == BOUNDS.most


def test_slices_that_last_longer_than_wanted_have_the_same_bound() -> None:
    doubling = (2**n for n in range(40))
    assert until_steady(rising(*doubling, seconds=3 * SLICE_SECONDS), BOUNDS) == 24.0


def test_slices_that_run_out_of_messages_are_bounded_in_number() -> None:
    assert until_steady(rising(100, seconds=0.1), BOUNDS) <= 10 * 0.1 + 1e-9
