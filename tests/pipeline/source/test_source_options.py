"""Options of the source mean exactly what they say; impossible ones raise an error that helps."""

from datetime import UTC, datetime

import pytest

from raftmq.pipeline import PipelineError
from raftmq.pipeline.rows import COLUMNS
from raftmq.pipeline.source.options import NAMES, check_kind, parse

GIVEN = {"subscribe": "orders", "url": "raftmq://h"}


def test_options_have_kafkas_names_and_meaning() -> None:
    found = parse(
        {"SUBSCRIBE": " b, a,b", "url": "raftmq://h", "startingoffsets": "Latest", "job": "daily"}
        | {"maxOffsetsPerTrigger": "5000", "minpartitions": "8", "failOnDataLoss": "FALSE"}
        | {"gaps": "g", "includeBody": "false", "filter": "paid || shipped", "timeout": "5"}
    )
    assert (found.topics, found.start, found.end) == (("a", "b"), "latest", "latest")
    assert (found.rows_max, found.parts_min, found.fails_on_loss) == (5000, 8, False)
    assert (found.group, found.gaps, found.timeout) == ("spark-daily", "g", 5.0)
    assert found.columns == tuple(name for name in COLUMNS if name != "body")


def test_what_is_not_said_has_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAFTMQ_URL", "raftmq://env")
    found = parse({"subscribe": "orders"})
    assert (found.url, found.start, found.end) == ("raftmq://env", "earliest", "latest")
    assert (found.columns, found.fails_on_loss, found.group) == (tuple(COLUMNS), True, None)


@pytest.mark.parametrize(
    "text", ["2026-11-22T09:00:00+01:00", "2026-11-22T08:00Z", "1795334400000"]
)
def test_a_time_is_iso_with_a_zone_or_milliseconds(text: str) -> None:
    found = parse({**GIVEN, "startingTimestamp": text})
    assert found.start == datetime(2026, 11, 22, 8, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"subscribe": " , "}, "no topic is named"),
        ({"startingOffset": "earliest"}, "no option 'startingOffset'.*did you mean startingOffs"),
        ({"kafka.bootstrap.servers": "x"}, "no option 'kafka.bootstrap.servers'.*There are table"),
        ({"startingOffsets": "earliest", "startingTimestamp": "1"}, "contradict each other"),
        ({"startingTimestamp": "2026-11-22T08:00:00"}, "no time with a time zone"),
        ({"startingTimestamp": "yesterday"}, "no time with a time zone: yesterday"),
        ({"endingOffsets": "earliest"}, "ends at the earliest message is empty"),
        ({"startingOffsets": "first"}, "startingOffsets cannot be read: first"),
        ({"startingOffsets": '{"trades": {"0": 1}}'}, "names trades, and orders is read"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger is no whole number from 1: 0"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss is neither true nor false"),
        ({"gaps": "g"}, "gaps is of no use while failOnDataLoss is true"),
        ({"columns": "offset,value"}, "no column value. Fix: there are topic, queue"),
        ({"columns": ","}, "no column named"),
        ({"columns": "body", "includeBody": "false"}, "names body, and includeBody is false"),
        ({"filter": "amount >"}, r"option filter: .* \(at character \d+: amount >\)"),
        ({"url": ""}, "no cluster is named"),
    ],
)
def test_options_that_cannot_be_meant_are_an_error(
    given: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAFTMQ_URL", raising=False)
    with pytest.raises(PipelineError, match=message):
        parse(GIVEN | given)


def test_errors_are_one_line_as_they_travel_through_spark_as_text() -> None:
    with pytest.raises(PipelineError) as caught:
        parse(GIVEN | {"filter": "amount >\n AND"})
    assert "\n" not in str(caught.value).replace("amount >\n AND", "")


def test_options_of_the_other_kind_of_read_are_refused() -> None:
    with pytest.raises(PipelineError, match="endingOffsets is for a batch read"):
        check_kind({"endingOffsets": "latest"}, is_stream=True)
    with pytest.raises(PipelineError, match="job is for a stream read, and this is a batch read"):
        check_kind({"Job": "x"}, is_stream=False)
    check_kind({"job": "x", "subscribe": "orders"}, is_stream=True)


def test_every_option_is_in_the_table_of_the_heading() -> None:
    import raftmq.pipeline.source.options as module

    table = module.__doc__ or ""
    assert [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")][
        1:
    ] == list(NAMES)
