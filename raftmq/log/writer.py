"""Writing a group's log: appends, marks, syncs, and the beginning of segments.

The lower half of `raftmq.log.store.LogStore`: all calls that touch the active segment. Each write
is `mark | record | record | ...` in one call; the state in memory changes after it succeeded.

Invariants:
- `_view.end` is the active segment's size: a failed write is cut off at once, or is final.
- A failure that leaves the disk's state unknown is kept and raised again by every later call.
- An append that supersedes never rolls: its records stay in the file of the active segment, so a
  new segment's first record always follows the last one of the log.

Sources: etcd's WAL encoder; "Can Applications Recover from fsync Failures?" (ATC '20).
"""

import errno
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from raftmq.log.faults import DiskFull, Dropped, FsyncFailed, LogFault, NoDescriptor, WriteFailed
from raftmq.log.files import File, FileSystem, prepare, publish
from raftmq.log.index_file import SegmentIndex
from raftmq.log.reading import View, read_range
from raftmq.log.record import Kind, Record
from raftmq.log.recovery import Segment
from raftmq.log.segment import (
    HEADER_BYTES,
    MARK_BYTES,
    SEGMENT_SUFFIX,
    SNAPSHOT_SUFFIX,
    HardState,
    Identity,
    Link,
    SegmentInfo,
    encode_header,
    encode_mark,
    file_name,
)
from raftmq.log.unsealed import POSITION_MAX, Unsealed

_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The layout of a log's files."""

    segment_bytes: int = 64 * 1024 * 1024
    """A segment that has reached this size is closed by the next append; appends are not split,
    so a segment may end up larger by one of them. From 1 KiB to 1 GiB."""

    def validate(self) -> "LogSettings":
        """This object. Raises `ValueError` if a value is out of range."""
        if not 1024 <= self.segment_bytes <= 2**30:
            raise ValueError(f"segment_bytes ({self.segment_bytes}) must be from 1 KiB to 1 GiB")
        return self


