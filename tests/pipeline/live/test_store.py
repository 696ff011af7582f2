"""A board's counts survive its process, and a crash between any two steps."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from raftmq.pipeline.errors import PipelineError
from raftmq.pipeline.live import files
from raftmq.pipeline.live.store import KEPT, Store
from raftmq.pipeline.live.windows import Windows
from tests.pipeline.live.messages import BOARD, LENGTH, Message, partials

TOPICS = {"t": 1}


def some(batch: int) -> list[Message]:
    """Two queues, two windows a batch."""
    events = [batch * 2 * LENGTH + place * 40_000 for place in range(5)]
    return [
        Message(queue, batch * 5 + place, event, "ab"[place % 2], place - 1, batch * 64 + place + 1)
        for queue in (0, 1)
        for place, event in enumerate(events)
    ]


def state(windows: Windows) -> object:
    return (
        windows.watermark,
        windows.places,
        {
            start: {
                group: (cell.values(), [row.tobytes() for row in cell.sketches])
                for group, cell in [("", window.total), *window.cells.items()]
            }
            for start, window in windows.open.items()
        },
    )


def test_windows_come_back_as_they_were_after_each_step(tmp_path: Path) -> None:
    store = Store(tmp_path / "live.db", BOARD, TOPICS)
    windows = store.windows()
    for batch in range(6):
        store.commit(windows, windows.add(partials(some(batch))))
        other = Store(tmp_path / "live.db", BOARD, TOPICS)
        assert state(other.windows()) == state(windows)
        assert other.facts == store.facts
        other.close()
    assert store.facts["counted"] == 60
    assert store.facts["step"] == 6
    store.close()


def test_closed_windows_are_unpublished_until_that_is_noted(tmp_path: Path) -> None:
    store = Store(tmp_path / "live.db", BOARD, TOPICS)
    windows = store.windows()
    steps = []
    for batch in range(4):
        added = windows.add(partials(some(batch)))
        step = store.commit(windows, added)
        steps += [(step, window.start) for window in added.closed]
    assert len(steps) >= 3
    assert store.unpublished() == steps
    store.publish(steps[0][0])
    assert store.unpublished() == [one for one in steps if one[0] > steps[0][0]]
    store.close()


def test_closed_windows_that_no_file_needs_any_more_are_forgotten(tmp_path: Path) -> None:
    store = Store(tmp_path / "live.db", BOARD, TOPICS)
    windows = store.windows()
    for batch in range(KEPT):
        store.publish(store.commit(windows, windows.add(partials(some(batch)))))
    starts = {row.start for row in store.closed(0, 2**62)}
    assert min(starts) >= windows.watermark - (KEPT + 3) * LENGTH
    assert len(starts) >= files.WINDOWS
    store.close()


def test_folder_of_another_board_is_refused_with_the_fields_that_differ(tmp_path: Path) -> None:
    Store(tmp_path / "live.db", BOARD, TOPICS).close()
    with pytest.raises(PipelineError, match=r"another board \(lateness_ms = 200\)"):
        Store(tmp_path / "live.db", replace(BOARD, lateness_ms=300), TOPICS)


def test_topic_that_was_made_anew_is_another_one(tmp_path: Path) -> None:
    Store(tmp_path / "live.db", BOARD, TOPICS).close()
    with pytest.raises(PipelineError, match="it was number 1, and is number 2 now"):
        Store(tmp_path / "live.db", BOARD, {"t": 2})


def test_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "live.db").write_text("hello " * 1000)
    with pytest.raises(PipelineError, match=r"live\.db is no file of a live board"):
        Store(tmp_path / "live.db", BOARD, TOPICS)


def test_files_hold_each_closed_window_once_however_often_they_are_written(tmp_path: Path) -> None:
    store = Store(tmp_path / "live.db", BOARD, TOPICS)
    windows = store.windows()
    closed = []
    for batch in range(40):
        added = windows.add(partials(some(batch)))
        store.commit(windows, added)
        closed += added.closed
        starts = [start for _, start in store.unpublished()]
        # A crash before it is noted: it is written again.
        for _ in range(2):
            files.write(store, BOARD, tmp_path / "windows", starts)
        store.publish(store.facts["step"])
    assert len(list((tmp_path / "windows").glob("[!.]*"))) == 2
    found = parquet.read_table(tmp_path / "windows").to_pylist()
    keys = [(row["window_start"].timestamp(), row["tag"]) for row in found]
    assert len(set(keys)) == len(keys)
    assert {key[0] for key in keys} == {window.start / 1e6 for window in closed}
    assert sum(row["cents"] for row in found) == sum(int(w.total.sums[0]) for w in closed)
    store.close()


def test_columns_of_files_are_typed_by_what_is_summed(tmp_path: Path) -> None:
    store = Store(tmp_path / "live.db", BOARD, TOPICS)
    windows = store.windows()
    (partial,) = partials([Message(0, 0, 0, None, 1, 1)])
    windows.add([partial._replace(sums=(1.5,), codes=(np.array([65], np.int32),))])
    store.commit(windows, windows.flush())
    table = files.table(store.closed(0, LENGTH), BOARD)
    time = pa.timestamp("us", "UTC")
    assert [(field.name, field.type) for field in table.schema] == [
        ("window_start", time), ("window_end", time), ("tag", pa.string()),
        ("count", pa.int64()), ("cents", pa.float64()), ("buyers", pa.int64()),
    ]  # fmt: skip
    assert table.to_pylist()[0]["tag"] is None
    store.close()
