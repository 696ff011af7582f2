"""A store's promises while nothing crashes, and its refusals."""

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from raftmq.chaos.world.disk import MemoryFiles
from raftmq.errors import CorruptRecord
from raftmq.log.faults import (
    DiskFull,
    Dropped,
    FolderLocked,
    FsyncFailed,
    RotFound,
    UnsupportedFormat,
    WriteFailed,
    WrongLog,
)
from raftmq.log.files import RealFiles
from raftmq.log.segment import PARTIAL_SUFFIX, HardState, Identity, Link
from raftmq.log.snapshot import SnapshotReceiver
from raftmq.log.store import LogSettings, LogStore

from .building import (
    FOLDER,
    IDENTITY,
    SMALL,
    Chain,
    meta_at,
    open_store,
    read_all,
    receive,
    segment_names,
    snapshot_bytes,
    write,
)


def test_a_missing_folder_begins_an_empty_log() -> None:
    store, recovered = open_store(MemoryFiles())
    assert (recovered.first_index, recovered.last_index) == (1, 0)
    assert recovered.hard_state == HardState(0, 0, 0)
    assert (store.first_index, store.last_index) == (1, 0)
    assert read_all(store) == []


def test_records_and_hard_state_come_back_after_a_restart() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files)
    store.append(chain.make([b"a", b"bb"]), HardState(3, 2, 1))
    store.append(chain.make([b""], term=3))
    store.sync()
    store.close()
    store, recovered = open_store(files)
    assert read_all(store) == chain.upto(3)
    assert recovered.hard_state == HardState(3, 2, 1)
    assert recovered.terms == [(1, 1), (3, 3)]
    assert recovered.end == Link(3, 3, chain.records[3].crc, chain.records[3].timestamp)


def test_one_append_of_many_records_is_one_write_and_one_sync() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files, LogSettings())
    before = files.calls
    store.append(chain.make([b"x"] * 50), HardState(1, 1, 0))
    store.append(chain.make([b"y"] * 50))
    store.sync()
    store.sync()
    assert files.trace is not None
    operations = [call.split()[0] for call in files.trace[before:]]
    assert operations == ["append", "append", "datasync"]


def test_reading_stops_at_the_byte_limit_and_gives_at_least_one_record() -> None:
    store, chain = open_store(MemoryFiles(), LogSettings())[0], Chain()
    store.append(chain.make([bytes(1000)] * 10))
    assert [r.index for r in store.read(3, 11, 1)] == [3]
    assert [r.index for r in store.read(3, 11, 1040 * 3)] == [3, 4, 5]
    assert [r.index for r in store.read(3, 11, 1040 * 4 - 1)] == [3, 4, 5]
    assert [r.index for r in store.read(3, 11, 2**30)] == list(range(3, 11))
    assert store.read(5, 5, 1) == []


def test_seed_7237_reading_beyond_an_end_that_was_cut_off_gives_what_is_there() -> None:
    chain = Chain()
    store, _ = open_store(MemoryFiles())
    store.append(chain.make([b"a"] * 3), HardState(1, 1, 0))
    store.sync()
    assert store.read(2, 9, 1 << 20) == chain.upto(3)[1:]
    assert store.read(4, 9, 1 << 20) == []
    assert store.read(6, 9, 1 << 20) == []


def test_reading_goes_across_segments() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files)
    write(store, chain, 60)
    assert len(segment_names(files)) > 5
    assert read_all(store) == chain.upto(60)
    assert store.read(7, 50, 2**30) == chain.upto(49)[6:]


def test_scattered_reading_gives_just_the_wanted_records() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files)
    write(store, chain, 60)
    wanted = [1, 2, 9, 30, 31, 33, 60]
    assert store.read_at(wanted, 2**30) == [chain.records[i] for i in wanted]
    assert store.read_at(wanted, 1) == [chain.records[1]]
    assert store.read_at([], 1) == []


def test_a_new_segment_begins_once_the_active_one_has_its_size() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files)
    write(store, chain, 8)
    assert segment_names(files) == [f"{1:020d}.log", f"{6:020d}.log"]
    assert [(info.base, info.last) for info in store.layout] == [(1, 5), (6, None)]


def test_superseding_records_take_the_place_of_a_suffix() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files)
    store.append(chain.make([b"old"] * 5))
    store.append(chain.make([b"new"] * 2, term=2, first=3))
    assert store.last_index == 4
    assert read_all(store) == chain.upto(4)
    store.append(chain.make([b"more"], term=2))
    store.sync()
    store.close()
    store, recovered = open_store(files)
    assert read_all(store) == chain.upto(5)
    assert recovered.terms == [(1, 1), (3, 2)]


