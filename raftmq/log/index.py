"""Where messages are: lookups by queue offset, by time and by key over a whole log.

Each segment knows its own batches: as a mapped file once sealed (`index_file`), as a builder
before (`builder`). Above them stands the *directory*: for each queue, the sealed segments that
hold batches of it and the first offset in each. A lookup is three bisections: the directory gives
the segment, the segment's sorted queue column gives the queue's rows, the rows give the batch.

    directory   queue 7 -> [first offset 0, segment 1, first offset 512, segment 3]
    segment 3   queues [.., 7, ..]   bases [.., 512, 640, 768, ..]   ordinals [.., 3, 90, 94, ..]

All calls come from the event loop. Sealing is handed out and back: `sealable` gives a complete
builder, the disk thread runs `LogStore.seal` with it, `sealed` takes the result.

Invariants:
- A queue costs a dictionary entry and 16 bytes a segment that it occurs in, whatever its backlog.
- Lookups give the same answers before and after a segment is sealed, or its index built again.

Left out: queues that were dropped keep their directory entries until retention drops the segments.

Sources: RocketMQ's consume queues, with one file a segment instead of one a queue; Kafka's sparse
indexes.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from raftmq.log.builder import Placement, SegmentBuilder
from raftmq.log.events import Part
from raftmq.log.index_file import SegmentIndex
from raftmq.log.record import Record
from raftmq.log.segment import SegmentInfo
from raftmq.log.store import LogStore
from raftmq.log.traces import EventRow, MessageEvent, Rows, find, rows_of

_REBUILD_BYTES = 4 * 1024 * 1024


class Source(NamedTuple):
    """The events of one segment."""

    base: int
    """The segment's first record."""
    last: int
    """The segment's last record; 0: the segment is still written."""
    rows: SegmentIndex | list[Rows]
    """The index or the chunks that hold the rows; they never change."""


class TraceSources(NamedTuple):
    """Where to look for the events of a message."""

    placement: Placement | None
    """The message's batch; None if the batch is not kept."""
    sources: list[Source]
    """By record."""
    reached: int
    """The segments left out come after this record; 0: none was left out."""


