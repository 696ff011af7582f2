"""Mutants of the log store: numbers 48 to 53.

Sources: "All File Systems Are Not Created Equal" (OSDI '14), "Can Applications Recover from fsync
Failures?" (ATC '20), Protocol-Aware Recovery (FAST '18); issues as named.
"""

import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from raftmq.chaos.core import Settings
from raftmq.chaos.mutants.mutant import Mutant, Patch
from raftmq.log import reading, recovery, store, writer
from raftmq.log.files import FileSystem
from raftmq.log.index_file import SegmentIndex
from raftmq.log.record import Record
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


def _small_segments(settings: Settings) -> Settings:
    return replace(settings, segment_bytes=1024, segments_kept=1000)


def _reads_from_disk(settings: Settings) -> Settings:
    # What a new member is sent, and what is applied late, comes from the disk then.
    return replace(
        settings, cache_bytes=2048, segments_kept=1000, segment_bytes=64 * 1024, is_liveness=False
    )


MUTANTS = (
    Mutant(
        number=48,
        name="folder-not-synced",
        what="A folder is not synced after a file was given its name.",
        killers=("L2",),
        plant=does_not_sync_folders,
        settings=_small_segments,
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
        kinds=("bit-flip", "bad-sector", "lost-write", "misdirected-write"),
        settings=_reads_from_disk,
    ),
    Mutant(
        number=51,
        name="rot-is-torn",
        what="Rot in the middle is cut off as if a crash had torn it [NATS #7549].",
        killers=("L2", "L4", "R6", "R11"),
        plant=takes_rot_for_a_torn_tail,
        kinds=("bit-flip", "bad-sector", "lost-write", "lost-hard-state", "kill", "power-loss"),
    ),
    Mutant(
        number=52,
        name="index-trusted",
        what="A damaged index file is believed.",
        killers=("L4", "L6", "L7", "L2", "assert", "error", "V3"),
        plant=trusts_a_damaged_index,
        kinds=("bit-flip", "kill"),
        settings=lambda s: replace(_small_segments(s), cache_bytes=2048),
    ),
    Mutant(
        number=53,
        name="half-a-record",
        what="What a full disk took of a write stays, and the next write follows it.",
        killers=("L2", "L4", "L7"),
        plant=leaves_half_a_record,
        kinds=("full-disk", "kill", "power-loss"),
    ),
)