def test_one_write_may_hold_records_that_supersede_each_other() -> None:
    # Two messages of Raft wait for the disk; the second takes back what the first brought.
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files, LogSettings())
    store.append(chain.make([b"a"] * 4), HardState(1, 1, 1))
    together = chain.make([b"b"] * 3)
    together += chain.make([b"c"] * 2, term=2, first=6)
    together += chain.make([b"d"] * 3, term=3, first=3)
    together += chain.make([b"e"], term=3)
    calls = files.calls
    store.append(together, HardState(3, 1, 6))
    assert files.calls == calls + 1
    store.sync()
    assert read_all(store) == chain.upto(6)
    store.close()
    store, recovered = open_store(files)
    assert read_all(store) == chain.upto(6)
    assert recovered.terms == [(1, 1), (3, 3)]
    assert recovered.hard_state == HardState(3, 1, 6)


def test_superseding_reaches_back_into_closed_segments() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files)
    for _ in range(20):
        store.append(chain.make([bytes(100)]), HardState(1, 1, min(chain.last, 2)))
    names = segment_names(files)
    assert len(names) == 4
    store.append(chain.make([bytes(100)] * 2, term=2, first=4), HardState(2, 1, 3))
    assert segment_names(files) == names
    assert [(i.base, i.last) for i in store.layout] == [(1, 3), (4, 3), (4, 3), (4, None)]
    for _ in range(40):
        store.append(chain.make([bytes(100)], term=2), HardState(2, 1, 3))
        assert store.read(1, store.last_index + 1, 2**30) == chain.upto(chain.last)
    store.sync()
    layout = store.layout
    store.close()
    store, _ = open_store(files)
    assert read_all(store) == chain.upto(45)
    assert store.layout == layout


def test_a_reader_that_began_earlier_is_not_disturbed_by_superseding() -> None:
    store, chain = open_store(MemoryFiles())[0], Chain()
    store.append(chain.make([b"old"] * 5))
    view, old = store._view, chain.upto(5)
    store.append(chain.make([b"newer and longer"] * 4, term=2, first=2))
    from raftmq.log.reading import read_range

    files = store._files
    assert read_range(files, FOLDER, view, low=1, high=6, bytes_max=2**30) == old


def test_records_that_do_not_follow_are_refused_as_a_bug() -> None:
    store, chain = open_store(MemoryFiles())[0], Chain()
    store.append(chain.make([b"a"] * 3), HardState(1, 1, 2))
    stranger = Chain(3, crc=99).make([b"b"])
    with pytest.raises(AssertionError, match="do not chain"):
        store.append(stranger)
    with pytest.raises(AssertionError, match="after 3"):
        store.append(chain.make([b"b", b"c"])[1:])
    with pytest.raises(AssertionError, match="after 4"):
        store.append([chain.records[4], *chain.make([b"d"] * 2)[1:]])
    with pytest.raises(AssertionError, match="committed"):
        store.append(chain.make([b"b"], first=2))


def test_a_commit_index_is_only_kept_as_far_as_records_bear_it_out() -> None:
    # A torn write must not leave "7 is committed" beside the records that 7 was to supersede.
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files)
    store.append(chain.make([b"old"] * 7), HardState(1, 1, 3))
    store.sync()
    store.append(chain.make([b"new"] * 4, term=2, first=4), HardState(2, 1, 7))
    active = f"{FOLDER}/{1:020d}.log"
    files.put(active, files.bytes_of(active)[:-60])
    files.kill()
    store, recovered = open_store(files)
    assert recovered.hard_state == HardState(2, 1, 3)
    assert recovered.torn_bytes_cut > 0


def test_a_torn_write_that_superseded_further_back_commits_nothing_it_took_back() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files, LogSettings())
    store.append(chain.make([b"old"] * 5), HardState(1, 1, 2))
    store.sync()
    together = chain.make([b"old too"] * 2)
    together += chain.make([b"new"] * 4, term=2, first=4)
    store.append(together, HardState(2, 1, 7))
    active = f"{FOLDER}/{1:020d}.log"
    files.put(active, files.bytes_of(active)[: -4 * 43 - 1])
    files.kill()
    store, recovered = open_store(files)
    assert [bytes(record.payload) for record in read_all(store)] == [b"old"] * 5 + [b"old too"]
    assert recovered.hard_state == HardState(2, 1, 3)


