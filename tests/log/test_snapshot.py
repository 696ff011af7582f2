"""Snapshot files: written, sent in chunks, received, and refused."""

import errno

import pytest

from raftmq.chaos.world.disk import MemoryFiles
from raftmq.errors import CorruptRecord
from raftmq.log.faults import DiskFull, WrongLog
from raftmq.log.segment import PARTIAL_SUFFIX, file_name
from raftmq.log.snapshot import SnapshotMeta, SnapshotReceiver, encode_snapshot, open_snapshot

from .building import FOLDER, IDENTITY, Chain, meta_at, open_store, write

META = SnapshotMeta(5, 2, 77, 1000, b"conf")
DATA = b"".join(encode_snapshot(IDENTITY, META, bytes(range(256)) * 10))
PARTIAL = f"{FOLDER}/{file_name(5, PARTIAL_SUFFIX)}"


def receiver(files: MemoryFiles, data: bytes = DATA) -> SnapshotReceiver:
    return SnapshotReceiver(files, FOLDER, IDENTITY, index=5, bytes_total=len(data))


def disk() -> MemoryFiles:
    files = MemoryFiles()
    files.make_folder(FOLDER)
    return files


def test_a_snapshot_read_in_chunks_is_the_file_and_installs_elsewhere() -> None:
    sender, chain = MemoryFiles(), Chain()
    store, _ = open_store(sender)
    write(store, chain, 6)
    store.save_snapshot(meta_at(store, 5), b"state" * 1000)
    snapshot = store.open_snapshot(5)
    taker = disk()
    receiving = SnapshotReceiver(taker, FOLDER, IDENTITY, index=5, bytes_total=snapshot.bytes)
    while not receiving.is_complete:
        receiving.write(receiving.received, snapshot.chunk(receiving.received, 999))
    meta = snapshot.meta
    assert receiving.finish() == meta
    assert meta._replace(state_crc=0) == meta_at(store, 5)


def test_receiving_goes_on_where_it_stopped_even_after_a_restart() -> None:
    files = disk()
    first = receiver(files)
    assert first.write(0, DATA[:1000]) == 1000
    files.kill()
    second = receiver(files)
    assert second.received == 1000
    assert second.write(0, DATA[:100]) == 1000, "a repeated chunk is ignored"
    assert second.write(1500, DATA[1500:]) == 1000, "so is one that leaves a gap"
    assert second.write(1000, DATA[1000:] + b"x") == 1000, "and one that is too long"
    second.write(1000, DATA[1000:])
    assert second.finish()._replace(state_crc=0) == META


def test_every_flipped_bit_of_a_received_snapshot_is_refused_and_all_thrown_away() -> None:
    for byte in range(len(DATA)):
        damaged = bytearray(DATA)
        damaged[byte] ^= 1 << byte % 8
        files = disk()
        receiving = receiver(files)
        receiving.write(0, bytes(damaged))
        with pytest.raises(CorruptRecord):
            receiving.finish()
        assert receiving.received == 0
        assert files.bytes_of(PARTIAL) == b""


def test_a_snapshot_of_another_group_is_refused() -> None:
    data = b"".join(encode_snapshot(IDENTITY._replace(group=8), META, b""))
    files = disk()
    receiving = receiver(files, data)
    receiving.write(0, data)
    with pytest.raises(WrongLog):
        receiving.finish()


def test_a_snapshot_of_another_index_is_refused() -> None:
    data = b"".join(encode_snapshot(IDENTITY, META._replace(index=6), b""))
    receiving = receiver(disk(), data)
    receiving.write(0, data)
    with pytest.raises(CorruptRecord, match="covers 6"):
        receiving.finish()


def test_a_full_disk_while_receiving_keeps_what_was_at_hand() -> None:
    files = disk()
    receiving = receiver(files)
    receiving.write(0, DATA[:1000])
    files.space = 1100
    with pytest.raises(OSError, match="space") as caught:
        receiving.write(1000, DATA[1000:])
    assert caught.value.errno == errno.ENOSPC
    files.space = None
    assert receiving.received == 1000
    receiving.write(1000, DATA[1000:])
    assert receiving.finish()._replace(state_crc=0) == META


def test_a_damaged_snapshot_is_never_restored() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files)
    write(store, chain, 6)
    store.save_snapshot(meta_at(store, 5), b"state" * 100)
    files.flip(f"{FOLDER}/{5:020d}.snapshot", 8 * 200)
    with pytest.raises(CorruptRecord, match="the state fails"):
        store.open_snapshot(5).state()
    with pytest.raises(CorruptRecord, match="the state fails"):
        store.open_snapshot(5).verify()


def test_saving_on_a_full_disk_leaves_nothing_behind() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files)
    write(store, chain, 6)
    names = files.list(FOLDER)
    files.space = files.used() + 100
    with pytest.raises(DiskFull):
        store.save_snapshot(meta_at(store, 5), b"state" * 100)
    assert files.list(FOLDER) == names
    files.space = None
    store.save_snapshot(meta_at(store, 5), b"state" * 100)
    assert store.open_snapshot(5).state() == b"state" * 100


def test_a_snapshot_inside_a_segment_or_of_another_log_is_a_bug() -> None:
    store, chain = open_store(MemoryFiles())[0], Chain()
    write(store, chain, 7)
    with pytest.raises(AssertionError, match="not the last record before a segment"):
        store.save_snapshot(meta_at(store, 6), b"")
    with pytest.raises(AssertionError, match="not of this log"):
        store.save_snapshot(meta_at(store, 5)._replace(crc=1), b"")


def test_a_snapshot_that_the_log_does_not_stand_on_can_be_dropped() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files)
    write(store, chain, 12)
    store.save_snapshot(meta_at(store, 5), b"five")
    store.save_snapshot(meta_at(store, 10), b"ten")
    store.drop_before(6)
    store.drop_snapshot(10)
    assert [meta.index for meta in store.snapshots] == [5]
    with pytest.raises(FileNotFoundError):
        store.open_snapshot(10)
    with pytest.raises(AssertionError, match="stands on"):
        store.drop_snapshot(5)
    with pytest.raises(FileNotFoundError):
        open_snapshot(files, FOLDER, 10, IDENTITY)
