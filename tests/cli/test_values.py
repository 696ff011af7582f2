"""The kinds of values that options take."""

from datetime import UTC, datetime, timedelta
from typing import Any

import click
import pytest

from raftmq.cli.values import (
    ADDRESS,
    BYTE_RATE,
    COUNT_RATE,
    DURATION,
    PROPERTY,
    SCHEDULE,
    SIZE,
    START,
)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (DURATION, "500ms", 0.5),
        (DURATION, "10", 10.0),
        (DURATION, "1.5h", 5400.0),
        (DURATION, "1.1h", 3960.0),
        (DURATION, "7d", 604_800.0),
        (SCHEDULE, "10", (10.0,)),
        (SCHEDULE, "1s*2..10s", (1.0, 2.0, 4.0, 8.0, 10.0)),
        (SCHEDULE, "250ms*2.5..1m", (0.25, 0.625, 1.562, 3.906, 9.766, 24.414, 60.0)),
        (BYTE_RATE, "10MB/s", 10_000_000),
        (BYTE_RATE, "64KiB", 65_536),
        (COUNT_RATE, "100/s", 100),
        (COUNT_RATE, "600/m", 10),
        (SIZE, "100", 100),
        (SIZE, "10k", 10_000),
        (SIZE, "10kB", 10_000),
        (SIZE, "64KiB", 65_536),
        (SIZE, "1.5M", 1_500_000),
        (SIZE, "1MiB", 1_048_576),
        (START, "earliest", "earliest"),
        (START, "latest", "latest"),
        (START, "4711", 4711),
        (START, "2026-11-20T10:00:00+00:00", datetime(2026, 11, 20, 10, tzinfo=UTC)),
        (START, "@2026-11-20T10:00Z", datetime(2026, 11, 20, 10, tzinfo=UTC)),
        (PROPERTY, "buyerId=7", ("buyerId", 7)),
        (PROPERTY, "price=1.5", ("price", 1.5)),
        (PROPERTY, "paid=true", ("paid", True)),
        (PROPERTY, "city=Paris", ("city", "Paris")),
        (PROPERTY, 'zip="01234"', ("zip", "01234")),
        (PROPERTY, "note=a=b", ("note", "a=b")),
        (PROPERTY, "list=[1]", ("list", "[1]")),
        (PROPERTY, "x=NaN", ("x", "NaN")),
        (PROPERTY, "empty=", ("empty", "")),
        (ADDRESS, "10.0.0.3:7400", ("10.0.0.3", 7400)),
        (ADDRESS, "[::1]:7400", ("::1", 7400)),
    ],
)
def test_text_is_read_as_value(kind: Any, text: str, value: object) -> None:
    assert kind.convert(text, None, None) == value


@pytest.mark.parametrize(
    ("kind", "text", "right"),
    [
        (DURATION, "soon", "500ms"),
        (DURATION, "-1s", "500ms"),
        (SCHEDULE, "1s*2", "1s*2..1h (begins with 1s, doubles, at most 1h)"),
        (SCHEDULE, "1s..1h", "1s*2..1h"),
        (SCHEDULE, "1s*two..1h", "1s*2..1h"),
        (SCHEDULE, "5s,1s*2..1h", "1s*2..1h"),
        (SCHEDULE, "soon*2..1h", "'soon' is not a duration, as 500ms"),
        (SCHEDULE, "1s*2..late", "'late' is not a duration, as 500ms"),
        (SCHEDULE, "1s*1..1h", "a factor of more than 1, as 2 or 1.5, up to 604800000, not 1.0"),
        (SCHEDULE, "1s*1.01..1h", "take a factor of 1.14 or more"),
        (SCHEDULE, "0s*2..1h", "begins with 0.001 to 604800 s, not 0.0"),
        (SCHEDULE, "2h*2..1h", "7200 to 604800 s (7 days), not 3600.0"),
        (SCHEDULE, "1s*2..8d", "1 to 604800 s (7 days), not 691200.0"),
        (BYTE_RATE, "10/m", "10MB/s"),
        (BYTE_RATE, "0", "10MB/s"),
        (COUNT_RATE, "1.5/s", "100/s"),
        (COUNT_RATE, "0/s", "100/s"),
        (SIZE, "10 kB", "64KiB"),
        (SIZE, "i", "64KiB"),
        (START, "yesterday", "2026-11-20T10:00"),
        (PROPERTY, "novalue", "name=value"),
        (PROPERTY, "=7", "name=value"),
        (ADDRESS, "host", "host:port"),
        (ADDRESS, "host:99999", "host:port"),
    ],
)
def test_wrong_text_is_refused_with_what_would_be_right(kind: Any, text: str, right: str) -> None:
    with pytest.raises(click.BadParameter) as caught:
        kind.convert(text, None, None)
    assert right in str(caught.value)


def test_time_without_zone_is_local() -> None:
    moment = START.convert("2026-11-20T10:00", None, None)
    assert moment == datetime(2026, 11, 20, 10).astimezone()  # that is the point


def test_duration_as_start_is_so_long_ago() -> None:
    moment = START.convert("15m", None, None)
    assert abs(moment - (datetime.now(UTC) - timedelta(minutes=15))) < timedelta(seconds=5)