def test_an_idle_log_marks_its_last_write_once() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files)
    store.append(chain.make([b"a"]))
    assert not store.mark_idle()  # not synced yet: nothing can be vouched for
    store.sync()
    assert store.mark_idle()
    assert not store.mark_idle()
    size = len(files.bytes_of(f"{FOLDER}/{1:020d}.log"))
    store.close()
    open_store(files)[0].close()
    assert len(files.bytes_of(f"{FOLDER}/{1:020d}.log")) == size


def test_a_write_does_not_prove_its_own_records_to_be_committed_and_the_next_mark_does() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files)
    store.append(chain.make([b"a", b"b"]), HardState(1, 1, 2))
    store.sync()
    assert store.proven_commit == open_store(files.copy())[1].hard_state.commit == 0
    store.mark_idle()
    assert store.proven_commit == 0, "not durable yet"
    store.sync()
    files.power_loss()
    assert store.proven_commit == open_store(files)[1].hard_state.commit == 2


def test_a_failed_fsync_is_final() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files)
    store.append(chain.make([b"a"]))
    files.fail_at(1, errno.EIO)
    with pytest.raises(FsyncFailed, match="fdatasync"):
        store.sync()
    calls = files.calls
    for call in (
        store.sync,
        lambda: store.append(chain.make([b"b"])),
        lambda: store.append([], HardState(9, 9, 0)),
        store.mark_idle,
        lambda: store.drop_before(1),
        lambda: store.install_snapshot(9, HardState()),
    ):
        with pytest.raises(FsyncFailed):
            call()
    store.close()
    assert files.calls == calls, "a failed store must not touch the disk again"


def test_a_failed_write_is_final() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files)
    files.fail_at(1, errno.EIO)
    with pytest.raises(WriteFailed):
        store.append(chain.make([b"a"]))
    with pytest.raises(WriteFailed):
        store.sync()


@pytest.mark.parametrize("room", [0, 1, 63, 64, 65, 103, 104, 150, 203])
def test_a_full_disk_refuses_an_append_whole_and_takes_it_later(room: int) -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files, LogSettings())
    store.append(chain.make([b"acked"] * 3), HardState(1, 1, 2))
    store.sync()
    before = files.bytes_of(f"{FOLDER}/{1:020d}.log")
    more = chain.make([bytes(30)] * 2)
    files.space = files.used() + room
    with pytest.raises(DiskFull):
        store.append(more, HardState(2, 2, 3))
    assert files.bytes_of(f"{FOLDER}/{1:020d}.log") == before
    assert read_all(store) == chain.upto(3)
    assert store.hard_state == HardState(1, 1, 2)
    files.space = None
    store.append(more, HardState(2, 2, 3))
    store.sync()
    store.close()
    store, recovered = open_store(files)
    assert read_all(store) == chain.upto(5)
    assert recovered.hard_state == HardState(2, 2, 3)


def test_a_full_disk_at_a_new_segment_leaves_the_old_one_usable() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files)
    write(store, chain, 5)
    files.space = files.used() + 40
    more = chain.make([b"x"])
    with pytest.raises(DiskFull):
        store.append(more)
    assert len(segment_names(files)) == 1
    files.space += 64
    store.append([], HardState(5, 3, 4))  # a vote still fits into the old segment
    store.sync()
    files.space = None
    store.append(more)
    store.sync()
    store.close()
    assert open_store(files)[1].hard_state == HardState(5, 3, 4)
    assert len(segment_names(files)) == 2


def test_the_folder_of_another_cluster_node_or_group_is_refused_by_name() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files)
    write(store, chain, 2)
    store.close()
    with pytest.raises(WrongLog, match="another cluster than 'other'"):
        open_store(files, identity=IDENTITY._replace(cluster="other"))
    with pytest.raises(WrongLog, match="belongs to node 1, this is node 2"):
        open_store(files, identity=IDENTITY._replace(node=2))
    with pytest.raises(WrongLog, match="belongs to group 7, wanted is group 8"):
        open_store(files, identity=IDENTITY._replace(group=8))
    open_store(files)[0].close()


def test_a_second_store_on_a_folder_is_refused() -> None:
    files = MemoryFiles()
    store, _ = open_store(files)
    with pytest.raises(FolderLocked):
        open_store(files)
    store.close()
    open_store(files)[0].close()


