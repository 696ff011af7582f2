"""Crashes, torn ends, rot and full disks: what a log holds when it is opened again."""

import errno
from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from raftmq.log.builder import Placement
from raftmq.log.faults import DiskFull, RotFound
from raftmq.log.index import LogIndex
from raftmq.log.inspect import MarkItem, inspect_segment
from raftmq.log.record import Record
from raftmq.log.segment import MARK_BYTES, HardState
from raftmq.log.snapshot import SnapshotMeta
from raftmq.log.store import LogSettings, LogStore, Recovered

from .building import (
    FOLDER,
    SMALL,
    Chain,
    meta_at,
    open_store,
    read_all,
    receive,
    segment_names,
    write,
)
from .memory_files import MemoryFiles, PowerLoss

ACTIVE = f"{FOLDER}/{1:020d}.log"


# The law of crashes.


class Model:
    """Which logs a crash may leave: the one at the last sync, or that with some frames more."""

    def __init__(self) -> None:
        self.live: tuple[Record, ...] = ()
        self.state = HardState()
        self.possible: list[tuple[tuple[Record, ...], tuple[int, int]]] = [((), (0, 0))]

    def append(self, records: list[Record], state: HardState) -> None:
        self.state = state
        self.possible.append((self.live, state[:2]))
        for record in records:
            self.live = (*self.live[: record.index - 1], record)
            self.possible.append((self.live, state[:2]))

    def synced(self) -> None:
        self.possible = self.possible[-1:]


def check(model: Model, store: LogStore, recovered: Recovered) -> None:
    found = tuple(read_all(store)), recovered.hard_state[:2]
    assert found in model.possible
    assert recovered.hard_state.commit <= min(store.last_index, model.state.commit)
    assert recovered.end.index == store.last_index


Plan = list[tuple[str, list[int] | int | None]]
operations = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(st.integers(0, 700), min_size=0, max_size=4)),
        st.tuples(st.just("supersede"), st.integers(1, 9)),
        st.tuples(st.just("sync"), st.none()),
        st.tuples(st.just("idle"), st.none()),
        st.tuples(st.just("reopen"), st.none()),
        st.tuples(st.just("kill"), st.none()),
    ),
    max_size=25,
)


def run(plan: Plan, files: MemoryFiles, chain: Chain, model: Model) -> None:
    """Carry out a plan, telling the model beforehand of all that may reach the disk."""
    term = 1
    store, _ = open_store(files)
    for operation, argument in plan:
        records: list[Record] = []
        if operation == "append":
            assert isinstance(argument, list)
            records = chain.make([bytes(size) for size in argument], term=term)
        elif operation == "supersede" and chain.last:
            assert isinstance(argument, int)
            term += 1
            records = chain.make([b"in the same write"], term=term - 1)
            records += chain.make([b"newer"], term=term, first=max(chain.last - argument, 1))
        elif operation == "sync":
            store.sync()
            model.synced()
        elif operation == "idle":
            store.mark_idle()
        elif operation in ("reopen", "kill"):
            # What a start finds is durable from then on, whoever synced it.
            files.kill() if operation == "kill" else store.close()
            store, recovered = open_store(files)
            model.synced()
            check(model, store, recovered)
        if records or operation == "append":
            state = HardState(term, len(model.possible), 0)
            model.append(records, state)
            store.append(records, state)


