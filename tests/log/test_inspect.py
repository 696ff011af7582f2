"""A folder is shown as it is, damaged or not, and not touched."""

from raftmq.chaos.world.disk import MemoryFiles
from raftmq.log.inspect import (
    DamagedItem,
    IndexItem,
    MarkItem,
    OtherItem,
    RecordItem,
    SegmentItem,
    SnapshotItem,
    inspect_folder,
)
from raftmq.log.segment import HardState
from raftmq.log.store import LogSettings

from .building import FOLDER, Chain, meta_at, open_store, write
from .test_rot import sealed_log

ACTIVE = f"{FOLDER}/{1:020d}.log"


def test_a_sound_folder_is_listed_frame_by_frame_in_log_order() -> None:
    files, chain = sealed_log()
    calls = files.calls
    items = list(inspect_folder(files, FOLDER))
    assert files.calls == calls, "nothing is written"
    records = [item.record for item in items if isinstance(item, RecordItem)]
    assert records == chain.upto(22)[5:]
    marks = [item.mark for item in items if isinstance(item, MarkItem)]
    assert marks[-1].hard_state == HardState(1, 1, 21)
    assert [i.header.first for i in items if isinstance(i, SegmentItem)] == [6, 11, 16, 21]
    assert [i.meta.index for i in items if isinstance(i, SnapshotItem)] == [5, 15]
    assert [i.records for i in items if isinstance(i, IndexItem)] == [5, 5, 5]
    assert not [i for i in items if isinstance(i, DamagedItem)]


def test_damage_hides_one_write_and_not_the_rest() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files, LogSettings())
    write(store, chain, 5)
    store.close()
    data = files.bytes_of(ACTIVE)
    files.flip(ACTIVE, 8 * (data.index(chain.records[3].encoded) + 90))
    items = list(inspect_folder(files, FOLDER))
    records = [item.record.index for item in items if isinstance(item, RecordItem)]
    assert records == [1, 2, 4, 5]
    (damaged,) = (item for item in items if isinstance(item, DamagedItem))
    assert damaged.position == data.index(chain.records[3].encoded)
    assert damaged.bytes == 140
    assert "CRC-32C" in damaged.message


def test_every_byte_of_a_segment_belongs_to_one_item() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files, LogSettings())
    write(store, chain, 4)
    files.put(ACTIVE, files.bytes_of(ACTIVE)[:-30])
    total = len(files.bytes_of(ACTIVE))
    for bit in range(0, 8 * total, 61):
        twin = files.copy()
        twin.flip(ACTIVE, bit)
        covered = 0
        for item in inspect_folder(twin, FOLDER):
            if isinstance(item, SegmentItem):
                covered += 72
            elif isinstance(item, MarkItem):
                covered += 64
            elif isinstance(item, RecordItem):
                covered += len(item.record.encoded)
            elif isinstance(item, DamagedItem):
                covered += item.bytes
        assert covered == total


def test_superseded_records_and_strange_files_are_shown() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files, LogSettings())
    store.append(chain.make([b"a"] * 3))
    store.append(chain.make([b"b"], term=2, first=2))
    files.put(f"{FOLDER}/notes.txt", b"hello")
    files.put(f"{FOLDER}/{7:020d}.snapshot", b"no snapshot")
    files.put(f"{FOLDER}/{7:020d}.index", b"no index")
    files.put(f"{FOLDER}/{9:020d}.log", b"no segment")
    items = list(inspect_folder(files, FOLDER))
    shown = [(i.record.index, i.supersedes) for i in items if isinstance(i, RecordItem)]
    assert shown == [(1, False), (2, False), (3, False), (2, True)]
    assert OtherItem(f"{FOLDER}/notes.txt", 5) in items
    assert len([item for item in items if isinstance(item, DamagedItem)]) == 3


def test_a_segment_with_a_snapshot_is_shown_with_its_members() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files)
    write(store, chain, 6)
    store.save_snapshot(meta_at(store, 5), b"state")
    (item,) = (i for i in inspect_folder(files, FOLDER) if isinstance(i, SnapshotItem))
    assert item.meta._replace(state_crc=0) == meta_at(store, 5)
