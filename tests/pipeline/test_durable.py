"""A kill or a loss of power at any line leaves the old state or the new one."""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raftmq.pipeline import PipelineError, durable
from raftmq.pipeline.cdc import versions
from raftmq.pipeline.cdc.change import Column
from raftmq.pipeline.check.job import TABLE, Report
from raftmq.pipeline.check.job import store as store_verdict
from raftmq.pipeline.live import files as window_files
from raftmq.pipeline.live.store import Store
from raftmq.pipeline.report import state as report_state
from raftmq.pipeline.report import tables
from raftmq.pipeline.source import gaps
from raftmq.pipeline.source.offsets import Range
from raftmq.pipeline.trace import folder as trace
from raftmq.pipeline.trace.files import HourFiles
from tests.pipeline.archive.archives import archived, held
from tests.pipeline.archive.rowsets import rows
from tests.pipeline.live.messages import BOARD, LENGTH, Message, partials
from tests.pipeline.power_loss import losses, restored


class Case(NamedTuple):
    """A change of a folder that happens as a whole or not at all."""

    write: Callable[[Path, int], object]
    """Write the first state (1) or the second (2)."""
    read: Callable[[Path], object]
    """The state that a reader sees."""


def write_version(folder: Path, number: int) -> None:
    path = versions.path_of(folder, number)
    path.mkdir()
    (path / "part-0").write_bytes(b"rows %d" % number)
    columns = (Column("id", "int", "INTEGER", 1),)
    versions.publish(
        folder,
        versions.Version(number, "t", 1, number, "sqlite", "t", "f", columns, number, "", 1),
    )


def read_version(folder: Path) -> object:
    found = versions.current(folder)
    return found and (versions.path_of(folder, found.version) / "part-0").read_bytes()


def write_minute(folder: Path, number: int) -> None:
    row = dict.fromkeys(tables.ROW) | {"minute": 0, "topic": "t", "group": "g", "acked": number}
    tables.write(folder, "report_minute", [row])


def write_verdict(folder: Path, number: int) -> None:
    columns = {field.name: pa.array([None], field.type) for field in TABLE}
    violations = pa.table({**columns, "history": [f"h{number}"]}, TABLE)
    store_verdict([Report(f"h{number}", "valid", 1, 1, (), violations)], folder)


def read_verdict(folder: Path) -> object:
    if not (folder / "verdict.json").exists():
        return None
    (history,) = json.loads((folder / "verdict.json").read_text())["histories"]
    names = pq.read_table(folder / "violations.parquet")["history"].to_pylist()
    return history["history"], names


def write_hours(folder: Path, number: int) -> None:
    with HourFiles(folder / trace.EVENTS, run=number - 1, part=0, column="at") as files:
        times = pa.array([0, 3_600_000_000], pa.timestamp("us", "UTC"))
        files.write(pa.record_batch({"at": times}))
    trace.save(folder, trace.State(runs=number))


def read_hours(folder: Path) -> object:
    state = trace.load(folder)
    found = trace.files(folder, trace.EVENTS, state)
    return state.runs, sum(pq.read_table(path, partitioning=None).num_rows for path in found)


def write_windows(folder: Path, number: int) -> None:
    store = Store(folder.parent / f"live-{number}.db", BOARD, {"t": 1})
    windows = store.windows()
    sent = [Message(0, n, n * LENGTH, "a", n, n * 64 + 1) for n in range(2 + 2 * number)]
    store.commit(windows, windows.add(partials(sent)))
    window_files.write(store, BOARD, folder / "windows", [0])
    store.close()


def read_tables(folder: Path) -> object:
    """The tables as a reader of nothing but the folder's Parquet files sees them."""
    return {
        str(path.relative_to(folder)): pq.read_table(path, partitioning=None).to_pylist()
        for path in sorted(folder.rglob("[!.]*.parquet"))
    }


def report_gap(folder: Path, number: int) -> None:
    gaps.report([Range("orders", 7, 0, 0, number * 10)], fails=False, folder=str(folder / "gaps"))


