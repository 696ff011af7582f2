"""The logs on a node's disk, read from a copy of the disk with the product's own recovery."""

from typing import NamedTuple

import google_crc32c

from raftmq.chaos.sim.cluster import CLUSTER, DATA
from raftmq.chaos.world.disk import MemoryFiles, PageLost
from raftmq.checkers.servers.evidence import NO_ENTRY, Entry
from raftmq.errors import CorruptRecord, RaftmqError
from raftmq.log.segment import Identity
from raftmq.log.store import LogSettings, LogStore


class Held(NamedTuple):
    """One group's log on one disk."""

    term: int
    vote: int
    commit: int
    base: Entry
    """The entry before the first one; `NO_ENTRY` if the log begins with its first record."""
    entries: tuple[Entry, ...]
    """All entries that the log keeps."""
    digest: int
    """Checksum of all entries' bytes, and of the snapshots as far as they can be read."""
    has_rotten_snapshot: bool
    """True if a snapshot cannot be read; the log itself can."""

    @property
    def last(self) -> int:
        """Index of the last entry."""
        return self.entries[-1].index if self.entries else self.base.index


def held_logs(disk: MemoryFiles, node: int) -> dict[int, Held] | str:
    """The logs on a disk by partition group, or why its node would not start. Changes the disk."""
    folder = f"{DATA}/groups"
    try:
        names = disk.list(folder)
    except FileNotFoundError:
        return {}
    try:
        return {int(name): _held(disk, node, int(name)) for name in names if name.isdigit()}
    except (RaftmqError, OSError, ValueError, PageLost) as fault:
        return f"{type(fault).__name__}: {fault}"


def _held(disk: MemoryFiles, node: int, group: int) -> Held:
    folder = f"{DATA}/groups/{group:05d}"
    identity = Identity(CLUSTER, node, group)
    store, recovered = LogStore.open(disk, folder, LogSettings(), identity)
    entries: list[Entry] = []
    digest = 0
    low = recovered.first_index
    while low <= recovered.last_index:
        records = store.read(low, recovered.last_index + 1, 1 << 24)
        for record in records:
            entries.append(Entry(record.index, record.term, record.crc, record.chain))
            digest = google_crc32c.extend(digest, record.encoded)
        low = records[-1].index + 1
    has_rotten_snapshot = recovered.snapshot_fault is not None
    for meta in recovered.snapshots:
        try:
            digest = google_crc32c.extend(digest, store.open_snapshot(meta.index).state())
        except CorruptRecord:
            has_rotten_snapshot = True
    term, vote, commit = recovered.hard_state
    start = recovered.start
    base = Entry(start.index, start.term, start.crc, 0) if start.index else NO_ENTRY
    return Held(term, vote, commit, base, tuple(entries), digest, has_rotten_snapshot)
