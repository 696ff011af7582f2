"""Which records of the logs are read: without gap or overlap, and nothing is passed over."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.client.admin.event_columns import columns_of
from raftmq.client.admin.events import Events
from raftmq.pipeline import PipelineError
from raftmq.pipeline.source.events import (
    COLUMNS,
    Span,
    from_json,
    limited,
    parse,
    spans,
    split,
    to_json,
)

URL = {"url": "raftmq://localhost:1"}
SPANS = st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 1000)), max_size=5).map(
    lambda sizes: [Span(n + 1, start, start + size) for n, (start, size) in enumerate(sizes)]
)


@given(SPANS, st.integers(1, 40))
def test_split_has_every_record_once(found: list[Span], parts_min: int) -> None:
    pieces = split(found, parts_min)
    records = [(g, at) for g, start, end in pieces for at in range(start, end)]
    assert records == [(g, at) for g, start, end in found for at in range(start, end)]
    assert len(pieces) >= min(parts_min, len(records))


@given(SPANS, st.integers(1, 500))
def test_limit_takes_the_first_of_each_log(found: list[Span], most: int) -> None:
    taken = limited(found, most)
    assert [span[:2] for span in taken] == [span[:2] for span in found]
    assert all(start < part.end <= end for part, (_, start, end) in zip(taken, found, strict=True))
    assert sum(end - start for _, start, end in taken) <= max(most, len(found)) + len(found)


def test_what_retention_took_is_an_error_that_names_it_or_left_out() -> None:
    held = {1: Span(1, 50, 90), 2: Span(2, 2, 10)}
    start, end = {1: 20}, {1: 60, 2: 10}
    with pytest.raises(PipelineError, match="records 20 to 49 of the log of partition group 1"):
        spans(held, start, end, fails_on_loss=True)
    left = spans(held, start, end, fails_on_loss=False)
    assert left == [Span(1, 50, 60), Span(2, 2, 10)]
    assert spans(held, {1: 60, 2: 10}, end, fails_on_loss=True) == []


def test_group_that_there_is_not_is_an_error() -> None:
    with pytest.raises(PipelineError, match="no partition group 7"):
        spans({1: Span(1, 2, 3)}, {}, {7: 10}, fails_on_loss=True)


def test_log_that_ends_before_the_start_is_of_another_cluster() -> None:
    held = {1: Span(1, 2, 10)}
    with pytest.raises(PipelineError, match="ends with record 9, and 11 is to be read"):
        spans(held, {1: 11}, {1: 11}, fails_on_loss=True)
    assert spans(held, {1: 10}, {1: 10}, fails_on_loss=True) == []


def test_options_are_read_whatever_their_case() -> None:
    said = {"TABLE": "events", "subscribe": "b, a", "startingoffsets": '{"2": 7}', **URL}
    options = parse({**said, "minPartitions": "3", "failOnDataLoss": "False"})
    assert options.topics == {"a", "b"}
    assert (options.start, options.end, options.parts_min) == ({2: 7}, None, 3)
    assert not options.fails_on_loss


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("startingOffsets", "latest", "cannot be read: latest"),
        ("endingOffsets", '{"orders": 7}', "cannot be read"),
        ("maxOffsetsPerTrigger", "0", "no whole number"),
        ("failOnDataLoss", "maybe", "neither true nor false"),
        ("includeBody", "true", "no option 'includeBody'"),
        ("url", "", "no cluster"),
    ],
)
def test_wrong_options_are_told(
    option: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAFTMQ_URL", raising=False)
    with pytest.raises(PipelineError, match=message):
        parse({**URL, option: value})


def test_checkpoint_of_another_source_is_told() -> None:
    assert from_json(to_json({10: 1, 2: 3})) == {2: 3, 10: 1}
    with pytest.raises(PipelineError, match="no records of partition groups"):
        from_json({"orders": {"id": 7, "queues": {}}})


def test_arrow_has_the_columns_of_the_schema() -> None:
    empty = Events(1, 0, 0, 0, 0, **columns_of(0, 0, b""), topics={}, groups={})
    assert empty.to_arrow().schema.names == list(COLUMNS)
