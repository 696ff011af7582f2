"""Indexes equal a scan, sealed or not, rebuilt or not, over any number of segments."""

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftmq.chaos.world.disk import MemoryFiles
from raftmq.log.builder import Placement, SegmentBuilder
from raftmq.log.faults import Dropped
from raftmq.log.index import LogIndex, Told, find_key, look, rebuild, replay_from
from raftmq.log.index_file import IndexDamaged, SegmentIndex
from raftmq.log.record import Record
from raftmq.log.segment import HardState, SegmentInfo
from raftmq.log.store import LogStore
from raftmq.log.traces import BEFORE, FROM, EventRow, MessageEvent

from .building import FOLDER, Chain, meta_at, open_store, write


class Naive:
    """A model of the indexes, kept as plain lists."""

    def __init__(self) -> None:
        self.rows: list[tuple[Placement, int]] = []
        self.keys: dict[int, list[int]] = {}
        self.events: list[tuple[int, int, MessageEvent]] = []

    def traced(self, queue: int, offset: int, after: int) -> list[EventRow]:
        found = []
        for index, number, event in self.events:
            shift = offset - event.base
            is_meant = shift >= 0 and bool(event.bits >> shift & 1)
            if event.bits == BEFORE:
                is_meant = shift < 0
            elif event.bits == FROM:
                is_meant = shift >= 0
            if event.queue == queue and is_meant and index > after:
                rest = (event.kind, event.attempt, event.consumer, event.token, event.detail)
                found.append(EventRow(index, number, *rest))
        return found

    def of(self, queue: int) -> list[tuple[Placement, int]]:
        rows = [row for row in self.rows if row[0].queue == queue]
        starts = [i for i, (placement, _) in enumerate(rows) if placement.base_offset == 0]
        return rows[starts[-1] :] if starts else rows

    def lookup(self, queue: int, offset: int, limit: int) -> list[Placement]:
        placements = [placement for placement, _ in self.of(queue)]
        return [p for p in placements if p.base_offset + p.count > offset][:limit]

    def placement_of(self, queue: int, index: int) -> Placement | None:
        return next((each for each, _ in self.of(queue) if each.index == index), None)

    def at_time(self, queue: int, timestamp: int) -> int | None:
        later = [p.base_offset for p, stamp in self.of(queue) if stamp >= timestamp]
        return later[0] if later else None

    def find_key(self, key: int) -> list[int]:
        return self.keys.get(key, [])[::-1]

    def drop_before(self, index: int) -> None:
        self.rows = [row for row in self.rows if row[0].index >= index]
        self.keys = {k: [i for i in found if i >= index] for k, found in self.keys.items()}
        self.events = [each for each in self.events if each[0] >= index]


