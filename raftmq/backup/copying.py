"""Taking a backup: the logs of a running cluster, group by group, into a folder.

    data groups 1, 2, ... ─> system group ─> manifest
         │
         ├─ ask the leader: oldest snapshot, last applied record, digest   (a linearizable read)
         ├─ blank log: copy the snapshot
         └─ copy the records after those at hand, up to that last record

The copies are logs as nodes have them, so a stopped copy is taken up as a node takes up its log
after a crash: a torn end is cut, and the next record follows. An increment begins a new segment, so
no file of a finished backup is changed by a later one.

Each group is consistent by its index: the copy is a prefix of the group's log, and has all that was
acknowledged before the backup began. Groups are not consistent with each other. The system group
comes last, so each queue that has messages in the backup has its topic, unless the topic was
deleted meanwhile; and no number of a topic or consumer group that data groups know is given again.

Invariants:
- A record is written only if its CRC is right and it chains to the record before it.
- The manifest names a backup only once all of its records are durable.

Left out: reading from followers, which would spare the leaders.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import anyio
import msgspec

from raftmq.errors import CorruptRecord, Unavailable
from raftmq.log.files import FileSystem
from raftmq.log.record import Record, decode_many
from raftmq.log.segment import HardState
from raftmq.log.snapshot import SnapshotReceiver
from raftmq.log.store import LogSettings, LogStore
from raftmq.machine.queue_numbers import SYSTEM_GROUP

from .manifest import BackupFault, Folder, Manifest, Point, Standing, identity

if TYPE_CHECKING:
    from raftmq.client import Client
    from raftmq.client.admin.logs import PartitionLog

SYNC_BYTES = 16 * 1024 * 1024
"""Bytes of records that a crash may take from a copy, at most."""
WRITING_SECONDS = 0.05
"""Pause when the leader's disk does not have the next record yet."""


class Taken(NamedTuple):
    """A finished backup."""

    cluster: str
    """The cluster's id."""
    point: Point
    """The backup's end in each group."""
    number: int
    """The backup's number in its folder, from 1."""
    records: int
    """Records that were copied now; others were there."""
    bytes: int
    """Bytes of snapshots and records that were copied now."""


