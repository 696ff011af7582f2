"""Crashes, torn ends, rot and full disks: the content of a log that is opened again."""

import errno
from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from raftmq.chaos.world.disk import MemoryFiles, PowerLoss
from raftmq.log.builder import Placement
from raftmq.log.faults import DiskFull, WriteFailed
from raftmq.log.index import LogIndex
from raftmq.log.record import Kind, Record
from raftmq.log.segment import HardState
from raftmq.log.snapshot import SnapshotMeta
from raftmq.log.store import LogStore, Recovered

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

# The law of crashes.


class Model:
    """Logs that a crash may leave: the log at the last sync, or the same with some more frames."""

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
    """Carry out a plan; the model hears beforehand of all writes that may reach the disk."""
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
            # Records that a start finds are durable from then on, whether or not they were synced.
            files.kill() if operation == "kill" else store.close()
            store, recovered = open_store(files)
            model.synced()
            check(model, store, recovered)
        if records or operation == "append":
            state = HardState(term, len(model.possible), 0)
            model.append(records, state)
            store.append(records, state)


@settings(max_examples=400)
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


# Records that prove others to be committed.


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("loses_power", [False, True])
def test_membership_record_proves_that_the_one_before_it_is_committed(
    seed: int, loses_power: bool
) -> None:
    files, chain = MemoryFiles(Random(seed)), Chain()
    store, _ = open_store(files)
    write(store, chain, 3)
    store.sync()
    # A slow disk: the beginning of a joint change and its end come in one write, whose mark
    # stands before both. A torn write may keep both and lose whatever was written after them.
    begin = chain.make([b"joint"], kind=Kind.MEMBERSHIP)
    between = chain.make([b"message"])
    end = chain.make([b""], kind=Kind.MEMBERSHIP)
    store.append([*begin, *between, *end], HardState(1, 1, begin[0].index))
    if loses_power:
        files.power_loss()
    else:
        files.kill()
    store, recovered = open_store(files)
    holds_end = store.last_index >= end[0].index
    assert holds_end or loses_power
    commit = recovered.hard_state.commit
    assert commit == begin[0].index if holds_end else commit < begin[0].index
    store.append(chain.make([b"x"], first=store.last_index + 1), HardState(1, 1, commit))
    store.sync()
    files.kill()
    assert open_store(files)[1].hard_state.commit == commit, "a second start knows it too"


def test_superseded_membership_record_proves_nothing() -> None:
    files, chain = MemoryFiles(Random(1)), Chain()
    store, _ = open_store(files)
    write(store, chain, 3)
    store.append(chain.make([b"never committed"], kind=Kind.MEMBERSHIP), HardState(1, 1, 2))
    newer = chain.make([b"joint"], kind=Kind.MEMBERSHIP, term=2, first=4)
    store.append(newer, HardState(2, 0, 2))
    store.sync()
    files.kill()
    assert open_store(files)[1].hard_state.commit == 2


def test_sealed_records_are_known_to_be_committed() -> None:
    files, chain = MemoryFiles(Random(1)), Chain()
    store, _ = open_store(files)
    for _ in range(9):
        store.append(chain.make([bytes(400)]), HardState(1, 1, 0))
    store.sync()
    scenario_seal(store, chain, files)
    sealed = store.sealed[-1].last
    files.kill()
    assert open_store(files)[1].hard_state.commit == sealed > 0


def test_membership_record_is_not_written_before_the_last_one_is_committed() -> None:
    files, chain = MemoryFiles(Random(1)), Chain()
    store, _ = open_store(files)
    write(store, chain, 3)
    store.append(chain.make([b"joint"], kind=Kind.MEMBERSHIP), HardState(1, 1, 3))
    with pytest.raises(AssertionError, match="membership record 5 follows 4"):
        store.append(chain.make([b""], kind=Kind.MEMBERSHIP), HardState(1, 1, 3))


@pytest.mark.parametrize("first", range(1, 18))
@pytest.mark.parametrize("more", [2, 20])
def test_kill_between_the_seals_of_superseded_segments_leaves_the_whole_log(
    first: int, more: int
) -> None:
    """An index lacks what was superseded of its segment; the next segment, all of it superseded and
    without an index yet, seemed not to follow."""
    sealed, finished = 0, False
    while not finished:
        files, chain = MemoryFiles(Random(1)), Chain()
        store, _ = open_store(files)
        for _ in range(18):
            store.append(chain.make([bytes(90)]), HardState(1, 1, 0))
        store.append(chain.make([bytes(40)] * more, term=2, first=first), HardState(2, 1, 0))
        # Rolls the segment.
        store.append(chain.make([bytes(1100)], term=2), HardState(2, 1, 0))
        store.append(chain.make([b"last"], term=2), HardState(2, 1, 0))
        store.sync()
        index = LogIndex(store.sealed, store.layout, applied=0)
        index.arrange(store.layout)
        place_all(index, store, store.last_index)
        for _ in range(sealed):
            builder = index.sealable(store.last_index)
            if builder is None:
                finished = True
                break
            index.sealed(store.seal(builder))
        sealed += 1
        files.kill()
        store, recovered = open_store(files)
        assert read_all(store) == chain.upto(chain.last)
        assert not recovered.abstains
        # Going on writes the same indexes.
        write(store, chain, 3)
        assert read_all(store) == chain.upto(chain.last)
    assert sealed > 3


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
        assert meta._replace(state_crc=0) == meta_at(store, meta.index)
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


# A full disk.


@settings(max_examples=150)
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
    files.space = files.used() + room
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


def test_segment_whose_name_was_not_durable_keeps_what_is_synced_in_it_after_a_crash() -> None:
    for seed in range(8):
        files, chain = MemoryFiles(), Chain()
        store, _ = open_store(files)
        write(store, chain, 6)
        # The process ends between the renaming and the sync of the folder.
        files.fail_next("sync_folder", errno.EIO)
        with pytest.raises(WriteFailed):
            store.roll()
        store.close()
        store, _ = open_store(files)
        write(store, chain, 2)
        files.power_loss(Random(seed))
        store, recovered = open_store(files)
        assert recovered.last_index == 8