def test_a_second_process_on_a_folder_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    folder = str(tmp_path / "group")
    store, _ = LogStore.open(RealFiles(), folder, SMALL, IDENTITY)
    program = (
        "from raftmq.log.store import *\nfrom raftmq.log.files import RealFiles\n"
        "from raftmq.log.segment import Identity\nfrom raftmq.log.faults import FolderLocked\n"
        f"try: LogStore.open(RealFiles(), {folder!r}, LogSettings(), Identity('test', 1, 7))\n"
        "except FolderLocked as error: print(error)\n"
    )
    run = [sys.executable, "-c", program]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert f"in use by process {os.getpid()}" in done.stdout
    store.close()
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert done.stdout == ""


def test_a_newer_format_is_refused_as_such() -> None:
    files = MemoryFiles()
    open_store(files)[0].close()
    path = f"{FOLDER}/{1:020d}.log"
    import google_crc32c

    data = bytearray(files.bytes_of(path))
    data[12] = 2
    data[8:12] = google_crc32c.value(bytes(data[12:72])).to_bytes(4, "little")
    files.put(path, bytes(data))
    with pytest.raises(UnsupportedFormat, match="upgrade"):
        open_store(files)


def test_closing_gives_the_folder_back_and_refuses_further_writes() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files)
    store.close()
    with pytest.raises(WriteFailed, match="closed"):
        store.append(chain.make([b"a"]))
    assert files.locked == set()


def test_retention_drops_whole_segments_up_to_a_snapshot_and_never_the_active_one() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files)
    write(store, chain, 23)  # five records a segment
    assert store.drop_before(23) == Link(), "without a snapshot nothing may go"
    store.save_snapshot(meta_at(store, 5), b"five")
    store.save_snapshot(meta_at(store, 10), b"ten")
    store.save_snapshot(meta_at(store, 15), b"fifteen")
    assert store.drop_before(10) == store.link(5)
    assert store.drop_before(15).index == 10
    assert (store.first_index, store.last_index) == (11, 23)
    assert [meta.index for meta in store.snapshots] == [10, 15]
    assert read_all(store) == chain.upto(23)[10:]
    with pytest.raises(Dropped) as caught:
        store.read(10, 12, 1)
    assert caught.value.first_index == 11
    store.close()
    store, recovered = open_store(files)
    assert recovered.start == store.link(10)
    assert [meta.index for meta in recovered.snapshots] == [10, 15]
    assert store.open_snapshot(10).state() == b"ten"
    assert read_all(store) == chain.upto(23)[10:]


def test_retention_keeps_a_segment_of_one_record_that_is_not_to_go() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files)
    write(store, chain, 4, size=1000)
    assert [(size.base, size.last) for size in store.segments()] == [(1, 1), (2, 2), (3, 3), (4, 4)]
    store.save_snapshot(meta_at(store, 1), b"")
    store.drop_before(2)
    assert read_all(store) == chain.upto(4)[1:]
    assert segment_names(files) == [f"{i:020d}.log" for i in (2, 3, 4)]


def test_a_reader_on_an_open_file_survives_retention() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files)
    write(store, chain, 12)
    view, expected = store._view, chain.upto(12)
    store.save_snapshot(meta_at(store, 10), b"")
    store.drop_before(11)
    from raftmq.log.reading import read_range

    # Unsealed segments keep their files open; sealed ones are gone by name: `Dropped`.
    assert read_range(files, FOLDER, view, low=1, high=13, bytes_max=2**30) == expected


def test_a_snapshot_replaces_the_whole_log_and_the_log_goes_on_after_it() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files)
    write(store, chain, 12)
    leader = Chain(39, crc=1234)
    (forty,) = leader.make([b"forty"], term=5)
    meta = meta_at(store, 12)._replace(index=40, term=5, crc=forty.crc, timestamp=1400)
    receive(files, meta, b"the state")
    installed = store.install_snapshot(40, HardState(5, 0, 40))
    assert installed._replace(state_crc=0) == meta
    assert (store.first_index, store.last_index) == (41, 40)
    assert segment_names(files) == [f"{41:020d}.log"]
    write(store, leader, 9, term=5)
    store.close()
    store, recovered = open_store(files)
    assert recovered.start == Link(40, 5, forty.crc, 1400)
    assert recovered.hard_state == HardState(5, 1, 48)
    assert store.open_snapshot(40).state() == b"the state"
    assert read_all(store) == leader.upto(49)[1:]


