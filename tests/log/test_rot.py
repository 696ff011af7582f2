"""Damage: torn records are cut, rotten ones refused, and neither is ever served."""

import errno
from random import Random

import pytest

from raftmq.chaos.world.disk import MemoryFiles
from raftmq.log.faults import RotFound
from raftmq.log.files import read_filled
from raftmq.log.inspect import MarkItem, inspect_segment
from raftmq.log.record import Record
from raftmq.log.segment import MARK_BYTES, HardState
from raftmq.log.store import LogSettings, LogStore

from .building import FOLDER, IDENTITY, SMALL, Chain, open_store, read_all, segment_names, write
from .test_recovery import scenario_seal, scenario_snapshot

ACTIVE = f"{FOLDER}/{1:020d}.log"


def flipped_opens(files: MemoryFiles, path: str, bit: int) -> "list[Record] | str":
    """Records of a log with one bit flipped, or the fault that the read raised."""
    twin = files.copy()
    twin.flip(path, bit)
    try:
        store, _ = open_store(twin)
        return read_all(store)
    except RotFound as fault:
        return "rot" if fault.position * 8 <= bit else "rot, named later than it is"


def test_every_flipped_bit_before_the_closing_mark_is_rot() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files, LogSettings())
    store.append(chain.make([b"one", b"two"]), HardState(2, 1, 0))
    store.sync()
    store.append(chain.make([b"drei"], first=2, term=2), HardState(2, 1, 1))
    store.sync()
    store.close()
    size = len(files.bytes_of(ACTIVE))
    for bit in range(8 * size):
        found = flipped_opens(files, ACTIVE, bit)
        if bit < 8 * (size - MARK_BYTES):
            assert found == "rot", f"bit {bit} of {8 * size}"
        else:
            assert found == chain.upto(2), "the closing mark may go: nothing is lost with it"


def test_every_flipped_bit_of_the_last_write_is_cut_as_torn_and_nothing_before_it_is() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files, LogSettings())
    store.append(chain.make([b"one", b"two"]), HardState(2, 1, 0))
    store.sync()
    start = len(files.bytes_of(ACTIVE))
    store.append(chain.make([b"three", b"four", b"five"]), HardState(2, 1, 1))
    size = len(files.bytes_of(ACTIVE))
    files.kill()
    for bit in range(8 * size):
        found = flipped_opens(files, ACTIVE, bit)
        if bit < 8 * start:
            assert found == "rot", f"bit {bit} lies before the last write, at {8 * start}"
        else:
            assert isinstance(found, list)
            assert found == chain.upto(len(found))
            assert 2 <= len(found) < 5


def sealed_log() -> tuple[MemoryFiles, Chain]:
    """Closed: four sealed segments with snapshots before the last two, retention in between."""
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files)
    write(store, chain, 22)
    scenario_seal(store, chain, files)
    scenario_snapshot(store, chain, files)
    store.drop_before(6)
    store.close()
    return files, chain


def marks_unread(files: MemoryFiles, path: str) -> set[int]:
    """Bytes that may rot unseen: marks of sealed segments, and the closing mark of the last."""
    items = list(inspect_segment(files, path)) if path.endswith(".log") else []
    at = [item.mark.position for item in items if isinstance(item, MarkItem)]
    at = at[-1:] if path.endswith(segment_names(files)[-1]) else at
    return {byte for start in at for byte in range(start, start + MARK_BYTES)}


def test_no_flipped_bit_in_any_file_is_ever_served() -> None:
    files, chain = sealed_log()
    random, outcomes = Random(5), set()
    for name in files.list(FOLDER):
        path = f"{FOLDER}/{name}"
        harmless = marks_unread(files, path)
        for byte in range(len(files.bytes_of(path))):
            found = flipped_opens(files, path, 8 * byte + random.randrange(8))
            outcomes.add((name.split(".")[1], found if isinstance(found, str) else "fine"))
            if isinstance(found, list):
                assert found == chain.upto(22)[5:]
                assert not name.endswith(".log") or byte in harmless
    assert outcomes == {
        ("log", "rot"),
        ("log", "fine"),
        ("index", "fine"),
        # Another snapshot restores the machine.
        ("snapshot", "fine"),
    }


def test_a_torn_end_is_cut_and_the_log_goes_on() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files)
    write(store, chain, 2)
    size = len(files.bytes_of(ACTIVE))
    store.append(chain.make([bytes(200)]))
    files.put(ACTIVE, files.bytes_of(ACTIVE)[:-1])
    files.kill()
    store, recovered = open_store(files)
    assert recovered.torn_bytes_cut == 240 - 1
    assert len(files.bytes_of(ACTIVE)) == size + MARK_BYTES
    assert read_all(store) == chain.upto(2)