class Group:
    """A store, its index and the naive model, driven together."""

    def __init__(self, seed: int, queues: int = 4) -> None:
        self.random, self.event_draw = Random(seed), Random(seed)
        self.files, self.chain, self.naive = MemoryFiles(), Chain(), Naive()
        self.store, _ = open_store(self.files)
        self.index = LogIndex(self.store.sealed, self.store.layout, applied=0)
        self.ends = dict.fromkeys(range(queues), 0)
        self.facts: dict[int, Told] = {}

    def add(self, *, keep_closed: bool = False) -> None:
        (record,) = self.chain.make([bytes(self.random.randint(0, 150))])
        self.store.append([record], HardState(1, 1, record.index - 1))
        placement, keys = None, b""
        if self.random.random() < 0.9:
            queue = self.random.choice(list(self.ends))
            if self.random.random() < 0.02:
                self.ends[queue] = 0  # the queue was dropped, and is used again
            count = self.random.randint(1, 5)
            placement = Placement(queue, self.ends[queue], count, record.index)
            self.ends[queue] += count
            hashes = [self.random.randint(0, 6) for _ in range(count)]
            keys = np.array(hashes, dtype="<u4").tobytes() if self.random.random() < 0.7 else b""
        self.facts[record.index] = Told(placement, keys, self.events())
        self.index.arrange(self.store.layout)
        self.apply(record)
        if not keep_closed:
            self.seal(record.index)

    def events(self) -> list[tuple[int, list[MessageEvent]]]:
        draw = self.event_draw
        told = []
        for number in draw.sample([1, 2, 9], draw.randint(0, 2)):
            bits = [draw.getrandbits(draw.randint(1, 80)) << 1 | 1, 31, BEFORE, FROM]
            some = [
                MessageEvent(
                    draw.randint(1, 12),
                    draw.choice(list(self.ends)),
                    draw.randint(0, 30),
                    draw.choice(bits),
                    draw.randint(0, 3),
                    draw.getrandbits(63),
                    draw.getrandbits(64),
                    draw.randint(-5, 2**40),
                )
                for _ in range(draw.randint(1, 5))
            ]
            told.append((number, some))
        return told

    def apply(self, record: Record) -> None:
        self.place(record)
        self.tell(record)

    def place(self, record: Record) -> None:
        placement, keys, events = self.facts[record.index]
        if placement is not None:
            self.index.place(placement, record.timestamp)
        if keys:
            self.index.add_keys(record.index, keys)
        for number, some in events:
            self.index.add_events(record.index, number, some)

    def tell(self, record: Record) -> None:
        placement, keys, events = self.facts[record.index]
        for number, some in events:
            self.naive.events += [(record.index, number, event) for event in some]
        if placement is not None:
            self.naive.rows.append((placement, record.timestamp))
        for key in {*np.frombuffer(keys, dtype="<u4").tolist()} - {0}:
            self.naive.keys.setdefault(key, []).append(record.index)

    def seal(self, applied: int) -> None:
        while builder := self.index.sealable(applied):
            self.index.sealed(self.store.seal(builder))

    def reopen(self, *, loses: bool = False) -> None:
        self.store.sync()
        self.store.close()
        names = sorted(index_files(self.files))
        if loses and names:
            self.files.unlink(f"{FOLDER}/{self.random.choice(names)}")
        self.store, _ = open_store(self.files)
        start = replay_from(self.store.layout)
        self.index = LogIndex(self.store.sealed, self.store.layout, applied=start - 1)
        for record in self.store.read(start, self.store.last_index + 1, 2**40):
            self.place(record)

    def drop(self) -> None:
        bases = [size.base for size in self.store.segments()[1:]]
        if bases:
            base = self.random.choice(bases)
            self.store.save_snapshot(meta_at(self.store, base - 1), b"")
            self.store.drop_before(base)
            self.index.drop_before(base)
            self.naive.drop_before(base)

    def check(self) -> None:
        index, naive = self.index, self.naive
        known = {queue: index.earliest(queue) for queue in [*self.ends, 99]}
        later = {queue: first for queue, first in known.items() if first}
        assert dict(index.begin_later(known)) == later
        for queue in known:
            rows = naive.of(queue)
            assert index.earliest(queue) == (rows[0][0].base_offset if rows else None)
            for base in [size.base for size in self.store.segments()]:
                left = [place.base_offset for place, _ in rows if place.index >= base]
                assert index.earliest(queue, since=base) == min(left, default=None)
            last = rows[-1][0] if rows else None
            assert index.end(queue) == (last.base_offset + last.count if last else None)
            for offset in range(0, self.ends.get(queue, 0) + 2, 3):
                limit = self.random.choice([1, 3, 1000])
                assert index.lookup(queue, offset, limit) == naive.lookup(queue, offset, limit)
                self.check_events(queue, offset)
            for at in range(self.chain.last + 2):
                assert index.placement_of(queue, at) == naive.placement_of(queue, at)
            for stamp in range(990, 1030 + 10 * self.chain.last, 35):
                assert index.at_time(queue, stamp) == naive.at_time(queue, stamp)
        for key in range(8):
            assert list(find_key(index.key_sources(key), key)) == naive.find_key(key)

    def check_events(self, queue: int, offset: int) -> None:
        """All since the message's batch, in pages of few segments."""
        found: list[Any] = []
        after, limit = 0, self.event_draw.choice([1, 2, 1000])
        while True:
            sources = self.index.trace_sources(queue, offset, after=after, limit=limit)
            found += look(sources, queue, offset, after=after)
            if not sources.reached:
                break
            after = sources.reached
        born = sources.placement.index if sources.placement is not None else 0
        assert [row for row in found if row.index >= born] == self.naive.traced(
            queue, offset, after=max(born - 1, 0)
        )
        for index in {row.index for row in found}:
            assert self.store.stamp(index) == (1, self.chain.records[index].timestamp)


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from(["add", "keep", "reopen", "lose", "drop"]), max_size=8),
    st.integers(0, 999),
)
def test_lookups_equal_a_naive_scan(plan: list[str], seed: int) -> None:
    group = Group(seed)
    for step in ["add", *plan, "add"]:
        if step in ("reopen", "lose"):
            group.reopen(loses=step == "lose")
        elif step == "drop":
            group.drop()
        else:
            for _ in range(group.random.randint(1, 25)):
                group.add(keep_closed=step == "keep")
        group.check()


