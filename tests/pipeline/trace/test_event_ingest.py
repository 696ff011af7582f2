"""The driver learns from a batch of events which hours are to be built."""

from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftmq.pipeline import PipelineError, durable
from raftmq.pipeline.trace.event_ingest import Note, noted, notes_of, ranges_of
from raftmq.pipeline.trace.folder import (
    EVENTS,
    TIMELINES,
    Hour,
    State,
    built,
    files,
    load,
    path_of,
    remove_strays,
    save,
    writing,
)
from raftmq.pipeline.trace.hour_build import BLOCK, blocks_of
from tests.pipeline.trace.stories import event, table

HOUR_US = 3_600_000_000
T9, T10, T11 = (f"1970-01-01T{hour:02}" for hour in (9, 10, 11))


def batch(*rows: tuple[int, str, int, int, int | None]) -> pa.RecordBatch:
    """Rows of (hour of 1970, what, queue, offset, count), of attachment 1."""
    (made,) = table(
        [
            event(1, what, offset, count, queue=queue, timestamp=hour * HOUR_US + 5, attachment=1)
            for hour, what, queue, offset, count in rows
        ]
    ).to_batches()
    return made


def after(state: State, *rows: tuple[int, str, int, int, int | None]) -> State:
    return noted(state, notes_of(batch(*rows), ranges_of(state)))


def fresh(state: State) -> State:
    return built(state, list(state.stale))


def test_hours_are_known_by_what_was_stored_in_them() -> None:
    state = after(
        State(), (9, "stored", 0, 0, 10), (10, "stored", 0, 10, 5), (9, "stored", 1, 0, 1)
    )
    assert state.hours == {
        T9: Hour(ranges={"3/0": [0, 10], "3/1": [0, 1]}),
        T10: Hour(ranges={"3/0": [10, 15]}),
    }
    assert state.stale == [T9, T10]
    state = after(fresh(state), (10, "stored", 0, 15, 5))
    assert state.hours[T10].ranges == {"3/0": [10, 20]}
    assert state.stale == [T10]


def three_hours() -> State:
    """Ten messages of queue 0 in each of three hours, all built."""
    stored = [(9, "stored", 0, 0, 10), (10, "stored", 0, 10, 10), (11, "stored", 0, 20, 10)]
    return fresh(after(State(), *stored))


@pytest.mark.parametrize(
    ("what", "offset", "count", "stale"),
    [
        ("acked", 3, 1, [T9]),
        ("handed out", 9, 2, [T9, T10]),
        ("acked", 0, 30, [T9, T10, T11]),
        ("acked", 30, 5, []),
        ("skipped", 0, 15, [T9, T10]),
        ("reset", 20, None, [T11]),
    ],
)
def test_event_makes_the_hours_of_its_messages_stale(
    what: str, offset: int, count: int | None, stale: list[str]
) -> None:
    assert after(three_hours(), (12, what, 0, offset, count)).stale == stale
    assert after(three_hours(), (12, what, 1, offset, count)).stale == []


def test_trim_concerns_only_what_was_not_trimmed_before() -> None:
    state = after(three_hours(), (12, "trimmed", 0, 0, 10))
    assert state.stale == [T9]
    again = after(fresh(state), (13, "trimmed", 0, 0, 10), (13, "trimmed", 0, 0, 12))
    assert again.stale == [T10]
    assert again.trims == {"3/0/1": 12}


@settings(max_examples=50)
@given(st.integers(0, 10**9))
def test_touched_hours_equal_those_found_one_by_one(seed: int) -> None:
    draw = Random(seed)
    known, end = {}, 0
    for hour in range(draw.randint(1, 6)):
        start = end + draw.randint(0, 2)
        end = start + draw.randint(1, 9)
        known[f"1970-01-01T{hour:02}"] = Hour(0, {"3/0": [start, end]})
    state = State(hours=known)
    rows = [
        (20, "acked", 0, draw.randint(0, end + 3), draw.randint(1, 6))
        for _ in range(draw.randint(1, 3))
    ]
    expected = [
        hour
        for hour, each in known.items()
        for low, high in each.ranges.values()
        if any(first < high and low < first + count for *_, first, count in rows)
    ]
    assert after(state, *rows).stale == expected


def test_blocks_have_every_message_of_an_hour_once() -> None:
    state = State(hours={T9: Hour(ranges={"3/0": [5, 5 + 2 * BLOCK + 1], "3/1": [0, 1]})})
    assert list(blocks_of(state, T9)) == [
        (3, 0, 5, 5 + BLOCK),
        (3, 0, 5 + BLOCK, 5 + 2 * BLOCK),
        (3, 0, 5 + 2 * BLOCK, 6 + 2 * BLOCK),
        (3, 1, 0, 1),
    ]


def test_only_files_of_committed_runs_count(tmp_path: Path) -> None:
    state = noted(State(), [Note("stored", T9, "3/0", 0, 10)])
    state = built(built(state, []), [T9])
    folder = tmp_path / "lives"
    with writing(folder):
        paths = {
            (table, run): path_of(folder / table, T9, run, 0)
            for table in (EVENTS, TIMELINES)
            for run in range(3)
        }
        for path in paths.values():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            durable.unfinished(path).touch()
        save(folder, state)
    assert load(folder) == state
    assert files(folder, EVENTS, state) == [str(paths[EVENTS, run]) for run in (0, 1)]
    assert files(folder, TIMELINES, state) == [str(paths[TIMELINES, 1])]
    assert files(folder, EVENTS, state, since=T10) == []
    assert remove_strays(folder, state) == 6 + 1 + 2
    assert {path for path in paths.values() if path.exists()} == {
        paths[EVENTS, 0],
        paths[EVENTS, 1],
        paths[TIMELINES, 1],
    }


@pytest.mark.parametrize("text", ["", "{}", '{"version": 2, "hours": {}}', '{"hours": 7}'])
def test_state_that_cannot_be_read_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "trace.json").write_text(text)
    with pytest.raises(PipelineError, match=r"trace\.json"):
        load(tmp_path)


def test_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").touch()
    with pytest.raises(PipelineError, match="is not empty, and no trace"):
        load(tmp_path)
