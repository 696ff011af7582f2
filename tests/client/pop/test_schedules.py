"""Schedules that rise by a factor."""

import math
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import raftmq
from raftmq import exponential
from raftmq.client.admin.consumer_groups import policy_of
from raftmq.client.pop.schedules import FACTOR_MAX
from raftmq.errors import Reason, Rejected
from raftmq.machine.catalog.consumer_groups import DELAY_MS_MAX, SCHEDULE_ENTRIES_MAX

WEEK = DELAY_MS_MAX / 1000
HALF_MS = 0.0005 + 1e-9
SECONDS = st.floats(0.001, WEEK)
FACTORS = st.floats(1, FACTOR_MAX, exclude_min=True)


def schedule_ms(delays: list[float]) -> tuple[int, ...]:
    """The schedule that a group is given."""
    return policy_of(delays, None, None, "key", is_blocking=False).schedule_ms


@given(SECONDS, FACTORS, SECONDS, st.integers(1, SCHEDULE_ENTRIES_MAX))
def test_schedule_rises_up_to_its_limit_in_as_many_steps_as_asked(
    first: float, factor: float, most: float, steps: int
) -> None:
    assume(first <= most)
    delays = exponential(first, factor=factor, most=most, steps=steps)
    assert len(delays) == steps
    assert abs(delays[0] - first) <= HALF_MS
    for before, after in pairwise(delays):
        # Each of the two is half a millisecond off at most.
        right = min(before * factor, most)
        assert before <= after
        assert abs(after - right) <= HALF_MS * (factor + 1) + 1e-9 * right
    assert delays[-1] <= most + HALF_MS


@given(SECONDS, FACTORS, SECONDS)
def test_schedule_without_steps_ends_with_its_limit_or_says_which_factor_does(
    first: float, factor: float, most: float
) -> None:
    assume(first <= most)
    try:
        delays = exponential(first, factor=factor, most=most)
    except Rejected as error:
        least = float(str(error).split("factor of ")[-1].split()[0])
        assert factor < least
        delays = exponential(first, factor=least, most=most)
    assert abs(delays[-1] - most) <= HALF_MS
    assert len(delays) <= SCHEDULE_ENTRIES_MAX


@given(SECONDS, FACTORS, st.integers(1, SCHEDULE_ENTRIES_MAX))
def test_group_keeps_a_schedule_as_it_is(first: float, factor: float, steps: int) -> None:
    delays = exponential(first, factor=factor, most=WEEK, steps=steps)
    assert [ms / 1000 for ms in schedule_ms(delays)] == delays


def test_schedule_doubles_up_to_two_hours_if_nothing_else_is_said() -> None:
    assert exponential(600) == [600.0, 1200.0, 2400.0, 4800.0, 7200.0]
    assert exponential(7200) == [7200.0]
    assert raftmq.exponential is raftmq.client.exponential


@pytest.mark.parametrize(
    ("arguments", "right"),
    [
        ({"first": 0}, "begins with 0.001 to 604800 s, not 0"),
        ({"first": "1s"}, "begins with 0.001 to 604800 s, not '1s'"),
        ({"first": math.nan}, "begins with 0.001 to 604800 s, not nan"),
        ({"first": timedelta(1)}, "begins with 0.001 to 604800 s, not datetime"),
        ({"first": 10**400}, "begins with 0.001 to 604800 s, not 1000"),
        ({"first": 7201}, "7201 s is 7201 to 604800 s .7 days., not 7200"),
        ({"most": WEEK + 1}, "1 to 604800 s .7 days., not 604801"),
        ({"most": math.nan}, "1 to 604800 s .7 days., not nan"),
        ({"most": None}, "1 to 604800 s .7 days., not None"),
        ({"factor": 1}, "a factor of more than 1, as 2 or 1.5, up to 604800000, not 1"),
        ({"factor": math.inf}, "a factor of more than 1, .*, not inf"),
        ({"factor": "2"}, "a factor of more than 1, .*, not '2'"),
        ({"factor": 10**400}, "a factor of more than 1, .*, not 1000"),
        ({"steps": 0}, "1 to 64 steps, not 0"),
        ({"steps": 65}, "1 to 64 steps, not 65"),
        ({"steps": 2.0}, "1 to 64 steps, not 2.0"),
        ({"factor": 1.01, "most": 3600}, "1 s by a factor of 1.01, 64 steps do not reach 3600 s"),
    ],
)
def test_argument_out_of_range_is_refused(arguments: dict[str, Any], right: str) -> None:
    with pytest.raises(Rejected, match=right) as caught:
        exponential(**{"first": 1, **arguments})
    assert caught.value.reason is Reason.BAD_ARGUMENT
