"""All rows of a range, in pages, equal the events given record by record."""

from bisect import bisect_right
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftmq.log.events import Page, page_of
from raftmq.log.faults import Dropped
from raftmq.log.index import LogIndex
from raftmq.log.index_file import IndexDamaged
from raftmq.log.traces import BEFORE, FROM, MAX32

from .building import FOLDER, open_store
from .test_index import Group


class Event(NamedTuple):
    """A row in plain words."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    kind: int
    queue: int
    base: int
    bits: int
    number: int
    rest: tuple[int, ...]


def told(group: Group) -> list[Event]:
    """The expected events, computed from everything that the index was given."""
    ends = [segment.base for segment in group.store.segments()]

    def segment_of(index: int) -> int:
        return bisect_right(ends, index)

    born = {
        (segment_of(placement.index), placement.queue): placement.index
        for placement, _ in group.naive.rows
        if placement.base_offset == 0
    }
    events = [
        Event(at, 0, queue, base, (1 << count) - 1, 0, (0, 0, 0, 0))
        for (queue, base, count, at), _ in group.naive.rows
        if at >= born.get((segment_of(at), queue), 0)
    ]
    for index, number, event in group.naive.events:
        kind, queue, base, bits, *rest = event
        events.append(Event(index, kind, queue, base, bits, number, tuple(rest)))
    return sorted(events, key=lambda event: (event.index, event.kind != 0, event.queue))


def events_in(page: Page) -> list[Event]:
    found = []
    for row in page.rows.tolist():
        index, token, consumer, detail, queue, base, width, number, at, attempt, kind, _ = row
        if width in (0, MAX32):
            bits = BEFORE if width == 0 else FROM
        elif at != MAX32:
            bits = int.from_bytes(page.bits[at : at + (width + 7) // 8], "little")
        else:
            bits = (1 << width) - 1
        rest = (attempt, consumer, token, detail)
        found.append(Event(index, kind, queue, base, bits, number, rest))
    return found


def pages(group: Group, start: int, stop: int, *, rows: int, bits: int, limit: int) -> list[Page]:
    """All pages of a range, each with the stamps of its records checked."""
    found, skip = [], 0
    while start < stop:
        parts, reached = group.index.parts(start, rows=skip + rows + 1, limit=limit)
        end = min(stop, reached) if reached else stop
        page = page_of(parts, start, end, skip=skip, rows_max=rows, bits_max=bits)
        indexes = page.rows["index"]
        stamps = group.store.stamps(indexes)
        assert stamps.terms.tolist() == [1] * len(indexes)
        assert stamps.times.tolist() == [
            group.chain.records[index].timestamp for index in indexes.tolist()
        ]
        assert len(page.rows) <= rows
        assert (page.next, page.skip) > (start, skip)
        start, skip = page.next, page.skip
        found.append(page)
    assert (start, skip) == (max(stop, start), 0)
    return found


@settings(max_examples=50)
@given(
    st.lists(st.sampled_from(["add", "keep", "reopen", "drop"]), max_size=6), st.integers(0, 999)
)
def test_pages_equal_what_was_told(plan: list[str], seed: int) -> None:
    group = Group(seed)
    draw = group.event_draw
    for step in ["add", *plan, "add"]:
        if step == "reopen":
            group.reopen()
        elif step == "drop":
            group.drop()
        else:
            for _ in range(draw.randint(1, 25)):
                group.add(keep_closed=step == "keep")
    first, end = group.index.first, group.store.last_index + 1
    start = draw.randint(first, end)
    stop = draw.randint(start, end)
    sizes = {
        "rows": draw.choice([3, 20, 1000]),
        "bits": draw.choice([8, 100, 10_000]),
        "limit": draw.choice([1, 2, 100]),
    }
    expected = [event for event in told(group) if start <= event.index < stop]
    found = [e for page in pages(group, start, stop, **sizes) for e in events_in(page)]
    assert found == expected


def test_pages_are_the_same_before_and_after_segments_are_sealed() -> None:
    group = Group(seed=5)
    for _ in range(60):
        group.add(keep_closed=True)
    end = group.store.last_index + 1
    before = pages(group, 1, end, rows=9, bits=64, limit=3)
    assert not group.index._directory
    group.seal(end - 1)
    assert group.index._directory
    after = pages(group, 1, end, rows=9, bits=64, limit=3)
    assert len(after) > 5
    assert [[e for page in some for e in events_in(page)] for some in (before, after)] == [
        told(group)
    ] * 2


def test_stamps_of_records_that_are_gone_are_refused() -> None:
    group = Group(seed=1)
    while len(group.store.segments()) < 4:
        group.add()
    group.drop()
    assert group.index.first == group.store.first_index > 1
    with pytest.raises(Dropped):
        group.store.stamps(np.array([group.index.first - 1], np.uint64))


def test_rows_of_a_damaged_segment_are_refused() -> None:
    group = Group(seed=2)
    for _ in range(40):
        group.add()
    group.store.sync()
    group.store.close()
    name = next(name for name in group.files.list(FOLDER) if name.endswith(".index"))
    path = f"{FOLDER}/{name}"
    data = bytearray(group.files.bytes_of(path))
    data[-40] ^= 1
    group.files.unlink(path)
    group.files.create(path).append([bytes(data)])
    group.store, _ = open_store(group.files)
    group.index = LogIndex(group.store.sealed, group.store.layout, applied=0)
    with pytest.raises(IndexDamaged):
        pages(group, 1, group.store.last_index + 1, rows=100, bits=1000, limit=100)
