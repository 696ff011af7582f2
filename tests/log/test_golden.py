"""Folders written by earlier versions are read by this one, byte for byte."""

import json
import shutil
from pathlib import Path

import pytest

from raftmq.log.files import RealFiles
from raftmq.log.index import LogIndex, find_key
from raftmq.log.inspect import DamagedItem, inspect_folder
from raftmq.log.store import LogSettings, LogStore

from .building import IDENTITY
from .make_golden import QUEUES, fact, make

GOLDEN = Path(__file__).parent / "golden"
VERSIONS = sorted(path.stem for path in GOLDEN.glob("*.json"))


def test_there_is_a_golden_log() -> None:
    assert "v1" in VERSIONS


@pytest.mark.parametrize("version", VERSIONS)
def test_a_golden_log_is_read(version: str, tmp_path: Path) -> None:
    expected = json.loads((GOLDEN / f"{version}.json").read_text())
    folder = tmp_path / version
    shutil.copytree(GOLDEN / version, folder)
    files = RealFiles()
    found = list(inspect_folder(files, str(folder)))
    assert not [item for item in found if isinstance(item, DamagedItem)]
    store, recovered = LogStore.open(files, str(folder), LogSettings(), IDENTITY)
    assert recovered.torn_bytes_cut == 0
    assert recovered.first_index == expected["first_index"]
    assert recovered.last_index == expected["last_index"]
    assert list(recovered.hard_state) == expected["hard_state"]
    assert [meta.index for meta in recovered.snapshots] == expected["snapshots"]
    for meta in recovered.snapshots:
        assert store.open_snapshot(meta.index).state() == b"state after %d" % meta.index
        assert meta.conf_state == b"members"
    records = store.read(recovered.first_index, recovered.last_index + 1, 2**30)
    assert [record.encoded.hex() for record in records] == expected["records"]
    index = LogIndex(store.sealed, store.layout, applied=store.layout[0].base - 1)
    assert store.sealed, "the golden log holds index files"
    for record in records:
        placement, _ = fact(record)
        if record.index <= store.sealed[-1].last:
            assert placement in index.lookup(placement.queue, placement.base_offset, 1)
            assert list(find_key(index.key_sources(record.index), record.index)) == [record.index]
            assert index.at_time(placement.queue, record.timestamp) == placement.base_offset
    assert len(index._directory) == QUEUES
    store.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_golden_log_is_whole_whichever_indexes_are_lost(version: str, tmp_path: Path) -> None:
    expected = json.loads((GOLDEN / f"{version}.json").read_text())
    names = sorted(path.name for path in (GOLDEN / version).glob("*.index"))
    for kept in range(1 << len(names)):
        folder = tmp_path / str(kept)
        shutil.copytree(GOLDEN / version, folder)
        for at, name in enumerate(names):
            if not kept >> at & 1:
                (folder / name).unlink()
        store, recovered = LogStore.open(RealFiles(), str(folder), LogSettings(), IDENTITY)
        records = store.read(recovered.first_index, recovered.last_index + 1, 2**30)
        assert [record.encoded.hex() for record in records] == expected["records"]
        assert list(recovered.hard_state) == expected["hard_state"]
        store.close()


def test_this_version_still_writes_the_newest_golden_log(tmp_path: Path) -> None:
    make(tmp_path / VERSIONS[-1])
    written = {path.name: path.read_bytes() for path in (tmp_path / VERSIONS[-1]).iterdir()}
    golden = {path.name: path.read_bytes() for path in (GOLDEN / VERSIONS[-1]).iterdir()}
    assert written == golden, "the format changed: raise its version and make a new golden log"
