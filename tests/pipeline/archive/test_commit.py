"""Each row is in the archive once, whatever comes twice, and nothing is passed over in silence."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raftmq.pipeline import PipelineError
from raftmq.pipeline.archive import manifest, parts
from raftmq.pipeline.archive.commit import commit
from raftmq.pipeline.archive.compact import sweep
from raftmq.pipeline.archive.manifest import Range, Version
from tests.pipeline.archive.archives import TOPICS, archived, held
from tests.pipeline.archive.rowsets import rows


def test_versions_add_up(tmp_path: Path) -> None:
    archived(tmp_path, rows(0, 10), rows(5, 9, queue=1))
    archived(tmp_path, rows(10, 30), rows(0, 3, topic="stock"))
    state = manifest.load(tmp_path)
    assert state.version == 2
    assert state.ends == {"orders": {0: 30, 1: 9}, "stock": {0: 3}}
    assert state.topics == TOPICS
    whole = pa.Table.from_batches([rows(0, 30), rows(5, 9, queue=1), rows(0, 3, topic="stock")])
    assert held(tmp_path).equals(whole)


def test_batch_that_comes_again_brings_nothing(tmp_path: Path) -> None:
    archived(tmp_path, rows(0, 10))
    assert archived(tmp_path, rows(0, 10)) is None
    assert manifest.load(tmp_path).version == 1
    assert len(held(tmp_path)) == 10


def test_batch_that_comes_again_longer_brings_the_rest(tmp_path: Path) -> None:
    # A loss of power may take Spark's word about a batch, and it is planned again.
    archived(tmp_path, rows(0, 10), rows(0, 4, queue=1))
    archived(tmp_path, rows(0, 25), rows(0, 4, queue=1))
    assert held(tmp_path)["offset"].to_pylist() == [*range(25), *range(4)]


def test_commit_of_the_same_files_twice_counts_once(tmp_path: Path) -> None:
    manifest.create(tmp_path)
    files = parts.write(tmp_path, [rows(0, 10)], name="b0", after=Version())
    assert commit(tmp_path, files, topics=TOPICS) is not None
    assert commit(tmp_path, files, topics=TOPICS) is None
    assert len(held(tmp_path)) == 10


def test_second_driver_that_overlaps_is_refused(tmp_path: Path) -> None:
    archived(tmp_path, rows(0, 10))
    # The writer looked before the other one committed.
    files = parts.write(tmp_path, [rows(5, 20)], name="late", after=Version())
    with pytest.raises(PipelineError, match=r"offsets 5 to 10 of queue 0 of orders are archived"):
        commit(tmp_path, files, topics=TOPICS)
    assert held(tmp_path)["offset"].to_pylist() == [*range(10)]


def test_tasks_of_one_batch_must_not_overlap(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="offsets 8 to 10 of queue 0 of orders are archived"):
        archived(tmp_path, rows(0, 10), rows(8, 20))


def test_commit_of_a_killed_driver_after_the_next_one_has_begun_is_refused(tmp_path: Path) -> None:
    archived(tmp_path, rows(0, 10))
    files = parts.write(tmp_path, [rows(10, 20)], name="b9", after=Version())
    assert sweep(tmp_path, "b") == 1
    with pytest.raises(PipelineError, match="is gone before it was committed"):
        commit(tmp_path, files, topics=TOPICS)
    assert sweep(tmp_path, "b") == 0
    assert len(held(tmp_path)) == 10


def test_files_that_killed_writers_left_unfinished_are_removed(tmp_path: Path) -> None:
    made = archived(tmp_path, rows(0, 10))
    assert made is not None
    data = (tmp_path / made.files[0].path).parent
    left = [
        data / ".b9-00.parquet.77.unfinished",
        data / "b8-00.parquet.unfinished",
        tmp_path / "_manifest" / ".00000000000000000002.json.77.unfinished",
    ]
    for path in left:
        path.touch()
    (data / ".c9-00.parquet.78.unfinished").touch()
    assert sweep(tmp_path, "b") == 2
    assert not [path for path in left if path.exists()]
    assert (data / ".c9-00.parquet.78.unfinished").exists(), "a compaction may be at work"
    assert len(held(tmp_path)) == 10


def test_hole_is_refused(tmp_path: Path) -> None:
    archived(tmp_path, rows(0, 10))
    with pytest.raises(PipelineError, match="offsets 10 to 15 of queue 0 of orders are neither"):
        archived(tmp_path, rows(15, 20))
    assert manifest.load(tmp_path).ends == {"orders": {0: 10}}


def test_hole_that_the_table_of_gaps_explains_is_taken(tmp_path: Path) -> None:
    archived(tmp_path, rows(0, 10))
    gap(tmp_path, 8, 12)
    with pytest.raises(PipelineError, match="offsets 10 to 15"):
        archived(tmp_path, rows(15, 20))
    gap(tmp_path, 12, 15)
    archived(tmp_path, rows(15, 20))
    assert manifest.load(tmp_path).ends == {"orders": {0: 20}}


def gap(archive: Path, start: int, end: int) -> None:
    table = pa.table({"topic": ["orders"], "queue": [0], "start": [start], "end": [end]})
    (archive / "_gaps").mkdir(exist_ok=True)
    pq.write_table(table, archive / "_gaps" / f"orders-0-{start}-{end}.parquet")


def test_topic_made_anew_is_refused(tmp_path: Path) -> None:
    archived(tmp_path, rows(0, 10))
    files = parts.write(tmp_path, [rows(10, 20)], name="b1", after=Version())
    with pytest.raises(PipelineError, match="topic orders is not the one in the archive"):
        commit(tmp_path, files, topics={"orders": 99})


def test_manifest_survives_its_own_bytes(tmp_path: Path) -> None:
    made = archived(tmp_path, rows(0, 10), rows(5, 9, queue=1))
    assert made is not None
    assert manifest.read(tmp_path, 1) == made
    assert made.files[1].ranges == (Range(1, 5, 9),)


def test_version_is_never_overwritten(tmp_path: Path) -> None:
    made = archived(tmp_path, rows(0, 10))
    assert made is not None
    before = manifest.path_of(tmp_path, 1).read_bytes()
    with pytest.raises(FileExistsError):
        manifest.append(tmp_path, made)
    assert manifest.path_of(tmp_path, 1).read_bytes() == before
    assert not list((tmp_path / "_manifest").glob("*.unfinished"))


@pytest.mark.parametrize("damage", [b"", b"{", b'{"format": 1}', b'{"format": 9, "version": 2}'])
def test_damaged_version_is_named(tmp_path: Path, damage: bytes) -> None:
    archived(tmp_path, rows(0, 10))
    manifest.path_of(tmp_path, 2).write_bytes(damage)
    with pytest.raises(PipelineError, match=r"00002\.json (is damaged|has format 9)"):
        manifest.load(tmp_path)


def test_missing_version_is_named(tmp_path: Path) -> None:
    for n in range(3):
        archived(tmp_path, rows(10 * n, 10 * n + 10))
    manifest.path_of(tmp_path, 2).unlink()
    with pytest.raises(PipelineError, match="version 2 of the manifest is missing"):
        manifest.load(tmp_path)


def test_folder_with_other_files_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(PipelineError, match="has files in it and is not an archive"):
        manifest.create(tmp_path)
    with pytest.raises(PipelineError, match="is not an archive"):
        manifest.load(tmp_path)


CALLS = ["fsync", "rename", "link", "mkdir", "unlink"]


def test_crash_at_any_call_of_the_disk_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = pa.Table.from_batches([rows(0, 30), rows(0, 9, queue=1)])
    crashes = 0
    for last in range(1000):
        archive = tmp_path / str(last)
        archived(archive, rows(0, 10), rows(0, 4, queue=1))
        with monkeypatch.context() as patch:
            crash_after(patch, last)
            try:
                archived(archive, rows(10, 30), rows(4, 9, queue=1))
                is_over = True
            except Crash:
                is_over = False
        assert held(archive).num_rows in (14, 39), "half of a batch"
        archived(archive, rows(10, 30), rows(4, 9, queue=1))
        assert held(archive).equals(whole), f"after a crash at call {last}"
        if is_over:
            break
        crashes += 1
    assert crashes > 10


class Crash(BaseException):
    """The process is gone: nothing catches it."""


def crash_after(patch: pytest.MonkeyPatch, calls: int) -> None:
    """Let this many calls that change the disk happen, then crash."""
    left = [calls]

    def wrap(name: str) -> None:
        call = getattr(os, name)

        def counted(*args: object, **kwargs: object) -> object:
            if left[0] <= 0:
                raise Crash
            left[0] -= 1
            return call(*args, **kwargs)

        patch.setattr(os, name, counted)

    for name in CALLS:
        wrap(name)
