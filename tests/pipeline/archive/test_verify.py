"""`verify` finds each kind of damage, names the place, and has nothing against a whole archive."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raftmq.pipeline.archive import manifest, parts
from raftmq.pipeline.archive.manifest import Version
from raftmq.pipeline.archive.verify import Checked, verify
from tests.pipeline.archive.archives import archived
from tests.pipeline.archive.rowsets import HOUR, rows


def findings(archive: Path, *, is_deep: bool) -> list[tuple[str, str]]:
    found = []
    for each in verify(archive, is_deep=is_deep):
        found += each.findings if isinstance(each, Checked) else [each]
    return [(each.kind, each.where) for each in found if each.is_damage]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    folder = tmp_path / "archive"
    archived(folder, rows(0, 40), rows(0, 9, queue=1))
    archived(folder, rows(40, 60), rows(0, 5, topic="stock"))
    archived(folder, rows(60, 70))
    assert findings(folder, is_deep=True) == []
    return folder


def first(archive: Path) -> Path:
    return archive / manifest.load(archive).files[0].path


def rewrite(archive: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """The first file with other rows, and a manifest that knows its new size."""
    path = first(archive)
    size = path.stat().st_size
    pq.write_table(change(pq.read_table(path, partitioning=None)), path, compression="zstd")
    edit(archive, 1, lambda text: text.replace(f'"bytes":{size}', f'"bytes":{path.stat().st_size}'))


def edit(archive: Path, version: int, change: Callable[[str], str]) -> None:
    path = manifest.path_of(archive, version)
    before = path.read_text()
    path.write_text(change(before))
    assert path.read_text() != before


def test_missing_file(archive: Path) -> None:
    path = first(archive)
    path.unlink()
    assert findings(archive, is_deep=False) == [("missing", str(path.relative_to(archive)))]


def test_cut_file(archive: Path) -> None:
    path = first(archive)
    path.write_bytes(path.read_bytes()[:-20])
    kinds = [kind for kind, _ in findings(archive, is_deep=False)]
    assert kinds == ["size", "unreadable"]


def test_changed_row_shows_in_the_digest_alone(archive: Path) -> None:
    def change(table: pa.Table) -> pa.Table:
        bodies = table["body"].to_pylist()
        bodies[17] = b"forged"
        return table.set_column(5, "body", pa.array(bodies, pa.binary()))

    rewrite(archive, change)
    assert findings(archive, is_deep=False) == []
    where = str(first(archive).relative_to(archive))
    assert findings(archive, is_deep=True) == [("digest", where)]


def test_removed_row(archive: Path) -> None:
    rewrite(archive, lambda table: table.slice(1))
    assert [kind for kind, _ in findings(archive, is_deep=False)] == ["rows"]


def test_rows_in_another_order(archive: Path) -> None:
    rewrite(archive, lambda table: table.take(pa.array(range(39, -1, -1))))
    assert [kind for kind, _ in findings(archive, is_deep=True)] == ["place"]


def test_rows_of_another_hour(archive: Path) -> None:
    moved = pa.Table.from_batches([rows(0, 40, first=HOUR)])
    rewrite(archive, lambda _: moved)
    assert [kind for kind, _ in findings(archive, is_deep=True)] == ["digest", "place"]


@pytest.mark.parametrize("version", [1, 2])
def test_missing_manifest(archive: Path, version: int) -> None:
    manifest.path_of(archive, version).unlink()
    assert findings(archive, is_deep=False) == [("manifest", "_manifest")]


def test_missing_newest_manifest_shows_against_the_checkpoint(archive: Path) -> None:
    commits, offsets = archive / "_checkpoint" / "commits", archive / "_checkpoint" / "offsets"
    commits.mkdir(parents=True)
    offsets.mkdir()
    (commits / "9").touch()
    (commits / "10").touch()
    ends = {"orders": {"id": 7, "queues": {"0": 70, "1": 9}}}
    (offsets / "10").write_text("v1\n{}\n" + json.dumps(ends))
    assert findings(archive, is_deep=False) == []
    manifest.path_of(archive, 3).unlink()
    assert findings(archive, is_deep=False) == [("manifest", "queue 0 of orders")]


def test_overlap(archive: Path) -> None:
    (file,) = parts.write(archive, [rows(50, 80)], name="b9", after=Version())
    added(archive, file)
    assert findings(archive, is_deep=True) == [("overlap", "queue 0 of orders")] * 2


def added(archive: Path, file: manifest.File) -> None:
    """Append a version without a check."""
    before = manifest.newest(archive)
    ends = manifest.ends_after(before.ends, [file])
    version = Version(before.version + 1, False, ends=ends, topics=before.topics, files=(file,))
    manifest.append(archive, version)


def test_hole(archive: Path) -> None:
    (file,) = parts.write(archive, [rows(75, 80)], name="b9", after=Version())
    added(archive, file)
    assert findings(archive, is_deep=True) == [("hole", "queue 0 of orders")]


def test_hole_that_retention_made_is_told_apart(archive: Path) -> None:
    (archive / "_gaps").mkdir()
    gap = {"topic": ["orders"], "queue": [0], "start": [70], "end": [75]}
    pq.write_table(pa.table(gap), archive / "_gaps" / "orders-0-70.parquet")
    archived(archive, rows(75, 80))
    assert findings(archive, is_deep=True) == []
    told = [each for each in verify(archive) if not isinstance(each, Checked)]
    assert [(each.kind, each.where) for each in told] == [("lost", "queue 0 of orders")]


def test_wrong_ends(archive: Path) -> None:
    edit(archive, 3, lambda text: text.replace('"0":70', '"0":71'))
    assert findings(archive, is_deep=False) == [("ends", "queue 0 of orders")]


def test_files_of_no_version_are_told_and_no_damage(archive: Path) -> None:
    parts.write(archive, [rows(70, 80)], name="b9", after=Version())
    told = [each for each in verify(archive) if not isinstance(each, Checked)]
    assert [each.kind for each in told] == ["stray"]
    assert findings(archive, is_deep=True) == []