@pytest.mark.parametrize("is_whole", [False, True])
def test_snapshot_that_arrives_while_an_earlier_one_is_installed_is_installed_next(
    is_whole: bool,
) -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files)
    write(store, chain, 12)
    forty, sixty = (meta_at(store, 12)._replace(index=n, term=5) for n in (40, 60))
    receive(files, forty, b"the state")
    data = snapshot_bytes(sixty, b"a later state")
    receiver = SnapshotReceiver(files, FOLDER, IDENTITY, index=60, bytes_total=len(data))
    receiver.write(0, data if is_whole else data[:20])
    if is_whole:
        receiver.finish()
    store.install_snapshot(40, HardState(5, 0, 40))
    if not is_whole:
        receiver.write(20, data[20:])
        receiver.finish()
    store.install_snapshot(60, HardState(5, 0, 60))
    assert (store.first_index, store.last_index) == (61, 60)
    assert not [name for name in files.list(FOLDER) if name.endswith(PARTIAL_SUFFIX)]


def test_snapshot_whose_file_is_gone_is_not_received() -> None:
    files = MemoryFiles()
    store, _ = open_store(files)
    write(store, Chain(), 12)
    early, forty = (meta_at(store, 12)._replace(index=n, term=5) for n in (30, 40))
    receive(files, forty, b"the state")
    data = snapshot_bytes(early, b"an earlier state")
    receiver = SnapshotReceiver(files, FOLDER, IDENTITY, index=30, bytes_total=len(data))
    store.install_snapshot(40, HardState(5, 0, 40))
    receiver.write(0, data)
    with pytest.raises(CorruptRecord, match="removed"):
        receiver.finish()


def test_a_snapshot_below_the_end_of_a_conflicting_log_replaces_it_too() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files)
    for _ in range(30):
        store.append(chain.make([bytes(100)]), HardState(1, 1, min(chain.last, 2)))
    store.sync()
    names = segment_names(files)
    assert f"{11:020d}.log" in names
    meta = meta_at(store, 10)._replace(term=7, crc=77)
    receive(files, meta, b"state")
    store.install_snapshot(10, HardState(7, 0, 10))
    assert segment_names(files) == [f"{11:020d}.log"]
    assert (store.first_index, store.last_index) == (11, 10)
    store.close()
    assert open_store(files)[1].start == meta.link


def test_installing_on_a_full_disk_changes_nothing() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files)
    write(store, chain, 12)
    receive(files, meta_at(store, 12)._replace(index=40), b"state")
    files.space = files.used() + 10
    with pytest.raises(DiskFull):
        store.install_snapshot(40, HardState(1, 0, 40))
    assert read_all(store) == chain.upto(12)
    assert store.hard_state == HardState(1, 1, 11)
    files.space = None
    store.install_snapshot(40, HardState(1, 0, 40))
    assert store.first_index == 41


def test_another_thread_reads_while_the_log_grows_rolls_and_drops(tmp_path: Path) -> None:
    settings = LogSettings(segment_bytes=16_384)
    store, _ = LogStore.open(RealFiles(), str(tmp_path), settings, Identity("test", 1, 7))
    chain, stop, reads = Chain(), threading.Event(), 0
    failures: list[str] = []

    def keep_reading() -> None:
        nonlocal reads
        while not stop.is_set():
            low, high = store.first_index, store.last_index + 1
            try:
                found = store.read(low, high, 2**30)
                if found != [chain.records[index] for index in range(low, high)][: len(found)]:
                    failures.append(f"wrong records from {low} to {high}")
                reads += 1
            except Dropped:
                pass
            except Exception as error:
                failures.append(repr(error))

    reader = threading.Thread(target=keep_reading)
    reader.start()
    rolls = 0
    for _ in range(400):
        store.append(chain.make([os.urandom(300)] * 5), HardState(1, 1, chain.last - 5))
        if len(store.layout) > 4:
            border = store.layout[2].base - 1
            store.save_snapshot(meta_at(store, border), b"")
            store.drop_before(border + 1)
            rolls += 1
    stop.set()
    reader.join()
    store.close()
    assert failures == []
    assert reads > 5
    assert rolls > 5


def test_a_flipped_bit_in_a_sealed_record_is_found_when_it_is_read() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files)
    write(store, chain, 12)
    files.flip(f"{FOLDER}/{1:020d}.log", 8 * 600)
    with pytest.raises(RotFound, match=f"{1:020d}.log, byte"):
        read_all(store)
    assert store.read(6, 13, 2**30) == chain.upto(12)[5:]