class LogIndex:
    """The indexes of one group's log. Touched by the event loop only."""

    def __init__(
        self, sealed: Sequence[SegmentIndex], layout: Sequence[SegmentInfo], *, applied: int
    ) -> None:
        """Start with what `LogStore.sealed` and `LogStore.layout` say.

        `applied` is the last record in the snapshot that the machine was restored from. Every
        record after it is to be placed again; those of sealed segments are ignored. `applied` must
        lie before the first unsealed segment (`replay_from`), or that could not be indexed.
        """
        self._sealed: dict[int, SegmentIndex] = {}
        self._sequences: list[int] = []
        self._last_timestamps: list[int] = []
        self._directory: dict[int, array[int]] = {}
        self._infos: list[SegmentInfo] = []
        self._builders: dict[int, SegmentBuilder] = {}
        self._handed_out: set[int] = set()
        self.drops = 0
        """Number of calls of `drop_before`."""
        assert applied < replay_from(layout), f"{applied} is past {replay_from(layout)}"
        self.arrange(layout)
        for segment in sorted(sealed, key=lambda segment: segment.sequence):
            self._enter(segment)

    # Changes of the log.

    def arrange(self, layout: Sequence[SegmentInfo]) -> None:
        """Learn of segments begun and of bounds moved; to be called before their records are
        placed, whenever `LogStore.layout` is another tuple."""
        assert layout[-1].last is None, "the active segment comes last, and has no last record"
        self._infos = list(layout)
        for info in layout:
            if info.name not in self._builders:
                self._builders[info.name] = SegmentBuilder(info.name)
        self._active = self._builders[layout[-1].name]
        self._active_base = layout[-1].base

    def place(self, placement: Placement, timestamp: int) -> None:
        """Note where the machine placed a record's batch; `timestamp` is the record's, in ms."""
        builder = self._active
        if placement.index < self._active_base:
            earlier = self._builder_at(placement.index)
            if earlier is None:
                return
            builder = earlier
        # Offset 0 begins a new life of the queue: lookups must not find batches of the last one.
        if placement.base_offset == 0:
            self._forget(placement.queue, builder)
        builder.place(placement, timestamp)
        # A later sealed segment began the queue again: this batch belongs to an earlier life.
        if builder is not self._active and self._lives_later(placement.queue, builder):
            builder.forget(placement.queue)

    def add_keys(self, index: int, key_hashes: bytes) -> None:
        """Note the key hashes of a record's messages: little-endian u32 each, 0 for no key."""
        builder: SegmentBuilder | None = self._active
        if index < self._active_base:
            builder = self._builder_at(index)
        if builder is not None:
            builder.add_keys(index, key_hashes)

    def add_events(self, index: int, number: int, events: Sequence[MessageEvent]) -> None:
        """Note what a record did to messages of an attachment; records come in their order."""
        builder: SegmentBuilder | None = self._active
        if index < self._active_base:
            builder = self._builder_at(index)
        if builder is not None:
            builder.add_events(index, number, events)

    def sealable(self, applied: int) -> SegmentBuilder | None:
        """The builder of a closed segment whose records are all applied, for `LogStore.seal` on the
        disk thread; None if there is none. Each is handed out once."""
        for info in self._infos:
            if info.last is None or info.last > applied:
                return None
            if info.name not in self._handed_out and info.name in self._builders:
                self._handed_out.add(info.name)
                return self._builders[info.name]
        return None

    def seal_failed(self, builder: SegmentBuilder) -> None:
        """The disk was full, or could not read the index file back: the builder may be handed out
        again."""
        self._handed_out.discard(builder.name)

    def sealed(self, segment: SegmentIndex) -> None:
        """Replace a builder by the index file made of it."""
        self._builders.pop(segment.name, None)
        self._handed_out.discard(segment.name)
        self._infos = [info for info in self._infos if info.name != segment.name]
        self._enter(segment)

    def replaced(self, segment: SegmentIndex) -> None:
        """An index file was written again, to the same bytes."""
        before = self._sealed.get(segment.sequence)
        if before is not None:
            assert segment.tail == before.tail, f"another index of segment {segment.name}"
            self._sealed[segment.sequence] = segment

    def drop_before(self, index: int) -> None:
        """Retention moved: `index` is the first record kept."""
        self.drops += 1
        for sequence in list(self._sequences):
            segment = self._sealed[sequence]
            if segment.last >= index:
                break
            self._leave(segment)
        gone = self._closed_before(index)
        self._infos = [info for info in self._infos if info.name not in gone]
        for name in gone:
            self._builders.pop(name, None)
            self._handed_out.discard(name)

    def restore(self, layout: Sequence[SegmentInfo]) -> None:
        """A snapshot took the place of the whole log."""
        for state in (self._sealed, self._directory, self._builders, self._handed_out):
            state.clear()
        self._sequences.clear()
        self._last_timestamps.clear()
        self.arrange(layout)

    # Questions of readers.

    def lookup(self, queue: int, offset: int, limit: int) -> list[Placement]:
        """Up to `limit` batches of a queue in order, from the one that holds `offset` on.

        If `offset` lies before the earliest batch kept, from that one on; if at the end, none.
        """
        found: list[Placement] = []
        for source in self._sources(queue, offset):
            if isinstance(source, SegmentIndex):
                found += _lookup(source, queue, offset, limit - len(found))
            else:
                found += source.lookup(queue, offset, limit - len(found))
            if len(found) >= limit:
                break
        assert len(found) <= limit, f"{len(found)} batches, of {limit} at most"
        return found

    def earliest(self, queue: int, *, since: int = 0) -> int | None:
        """The first offset kept of a queue; None if none is.

        With `since`, the first one that `drop_before(since)` would leave.
        """
        entries, sealed = self._directory.get(queue, ()), self._sealed
        # All queues of a group are asked for, perhaps across hundreds of segments.
        places = range(1, len(entries), 2)
        at = bisect_left(places, since, key=lambda at: sealed[entries[at]].last) if since else 0
        kept = list(entries[2 * at : 2 * at + 1])
        closed = self._closed_before(since) if since else ()
        for name, builder in self._builders.items():
            first = builder.earliest(queue)
            if first is not None and name not in closed:
                kept.append(first)
        return min(kept, default=None)

    def begin_later(self, queues: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Those of some queues that do not begin at offset 0, each with the first offset kept: as
        `earliest`, for tens of thousands of queues at once."""
        builders = list(self._builders.values())
        for queue in queues:
            entries = self._directory.get(queue)
            first = entries[0] if entries else None
            for builder in builders:
                found = builder.earliest(queue)
                if found is not None and (first is None or found < first):
                    first = found
            if first:
                yield queue, first

    def end(self, queue: int) -> int | None:
        """The offset after the last message of a queue; None if no batch of it is kept."""
        entries = self._directory.get(queue)
        ends = [builder.end(queue) for builder in self._builders.values()]
        if entries:
            ends.append(_end(self._sealed[entries[-1]], queue))
        return max((end for end in ends if end is not None), default=None)

    def at_time(self, queue: int, timestamp_ms: int) -> int | None:
        """The first offset of the first batch whose record is not older than `timestamp_ms`.

        None if all batches kept are older.
        """
        at = bisect_left(self._last_timestamps, timestamp_ms)
        sequence = self._sequences[at] if at < len(self._sequences) else None
        found = [builder.at_time(queue, timestamp_ms) for builder in self._builders.values()]
        entries = self._directory.get(queue)
        if entries is not None and sequence is not None:
            with memoryview(entries) as flat, flat[1::2] as sequences:
                first = bisect_left(sequences, sequence)
            for base, number in _pairs(entries, first):
                segment = self._sealed[number]
                # A queue's later segments hold no older batches. They are searched only if all of
                # the queue's batches in the first segment are older.
                offset = _at_time(segment, queue, timestamp_ms) if number == sequence else base
                if offset is not None:
                    found.append(offset)
                    break
        return min((offset for offset in found if offset is not None), default=None)

    def key_sources(self, key_hash: int) -> "list[SegmentIndex | list[int]]":
        """Where to look for the records that hold messages of a key hash, newest first: see
        `find_key`."""
        return [
            source if isinstance(source, SegmentIndex) else source.find_key(key_hash)
            for source in self._newest_first()
        ]

    def placement_of(self, queue: int, index: int) -> Placement | None:
        """Where the batch of a record stands in its queue: one bisection or two. None: the batch is
        not kept, or belongs to another queue or to an earlier life of this one."""
        builder = self._active if index >= self._active_base else self._builder_at(index)
        if builder is not None:
            return builder.placement_of(queue, index)
        entries = self._directory.get(queue, array("Q"))
        places = range(1, len(entries), 2)
        at = bisect_right(places, index, key=lambda place: self._sealed[entries[place]].base)
        return _placement_of(self._sealed[entries[2 * at - 1]], queue, index) if at else None

    def trace_sources(self, queue: int, offset: int, *, after: int, limit: int) -> "TraceSources":
        """Where to look for the events of a message, by records after the one at `after`, in up to
        `limit` segments.

        `look` does the looking, on any thread: it may touch the disk.
        """
        found = self.lookup(queue, offset, 1)
        placement = found[0] if found and found[0].base_offset <= offset else None
        first = max(after + 1, 0 if placement is None else placement.index)
        sealed = self._sealed.values()
        sources = [Source(one.base, one.last, one) for one in sealed if one.last >= first]
        for info in self._infos:
            builder = self._builders.get(info.name)
            if builder is not None and (info.last is None or info.last >= first):
                sources.append(Source(info.base, info.last or 0, builder.events.snapshot()))
        sources.sort(key=lambda source: source.base)
        reached = sources[limit - 1].last if len(sources) > limit else 0
        return TraceSources(placement, sources[:limit], reached)

    def parts(self, start: int, *, rows: int, limit: int) -> tuple[list[Part], int]:
        """The segments with the rows of records from `start` on, at least the first `rows` of them.

        Returns:
            Up to `limit` segments by record, and the record after them; 0: there are no more.
        """
        sealed = [one for one in self._sealed.values() if one.last >= start]
        found = [Part(one.base, one.last, one, None, []) for one in sealed]
        for info in self._infos:
            builder = self._builders.get(info.name)
            if builder is not None and (info.last is None or info.last >= start):
                placed, events = builder.placed(start, rows), builder.events.snapshot()
                found.append(Part(info.base, info.last or 0, None, placed, events))
        found.sort(key=lambda part: part.base)
        return found[:limit], found[limit].base if len(found) > limit else 0

    @property
    def first(self) -> int:
        """The first record of any segment known here."""
        sealed = [segment.base for segment in self._sealed.values() if segment.count]
        return min([*sealed, *(info.base for info in self._infos)])

    # Inside.

    def _builder_at(self, index: int) -> SegmentBuilder | None:
        """The builder of the segment that holds `index`; None if the segment is sealed."""
        for info in self._infos:
            if info.base <= index and (info.last is None or index <= info.last):
                return self._builders.get(info.name)
        return None

    def _closed_before(self, index: int) -> list[int]:
        """Names of segments without an index file that end before a record."""
        return [info.name for info in self._infos if info.last is not None and info.last < index]

    def _enter(self, segment: SegmentIndex) -> None:
        sequence = segment.sequence
        at = bisect_left(self._sequences, sequence)
        assert sequence not in self._sealed, f"segment {sequence} enters a second time"
        self._sequences.insert(at, sequence)
        self._sealed[sequence] = segment
        stamp = segment.tail.timestamp if segment.count else 0
        before = self._last_timestamps[at - 1] if at else 0
        self._last_timestamps.insert(at, max(stamp, before))
        self._check_in_step()
        starts, bases = np.asarray(segment.column("starts")), np.asarray(segment.column("bases"))
        firsts = bases[starts[:-1]].tolist()
        self._add_to_directory(
            sequence,
            segment.column("queues").tolist(),
            firsts,
            is_newest=at == len(self._sequences) - 1,
            again=set().union(
                *(
                    self._builders[info.name].born
                    for info in self._infos
                    if info.base > segment.base and info.name in self._builders
                )
            ),
        )

    def _add_to_directory(
        self,
        sequence: int,
        queues: list[int],
        firsts: list[int],
        *,
        is_newest: bool,
        again: set[int],
    ) -> None:
        directory = self._directory
        for queue, base in zip(queues, firsts, strict=True):
            if queue in again:
                continue  # it was dropped after this segment
            entries = directory.get(queue)
            if entries is None or (base == 0 and is_newest):
                directory[queue] = array("Q", (base, sequence))
            elif is_newest:
                entries.append(base)
                entries.append(sequence)
            elif entries[0] or entries[1] < sequence:
                # An index built late, in the middle of others.
                place = 2 * sum(number < sequence for _, number in _pairs(entries, 0))
                entries[place:place] = array("Q", (base, sequence))
                if base == 0:
                    del entries[:place]

    def _leave(self, segment: SegmentIndex) -> None:
        sequence = segment.sequence
        for queue in segment.column("queues").tolist():
            entries = self._directory.get(queue)
            if entries is not None and entries[1] == sequence:
                del entries[:2]
                if not entries:
                    del self._directory[queue]
        at = self._sequences.index(sequence)
        del self._sequences[at], self._last_timestamps[at], self._sealed[sequence]
        self._check_in_step()

    def _check_in_step(self) -> None:
        # `at_time` finds a segment by its place among the timestamps.
        count = len(self._sealed)
        assert len(self._sequences) == len(self._last_timestamps) == count, "lists out of step"

    def _forget(self, queue: int, builder: SegmentBuilder) -> None:
        """Forget an earlier life of a queue that begins in a builder's segment. Later segments may
        be sealed already, if the index of the builder's segment was lost: they stay."""
        entries = self._directory.pop(queue, None)
        if entries is not None:
            kept = array("Q")
            for base, sequence in _pairs(entries, 0):
                if self._sealed[sequence].name > builder.name:
                    kept.extend((base, sequence))
            if kept:
                self._directory[queue] = kept
        for other in self._builders.values():
            if other.name < builder.name:
                other.forget(queue)

    def _lives_later(self, queue: int, builder: SegmentBuilder) -> bool:
        """True if a queue began again in a sealed segment after that of a builder."""
        entries = self._directory.get(queue)
        if entries is None or entries[0]:
            return False
        return self._sealed[entries[1]].name > builder.name

    def _sources(self, queue: int, offset: int) -> Iterator[SegmentIndex | SegmentBuilder]:
        """The segments that may hold batches of a queue at or after `offset`, in order."""
        pending = sorted(
            (first, builder.name)
            for builder in self._builders.values()
            if (first := builder.earliest(queue)) is not None
        )
        entries = self._directory.get(queue)
        if entries is not None:
            with memoryview(entries) as flat, flat[::2] as bases:
                first = max(bisect_right(bases, offset) - 1, 0)
            for base, sequence in _pairs(entries, first):
                while pending and pending[0][0] < base:
                    yield self._builders[pending.pop(0)[1]]
                yield self._sealed[sequence]
        for _, name in pending:
            yield self._builders[name]

    def _newest_first(self) -> Iterator[SegmentIndex | SegmentBuilder]:
        by_base: list[tuple[int, int, SegmentIndex | SegmentBuilder]] = [
            (segment.base, sequence, segment) for sequence, segment in self._sealed.items()
        ]
        by_base += [
            (info.base, 0, self._builders[info.name])
            for info in self._infos
            if info.name in self._builders
        ]
        for _, _, source in sorted(by_base, key=lambda entry: entry[:2], reverse=True):
            yield source


def replay_from(layout: Sequence[SegmentInfo]) -> int:
    """The first record that must be placed again after a start."""
    return min(info.base for info in layout)


class Told(NamedTuple):
    """The machine's answer for one record."""

    placement: Placement | None
    """The place of the record's batch; None: the record placed no batch."""
    key_hashes: bytes
    """The key hashes of its messages: see `LogIndex.add_keys`."""
    events: Sequence[tuple[int, Sequence[MessageEvent]]] = ()
    """Its effects on messages, by attachment."""


def find_key(sources: "Sequence[SegmentIndex | list[int]]", key_hash: int) -> Iterator[int]:
    """The records that hold messages of a key hash, newest first; any thread.

    Different keys may share a hash, and the records must be looked into. Hash 0 is never found.

    Raises:
        IndexDamaged: the keys of a segment fail their CRC-32C.
    """
    for source in sources:
        yield from _find_key(source, key_hash) if isinstance(source, SegmentIndex) else source


def look(sources: TraceSources, queue: int, offset: int, *, after: int) -> Iterator[EventRow]:
    """The events of a message by records after the one at `after`, in order; any thread.

    Raises:
        IndexDamaged: the events of a segment fail their CRC-32C.
    """
    for source in sources.sources:
        if isinstance(source.rows, SegmentIndex):
            rows = [rows_of(source.rows.column("events"), queue)]
        else:
            rows = source.rows
        for each in rows:
            yield from find(each, queue=queue, offset=offset, after=after)


def rebuild(store: LogStore, info: SegmentInfo, told: Callable[[Record], "Told"]) -> SegmentIndex:
    """Build the index file of a closed segment again.

    `told` is called with each record in order, and gives the machine's answer. Runs on the disk
    thread.

    Raises as `LogStore.read` and `LogStore.seal`.
    """
    assert info.last is not None, "the active segment has no index file"
    builder = SegmentBuilder(info.name)
    low = info.base
    while low <= info.last:
        for record in store.read(low, info.last + 1, _REBUILD_BYTES):
            placement, key_hashes, events = told(record)
            if placement is not None:
                builder.place(placement, record.timestamp)
            if key_hashes:
                builder.add_keys(record.index, key_hashes)
            for number, some in events:
                builder.add_events(record.index, number, some)
            low = record.index + 1
    return store.seal(builder)


def _pairs(entries: "array[int]", first: int) -> Iterator[tuple[int, int]]:
    for at in range(2 * first, len(entries), 2):
        yield entries[at], entries[at + 1]


def _rows(segment: SegmentIndex, queue: int) -> tuple[int, int]:
    """A queue's rows in a segment: [start, stop)."""
    queues = segment.column("queues")
    at = bisect_left(queues, queue)
    if at == len(queues) or queues[at] != queue:
        return 0, 0
    starts = segment.column("starts")
    return starts[at], starts[at + 1]


def _lookup(segment: SegmentIndex, queue: int, offset: int, limit: int) -> list[Placement]:
    start, stop = _rows(segment, queue)
    if start == stop:
        return []
    bases, counts = segment.column("bases"), segment.column("counts")
    first = max(bisect_right(bases, offset, start, stop) - 1, start)
    if bases[first] + counts[first] <= offset:
        first += 1
    stop = min(stop, first + limit)
    ordinals = segment.column("ordinals")[first:stop].tolist()
    columns = zip(bases[first:stop].tolist(), counts[first:stop].tolist(), ordinals, strict=True)
    return [Placement(queue, base, count, segment.base + o) for base, count, o in columns]


def _placement_of(segment: SegmentIndex, queue: int, index: int) -> Placement | None:
    start, stop = _rows(segment, queue)
    ordinals = segment.column("ordinals")
    row = bisect_left(ordinals, index - segment.base, start, stop)
    if row == stop or ordinals[row] != index - segment.base:
        return None
    return Placement(queue, segment.column("bases")[row], segment.column("counts")[row], index)


def _end(segment: SegmentIndex, queue: int) -> int | None:
    start, stop = _rows(segment, queue)
    if start == stop:
        return None
    end: int = segment.column("bases")[stop - 1] + segment.column("counts")[stop - 1]
    return end


def _at_time(segment: SegmentIndex, queue: int, timestamp_ms: int) -> int | None:
    start, stop = _rows(segment, queue)
    ordinal = bisect_left(segment.column("timestamps"), timestamp_ms)
    row = bisect_left(segment.column("ordinals"), ordinal, start, stop)
    return None if row == stop else int(segment.column("bases")[row])


def _find_key(segment: SegmentIndex, key_hash: int) -> list[int]:
    if key_hash == 0:
        return []
    keys = segment.column("keys")
    start = bisect_left(keys, key_hash)
    stop = bisect_right(keys, key_hash, start)
    ordinals = segment.column("key_ordinals")[start:stop].tolist()
    return [segment.base + ordinal for ordinal in reversed(ordinals)]
