"""Rows become files of one topic and hour, in order, and only those that the archive lacks."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raftmq.pipeline import PipelineError
from raftmq.pipeline.archive import parts
from raftmq.pipeline.archive.digest import digest
from raftmq.pipeline.archive.manifest import File, Range, Version
from tests.pipeline.archive.rowsets import HOUR, NOON, rows


def written(folder: Path, *batches: pa.RecordBatch, after: Version | None = None) -> list[File]:
    return parts.write(folder, batches, name="b0", after=after or Version())


def test_file_holds_what_came_and_says_so(tmp_path: Path) -> None:
    (file,) = written(tmp_path, rows(3, 10), rows(10, 20))
    assert file.path == "data/topic=orders/dt=2026-11-21/hour=12/b0-00.parquet"
    assert (file.rows, file.ranges) == (17, (Range(0, 3, 20),))
    assert (file.first, file.last) == (NOON + 3000, NOON + 19_000)
    assert file.digest == digest(rows(3, 20))
    assert file.bytes == (tmp_path / file.path).stat().st_size
    found = pq.read_table(tmp_path / file.path, partitioning=None)
    assert found.schema == rows(0, 1).schema
    assert found.to_batches()[0].equals(rows(3, 20))


def test_each_hour_has_its_file(tmp_path: Path) -> None:
    # A message every twenty minutes: offset 3 is the first at 13:00.
    files = written(tmp_path, rows(0, 7, step=HOUR // 3))
    assert [(file.hour, file.ranges) for file in files] == [
        ("2026-11-21 12", (Range(0, 0, 3),)),
        ("2026-11-21 13", (Range(0, 3, 6),)),
        ("2026-11-21 14", (Range(0, 6, 7),)),
    ]


def test_queues_and_topics_in_one_batch_are_told_apart(tmp_path: Path) -> None:
    together = pa.Table.from_batches(
        [rows(0, 5), rows(7, 9, queue=2), rows(4, 6, topic="stock")]
    ).combine_chunks()
    files = written(tmp_path, *together.to_batches())
    assert [(file.topic, file.ranges) for file in files] == [
        ("orders", (Range(0, 0, 5), Range(2, 7, 9))),
        ("stock", (Range(0, 4, 6),)),
    ]


def test_what_the_archive_has_is_left_out(tmp_path: Path) -> None:
    after = Version(ends={"orders": {0: 15}, "stock": {0: 100}})
    files = written(tmp_path, rows(3, 10), rows(10, 20), rows(0, 4, topic="stock"), after=after)
    assert [file.ranges for file in files] == [(Range(0, 15, 20),)]
    assert written(tmp_path, rows(3, 15), after=after) == []


def test_gaps_in_the_offsets_show_in_the_ranges(tmp_path: Path) -> None:
    whole = rows(0, 20)
    kept = whole.filter(pa.array([n not in (7, 8, 12) for n in range(20)]))
    (file,) = written(tmp_path, kept, rows(25, 30))
    assert [(start, end) for _, start, end in file.ranges] == [(0, 7), (9, 12), (13, 20), (25, 30)]


def test_row_groups_end_when_they_are_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "GROUP_ROWS", 100)
    (file,) = written(tmp_path, *(rows(n, n + 40) for n in range(0, 400, 40)))
    with pq.ParquetFile(tmp_path / file.path) as parquet:
        groups = range(parquet.num_row_groups)
        assert [parquet.metadata.row_group(n).num_rows for n in groups] == [120, 120, 120, 40]


def test_falling_offsets_are_refused_and_leave_no_file(tmp_path: Path) -> None:
    mixed = rows(0, 20).take(pa.array(np.roll(np.arange(20), 5)))
    with pytest.raises(PipelineError, match="offset 0 of queue 0 comes after 19"):
        written(tmp_path, rows(0, 4, topic="stock"), mixed)
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in left if path.name.endswith(".unfinished")]


def test_filtered_rows_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "RANGES_MAX", 8)
    every_other = rows(0, 20).take(pa.array(range(0, 20, 2)))
    with pytest.raises(PipelineError, match="queue 0 of orders has more than 8 gaps in an hour"):
        written(tmp_path, every_other)
