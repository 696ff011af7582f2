"""Mutants of the log store.

Sources: "All File Systems Are Not Created Equal" (OSDI '14), "Can Applications Recover from fsync
Failures?" (ATC '20), Protocol-Aware Recovery (FAST '18); issues as named.
"""

import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from raftmq.chaos.mutant import Mutant, Patch
from raftmq.log import cutting, reading, recovery, store, writer
from raftmq.log.files import FileSystem
from raftmq.log.index_file import SegmentIndex
from raftmq.log.record import Record
from raftmq.log.recovery import Segment
from raftmq.log.segment import Header, Link
from raftmq.log.snapshot import SnapshotFile, SnapshotMeta, SnapshotReceiver, is_void
from raftmq.log.unsealed import Scan, Unsealed, scan
from raftmq.log.writer import LogWriter

_HEADER = struct.Struct("<IIQQqIBBH")


def does_not_sync_folders(patch: Patch) -> None:
    """48"""

    def publish(files: FileSystem, folder: str, name: str) -> None:
        files.rename(f"{folder}/{name}.new", f"{folder}/{name}")

    patch.set(writer, "publish", publish)
    patch.set(store, "publish", publish)


def tries_a_failed_sync_again(patch: Patch) -> None:
    """49"""

    def sync(log: LogWriter) -> None:
        if not log._is_dirty:
            return
        active = log._active
        with suppress(OSError):
            active.file.datasync()
        active.file.datasync()
        log._synced, log._is_dirty = active.end, False

    patch.set(LogWriter, "sync", sync)


def does_not_check_what_it_reads(patch: Patch) -> None:
    """50"""

    def decode(buffer: bytes, position: int = 0) -> Record:
        crc, length, index, term, timestamp, chain, kind, version, _ = _HEADER.unpack_from(
            buffer, position
        )
        encoded = buffer[position : position + length]
        return Record(index, term, kind, version, timestamp, crc, chain, encoded)

    patch.set(reading, "decode", decode)


def takes_rot_for_a_torn_tail(patch: Patch) -> None:
    """51"""
    patch.set(recovery, "_refuse_rot", lambda found, damage: None)


def trusts_a_damaged_index(patch: Patch) -> None:
    """52"""
    patch.set(SegmentIndex, "verify", lambda index, *, keys: None)


def leaves_half_a_record(patch: Patch) -> None:
    """53"""
    final = LogWriter._final

    def careless(log: LogWriter, what: str, call: Callable[[], None]) -> None:
        if not what.startswith("cutting"):
            final(log, what, call)

    patch.set(LogWriter, "_final", careless)


# Commit indexes that the log remembers


def believes_marks_alone(patch: Patch) -> None:
    """124"""
    patch.set(recovery, "_proven", lambda segments: 0)


def takes_the_last_change_for_committed(patch: Patch) -> None:
    """125"""

    def proven(segments: list[Segment]) -> int:
        changes = [n for each in segments if isinstance(each, Unsealed) for n in each.memberships]
        return max(changes, default=0)

    patch.set(recovery, "_proven", proven)


def takes_the_end_for_committed(patch: Patch) -> None:
    """127"""
    end_of = recovery._end

    def proven(segments: list[Segment]) -> int:
        return end_of(segments, Link()).index

    patch.set(recovery, "_proven", proven)


def marks_what_the_write_commits(patch: Patch) -> None:
    """128"""
    patch.set(writer, "_vouched", lambda state, lowest: state)


def sealed_proves_the_next(patch: Patch) -> None:
    """129"""
    proven = recovery._proven

    def too_far(segments: list[Segment]) -> int:
        last = max(segment.last for segment in segments)
        return min(proven(segments) + 1, last)

    patch.set(recovery, "_proven", too_far)


def does_not_sync_at_the_start(patch: Patch) -> None:
    """126"""

    def last_of(files: FileSystem, path: str, header: Header) -> tuple[Scan, int]:
        file = files.open(path, writable=True)
        found, torn = scan(file, path, header), 0
        if found.damage is not None:
            recovery._refuse_rot(found, found.damage)
            torn = file.size() - found.damage.position
            file.truncate(found.damage.position)
        return found, torn

    patch.set(recovery, "_last", last_of)


def stays_in_its_term(patch: Patch) -> None:
    """131"""
    highest_term = cutting._highest_term

    def below(files: FileSystem, path: str) -> int | None:
        highest = highest_term(files, path)
        return None if highest is None else highest - 1

    patch.set(cutting, "_highest_term", below)


def keeps_superseded_segments(patch: Patch) -> None:
    """350"""
    patch.set(recovery, "_without_superseded", lambda segment, joined, lowest: segment)