def test_what_retention_leaves_of_a_queue_is_found_by_bisection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, _ = open_store(MemoryFiles())
    index, chain = LogIndex(store.sealed, store.layout, applied=0), Chain()
    for _ in range(300):
        (record,) = chain.make([bytes(100)])
        store.append([record], HardState(1, 1, record.index - 1))
        index.arrange(store.layout)
        index.place(Placement(1, record.index - 1, 1, record.index), record.timestamp)
    while builder := index.sealable(300):
        index.sealed(store.seal(builder))
    assert len(store.sealed) > 50
    looked: list[SegmentIndex] = []

    def last(self: SegmentIndex) -> int:
        looked.append(self)
        return self.base + self.count - 1

    monkeypatch.setattr(SegmentIndex, "last", property(last))
    since = store.sealed[-2].base
    assert index.earliest(1, since=since) == since - 1
    assert len(looked) <= 10


def index_files(files: MemoryFiles) -> dict[str, bytes]:
    names = [name for name in files.list(FOLDER) if name.endswith(".index")]
    return {name: files.bytes_of(f"{FOLDER}/{name}") for name in names}


@pytest.mark.parametrize("lost", ["all", "middle"])
def test_a_lost_index_file_is_built_again_to_the_same_bytes(lost: str) -> None:
    group = Group(seed=3)
    for _ in range(60):
        group.add()
    before = index_files(group.files)
    assert len(before) > 4
    group.store.sync()
    group.store.close()
    for name in list(before) if lost == "all" else list(before)[2:3]:
        group.files.unlink(f"{FOLDER}/{name}")
    group.store, _ = open_store(group.files)
    for info in group.store.layout[:-1]:
        rebuild(group.store, info, lambda record: group.facts[record.index])
    assert index_files(group.files) == before


@pytest.mark.parametrize("lost", range(4))
@pytest.mark.parametrize("seed", [3, 8])
def test_lookups_are_right_while_a_segment_waits_for_its_index(seed: int, lost: int) -> None:
    group = Group(seed)
    for _ in range(60):
        group.add()
    name = sorted(index_files(group.files))[lost]
    group.store.sync()
    group.store.close()
    group.files.unlink(f"{FOLDER}/{name}")
    group.store, _ = open_store(group.files)
    start = replay_from(group.store.layout)
    assert start < group.store.layout[-1].base
    group.index = LogIndex(group.store.sealed, group.store.layout, applied=start - 1)
    for record in group.store.read(start, group.store.last_index + 1, 2**40):
        group.place(record)
    group.check()
    group.seal(group.store.last_index)
    group.check()


def test_a_builder_is_handed_out_once_its_records_are_applied_and_only_once() -> None:
    layout = (SegmentInfo(1, 1, 5), SegmentInfo(6, 6, 9), SegmentInfo(10, 10, None))
    index = LogIndex((), layout, applied=0)
    assert index.sealable(4) is None
    first = index.sealable(7)
    assert first is not None
    assert first.name == 1
    assert index.sealable(7) is None
    index.seal_failed(first)
    assert index.sealable(7) is first
    second = index.sealable(9)
    assert second is not None
    assert second.name == 6
    assert index.sealable(10**9) is None


def test_an_index_cannot_start_past_its_first_unsealed_segment() -> None:
    with pytest.raises(AssertionError, match="is past"):
        LogIndex((), (SegmentInfo(1, 1, 5), SegmentInfo(6, 6, None)), applied=3)


def test_a_gap_in_a_queue_is_a_bug() -> None:
    builder = SegmentBuilder(1)
    builder.place(Placement(7, 0, 3, 1), 0)
    with pytest.raises(AssertionError, match="leaves a gap"):
        builder.place(Placement(7, 4, 1, 2), 0)


