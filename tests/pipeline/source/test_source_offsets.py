"""Places and ranges: canonical JSON, no gap, no overlap, shares in proportion."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.pipeline import PipelineError
from raftmq.pipeline.source.cluster import Bounds, lost
from raftmq.pipeline.source.offsets import (
    Place,
    Places,
    Range,
    advanced,
    from_json,
    limited,
    parse_requested,
    ranges,
    split,
    to_json,
)

TOPICS = st.sampled_from(["orders", "a", "b.c", "Z-1"])
QUEUES = st.integers(0, 10)


@st.composite
def growths(draw: st.DrawFn) -> tuple[Places, Places]:
    """Places, and later ones: topics and queues may have been added meanwhile."""
    start: Places = {}
    end: Places = {}
    for number, topic in enumerate(sorted(draw(st.sets(TOPICS, min_size=1, max_size=2)))):
        offsets = draw(st.dictionaries(QUEUES, st.integers(0, 20), min_size=1, max_size=4))
        later = {queue: offset + draw(st.integers(0, 12)) for queue, offset in offsets.items()}
        new = draw(st.sets(st.sampled_from(sorted(offsets)), max_size=len(offsets)))
        start[topic] = Place(number, {q: o for q, o in offsets.items() if q not in new})
        end[topic] = Place(number, later)
    return start, end


def messages(found: list[Range]) -> list[tuple[str, int, int]]:
    return [(each.topic, each.queue, at) for each in found for at in range(each.start, each.end)]


def between(start: Places, end: Places) -> list[tuple[str, int, int]]:
    return [
        (topic, queue, at)
        for topic in sorted(end)
        for queue, last in sorted(end[topic].queues.items())
        for at in range(start[topic].queues.get(queue, 0), last)
    ]


@given(growths())
def test_ranges_are_all_that_lies_between_two_places(places: tuple[Places, Places]) -> None:
    start, end = places
    found = ranges(start, end)
    assert messages(found) == between(start, end)
    assert all(each.messages > 0 for each in found)


@given(growths(), st.integers(3, 60))
def test_micro_batches_with_a_limit_read_everything_once(
    places: tuple[Places, Places], rows_max: int
) -> None:
    start, end = places
    read: list[tuple[str, int, int]] = []
    at = from_json(to_json(start))
    while wanted := limited(ranges(at, end), rows_max):
        assert sum(each.messages for each in wanted) <= rows_max
        after = from_json(json.loads(json.dumps(to_json(advanced(at, wanted, end)))))
        assert ranges(at, after) == wanted
        read += messages(wanted)
        at = after
    assert sorted(read) == sorted(between(start, end))
    assert to_json(advanced(at, [], end)) == to_json(end)


@given(growths(), st.integers(3, 60))
def test_a_limit_is_shared_in_proportion_to_the_backlogs(
    places: tuple[Places, Places], rows_max: int
) -> None:
    found = ranges(*places)
    total = sum(each.messages for each in found)
    shares = {each[:3]: each.messages for each in limited(found, rows_max)}
    assert sum(shares.values()) == min(rows_max, total)
    for each in found:
        fair = each.messages * min(1, rows_max / total)
        assert abs(shares.get(each[:3], 0) - fair) < 1


@given(growths(), st.integers(1, 40))
def test_split_ranges_are_the_same_messages_in_enough_parts(
    places: tuple[Places, Places], parts_min: int
) -> None:
    found = ranges(*places)
    parts = split(found, parts_min)
    assert messages(parts) == messages(found)
    assert all(part.messages > 0 for part in parts)
    assert len(parts) >= min(parts_min, len(messages(found)))
    if len(found) >= parts_min:
        assert parts == found


@given(growths(), growths())
def test_lost_and_left_are_all_and_meet_at_the_earliest(
    places: tuple[Places, Places], other: tuple[Places, Places]
) -> None:
    found = ranges(*places)
    earliest = {t: Place(0, other[1].get(t, Place(0, {})).queues) for t in places[1]}
    gone, left = lost(found, earliest)
    assert sorted(messages(gone) + messages(left)) == sorted(messages(found))
    assert all(at < earliest[topic].queues[queue] for topic, queue, at in messages(gone))
    assert all(at >= earliest[t].queues.get(queue, 0) for t, queue, at in messages(left))


@given(growths())
def test_equal_places_are_equal_text_whatever_their_order(places: tuple[Places, Places]) -> None:
    place = places[1]
    shuffled = {
        topic: Place(place[topic].id, dict(reversed(place[topic].queues.items())))
        for topic in reversed(place)
    }
    assert json.dumps(to_json(place)) == json.dumps(to_json(shuffled))
    assert from_json(to_json(shuffled)) == place


@pytest.mark.parametrize("found", [{"orders": {"0": 5}}, [], {"orders": {"id": 1, "queues": [3]}}])
def test_checkpoint_of_another_source_is_an_error(found: Any) -> None:
    with pytest.raises(PipelineError, match="are no offsets of raftmq"):
        from_json(found)


@pytest.mark.parametrize(
    "text",
    ["", "12", "{}", '{"t": 3}', '{"t": {"x": 1}}', '{"t": {"0": -3}}', '{"t": {"0": 1.5}}',
     '{"t": {"0": true}}', '{"t": {"id": "7", "queues": {}}}', '{"t": {"id": 7, "queues": 1}}'],
)  # fmt: skip
def test_offsets_that_cannot_be_read_are_an_error_that_shows_how(text: str) -> None:
    with pytest.raises(PipelineError, match=r'startingOffsets cannot be read.*\{"orders": \{"0"'):
        parse_requested(text, "startingOffsets")


def test_offsets_may_be_those_of_a_checkpoint() -> None:
    text = json.dumps(to_json({"orders": Place(7, {0: 3})}))
    assert parse_requested(text, "startingOffsets")["orders"] == (7, {0: 3})


BOUNDS = Bounds({"t": Place(3, {0: 5, 1: 0})}, {"t": Place(3, {0: 9, 1: 4})})


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ({"u": Place(3, {})}, "of topic 'u' as well, which is not read"),
        ({"t": Place(2, {0: 1})}, "deleted and created again: its number is 3.*of number 2"),
        ({"t": Place(3, {0: 10})}, "queue 0 of topic 't' ends at offset 9, and offset 10 was read"),
        ({"t": Place(3, {2: 0})}, "queue 2 of topic 't' does not exist"),
    ],
)
def test_places_of_something_else_are_refused(start: Places, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        BOUNDS.check(start)


def test_places_within_the_queues_are_taken() -> None:
    BOUNDS.check({"t": Place(3, {0: 9, 1: 0})})
    BOUNDS.check({"t": Place(3, {0: 2})})