class Copying:
    """One run that takes a backup. `take` is called once."""

    def __init__(
        self,
        mq: "Client",
        files: FileSystem,
        path: str,
        *,
        rate: int | None = None,
        segment_bytes: int = LogSettings().segment_bytes,
        on_bytes: Callable[[int, int], None] = lambda group, count: None,
    ) -> None:
        """`rate` bounds the bytes a second, None does not; `on_bytes` hears of each piece: its
        partition group and its bytes."""
        self._mq = mq
        self._folder = Folder(files, path)
        self._rate = rate
        self._settings = LogSettings(segment_bytes)
        self._on_bytes = on_bytes
        self._records = self._bytes = 0
        self._began = 0.0

    async def take(self) -> Taken:
        """Copy all that is missing, and write the manifest.

        Cancelling leaves a folder that the next run goes on with, as a crash does.

        Raises:
            BackupFault: the folder cannot be used, or is damaged; or the cluster no longer keeps
                the records that follow those in the folder.
            FolderLocked: another process has the folder open.
            LogFault: the disk refused a write, or a file of the backup is damaged.
            Unavailable: a group had no leader for too long.
        """
        self._began, at_ms = anyio.current_time(), time.time_ns() // 1_000_000
        view = await self._mq.admin.cluster()
        files, path = self._folder.files, self._folder.path
        files.make_folder(path)
        lock = files.lock(path)
        try:
            manifest = self._folder.begin(view.cluster)
            numbers = sorted(group.id for group in view.groups if group.id != SYSTEM_GROUP)
            standings = [await self._copy(manifest, number) for number in numbers]
            system = await self._copy(manifest, SYSTEM_GROUP)
            # A group that was made meanwhile may have messages by now.
            now = {group.id for group in (await self._mq.admin.cluster()).groups}
            if added := now - {SYSTEM_GROUP, *numbers}:
                raise BackupFault(f"partition groups {sorted(added)} are new: take it again")
            point = Point(at_ms, [system, *standings])
            points = [*manifest.points, point]
            self._folder.write(msgspec.structs.replace(manifest, points=points))
        finally:
            lock.close()
        return Taken(view.cluster, point, len(points), self._records, self._bytes)

    async def _copy(self, manifest: Manifest, number: int) -> Standing:
        """Bring the copy of one group's log up to the last record that its leader has applied."""
        owner = identity(manifest.cluster, number)
        log_folder = self._folder.log(number)
        # Writes and syncs wait on the event loop: nothing else is done meanwhile.
        store, _ = LogStore.open(self._folder.files, log_folder, self._settings, owner)
        try:
            bounds = await self._mq.admin.log(number)
            if not store.last_index:
                await self._copy_snapshot(store, manifest, number, bounds)
            have = store.last_index
            if bounds.last < have or bounds.snapshot > have:
                raise _unfit(log_folder, have, bounds)
            if have < bounds.last and have == manifest.end_of(number):
                store.roll()
            await self._copy_records(store, number, bounds)
            end = store.link(bounds.last)
        finally:
            store.close()
        return Standing(number, end.index, end.term, end.crc, bounds.digest)

    async def _copy_snapshot(
        self, store: LogStore, manifest: Manifest, number: int, bounds: "PartitionLog"
    ) -> None:
        at, size, receiver = 0, 1, None
        while receiver is None or not receiver.is_complete:
            size, piece = await self._mq.admin.log_snapshot(number, bounds, at)
            if receiver is None:
                receiver = SnapshotReceiver(
                    self._folder.files,
                    self._folder.log(number),
                    identity(manifest.cluster, number),
                    index=bounds.snapshot,
                    bytes_total=size,
                )
            receiver.write(at, piece)
            at = receiver.received
            await self._count(number, len(piece))
        receiver.finish()
        meta = store.install_snapshot(bounds.snapshot, HardState())
        store.append((), HardState(meta.term, 0, meta.index))
        store.sync()

    async def _copy_records(self, store: LogStore, number: int, bounds: "PartitionLog") -> None:
        unsynced = 0
        while (have := store.last_index) < bounds.last:
            try:
                data = await self._mq.admin.log_records(number, have + 1, bounds.last + 1)
            except Unavailable:
                # Retention may have dropped the records since.
                now = await self._mq.admin.log(number)
                if now.snapshot > have:
                    raise _unfit(self._folder.log(number), have, now) from None
                raise
            records = decode_many(data)
            _check_follows(store, records, bounds.last)
            if not records:
                await anyio.sleep(WRITING_SECONDS)
                continue
            last = records[-1]
            # All of them are applied on the leader, and so committed.
            store.append(records, HardState(last.term, 0, last.index))
            unsynced += len(data)
            if unsynced >= SYNC_BYTES:
                store.sync()
                unsynced = 0
            self._records += len(records)
            await self._count(number, len(data))

    async def _count(self, number: int, count: int) -> None:
        self._bytes += count
        self._on_bytes(number, count)
        if self._rate is not None:
            due = self._began + self._bytes / self._rate
            await anyio.sleep(max(0.0, due - anyio.current_time()))


def _check_follows(store: LogStore, records: list[Record], last: int) -> None:
    """Refuse records that do not follow the copy.

    Raises:
        CorruptRecord: they do not.
    """
    before, chain = store.last_index, store.link(store.last_index).crc
    for record in records:
        if record.index != before + 1 or record.chain != chain or record.index > last:
            text = f"record {record.index} does not follow record {before} of the backup"
            raise CorruptRecord(f"{text}: it is of another log", position=0)
        before, chain = record.index, record.crc


def _unfit(folder: str, have: int, bounds: "PartitionLog") -> BackupFault:
    if bounds.last < have:
        text = f"ends at record {have}, and the cluster's log at {bounds.last}: it is another log"
    else:
        text = f"ends at record {have}, and the cluster keeps the records after {bounds.snapshot}"
    return BackupFault(f"{folder} {text}; take the backup into a new folder")
