"""A request becomes offsets, which come out of the archive in order, at the right time."""

import pickle
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from raftmq.pipeline import PipelineError
from raftmq.pipeline.archive import compact, manifest
from raftmq.pipeline.archive.manifest import Range
from raftmq.pipeline.replay import source as replay_source
from raftmq.pipeline.replay.job import left, run
from raftmq.pipeline.replay.plan import Plan, ReplayRequest, begun, chosen, find, name_of, read
from raftmq.pipeline.replay.source import Part, ReplayReader
from tests.pipeline.archive.archives import archived
from tests.pipeline.archive.rowsets import HOUR, NOON, rows

MINUTE = 60_000_000
START = datetime.fromtimestamp(NOON / 1e6, UTC)
REQUEST = ReplayRequest("orders", "again")
URL = "raftmq://nowhere:1"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Two queues with a message a minute: 0 has three hours of them, 1 the second half hour."""
    folder = tmp_path / "archive"
    archived(folder, rows(0, 100, step=MINUTE), rows(30, 45, queue=1, step=MINUTE))
    archived(folder, rows(100, 180, step=MINUTE), rows(45, 60, queue=1, step=MINUTE))
    archived(folder, rows(0, 5, topic="stock", first=NOON + HOUR))
    return folder


def ranges(archive: Path, request: ReplayRequest) -> list[Range]:
    return [*chosen(archive, manifest.load(archive), request)]


def test_without_bounds_it_is_all_there_is(archive: Path) -> None:
    assert ranges(archive, REQUEST) == [(0, 0, 180), (1, 30, 60)]


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        (40, None, [(0, 40, 180), (1, 40, 60)]),
        (None, 40, [(0, 0, 40), (1, 30, 40)]),
        (70, 130, [(0, 70, 130)]),
        (130, 70, []),
        (500, None, []),
        (-500, 500, [(0, 0, 180), (1, 30, 60)]),
        (59.5, 60.5, [(0, 60, 61)]),
    ],
)
def test_times_become_offsets(
    archive: Path, since: float | None, until: float | None, expected: list[tuple[int, int, int]]
) -> None:
    def moment(minutes: float | None) -> datetime | None:
        return None if minutes is None else START + timedelta(minutes=minutes)

    request = ReplayRequest("orders", "again", moment(since), moment(until))
    assert ranges(archive, request) == expected
    # The same of one file an hour with both queues in it.
    list(compact.compact(archive, grace=0))
    assert ranges(archive, request) == expected


def test_offsets_that_the_archive_lacks_are_refused(archive: Path) -> None:
    assert ranges(archive, ReplayRequest("orders", "again", offsets={1: (35, 40)})) == [(1, 35, 40)]
    for part in ((20, 40), (50, 61), (40, 40)):
        # Written as on the command line: with the last one.
        said = f"queue 1 has no offsets {part[0]}-{part[1] - 1} .* it holds 30-59 of that"
        with pytest.raises(PipelineError, match=said):
            ranges(archive, ReplayRequest("orders", "again", offsets={1: part}))
    with pytest.raises(PipelineError, match=r"it holds nothing of that queue"):
        ranges(archive, ReplayRequest("orders", "again", offsets={2: (0, 1)}))


def test_topic_that_the_archive_lacks_is_refused(archive: Path) -> None:
    with pytest.raises(PipelineError, match="it holds orders, stock"):
        find(archive, ReplayRequest("order", "again"), URL)


def plan_of(archive: Path, **changes: object) -> Plan:
    request = ReplayRequest("orders", "again", **changes)  # type: ignore[arg-type]
    parts = chosen(archive, manifest.load(archive), request)
    return Plan(name_of(archive, request), "orders", "again", 3, parts, NOON, None)


def test_plan_that_was_begun_holds_though_the_archive_grows(archive: Path) -> None:
    plan = plan_of(archive)
    with begun(archive, plan) as folder:
        assert read(folder) == plan
        with (
            pytest.raises(PipelineError, match="another driver runs replay"),
            begun(archive, plan),
        ):
            pass
    archived(archive, rows(180, 200, step=MINUTE))
    found = find(archive, REQUEST, URL)
    assert (found.plan, found.is_new, found.is_done) == (plan, False, False)
    (folder / "done.json").touch()
    assert find(archive, REQUEST, URL).is_done


def test_id_of_another_replay_is_refused(archive: Path) -> None:
    plan = plan_of(archive, id="mine")
    with begun(archive, plan):
        pass
    with pytest.raises(PipelineError, match="replay mine was begun from orders into again"):
        find(archive, ReplayRequest("stock", "again", id="mine"), URL)


@pytest.mark.parametrize("name", ["../up", "", ".hidden", "a/b", "x" * 101])
def test_id_is_a_name(archive: Path, name: str) -> None:
    if not name:
        assert name_of(archive, REQUEST).startswith("orders-")
        return
    with pytest.raises(PipelineError, match="can't be a replay's id"):
        name_of(archive, ReplayRequest("orders", "again", id=name))


def reader(archive: Path, plan: Plan, *, speed: float = 0, rows_max: int = 1000) -> ReplayReader:
    return ReplayReader(archive, plan, speed=speed, rows_max=rows_max)


def batches(source: ReplayReader) -> Iterator[dict[int, pa.Table]]:
    """As Spark drives it: the rows of each batch, by queue."""
    start = source.initialOffset()
    while True:
        end = source.latestOffset(start, None)  # type: ignore[arg-type]
        if end == start:
            return
        found = {}
        for part in source.partitions(start, end):
            sent = pickle.loads(pickle.dumps((source.read, part)))
            assert isinstance(part, Part)
            found[part.range.queue] = pa.Table.from_batches(sent[0](sent[1]))
        yield found
        start = end


def test_queues_come_whole_and_in_order(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_source, "CHUNK_ROWS", 7)
    plan = plan_of(archive, offsets={0: (10, 170), 1: (30, 60)})
    found: dict[int, list[pa.Table]] = {}
    for number, batch in enumerate(batches(reader(archive, plan, rows_max=50))):
        assert sum(len(table) for table in batch.values()) <= 50
        for queue, table in batch.items():
            found.setdefault(queue, []).append(table)
        if number == 1:
            list(compact.compact(archive, grace=0))
    whole = {0: rows(10, 170, step=MINUTE), 1: rows(30, 60, queue=1, step=MINUTE)}
    for queue, tables in found.items():
        expected = pa.Table.from_batches([whole[queue]])
        assert pa.concat_tables(tables).combine_chunks().equals(expected)


def test_batch_that_is_read_again_is_the_same(archive: Path) -> None:
    plan = plan_of(archive)
    before = reader(archive, plan)
    start, end = {"0": 17, "1": 30}, {"0": 120, "1": 51}
    (first, _) = before.partitions(start, end)
    list(compact.compact(archive, grace=3600))
    archived(archive, rows(180, 200, step=MINUTE))
    (second, _) = reader(archive, plan).partitions(start, end)
    assert isinstance(first, Part)
    assert isinstance(second, Part)
    assert first.files != second.files
    tables = [pa.Table.from_batches(before.read(part)).combine_chunks() for part in (first, second)]
    assert tables[0].equals(tables[1])


def test_speed_follows_the_clock(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    source = reader(archive, plan_of(archive), speed=60)
    start = source.initialOffset()
    ends = []
    # A minute of the recording a second.
    for seconds in (0, 0.5, 10, 35, 35.5, 90, 500):
        clock[0] = 1000 + seconds
        end = source.latestOffset(start, None)  # type: ignore[arg-type]
        ends.append((end["0"], end["1"]))
        start = end
        if seconds == 35:
            list(compact.compact(archive, grace=0))
    assert ends == [(1, 30), (1, 30), (11, 30), (36, 36), (36, 36), (91, 60), (180, 60)]


def test_speed_after_a_restart_goes_on_with_the_next_message(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    source = reader(archive, plan_of(archive), speed=60)
    start = {"0": 120, "1": 60}
    for seconds, expected in ((0, 121), (3, 124)):
        clock[0] = 1000 + seconds
        assert source.latestOffset(start, None) == {"0": expected, "1": 60}  # type: ignore[arg-type]


def test_replay_that_was_killed_before_the_word_that_it_is_done_needs_no_spark(
    archive: Path,
) -> None:
    plan = plan_of(archive)
    with begun(archive, plan) as folder:
        for part, text in (("commits", "v1\n{}"), ("offsets", 'v1\n{}\n{"0": 180, "1": 60}')):
            (folder / "checkpoint" / part).mkdir(parents=True)
            (folder / "checkpoint" / part / "4").write_text(text)
    found = find(archive, REQUEST, URL)
    assert not found.is_done
    assert list(run(None, archive, found, url=URL)) == []  # type: ignore[arg-type]
    assert find(archive, REQUEST, URL).is_done


def test_what_is_left_counts_down(archive: Path) -> None:
    plan = plan_of(archive)
    assert plan.ranges == (Range(0, 0, 180), Range(1, 30, 60))
    assert left(plan, None) == 210
    assert left(plan, {"0": 100, "1": 30}) == 110
    assert left(plan, {"0": 180, "1": 60}) == 0