def test_garbage_that_looks_like_a_mark_in_a_payload_vouches_for_nothing() -> None:
    # A client sends a piece of a log file as a message, and the write that carries it is torn.
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files, LogSettings())
    write(store, chain, 2)
    piece = files.bytes_of(ACTIVE)[72:]
    store.append(chain.make([b"torn", piece]))
    data = bytearray(files.bytes_of(ACTIVE))
    data[data.index(b"torn")] ^= 1
    files.put(ACTIVE, bytes(data))
    files.kill()
    store, recovered = open_store(files)
    assert read_all(store) == chain.upto(2)
    assert recovered.torn_bytes_cut > len(piece)


def test_what_a_killed_process_wrote_is_durable_once_it_was_recovered() -> None:
    for seed in range(20):
        files, chain = MemoryFiles(Random(seed)), Chain()
        store, _ = open_store(files, LogSettings())
        store.append(chain.make([bytes(600)] * 3), HardState(4, 2, 0))
        files.kill()
        store, recovered = open_store(files)
        assert recovered.last_index == 3, "the system kept what it was told"
        files.power_loss()
        store, recovered = open_store(files)
        assert read_all(store) == chain.upto(3)
        assert recovered.hard_state == HardState(4, 2, 0)


def test_a_record_in_the_place_of_another_is_not_served() -> None:
    files, chain = sealed_log()
    store, _ = open_store(files)
    path = f"{FOLDER}/{6:020d}.log"
    data, (seven, eight) = files.bytes_of(path), (chain.records[i].encoded for i in (7, 8))
    assert len(seven) == len(eight)
    at = data.index(seven)
    files.put(path, data[:at] + eight + data[at + len(eight) :])
    with pytest.raises(RotFound, match="record 8 stands where 7 should"):
        store.read_at([7], 1)


def test_rot_in_the_middle_says_where_and_what_vouches_for_it() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files, LogSettings())
    write(store, chain, 4)
    store.close()
    files.flip(ACTIVE, 8 * 300)
    before = files.bytes_of(ACTIVE)
    with pytest.raises(RotFound, match=r"CRC-32C; the mark at byte \d+ says that it was durable"):
        open_store(files)
    assert files.bytes_of(ACTIVE) == before, "rot is never cut"


def test_rot_in_a_closed_segment_is_refused_without_any_mark_behind_it() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files)
    write(store, chain, 6)
    store.close()
    size = len(files.bytes_of(ACTIVE))
    files.flip(ACTIVE, 8 * size - 1)
    with pytest.raises(RotFound, match=f"{1:020d}.log, byte"):
        open_store(files)


def test_a_missing_middle_segment_is_rot() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files)
    write(store, chain, 16)
    store.close()
    files.unlink(f"{FOLDER}/{6:020d}.log")
    with pytest.raises(RotFound, match="a file is missing between them"):
        open_store(files)


def test_a_missing_first_segment_is_rot() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files)
    write(store, chain, 16)
    store.close()
    files.unlink(f"{FOLDER}/{1:020d}.log")
    with pytest.raises(RotFound, match="starts at record 6, and the snapshot before it is missing"):
        open_store(files)


@pytest.mark.parametrize("mends", [False, True])
def test_a_missing_newest_segment_is_rot_if_the_one_before_is_sealed(mends: bool) -> None:
    files, _ = sealed_log()
    files.unlink(f"{FOLDER}/{segment_names(files)[-1]}")
    before = files.list(FOLDER)
    with pytest.raises(RotFound, match="the term of the last vote is unknown"):
        LogStore.open(files, FOLDER, SMALL, IDENTITY, mends=mends)
    assert files.list(FOLDER) == before


def test_a_shortened_closed_segment_is_rot() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files)
    write(store, chain, 6)
    store.close()
    files.put(ACTIVE, files.bytes_of(ACTIVE)[: -MARK_BYTES - 140])
    with pytest.raises(RotFound, match="records 5 to 5 are missing before"):
        open_store(files)


def test_a_shortened_sealed_segment_is_rot() -> None:
    files, _ = sealed_log()
    path = f"{FOLDER}/{6:020d}.log"
    files.put(path, files.bytes_of(path)[:-100])
    with pytest.raises(RotFound, match="its index says"):
        open_store(files)


