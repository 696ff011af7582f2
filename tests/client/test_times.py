"""Times as the wire has them: whole milliseconds, none lost on the way."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.client.consume.offsets import EPOCH, time_ms
from raftmq.client.produce.delays import due_ms
from raftmq.errors import Rejected


@given(st.integers(0, 250_000_000_000_000), st.integers(0, 999), st.integers(-14, 14))
def test_a_time_is_the_millisecond_that_it_is_in(ms: int, rest: int, hours: int) -> None:
    zone = timezone(timedelta(hours=hours))
    time = (EPOCH + timedelta(milliseconds=ms, microseconds=rest)).astimezone(zone)
    assert time_ms(time) == ms


def test_a_time_before_1970_is_the_first_one() -> None:
    assert time_ms(datetime(1969, 12, 31, tzinfo=UTC)) == 0


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(Rejected, match="has no time zone"):
        time_ms(datetime(2026, 1, 1))  # noqa: DTZ001  # that is the point


@pytest.mark.parametrize("delay", [-1, -0.001, timedelta(seconds=-1)])
def test_delay_below_0_is_refused_and_a_time_that_has_passed_is_now(
    delay: float | timedelta,
) -> None:
    with pytest.raises(Rejected, match="is less than 0: None delivers at once"):
        due_ms(delay, 1_000_000)
    assert due_ms(datetime(1970, 1, 1, tzinfo=UTC), 1_000_000) == 0