class LogWriter:
    """The writing half of a `LogStore`."""

    def __init__(
        self, files: FileSystem, folder: str, settings: LogSettings, identity: Identity
    ) -> None:
        self._files = files
        self._folder = folder
        self._settings = settings
        self._identity = identity
        self._failure: LogFault | None = None
        self._hard_state = HardState()
        self._start = Link()
        self._view = View((), (), 1, 0, 0)
        self._synced = 0
        """Bytes of the active segment that are durable."""
        self._marked_commit = 0
        self.proven_commit = 0
        """The commit index that durable marks prove: a log knows at least this one after a crash
        now. The commit index of `hard_state` may be higher."""
        self._is_dirty = False
        self._is_marked = False
        self.layout: tuple[SegmentInfo, ...] = ()
        """The segments without an index file, oldest first, the active one last. A new tuple
        whenever one begins, is sealed, or changes its bounds: for `LogIndex.arrange`."""
        self.sealed: tuple[SegmentIndex, ...] = ()
        """The sealed segments, oldest first."""

    def append(
        self, records: Sequence[Record], hard_state: tuple[int, int, int] | None = None
    ) -> None:
        """Write records and, if given, a new hard state (term, vote, commit), in one write.

        Each record follows the one before it, in this call or in the log, or supersedes all records
        at or above its index. So the records of several Raft messages can be written together.
        Durable after `sync`. Records must chain; the bytes are written as they are.

        Raises:
            DiskFull: nothing was appended; a later append may succeed.
            WriteFailed: final.
        """
        self._refuse_if_failed()
        state = self._hard_state if hard_state is None else HardState(*hard_state)
        runs = _runs(records)
        lowest = min([self._view.last + 1, *[run[0].index for run in runs]])
        if runs:
            self._check_follows(runs)
            if any(record.kind == Kind.MEMBERSHIP for record in records):
                self._check_changes(runs, state.commit)
            if self._active.end >= self._settings.segment_bytes:
                self._roll(lowest)
        active = self._active
        position = active.end + MARK_BYTES
        marked = _vouched(state, lowest)
        parts = [self._mark(active, marked), *[r.encoded for r in records]]
        end = active.end + self._write(active, parts)
        self._marked_commit = marked.commit
        self._hard_state = state
        active.end, last = position, self._view.last
        for run in runs:
            position, first = active.end, run[0].index
            if first <= last:
                active = self._supersede(first)
            if not active.positions:
                active.before = self.link(first - 1)
            active.extend(run, position)
            last = run[-1].index
        assert active.end == end, f"the file ends at {end}, its columns at {active.end}"
        assert state.commit <= last, f"{state.commit} is committed, the log ends at {last}"
        # The view comes last: readers on other threads must not see records before their columns.
        segments, bases, start, _, _ = self._view
        self._view = View(segments, bases, start, last, active.end)
        self._is_marked = False

    def sync(self) -> None:
        """Make all that was appended durable.

        Raises:
            FsyncFailed: final; nothing since the last sync is known to be durable.
        """
        self._refuse_if_failed()
        if not self._is_dirty:
            return
        active = self._active
        try:
            active.file.datasync()
        except OSError as error:
            raise self._fail(FsyncFailed(f"fdatasync of {active.path} failed: {error}")) from error
        self._synced = active.end
        self._is_dirty = False
        assert self._marked_commit >= self.proven_commit, "a mark proves less than one before it"
        self.proven_commit = self._marked_commit

    def mark_idle(self) -> bool:
        """Write a mark that vouches for the last write, if none does yet; returns whether it did.

        The mark needs no sync of its own. Called when a log falls idle, so that later damage to the
        last write shows as rot. A full disk is no reason to fail here.
        """
        self._refuse_if_failed()
        active = self._active
        # A mark vouches for all bytes before it, so all of them must be synced.
        if self._is_dirty or self._is_marked or self._synced != active.end:
            return False
        try:
            self._write(active, [self._mark(active, self._hard_state)])
        except DiskFull:
            return False
        self._marked_commit = self._hard_state.commit
        active.end += MARK_BYTES
        self._view = self._view._replace(end=active.end)
        self._is_marked = True
        return True

    def roll(self) -> None:
        """Begin a new segment, so that the one before it can be sealed.

        Raises:
            DiskFull: nothing changed; try again later.
            FsyncFailed, WriteFailed: final.
        """
        self._refuse_if_failed()
        self._roll(self._view.last + 1)

    def link(self, index: int) -> Link:
        """The record at `index`, as its successor depends on it; reads the disk if it must.

        `index` is from `first_index - 1` to `last_index`. Raises as `LogStore.read`.
        """
        if index == self._start.index:
            return self._start
        for segment in reversed(self._view.segments):
            if isinstance(segment, SegmentIndex):
                if segment.count and segment.last == index:
                    return segment.tail
            elif segment.base <= index <= segment.last:
                return segment.link(index)
        (record,) = read_range(
            self._files, self._folder, self._view, low=index, high=index + 1, bytes_max=1
        )
        return Link(record.index, record.term, record.crc, record.timestamp)

    def stamp(self, index: int) -> tuple[int, int]:
        """Term and timestamp of a kept record, without reading it; any thread.

        Raises:
            Dropped: the record is no longer kept.
        """
        view = self._view
        for segment in reversed(view.segments):
            if not segment.base <= index <= segment.last:
                continue
            if isinstance(segment, Unsealed):
                link = segment.link(index)
                return link.term, link.timestamp
            firsts = segment.column("run_firsts")
            term = segment.column("run_terms")[bisect_right(firsts, index) - 1]
            return term, segment.column("timestamps")[index - segment.base]
        raise Dropped(index, first_index=view.first)

    def holds(self, records: Sequence[Record]) -> bool:
        """Are these, by the columns in memory, records of unsealed segments? Any thread.

        Index, term and CRC are compared, so a record is known whose bytes the disk has lost.
        """
        unsealed = [each for each in self._view.segments if isinstance(each, Unsealed)]
        return all(
            any(
                segment.base <= record.index <= segment.last
                and segment.link(record.index)[:3] == (record.index, record.term, record.crc)
                for segment in unsealed
            )
            for record in records
        )

    @property
    def _active(self) -> Unsealed:
        active = self._view.segments[-1]
        assert isinstance(active, Unsealed)
        return active

    def _publish(self, segments: list[Segment]) -> None:
        """Make these the log's segments."""
        active = segments[-1]
        assert isinstance(active, Unsealed)
        last = max((s.last for s in segments if s.last >= s.base), default=self._start.index)
        bases = tuple(segment.base for segment in segments)
        # Readers find a record's segment by bisection.
        assert list(bases) == sorted(bases), f"segments out of order: {bases}"
        assert bases[0] == self._start.index + 1, f"the log starts at {bases[0]}: {self._start}"
        span = active.sequence - segments[0].sequence
        assert span == len(segments) - 1, f"{len(segments)} segments have sequences over {span}"
        self._view = View(tuple(segments), bases, self._start.index + 1, last, active.end)
        layout = [
            SegmentInfo(s.name, s.base, s.last if s is not active else None)
            for s in segments
            if isinstance(s, Unsealed)
        ]
        if tuple(layout) != self.layout:
            self.layout = tuple(layout)
        self.sealed = tuple(s for s in segments if isinstance(s, SegmentIndex))

    def _check_follows(self, runs: list[Sequence[Record]]) -> None:
        # Each violation would be rot to the next recovery, so it stops the node here.
        last, crcs = self._view.last, self._active.crcs
        earlier: dict[int, int] = {}
        for run in runs:
            first = run[0].index
            assert self._hard_state.commit < first <= last + 1, (
                f"record {first} after {last}, {self._hard_state.commit} is committed"
            )
            assert first > self._start.index, f"record {first} lies before the log"
            before = earlier.get(first - 1)
            if before is None:
                is_next = crcs and first == self._view.last + 1
                before = crcs[-1] if is_next else self.link(first - 1).crc
            found = [record.crc for record in run]
            assert [record.chain for record in run] == [before, *found[:-1]], (
                f"records {first} to {run[-1].index} do not chain"
            )
            last = run[-1].index
            if len(runs) > 1:
                earlier.update(zip(range(first, last + 1), found, strict=True))

    def _check_changes(self, runs: list[Sequence[Record]], commit: int) -> None:
        # Recovery relies on it: a MEMBERSHIP record proves the one before it to be committed.
        segments = self._view.segments
        known = [n for each in segments if isinstance(each, Unsealed) for n in each.memberships]
        for run in runs:
            known = [index for index in known if index < run[0].index]
            for record in run:
                if record.kind == Kind.MEMBERSHIP:
                    assert not known or known[-1] <= commit, (
                        f"membership record {record.index} follows {known[-1]}, which is not "
                        f"known to be committed: commit is {commit}"
                    )
                    known.append(record.index)

    def _mark(self, active: Unsealed, state: HardState) -> bytes:
        # `decode_mark` takes a mark that breaks the first for no mark; recovery takes one that
        # breaks the second for a sign of lost records.
        last = self._view.last
        assert self._synced <= active.end, "a mark vouches for bytes that come after it"
        assert state.commit <= last, f"a mark after {last} says that {state.commit} is committed"
        return encode_mark(
            seed=active.seed,
            position=active.end,
            durable=self._synced,
            state=state,
            last=last,
        )

    def _write(self, active: Unsealed, buffers: list[bytes]) -> int:
        """Write at the end of the active segment's file; returns the number of bytes."""
        total = sum(map(len, buffers))
        assert active.end + total <= POSITION_MAX, f"{active.path} outgrows 32-bit positions"
        try:
            active.file.append(buffers)
        except OSError as error:
            if error.errno not in _FULL:
                raise self._fail(WriteFailed(f"writing {active.path} failed: {error}")) from error
            # A part of the write may stand in the file: the next append must not follow it.
            self._final(f"cutting {active.path}", lambda: active.file.truncate(active.end))
            raise DiskFull(f"no space for {total} bytes in {self._folder}") from error
        self._is_dirty = True
        return total

    def _roll(self, first: int) -> None:
        """Begin the next segment, if the log may continue in one."""
        active = self._active
        # A name must be above all others, and a superseding record stays in the active file.
        if first != self._view.last + 1 or first <= active.name:
            return
        self.sync()
        # Recovery takes damage in any but the last segment for rot.
        assert self._synced == active.end, f"{active.path} is closed before it is durable"
        segment = self._begin(self.link(first - 1), self._hard_state, active.sequence + 1)
        self._publish([*self._view.segments, segment])
        self._synced = segment.end

    def _begin(
        self, previous: Link, state: HardState, sequence: int, *, snapshot: str | None = None
    ) -> Unsealed:
        """Make the segment after `previous`; with a partial snapshot, one that voids all others."""
        name = file_name(previous.index + 1, SEGMENT_SUFFIX)
        header, seed = encode_header(
            self._identity, sequence=sequence, previous=previous, replaced=snapshot is not None
        )
        mark = encode_mark(
            seed=seed,
            position=HEADER_BYTES,
            durable=HEADER_BYTES,
            state=state._replace(commit=min(state.commit, previous.index)),
            last=previous.index,
        )
        file = self._create(name, [header, mark])
        if snapshot is not None:
            # The segment's name voids the old log, so the snapshot must have its name before.
            final = file_name(previous.index, SNAPSHOT_SUFFIX)
            self._final(f"renaming {snapshot}", lambda: self._rename(snapshot, final))
        self._final(f"renaming {name}", lambda: publish(self._files, self._folder, name))
        return Unsealed(
            name=previous.index + 1,
            sequence=sequence,
            seed=seed,
            path=f"{self._folder}/{name}",
            file=file,
            base=previous.index + 1,
            before=previous,
            end=HEADER_BYTES + MARK_BYTES,
        )

    def _rename(self, old: str, new: str) -> None:
        self._files.rename(f"{self._folder}/{old}", f"{self._folder}/{new}")
        self._files.sync_folder(self._folder)

    def _supersede(self, first: int) -> Unsealed:
        """Forget the records from `first` on; returns the active segment that goes on."""
        segments, before = list(self._view.segments), self.link(first - 1)
        at = len(segments)
        while at and (segments[at - 1].last >= first or segments[at - 1].base > first):
            at -= 1
            segment = segments[at]
            assert isinstance(segment, Unsealed), f"record {first} was applied"
            segments[at] = segment.cut(first, before)
        self._publish(segments)
        assert self._view.last == first - 1, f"records from {first} on are not superseded"
        return self._active

    def _create(self, name: str, parts: Sequence[bytes]) -> File:
        try:
            return prepare(self._files, self._folder, name, parts)
        except OSError as error:
            if error.errno in _FULL:
                raise DiskFull(f"no space for {name} in {self._folder}") from error
            if error.errno in (errno.EMFILE, errno.ENFILE):
                # Nothing was written: connections that close will leave a descriptor for it.
                raise NoDescriptor(f"no descriptor is left to make {name}: {error}") from error
            raise self._fail(WriteFailed(f"writing {name} failed: {error}")) from error

    def _unlink(self, names: Sequence[str]) -> None:
        def unlink() -> None:
            for name in names:
                with suppress(FileNotFoundError):
                    self._files.unlink(f"{self._folder}/{name}")
            self._files.sync_folder(self._folder)

        if names:
            self._final(f"removing {names[0]}", unlink)

    def _final(self, what: str, call: Callable[[], None]) -> None:
        """Run a call whose failure leaves the disk's state unknown: it ends the store's work."""
        try:
            call()
        except OSError as error:
            raise self._fail(WriteFailed(f"{what} in {self._folder} failed: {error}")) from error

    def _fail(self, failure: LogFault) -> LogFault:
        self._failure = failure
        return failure

    def _refuse_if_failed(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(*self._failure.args)


def _vouched(state: HardState, lowest: int) -> HardState:
    """The hard state in the mark of a write whose lowest record is `lowest`.

    Records of the write may be torn off it, or supersede others, so the mark vouches for none of
    them. Recovery adds the commits that it must know: see `recovery._proven`.
    """
    return state._replace(commit=min(state.commit, lowest - 1))


def _runs(records: Sequence[Record]) -> list[Sequence[Record]]:
    """Split records where one does not follow the one before; one run, as a rule."""
    if not records:
        return []
    first, count = records[0].index, len(records)
    if count == 1 or [record.index for record in records] == list(range(first, first + count)):
        return [records]
    starts = [0] + [i for i in range(1, count) if records[i].index != records[i - 1].index + 1]
    return [records[i:j] for i, j in zip(starts, [*starts[1:], count], strict=True)]
