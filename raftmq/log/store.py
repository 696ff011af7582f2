"""The log of one partition group: append, sync, read, seal, retain, and be replaced.

    store, recovered = LogStore.open(files, folder, LogSettings(), Identity("c", 1, 7))
    store.append(records, hard_state)       # one write
    store.sync()                            # one fdatasync: all appended so far is durable
    store.read(low, high, bytes_max)        # any thread, at any time

After `open`, one thread (the node's disk thread) makes all calls but `read`, `read_at`, `segments`
and those that say "any thread". Other threads may make these calls beside it, and read the
properties, `layout`, `sealed` and `proven_commit`: each is one value, which the disk thread
replaces. `raftmq.log.reading` explains why that is safe.

The life of a segment:

    active  --roll-->  closed  --seal-->  sealed  --drop_before-->  gone
    (written)          (its records are   (index file mapped,
                        being applied)     nothing in memory)

Invariants:
- Records appended before a `sync` that returned survive any crash, until they are superseded by an
  append, dropped by `drop_before`, or replaced by `install_snapshot`.
- A segment is synced before the next one begins; only the active one can have a torn end.
- After `WriteFailed` or `FsyncFailed` every call that could write raises the same again.
- A `DiskFull` append leaves the log as it was before, in memory and on disk.
- A snapshot stands just before the first kept segment, unless that starts with record 1, or the
  snapshot rotted and a newer one restores the machine.

Left out: a process that is started again after a failed sync, without a restart of the machine, may
read pages from the system's cache that never reached the disk.

Sources: Raft §5.3, §7; etcd's WAL and snapshotter; "Can Applications Recover from fsync Failures?"
(ATC '20); the commit log and light queue indexes of MetaQ and RocketMQ.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import google_crc32c
import numpy as np
import numpy.typing as npt

from raftmq.errors import CorruptRecord
from raftmq.log.builder import SegmentBuilder
from raftmq.log.cutting import Note, open_cut, remove_note, write_note
from raftmq.log.faults import Dropped, NoDescriptor, RotFound, WriteFailed
from raftmq.log.files import FileSystem, Lock, publish
from raftmq.log.index_file import Column, IndexDamaged, SegmentIndex, encode_index, open_index
from raftmq.log.reading import Stamps, path_of, read_heads, read_range, read_scattered, read_stamps
from raftmq.log.record import Record
from raftmq.log.recovery import Found, Segment, last_link, outer_damage
from raftmq.log.rewrite import Rewrite
from raftmq.log.segment import (
    INDEX_SUFFIX,
    PARTIAL_SUFFIX,
    SEGMENT_SUFFIX,
    SNAPSHOT_SUFFIX,
    VOID_SUFFIX,
    HardState,
    Identity,
    Link,
    SegmentSize,
    file_name,
)
from raftmq.log.snapshot import SnapshotFile, SnapshotMeta, encode_snapshot, is_void, open_snapshot
from raftmq.log.unsealed import Unsealed
from raftmq.log.writer import LogSettings, LogWriter

__all__ = ["LogSettings", "LogStore", "Recovered", "SegmentSize"]


@dataclass(frozen=True, slots=True)
class Recovered:
    """The content of a log when it was opened."""

    hard_state: HardState
    """As last written; `commit` is never above `end.index`, and may lag behind the truth."""
    start: Link
    """The record before the first one kept; index 0 for a log that starts with record 1."""
    end: Link
    """The last record; `start` if there is none."""
    terms: list[tuple[int, int]]
    """Runs of terms over all kept records: (first index, term)."""
    snapshots: list[SnapshotMeta]
    """Oldest first. One may be newer than `hard_state.commit`."""
    torn_bytes_cut: int
    """Bytes of an unfinished write that were cut off the end."""
    rotten: list[RotFound]
    """Sealed segments that are missing or damaged: to be rewritten. Empty unless asked to mend."""
    abstains: str
    """Why this member's vote must not count: the fault before which its log was cut, or the loss of
    records. Empty: the vote counts."""
    snapshot_fault: RotFound | None = None
    """Damage of the snapshot before the first record; None: it is sound."""

    @property
    def first_index(self) -> int:
        """First record kept."""
        return self.start.index + 1

    @property
    def last_index(self) -> int:
        """Last record; `first_index - 1` if there is none."""
        return self.end.index


class LogStore(LogWriter):
    """One group's log on disk. Made by `open`."""

    def __init__(
        self, files: FileSystem, folder: str, settings: LogSettings, identity: Identity, lock: Lock
    ) -> None:
        super().__init__(files, folder, settings, identity)
        self._lock = lock
        self._snapshots: list[SnapshotMeta] = []

    @classmethod
    def open(
        cls,
        files: FileSystem,
        folder: str,
        settings: LogSettings,
        identity: Identity,
        *,
        mends: bool = False,
        cuts: bool = True,
    ) -> tuple["LogStore", Recovered]:
        """Open a group's folder, or begin a log in an empty or missing one.

        With `mends`, rot is no reason to refuse: damaged segments that can be rewritten are named
        in `Recovered.rotten`, and before other rot the log is cut (`raftmq.log.cutting`). Without
        `mends`, or without `cuts`, no log is cut, and a log that was cut before is refused: there
        may be no other copy to fill it from.

        Raises:
            FolderLocked: another store has the folder open.
            RotFound: durable bytes do not check out; none of them was cut.
            WrongLog, UnsupportedFormat: the folder is not for us.
            DiskFull, WriteFailed, FsyncFailed: the disk refused.
        """
        settings.validate()
        files.make_folder(folder)
        lock = files.lock(folder)
        try:
            store = cls(files, folder, settings, identity, lock)
            found, note = open_cut(files, folder, identity, mends=mends, cuts=mends and cuts)
            store._adopt(found)
            if note is not None:
                store._abstain(note)
        except OSError as error:
            lock.close()
            raise WriteFailed(f"opening {folder} failed: {error}") from error
        except BaseException:
            lock.close()
            raise
        return store, store._recovered(found, "" if note is None else note.why)

    def _adopt(self, found: Found) -> None:
        self._hard_state = found.hard_state
        self._marked_commit = self.proven_commit = found.hard_state.commit
        self._start = found.start
        self._snapshots = list(found.snapshots)
        segments: list[Segment] = list(found.segments)
        if not segments:
            segments = [self._begin(Link(), HardState(), sequence=1)]
        self._publish(segments)
        self._synced, self._is_marked = self._active.end, found.is_marked
        # Without a mark, later rot in the last write would pass for a torn end, and be cut.
        self.mark_idle()

    def _abstain(self, note: Note) -> None:
        """Enter a term in which this member has sent no message yet."""
        if self._hard_state.term < note.term:
            self.append((), HardState(note.term, 0, self._hard_state.commit))
            self.sync()
        assert self._hard_state.term >= note.term, "it may have voted in this term"
        if note.is_cutting:
            write_note(self._files, self._folder, note._replace(is_cutting=False))

    def _recovered(self, found: Found, abstains: str) -> Recovered:
        terms: list[tuple[int, int]] = []
        for segment in self._view.segments:
            runs = segment.terms() if isinstance(segment, SegmentIndex) else segment.runs
            terms += [run for run in runs if not terms or run[1] != terms[-1][1]]
        return Recovered(
            hard_state=self._hard_state,
            start=found.start,
            end=found.end,
            terms=terms,
            snapshots=list(found.snapshots),
            torn_bytes_cut=found.torn_bytes_cut,
            rotten=found.rotten,
            abstains=abstains,
            snapshot_fault=found.snapshot_fault,
        )

    def close(self) -> None:
        """Sync, leave a closing mark, and give the folder back. Never raises for a failed store."""
        try:
            if self._failure is None:
                self.sync()
                self.mark_idle()
                self.sync()
        finally:
            for segment in self._view.segments:
                if isinstance(segment, Unsealed):
                    segment.file.close()
            self._lock.close()
            self._failure = self._failure or WriteFailed(f"{self._folder} was closed")

    # Reading.

    @property
    def first_index(self) -> int:
        """First record kept."""
        return self._view.first

    @property
    def last_index(self) -> int:
        """Last record appended; `first_index - 1` if there is none."""
        return self._view.last

    @property
    def hard_state(self) -> HardState:
        """As last appended."""
        return self._hard_state

    @property
    def snapshots(self) -> tuple[SnapshotMeta, ...]:
        """The snapshots kept, oldest first."""
        return tuple(self._snapshots)

    def read(self, low: int, high: int, bytes_max: int) -> list[Record]:
        """Records from `low` up to `high` (exclusive), as many as fit in `bytes_max` file bytes.

        At least one if there is one. Any thread; the log is read as it was at one moment, whatever
        changes meanwhile: the caller may not know yet that the end was cut off. Costs one `pread`
        for up to 8 MiB.

        Raises:
            Dropped: `low` is no longer kept.
            RotFound: a record does not check out, or the disk lost it; nothing was read.
            OSError: the system lacks descriptors or memory for a read now.
        """
        view = self._view
        with self._missing_is_rot():
            return read_range(
                self._files, self._folder, view, low=low, high=high, bytes_max=bytes_max
            )

    def read_at(self, indexes: Iterable[int], bytes_max: int) -> list[Record]:
        """The records at rising `indexes`, as many of them as fit in `bytes_max`, at least one.

        Neighbours less than 32 KiB apart are read by one call. Otherwise as `read`.
        """
        with self._missing_is_rot():
            return read_scattered(self._files, self._folder, self._view, indexes, bytes_max)

    def stamps(self, indexes: npt.NDArray[np.uint64]) -> Stamps:
        """Terms and timestamps of the kept records at rising `indexes`; as `stamp`, for many."""
        return read_stamps(self._view, indexes)

    def heads(
        self, indexes: npt.NDArray[np.uint64], start: int, size: int
    ) -> npt.NDArray[np.uint8]:
        """Bytes [start, start + size) of the payloads of records at rising `indexes`; any thread.

        A row a record. The bytes are those on the disk: no checksum is compared.
        """
        view = self._view
        with self._missing_is_rot():
            return read_heads(self._files, self._folder, view, indexes, start=start, size=size)

    @contextmanager
    def _missing_is_rot(self) -> Iterator[None]:
        """A missing file is rot if the log still has the segment, else retention took the file."""
        try:
            yield
        except Dropped as dropped:
            for segment in self._view.segments:
                if segment.base <= dropped.index <= segment.last:
                    message = f"the file with record {dropped.index} is missing"
                    raise RotFound(message, file=self.path_of(segment), position=0) from dropped
            raise

    def segments(self) -> list[SegmentSize]:
        """All segments, oldest first, for deciding what to drop."""
        sizes = []
        for segment in self._view.segments:
            if isinstance(segment, SegmentIndex):
                size, stamp = segment.segment_bytes, segment.tail.timestamp
            else:
                size = segment.end
                stamp = segment.timestamps[-1] if segment.timestamps else 0
            sizes.append(SegmentSize(segment.base, segment.last, size, stamp))
        return sizes

    def path_of(self, segment: Segment) -> str:
        """The path of a segment's file."""
        return path_of(self._folder, segment)

    def path_of_snapshot(self, index: int) -> str:
        """The path of a snapshot's file."""
        return f"{self._folder}/{file_name(index, SNAPSHOT_SUFFIX)}"

    def check_outside(self, segment: SegmentIndex) -> None:
        """Check a sealed segment's size and header, and its whole index; any thread.

        Raises:
            Dropped: the segment is no longer kept.
            RotFound: size or header are not those that the index names.
            IndexDamaged: the index does not check out.
        """
        fault = outer_damage(self._files, self.path_of(segment), segment)
        if fault is None:
            segment.check()
        else:
            # Retention may have taken the file between the look and the check.
            if segment not in self.sealed:
                raise Dropped(segment.base, first_index=segment.last + 1)
            raise fault

    def rewrite(self, name: int, *, keeps_sound: bool = True) -> Rewrite | None:
        """Begin a sound copy of a sealed segment; None if no sealed segment has that name.

        Any thread. Raises as `Rewrite`.
        """
        segments = self._view.segments
        at = next((i for i, segment in enumerate(segments) if segment.name == name), None)
        segment = None if at is None else segments[at]
        if at is None or not isinstance(segment, SegmentIndex):
            return None
        before = last_link(list(segments[:at])) or self._start
        return Rewrite(
            self._files, self._folder, self._identity, segment, before, keeps_sound=keeps_sound
        )

    # Mending, sealing, snapshots, retention.

    def replace(self, rewrite: Rewrite) -> bool:
        """Put a finished copy in a damaged segment's place; False if the segment is gone meanwhile.

        Durable on return. Readers go on as before: all records are where they were.

        Raises:
            WriteFailed: final.
        """
        self._refuse_if_failed()
        if rewrite.segment not in self.sealed:
            rewrite.discard()
            return False
        name = file_name(rewrite.segment.name, SEGMENT_SUFFIX)
        self._final(f"renaming {name}", rewrite.publish)
        return True

    def note_loss(self, why: str) -> None:
        """Synced records are gone: from the next start on this member abstains.

        Raises:
            WriteFailed: final.
        """
        self._refuse_if_failed()
        note = Note(self._hard_state.term + 1, why, is_cutting=False)
        self._final("writing the note", lambda: write_note(self._files, self._folder, note))

    def end_abstention(self) -> None:
        """This member holds again all records that it may have held: its vote counts.

        Raises:
            WriteFailed: final.
        """
        self._refuse_if_failed()
        self._final("removing the note", lambda: remove_note(self._files, self._folder))

    def seal(self, builder: SegmentBuilder) -> SegmentIndex:
        """Write the index file of the closed segment that `builder` was made for.

        All the segment's records must be applied, and the builder must hold the machine's answers
        for them. Positions, timestamps and terms are the log's own.

        Raises:
            Dropped: the segment is gone; there is nothing to seal.
            DiskFull: nothing changed; try again later.
            IndexDamaged: the written file cannot be read back; nothing changed; try again later.
            WriteFailed: final.
        """
        self._refuse_if_failed()
        segments = list(self._view.segments)
        at = next((n for n, each in enumerate(segments) if each.name == builder.name), -1)
        if at < 0:
            # Retention, or a snapshot that replaced the log, was quicker than the caller.
            raise Dropped(builder.name, first_index=self.first_index)
        segment = segments[at]
        assert isinstance(segment, Unsealed), f"segment {builder.name} is sealed"
        assert at < len(segments) - 1, f"segment {builder.name} is still written"
        count = len(segment.positions)
        columns = builder.columns(base=segment.base, record_count=count)
        parts = encode_index(
            columns | segment.sections(),
            name=segment.name,
            sequence=segment.sequence,
            base=segment.base,
            segment_bytes=segment.end,
            first_chain=segment.before.crc if count else 0,
            seed=segment.seed,
            tail=segment.link(segment.last) if count else Link(),
        )
        name = file_name(segment.name, INDEX_SUFFIX)
        try:
            sealed = segments[at] = self._write_index(name, parts)
        except (IndexDamaged, NoDescriptor):
            # An index that outlives its segment would name a segment that is missing.
            self._unlink([name])
            raise
        self._publish(segments)
        return sealed

    def reindex(
        self, segment: SegmentIndex, columns: Mapping[Column, bytes]
    ) -> SegmentIndex | None:
        """Write a sealed segment's index again, with these sections for damaged ones; None if the
        segment is gone meanwhile.

        Raises:
            IndexDamaged: other sections are damaged, or these differ from the lost ones.
            DiskFull: nothing changed; try again later.
            WriteFailed: final.
        """
        self._refuse_if_failed()
        segments = list(self._view.segments)
        if segment not in segments:
            return None
        parts = segment.encoded_again(columns)
        again = self._write_index(file_name(segment.name, INDEX_SUFFIX), parts)
        segments[segments.index(segment)] = again
        self._publish(segments)
        return again

    def _write_index(self, name: str, parts: list[bytes]) -> SegmentIndex:
        self._create(name, parts).close()
        self._final(f"renaming {name}", lambda: publish(self._files, self._folder, name))
        try:
            return open_index(self._files, f"{self._folder}/{name}", keys=True)
        except OSError as error:
            raise NoDescriptor(f"{name} cannot be opened: {error}") from error

    def save_snapshot(self, meta: SnapshotMeta, state: bytes) -> int:
        """Keep the machine's state after `meta.index`, the last record before some segment; returns
        its CRC-32C. A snapshot that is kept already stays as it is.

        Raises:
            Dropped: the log begins after that record by now; no snapshot is needed there.
            DiskFull: nothing changed; try again later.
            WriteFailed: final.
        """
        self._refuse_if_failed()
        if meta.index < self._start.index:
            raise Dropped(meta.index, first_index=self.first_index)
        assert any(segment.base - 1 == meta.index for segment in self._view.segments), (
            f"{meta.index} is not the last record before a segment"
        )
        assert meta.link == self.link(meta.index), f"{meta} is not of this log"
        meta = meta._replace(state_crc=google_crc32c.value(state))
        if any(kept.index == meta.index for kept in self._snapshots):
            return meta.state_crc
        name = file_name(meta.index, SNAPSHOT_SUFFIX)
        self._create(name, encode_snapshot(self._identity, meta, state)).close()
        self._final(f"renaming {name}", lambda: publish(self._files, self._folder, name))
        self._snapshots = sorted([*self._snapshots, meta])
        return meta.state_crc

    def adopt_snapshot(self, index: int) -> None:
        """Put the snapshot that a `SnapshotReceiver` finished in the place of the own one there.

        Raises:
            CorruptRecord, FileNotFoundError: there is no such finished snapshot; nothing changed.
            WriteFailed: final.
        """
        self._refuse_if_failed()
        meta = open_snapshot(self._files, self._folder, index, self._identity, PARTIAL_SUFFIX).meta
        if index < self._start.index or meta.link != self.link(index):
            raise CorruptRecord(f"the snapshot at {index} is not of this log", position=0)
        partial, name = (file_name(index, suffix) for suffix in (PARTIAL_SUFFIX, SNAPSHOT_SUFFIX))
        self._final(f"renaming {partial}", lambda: self._rename(partial, name))
        others = [kept for kept in self._snapshots if kept.index != index]
        self._snapshots = sorted([*others, meta])

    def open_snapshot(self, index: int) -> SnapshotFile:
        """A kept snapshot, to be restored or sent; any thread may read it.

        Raises:
            FileNotFoundError: the snapshot is not kept, or no longer.
            CorruptRecord: the snapshot does not check out.
        """
        return open_snapshot(self._files, self._folder, index, self._identity)

    def drop_snapshot(self, index: int) -> None:
        """Remove a snapshot that is not the one before the first kept record."""
        self._refuse_if_failed()
        assert index != self._start.index, "the log stands on this snapshot"
        if any(kept.index == index for kept in self._snapshots):
            self._snapshots = [kept for kept in self._snapshots if kept.index != index]
            self._unlink([file_name(index, SNAPSHOT_SUFFIX)])

    def lose_snapshot(self, index: int) -> bool:
        """Do without a kept snapshot that rotted; False if it is the only one, which stays.

        The snapshot before the first kept record is no longer sent; its file goes with the records.
        """
        self._refuse_if_failed()
        others = [kept for kept in self._snapshots if kept.index != index]
        if not others:
            return False
        if index == self._start.index:
            self._snapshots = others
        else:
            self.drop_snapshot(index)
        return True

    def drop_before(self, index: int) -> Link:
        """Drop whole segments whose records all lie before `index`; returns the new start.

        The log can only start where a snapshot stands, so fewer may go, or none. A crash meanwhile
        leaves the old start or the new one.

        Raises:
            WriteFailed: final.
        """
        self._refuse_if_failed()
        borders = [kept for kept in self._snapshots if self._start.index < kept.index < index]
        if not borders:
            return self._start
        meta = max(borders)
        segments = list(self._view.segments)
        gone = [segment for segment in segments[:-1] if segment.last <= meta.index]
        stale = {kept.index for kept in self._snapshots if kept.index < meta.index}
        if self._start.index:
            stale.add(self._start.index)  # not in `_snapshots` if it rotted
        self._start = meta.link
        self._snapshots = [kept for kept in self._snapshots if kept.index >= meta.index]
        self._publish(segments[len(gone) :])
        assert self._start.index < index, f"record {index} was to be kept"
        # The oldest file, renamed, says which segments are void: that needs no space on a full
        # disk, and from then on the others may vanish in any order.
        oldest, first_kept = file_name(gone[0].name, SEGMENT_SUFFIX), self._view.segments[0]
        marker = file_name(first_kept.sequence, VOID_SUFFIX)
        self._final(f"renaming {oldest}", lambda: self._mark_void(oldest, marker))
        names = [file_name(segment.name, SEGMENT_SUFFIX) for segment in gone[1:]]
        names += [file_name(s.name, INDEX_SUFFIX) for s in gone if isinstance(s, SegmentIndex)]
        self._unlink(names + [file_name(index, SNAPSHOT_SUFFIX) for index in sorted(stale)])
        self._unlink([marker])
        return self._start

    def _mark_void(self, oldest: str, marker: str) -> None:
        try:
            self._rename(oldest, marker)
        except FileNotFoundError:
            # The oldest file was lost, and is not rewritten yet.
            self._create(marker, []).close()
            publish(self._files, self._folder, marker)

    def install_snapshot(self, index: int, hard_state: tuple[int, int, int]) -> SnapshotMeta:
        """Replace the whole log by the snapshot at `index`, which a `SnapshotReceiver` finished.

        Durable on return, and all or nothing: the new segment's name decides. A crash before the
        name is given leaves the old log, a crash after it the new one.

        Raises:
            CorruptRecord, FileNotFoundError: there is no such finished snapshot; nothing changed.
            DiskFull: nothing changed.
            WriteFailed: final.
        """
        self._refuse_if_failed()
        assert index > self._hard_state.commit, f"{index} is committed here already"
        partial = file_name(index, PARTIAL_SUFFIX)
        meta = open_snapshot(self._files, self._folder, index, self._identity, PARTIAL_SUFFIX).meta
        old_names = self._files.list(self._folder)
        state = HardState(*hard_state)
        segment = self._begin(meta.link, state, self._active.sequence + 1, snapshot=partial)
        self._hard_state = state
        self._start, self._snapshots = meta.link, [meta]
        self._publish([segment])
        self._synced, self._is_dirty, self._is_marked = segment.end, False, True
        assert self._view.last == index == self._start.index, "records beside the snapshot"
        kept = {file_name(index, SNAPSHOT_SUFFIX), file_name(segment.name, SEGMENT_SUFFIX), partial}
        self._unlink([name for name in old_names if name not in kept and is_void(name, index)])
        return meta