@settings(max_examples=400, deadline=None)
@given(operations, st.integers(1, 60), st.integers(0, 2**32))
@example([("append", [10, 700]), ("sync", None), ("append", [600])], 60, 1)
def test_a_crash_leaves_what_was_synced_and_perhaps_some_frames_more(
    plan: Plan, crash_at: int, seed: int
) -> None:
    files, chain, model = MemoryFiles(Random(seed)), Chain(), Model()
    files.make_folder(FOLDER)
    files.crash_at(crash_at)
    with suppress(PowerLoss):
        run(plan, files, chain, model)
    files.power_loss()
    store, recovered = open_store(files)
    check(model, store, recovered)
    outcome = read_all(store), recovered.hard_state
    for lose in (files.kill, files.power_loss):
        lose()
        store, again = open_store(files)
        assert (read_all(store), again.hard_state) == outcome, "recovery must be idempotent"
    more = Chain(store.last_index, store.link(store.last_index).crc).make([b"x"], term=99)
    store.append(more)
    store.sync()
    files.power_loss()
    assert read_all(open_store(files)[0]) == [*outcome[0], *more]


# A crash inside every call to the disk.


def place_all(index: LogIndex, store: LogStore, upto: int) -> None:
    for record in store.read(store.first_index, upto + 1, 2**30):
        index.place(Placement(3, record.index * 2, 2, record.index), record.timestamp)
        index.add_keys(record.index, (record.index % 5).to_bytes(4, "little"))


def scenario_roll(store: LogStore, chain: Chain, files: MemoryFiles) -> None:
    write(store, chain, 6)


def scenario_seal(store: LogStore, chain: Chain, files: MemoryFiles) -> None:
    index = LogIndex(store.sealed, store.layout, applied=0)
    place_all(index, store, store.last_index)
    while builder := index.sealable(store.last_index):
        index.sealed(store.seal(builder))


def scenario_snapshot(store: LogStore, chain: Chain, files: MemoryFiles) -> None:
    store.save_snapshot(meta_at(store, 5), b"five" * 100)
    store.save_snapshot(meta_at(store, 15), b"fifteen" * 100)


def scenario_retention(store: LogStore, chain: Chain, files: MemoryFiles) -> None:
    scenario_seal(store, chain, files)
    scenario_snapshot(store, chain, files)
    store.drop_before(16)


def check_same_log(store: LogStore, chain: Chain, recovered: Recovered) -> None:
    found = read_all(store)
    assert found == chain.upto(store.last_index)[recovered.start.index :]
    assert store.last_index in (chain.last, chain.last - 1)
    for meta in recovered.snapshots:
        assert meta == meta_at(store, meta.index)
        assert store.open_snapshot(meta.index).state() in (b"five" * 100, b"fifteen" * 100)
    assert recovered.start.index in {0, *(meta.index for meta in recovered.snapshots)}


@pytest.mark.parametrize(
    "scenario", [scenario_roll, scenario_seal, scenario_snapshot, scenario_retention]
)
def test_a_crash_at_every_call_leaves_a_folder_that_opens(
    scenario: Callable[[LogStore, Chain, MemoryFiles], None],
) -> None:
    crashes = 0
    for k in range(1, 200):
        finished = True
        for seed in range(12):
            files, chain = MemoryFiles(Random(seed)), Chain()
            store, _ = open_store(files)
            write(store, chain, 22)
            files.crash_at(k)
            try:
                scenario(store, chain, files)
            except PowerLoss:
                finished = False
            files.power_loss()
            store, recovered = open_store(files)
            check_same_log(store, chain, recovered)
            before = files.copy()
            store.close()
            assert read_all(open_store(before)[0]) == read_all(open_store(files)[0])
        if finished:
            break
        crashes += 1
    assert finished
    assert crashes >= 6


def test_a_crash_inside_the_recovery_from_a_crash_leaves_a_folder_that_opens() -> None:
    crashes = 0
    for k in range(1, 60, 2):
        for inner in range(1, 9):
            for seed in range(3):
                files, chain = MemoryFiles(Random(1000 * k + seed)), Chain()
                store, _ = open_store(files)
                write(store, chain, 22)
                files.crash_at(k)
                with suppress(PowerLoss):
                    scenario_retention(store, chain, files)
                files.power_loss()
                files.crash_at(inner)
                try:
                    open_store(files)
                except PowerLoss:
                    crashes += 1
                files.power_loss()
                store, recovered = open_store(files)
                check_same_log(store, chain, recovered)
    assert crashes > 100