def test_superseded_segments_are_indexed_by_their_new_bounds() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files)
    for _ in range(12):
        store.append(chain.make([bytes(100)]), HardState(1, 1, min(chain.last, 2)))
    index = LogIndex(store.sealed, store.layout, applied=0)
    store.append(chain.make([bytes(100)] * 20, term=2, first=4), HardState(2, 1, 3))
    store.append(chain.make([bytes(100)], term=2), HardState(2, 1, 3))
    index.arrange(store.layout)
    for i in range(1, 25):
        index.place(Placement(1, i - 1, 1, i), chain.records[i].timestamp)
    while builder := index.sealable(24):
        index.sealed(store.seal(builder))
    assert [p.index for p in index.lookup(1, 0, 100)] == list(range(1, 25))
    assert [(s.base, s.last) for s in store.sealed] == [(1, 3), (4, 3), (4, 23)]
    store.sync()
    store.close()
    store, _ = open_store(files)
    assert store.read(1, 25, 2**30) == chain.upto(24)


def sealed_segment(store: LogStore, chain: Chain) -> SegmentIndex:
    for _ in range(7):
        store.append(chain.make([bytes(100)]), HardState(1, 1, 0))
    builder = SegmentBuilder(1)
    for i in range(1, 6):
        builder.place(Placement(2**63 + i % 2, (i - 1) // 2, 1, i), 0)
        builder.add_keys(i, (2**32 - i).to_bytes(4, "little"))
    return store.seal(builder)


def test_the_columns_of_an_index_file_are_what_the_table_says() -> None:
    files = MemoryFiles()
    store, _ = open_store(files)
    # Queue numbers above 2**63 must not pass through a float.
    builder = SegmentBuilder(1)
    chain = Chain()
    for _ in range(7):
        store.append(chain.make([bytes(100)]), HardState(3, 1, 0))
    builder.place(Placement(2**63 + 1, 0, 10, 1), 5)
    builder.place(Placement(2**63, 0, 20, 2), 5)
    builder.place(Placement(2**63 + 1, 10, 30, 4), 5)
    builder.add_keys(1, b"\xff\xff\xff\xff" + b"\x00\x00\x00\x00" + b"\x01\x00\x00\x00")
    builder.add_keys(4, b"\x01\x00\x00\x00" * 3)
    index = store.seal(builder)
    assert index.column("queues").tolist() == [2**63, 2**63 + 1]
    assert index.column("starts").tolist() == [0, 1, 3]
    assert index.column("bases").tolist() == [0, 0, 10]
    assert index.column("counts").tolist() == [20, 10, 30]
    assert index.column("ordinals").tolist() == [1, 0, 3]
    assert index.column("keys").tolist() == [1, 1, 2**32 - 1]
    assert index.column("key_ordinals").tolist() == [0, 3, 0]
    assert index.column("timestamps").tolist() == [1010, 1020, 1030, 1040, 1050]
    data = files.bytes_of(f"{FOLDER}/{1:020d}.log")
    for at, position in enumerate(index.column("positions").tolist()):
        assert data[position : position + 140] == chain.records[at + 1].encoded
    assert index.terms() == [(1, 1)]
    assert (index.base, index.last, index.tail.crc) == (1, 5, chain.records[5].crc)


def opened(data: bytes) -> SegmentIndex:
    """An index file of these bytes."""
    return SegmentIndex(memoryview(data), lambda size, offset: data[offset : offset + size])


def test_every_flipped_bit_of_an_index_file_is_noticed() -> None:
    files = MemoryFiles()
    store, _ = open_store(files)
    sealed_segment(store, Chain())
    data = files.bytes_of(f"{FOLDER}/{1:020d}.index")
    unnoticed = []
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            opened(bytes(damaged)).verify(keys=True)
            unnoticed.append(bit // 8)
        except IndexDamaged:
            pass
    assert {data[byte] for byte in unnoticed} <= {0}, "only padding between sections is not covered"
    assert len(unnoticed) <= 8 * 4 * 6


def test_a_cut_index_file_is_noticed() -> None:
    files = MemoryFiles()
    store, _ = open_store(files)
    sealed_segment(store, Chain())
    data = files.bytes_of(f"{FOLDER}/{1:020d}.index")
    for size in range(len(data) - 8):
        with pytest.raises(IndexDamaged):
            opened(data[:size]).verify(keys=True)


def test_segment_that_retention_dropped_is_not_sealed() -> None:
    """A request for the index, or for a snapshot there, raises `Dropped`: no reason to stop."""
    store, _ = open_store(MemoryFiles())
    write(store, Chain(), 23)
    early = meta_at(store, 5)
    store.save_snapshot(meta_at(store, 15), b"")
    store.drop_before(23)
    with pytest.raises(Dropped):
        store.seal(SegmentBuilder(1))
    with pytest.raises(Dropped):
        store.save_snapshot(early, b"")
    assert [meta.index for meta in store.snapshots] == [15]