def test_a_record_copied_from_another_place_is_rot() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files, LogSettings())
    write(store, chain, 4)
    store.close()
    data = files.bytes_of(ACTIVE)
    stranger = Chain(2, crc=99).make([bytes(100)])[0].encoded
    at = data.index(chain.records[3].encoded)
    files.put(ACTIVE, data[:at] + stranger + data[at + len(stranger) :])
    with pytest.raises(RotFound, match="copied from elsewhere"):
        open_store(files)


def test_a_segment_of_another_log_is_rot_where_it_does_not_chain() -> None:
    logs = []
    for payload in (b"a", b"b"):
        files, chain = MemoryFiles(), Chain()
        store, _ = open_store(files)
        for _ in range(8):
            store.append(chain.make([payload * 100]), HardState(1, 1, 0))
        store.sync()
        store.close()
        logs.append(files)
    name = f"{FOLDER}/{6:020d}.log"
    logs[0].put(name, logs[1].bytes_of(name))
    with pytest.raises(RotFound, match="does not chain to record 5"):
        open_store(logs[0])


def test_a_renamed_segment_is_rot() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files)
    write(store, chain, 6)
    store.close()
    files.rename(f"{FOLDER}/{6:020d}.log", f"{FOLDER}/{7:020d}.log")
    with pytest.raises(RotFound, match="it was renamed"):
        open_store(files)


def test_a_segment_that_lost_its_first_mark_is_rot() -> None:
    files = MemoryFiles()
    open_store(files)[0].close()
    files.put(ACTIVE, files.bytes_of(ACTIVE)[:72])
    with pytest.raises(RotFound, match="first mark"):
        open_store(files)


def test_snapshots_without_segments_are_rot() -> None:
    files, _ = sealed_log()
    for name in segment_names(files):
        files.unlink(f"{FOLDER}/{name}")
    with pytest.raises(RotFound, match="the log is missing"):
        open_store(files)


def test_a_damaged_index_file_is_built_again_from_the_segment() -> None:
    files, chain = sealed_log()
    files.flip(f"{FOLDER}/{6:020d}.index", 8 * 400)
    store, _ = open_store(files)
    assert [info.base for info in store.layout] == [6, 21]
    assert f"{6:020d}.index" not in files.list(FOLDER)
    assert read_all(store) == chain.upto(22)[5:]


def test_a_copied_record_in_a_sealed_segment_is_not_served_in_a_range() -> None:
    files, chain = sealed_log()
    store, _ = open_store(files)
    path = f"{FOLDER}/{6:020d}.log"
    data, eight = files.bytes_of(path), chain.records[8].encoded
    stranger = Chain(7, crc=99).make([bytes(100)])[0].encoded
    files.put(path, data.replace(eight, stranger))
    with pytest.raises(RotFound, match=f"{6:020d}.log, byte .* record 8 does not chain"):
        store.read(6, 12, 2**30)


def test_unreadable_bytes_are_rot_wherever_they_stand_and_nothing_is_cut() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files, LogSettings())
    for _ in range(6):
        store.append(chain.make([bytes(600)]), HardState(1, 1, chain.last - 1))
        store.sync()
    files.kill()
    size = len(files.bytes_of(ACTIVE))
    for start in range(0, size, 512):
        twin = files.copy()
        twin.spoil(ACTIVE, start, start + 512)
        with pytest.raises(RotFound):
            open_store(twin)
        assert len(twin.bytes_of(ACTIVE)) == size, "also at the end, which may be acknowledged"


def test_one_lost_sector_hides_no_more_than_itself() -> None:
    files = MemoryFiles()
    files.make_folder(FOLDER)
    data = Random(1).randbytes(5000)
    files.put(ACTIVE, data)
    files.spoil(ACTIVE, 1024, 1536)
    found = read_filled(files.open(ACTIVE), 4096, 0)
    assert (found[:1024], found[1536:]) == (data[:1024], data[1536:4096])
    assert found[1024:1536] not in (data[1024:1536], bytes(512))


def test_other_errors_of_a_read_are_no_rot() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files, LogSettings())
    write(store, chain, 3)
    files.fail_next("pread", errno.EMFILE)
    with pytest.raises(OSError, match="Too many open files"):
        store.read(1, 3, 1000)
    files.fail_next("pread", errno.EIO)
    with pytest.raises(RotFound, match="the disk cannot read it"):
        store.read(1, 3, 1000)
    assert len(store.read(1, 4, 1000)) == 3