@pytest.mark.parametrize("border", [10, 12, 40])
def test_a_crash_at_every_call_of_installing_leaves_the_old_log_or_the_new(border: int) -> None:
    outcomes = set()
    for k in range(1, 200):
        finished = True
        for seed in range(12):
            files, chain = MemoryFiles(Random(seed)), Chain()
            store, _ = open_store(files)
            for _ in range(22):
                store.append(chain.make([bytes(100)]), HardState(1, 1, min(chain.last - 1, 9)))
            store.sync()
            meta = SnapshotMeta(border, 7, 4711, 9999, b"conf")
            receive(files, meta, b"leader's state")
            files.crash_at(k)
            try:
                store.install_snapshot(border, HardState(7, 2, border))
            except PowerLoss:
                finished = False
            files.power_loss()
            store, recovered = open_store(files)
            is_new = recovered.start.index == border
            outcomes.add(is_new)
            if is_new:
                assert recovered.start == meta.link
                assert recovered.hard_state == HardState(7, 2, border)
                assert read_all(store) == []
                assert store.open_snapshot(border).state() == b"leader's state"
                assert segment_names(files) == [f"{border + 1:020d}.log"]
            else:
                assert not finished
                assert recovered.hard_state.term == 1
                assert read_all(store) == chain.upto(22)
                assert all(meta_at(store, m.index) == m for m in recovered.snapshots)
        if finished:
            break
    assert finished
    assert outcomes == {True, False}


# Torn or rotten.


def flipped_opens(files: MemoryFiles, path: str, bit: int) -> "list[Record] | str":
    """What a log with one bit flipped gives: its records, or which fault."""
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
        ("snapshot", "rot"),
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
    # Someone sends a piece of a log file as a message, and the write that carries it is torn.
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
    with pytest.raises(RotFound, match="the log was removed"):
        open_store(files)


def test_a_damaged_index_file_is_built_again_from_the_segment() -> None:
    files, chain = sealed_log()
    files.flip(f"{FOLDER}/{6:020d}.index", 8 * 400)
    store, _ = open_store(files)
    assert [info.base for info in store.layout] == [6, 21]
    assert f"{6:020d}.index" not in files.list(FOLDER)
    assert read_all(store) == chain.upto(22)[5:]


# A full disk.


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 3000),
    st.lists(st.lists(st.integers(0, 300), max_size=3), min_size=1, max_size=12),
    st.integers(0, 2**32),
)
def test_a_disk_that_is_full_at_any_byte_loses_nothing_synced(
    room: int, plan: list[list[int]], seed: int
) -> None:
    files, chain, model = MemoryFiles(Random(seed)), Chain(), Model()
    store, _ = open_store(files)
    store.sync()
    files.space = files._used() + room
    for sizes in plan:
        records = chain.make([bytes(size) for size in sizes])
        state = HardState(1, chain.last, 0)
        try:
            store.append(records, state)
        except DiskFull:
            assert tuple(read_all(store)) == model.live
            files.space = None
            store.append(records, state)
        model.append(records, state)
        store.sync()
        model.synced()
    assert tuple(read_all(store)) == model.live
    files.power_loss()
    check(model, *open_store(files))


def test_a_failed_sync_of_a_new_segment_is_final_and_the_old_log_opens() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files)
    write(store, chain, 5)
    files.fail_at(3, errno.EIO)  # create, append, datasync
    with pytest.raises(Exception, match=r"writing .* failed"):
        store.append(chain.make([b"x"]))
    files.kill()
    store, _ = open_store(files)
    assert read_all(store) == chain.upto(5)
    assert files.list(FOLDER) == [f"{1:020d}.log"]


def test_small_is_what_the_scenarios_assume() -> None:
    assert SMALL.segment_bytes == 1024