def removes_a_snapshot_that_arrives(patch: Patch) -> None:
    """358"""

    def finish(self: SnapshotReceiver) -> SnapshotMeta:
        meta = SnapshotFile(self._file, self._identity, self._path)
        meta.verify()
        self._file.datasync()
        self._file.close()
        self._files.sync_folder(self._folder)
        return meta.meta

    patch.set(SnapshotReceiver, "finish", finish)
    patch.set(store, "is_void", lambda name, index: is_void(name, sys.maxsize))


MUTANTS = (
    Mutant(
        number=48,
        name="folder-not-synced",
        what="A folder is not synced after a file was given its name.",
        killers=("L2",),
        plant=does_not_sync_folders,
    ),
    Mutant(
        number=49,
        name="sync-again",
        what="A failed sync is tried again, and believed [ATC '20].",
        killers=("L5", "L2"),
        plant=tries_a_failed_sync_again,
    ),
    Mutant(
        number=50,
        name="reads-unchecked",
        what="Records that are read back are not checked by their checksum.",
        killers=("L4", "R5", "R3", "error"),
        plant=does_not_check_what_it_reads,
    ),
    Mutant(
        number=51,
        name="rot-is-torn",
        what="Rot in the middle is cut off as if a crash had torn it [NATS #7549].",
        killers=("L2", "L4", "R6", "R11"),
        plant=takes_rot_for_a_torn_tail,
    ),
    Mutant(
        number=52,
        name="index-trusted",
        what="A damaged index file is believed.",
        killers=("L4", "L6", "L7", "L2", "assert", "error", "V3"),
        plant=trusts_a_damaged_index,
    ),
    Mutant(
        number=53,
        name="half-a-record",
        what="The part of a write that a full disk took stays, and the next write follows it.",
        killers=("L2", "L4", "L7"),
        plant=leaves_half_a_record,
    ),
    Mutant(
        number=124,
        name="marks-alone",
        what="A restarted node believes the commit index of its marks, though its log proves more.",
        killers=("R24",),
        plant=believes_marks_alone,
        kinds=("slow-change", "kill-then-power", "kill", "replace-node"),
        why_hinted="it takes a crash between two changes of members",
    ),
    Mutant(
        number=125,
        name="last-change-proves",
        what="A restarted node takes the last change of members in its log for committed.",
        killers=("R24", "R17", "R5", "R15", "R16", "R4", "assert"),
        plant=takes_the_last_change_for_committed,
    ),
    Mutant(
        number=126,
        name="start-without-sync",
        what="Unsynced writes of a killed process are not synced at the next start.",
        killers=("L2", "R6", "R11", "R14"),
        plant=does_not_sync_at_the_start,
    ),
    Mutant(
        number=127,
        name="end-is-committed",
        what="A restarted node takes all of its log for committed.",
        killers=("R5", "R15", "R16", "R4", "R17", "assert"),
        plant=takes_the_end_for_committed,
    ),
    Mutant(
        number=128,
        name="mark-claims-its-write",
        what="A mark says that records of its own write are committed, which a crash may tear off.",
        killers=("L2", "R5", "R15", "R16", "assert"),
        plant=marks_what_the_write_commits,
        kinds=("torn-write", "crash-point", "slow-change", "kill-then-power", "power-loss"),
        why_hinted="it takes a crash that tears the write of a record which that write commits",
    ),
    Mutant(
        number=129,
        name="one-too-far",
        what="A proof that a record is committed is taken to prove the next one too.",
        killers=("R5", "R15", "R16", "R4", "R17", "assert"),
        plant=sealed_proves_the_next,
    ),
    Mutant(
        number=131,
        name="cut-stays-in-term",
        what="A log that was cut goes on in its term, not in one above.",
        killers=("R11", "R1", "R4", "R9", "R13", "R14"),
        plant=stays_in_its_term,
        kinds=(
            "bit-flip",
            "bad-sector",
            "misdirected-write",
            "lost-write",
            "lost-hard-state",
            "unreadable-sector",
            "kill",
            "isolate-leader",
            "kill-leader",
        ),
        settings=lambda s: replace(s, mends=True),
        why_hinted="one fault in nine is damage, and few of those cut a log",
    ),
    Mutant(
        number=350,
        name="superseded-is-a-gap",
        what="A superseded segment without an index is taken for a gap [ours, until aee6be1].",
        killers=("L2",),
        plant=keeps_superseded_segments,
    ),
    Mutant(
        number=358,
        name="arriving-snapshot-removed",
        what="A follower that installs a snapshot removes the next one, which is arriving (raftmq "
        "before `b7b4fd8`).",
        killers=("error",),
        plant=removes_a_snapshot_that_arrives,
    ),
)
