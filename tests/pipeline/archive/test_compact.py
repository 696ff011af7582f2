"""A compaction changes files and no row, at one instant, wherever it is killed."""

import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raftmq.pipeline import PipelineError
from raftmq.pipeline.archive import compact, manifest
from raftmq.pipeline.archive.compact import plan
from raftmq.pipeline.archive.listing import days
from raftmq.pipeline.durable import locked
from tests.pipeline.archive.archives import archived, held
from tests.pipeline.archive.rowsets import HOUR, NOON, rows
from tests.pipeline.archive.test_commit import Crash, crash_after
from tests.pipeline.archive.test_verify import findings

LATER = (NOON + 5 * HOUR) // 1000
QUARTER = HOUR // 4
"""A message every quarter of an hour: offsets 4 to 7 were stored between 13:00 and 14:00."""


def build(archive: Path) -> pa.Table:
    """Three batches over three hours; all their rows."""
    for start, end in ((0, 3), (3, 7), (7, 12)):
        tasks = (rows(start, end, step=QUARTER), rows(start, end, queue=1, step=QUARTER))
        archived(archive, *tasks)
    archived(archive, rows(0, 4, topic="stock"))
    return held(archive)


def run(archive: Path, *, grace: float = 0, until: int = LATER) -> int:
    return len(list(compact.compact(archive, until=until, grace=grace)))


def test_each_hour_becomes_one_file_with_the_same_rows(tmp_path: Path) -> None:
    before = build(tmp_path)
    assert [(hour.topic, len(hour.files)) for hour in plan(tmp_path, until=LATER)] == [
        ("orders", 4),
        ("orders", 4),
        ("orders", 2),
    ]
    assert run(tmp_path) == 3
    state = manifest.load(tmp_path)
    assert [file.hour[-2:] for file in state.files] == ["12", "12", "13", "14"]
    assert held(tmp_path).equals(before)
    assert findings(tmp_path, is_deep=True) == []
    # Rows are sorted, and replaced files are gone.
    table = pq.read_table(tmp_path / state.files[1].path, partitioning=None)
    assert table["queue"].to_pylist() == [0] * 4 + [1] * 4
    assert len(list(tmp_path.rglob("*.parquet"))) == 4
    assert manifest.versions(tmp_path) == [5]
    assert run(tmp_path) == 0


def test_archiving_goes_on_after_it_and_compacts_again(tmp_path: Path) -> None:
    build(tmp_path)
    run(tmp_path)
    archived(tmp_path, rows(12, 14, step=QUARTER), rows(12, 13, queue=1, step=QUARTER))
    assert run(tmp_path) == 1
    # Now one file has both queues, and each of them goes on in another.
    archived(tmp_path, rows(14, 16, step=QUARTER), rows(13, 15, queue=1, step=QUARTER))
    before = held(tmp_path)
    assert run(tmp_path) == 1
    assert held(tmp_path).equals(before)
    assert findings(tmp_path, is_deep=True) == []
    last = manifest.load(tmp_path).files[-1]
    assert [tuple(each) for each in last.ranges] == [(0, 12, 16), (1, 12, 15)]


def test_present_hour_is_left_alone(tmp_path: Path) -> None:
    build(tmp_path)
    hours = plan(tmp_path, until=(NOON + 2 * HOUR) // 1000)
    assert [hour.files[0].hour[-2:] for hour in hours] == ["12", "13"]


def test_replaced_files_stay_for_readers_until_the_grace_is_over(tmp_path: Path) -> None:
    build(tmp_path)
    old = [file.path for file in manifest.load(tmp_path).files]
    run(tmp_path, grace=3600)
    assert all((tmp_path / path).exists() for path in old)
    assert findings(tmp_path, is_deep=True) == []
    # The next one, which has nothing else to do, removes them.
    assert run(tmp_path, grace=0) == 0
    kept = {file.path for file in manifest.load(tmp_path).files}
    assert {path for path in old if (tmp_path / path).exists()} == kept & set(old)


def test_damaged_file_is_not_compacted_into_a_good_one(tmp_path: Path) -> None:
    build(tmp_path)
    file = manifest.load(tmp_path).files[0]
    table = pq.read_table(tmp_path / file.path, partitioning=None)
    forged = pa.array([b"forged"] * len(table), pa.binary())
    pq.write_table(table.set_column(5, "body", forged), tmp_path / file.path)
    with pytest.raises(PipelineError, match=r"hour=12 are not those that were written"):
        run(tmp_path)
    assert manifest.load(tmp_path).version == 4


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    build(tmp_path)
    another = locked(tmp_path / "_manifest" / "compact.lock")
    with another, pytest.raises(PipelineError, match=r"another compaction of .* runs"):
        run(tmp_path)


def test_batches_committed_meanwhile_are_kept(tmp_path: Path) -> None:
    build(tmp_path)
    going = compact.compact(tmp_path, until=LATER, grace=0)
    next(going)
    archived(tmp_path, rows(12, 20, step=QUARTER))
    assert len(list(going)) == 2
    assert manifest.load(tmp_path).ends["orders"] == {0: 20, 1: 12}
    assert findings(tmp_path, is_deep=True) == []
    assert len(held(tmp_path)) == 20 + 12 + 4


def test_crash_at_any_call_of_the_disk_leaves_one_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = build(tmp_path / "whole")
    seen = set()
    for last in range(1000):
        archive = tmp_path / str(last)
        build(archive)
        with monkeypatch.context() as patch:
            crash_after(patch, last)
            try:
                run(archive)
                is_over = True
            except Crash:
                is_over = False
        seen.add(manifest.load(archive).version)
        assert held(archive).equals(before), f"after a crash at call {last}"
        assert findings(archive, is_deep=True) == []
        run(archive)
        assert held(archive).equals(before)
        # Nothing is left over: each file there is one of the archive.
        there = {str(path.relative_to(archive)) for path in (archive / "data").rglob("*.*")}
        assert there == {file.path for file in manifest.load(archive).files}
        if is_over:
            break
    assert seen == {4, 5}


def test_readers_see_all_of_one_state(tmp_path: Path) -> None:
    build(tmp_path)
    seen: list[tuple[int, int]] = []
    is_over = threading.Event()

    def read() -> None:
        while not is_over.is_set():
            state = manifest.load(tmp_path)
            expected = sum(end for queues in state.ends.values() for end in queues.values())
            seen.append((sum(file.rows for file in state.files), expected))

    reader = threading.Thread(target=read)
    reader.start()
    for start in range(4, 24):
        archived(tmp_path, rows(start, start + 1, topic="stock"))
        run(tmp_path)
    is_over.set()
    reader.join()
    assert len(set(seen)) > 3
    assert [each for each in seen if each[0] != each[1]] == []


def test_listing_adds_up(tmp_path: Path) -> None:
    build(tmp_path)
    first, second = days(tmp_path)
    assert (first.topic, first.day, first.hours, first.files, first.rows) == (
        "orders", "2026-11-21", 3, 10, 24,
    )  # fmt: skip
    assert first.offsets == {0: (0, 12), 1: (0, 12)}
    assert (second.topic, second.rows, second.offsets) == ("stock", 4, {0: (0, 4)})
    assert first.bytes == sum(
        file.bytes for file in manifest.load(tmp_path).files if file.topic == "orders"
    )
