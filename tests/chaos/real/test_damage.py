"""Edits of a stopped node's files: the log notices them, or is as before."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from raftmq.chaos.real.faults import damage
from raftmq.errors import RaftmqError
from raftmq.log.files import RealFiles
from raftmq.log.store import LogStore, Recovered
from tests.log.building import IDENTITY, SMALL, Chain, write

RECORDS = 40


def make(data: Path, count: int = RECORDS) -> None:
    """Write a log of several segments as a node's group 1, or go on with it."""
    store, recovered = open_log(data)
    chain = Chain(recovered.last_index, recovered.end.crc)
    write(store, chain, count)
    store.close()


def open_log(data: Path) -> tuple[LogStore, Recovered]:
    files, folder = RealFiles(), str(data / "groups" / "00001")
    files.make_folder(folder)
    return LogStore.open(files, folder, SMALL, IDENTITY)


def readable(data: Path) -> int:
    """How many records can be read, 0 if the log is refused at any point."""
    try:
        store, _ = open_log(data)
    except RaftmqError:
        return 0
    try:
        return len(store.read(store.first_index, store.last_index + 1, 2**40))
    except RaftmqError:
        return 0
    finally:
        store.close()


def contents(data: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(data.rglob("*.log"))}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "edit",
    [damage.flip_bit, damage.zero_sector, damage.misdirect, damage.lose_segment, damage.cut_tail],
)
def test_damage_is_done_where_it_says_and_never_served(
    tmp_path: Path, edit: Callable[[Path, Random], str], seed: int
) -> None:
    make(tmp_path)
    before = contents(tmp_path)
    done = edit(tmp_path, Random(seed))
    assert done
    after = contents(tmp_path)
    changed = {name for name in before if after.get(name) != before[name]}
    assert len(changed) == 1
    assert next(iter(changed)) in done
    assert readable(tmp_path) < RECORDS


def test_nothing_is_damaged_where_there_is_nothing(tmp_path: Path) -> None:
    edits = (damage.flip_bit, damage.zero_sector, damage.misdirect, damage.lose_segment)
    for edit in (*edits, damage.cut_tail, damage.wipe):
        assert edit(tmp_path, Random(1)) == ""
        # The folder of a node that has only just joined is not there yet.
        assert edit(tmp_path / "missing", Random(1)) == ""
    assert damage.go_back(tmp_path, tmp_path, Random(1)) == ""


def test_wiped_folder_is_empty_and_restored_one_is_as_before(tmp_path: Path) -> None:
    data, aside = tmp_path / "data", tmp_path / "aside"
    make(data)
    before = contents(data)
    damage.keep_copy(data, aside)
    assert damage.wipe(data, Random(1))
    assert list(data.iterdir()) == []
    damage.restore(aside, data)
    assert contents(data) == before
    assert readable(data) == RECORDS


def test_log_that_goes_back_has_the_bytes_of_then(tmp_path: Path) -> None:
    data, aside = tmp_path / "data", tmp_path / "aside"
    make(data, 12)
    damage.keep_copy(data, aside)
    make(data, 2)
    words = damage.go_back(data, aside, Random(1))
    assert "lost" in words
    assert contents(data) == contents(aside)
    assert readable(data) == 12