CASES = {
    "archive": Case(
        lambda folder, number: archived(folder, rows(number * 10 - 10, number * 10)),
        lambda folder: held(folder)["offset"].to_pylist(),
    ),
    "cdc": Case(write_version, read_version),
    "trace": Case(write_hours, read_hours),
    "report-state": Case(
        lambda folder, number: report_state.save(folder, report_state.State(f"r{number}")),
        lambda folder: (found := report_state.load(folder)) and found.name,
    ),
    "report-minutes": Case(write_minute, read_tables),
    "check": Case(write_verdict, read_verdict),
    "live": Case(write_windows, read_tables),
    "gaps": Case(report_gap, read_tables),
}


@pytest.mark.parametrize("name", CASES)
def test_loss_at_any_line_leaves_the_old_state_or_the_new_one(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    folder = tmp_path / "folder"
    folder.mkdir()
    case.write(folder, 1)
    old = case.read(folder)
    during, after = losses(folder, lambda: case.write(folder, 2))
    new = case.read(folder)
    assert new != old
    assert len(during) > 3
    found = [
        case.read(restored(view, tmp_path / f"{number}"))
        for number, view in enumerate([*during, after])
    ]
    # While violations are replaced there is no verdict.
    allowed = [old, new, None] if name == "check" else [old, new]
    assert [each for each in found if each not in allowed] == []
    assert found[-1] == new


def test_loss_within_the_first_write_leaves_nothing_or_all(tmp_path: Path) -> None:
    (tmp_path / "at").mkdir()
    path = tmp_path / "at" / "a" / "b" / "state"

    def work() -> None:
        durable.make_folders(path.parent)
        durable.replace(path, b"new")

    during, after = losses(tmp_path / "at", work)
    assert {view.get("a/b/state") for view in during} == {None, b"new"}
    assert after["a/b/state"] == b"new"


def test_loss_within_create_leaves_no_file_or_a_whole_one(tmp_path: Path) -> None:
    during, after = losses(tmp_path, lambda: durable.create(tmp_path / "1", b"one"))
    assert {view.get("1") for view in during} == {None, b"one"}
    assert after == {"1": b"one"}
    with pytest.raises(FileExistsError):
        durable.create(tmp_path / "1", b"two")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"1": b"one"}


def test_name_of_a_folder_is_durable_even_if_its_maker_was_killed(tmp_path: Path) -> None:
    (tmp_path / "at").mkdir()
    folder = tmp_path / "at" / "a"

    def killed_and_begun_again() -> None:
        folder.mkdir()
        durable.make_folders(folder)

    _, after = losses(tmp_path / "at", killed_and_begun_again)
    assert after == {"a": None}


def test_withdrawn_file_does_not_come_back(tmp_path: Path) -> None:
    (tmp_path / "verdict").write_bytes(b"valid")
    _, after = losses(tmp_path, lambda: durable.withdraw(tmp_path / "verdict"))
    assert after == {}


def test_failure_within_writing_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    durable.replace(path, b"old")

    def fail() -> None:
        with durable.writing(path) as unfinished:
            unfinished.write_bytes(b"ne")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"old"]


def test_lock_keeps_others_out_or_waiting_and_ends_with_its_holder(tmp_path: Path) -> None:
    entered = threading.Event()

    def wait() -> None:
        with durable.locked(tmp_path / "lock"):
            entered.set()

    with durable.locked(tmp_path / "lock"):
        with (
            pytest.raises(PipelineError, match="busy"),
            durable.locked(tmp_path / "lock", busy="busy"),
        ):
            pass
        waiting = threading.Thread(target=wait)
        waiting.start()
        assert not entered.is_set()
    waiting.join(10)
    assert entered.is_set()


def test_folder_below_one_that_cannot_be_read_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.setattr(os, "access", lambda path, _: path != tmp_path)
    synced: list[Path] = []
    monkeypatch.setattr(durable, "sync_folder", synced.append)
    durable.make_folders(tmp_path / "home" / "out")
    assert synced == [tmp_path / "home"]
