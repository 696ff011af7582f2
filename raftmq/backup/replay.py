"""A backup's log applied to a machine, record by record: what verifies a backup, and restores it.

Each file is read frame by frame, as `raftmq inspect` reads it. A record has to pass its CRC, follow
the record before it and chain to it; the machine begins with the snapshot, and has to have the
digest that the leader's machine had at the end of each backup.

Invariants:
- Nothing of a backup is handed out that did not pass these checks.
- Only bytes behind the last finished backup may be torn: a stopped one left them.
"""

from collections.abc import Iterator

from raftmq.broker.replica.group import Machine
from raftmq.broker.replica.opener import decode_conf_state, restore_machine
from raftmq.consensus import ConfState, InvalidChange, decode_change
from raftmq.consensus.membership import Changer, Membership
from raftmq.errors import CorruptRecord
from raftmq.log.inspect import DamagedItem, RecordItem, SegmentItem, inspect_folder
from raftmq.log.record import Kind, Record
from raftmq.log.segment import SEGMENT_SUFFIX, SNAPSHOT_SUFFIX, Link, check_identity, parse_name
from raftmq.log.snapshot import open_snapshot
from raftmq.machine.machine import PartitionMachine
from raftmq.results import UnsupportedVersion

from .manifest import BackupFault, Folder, Manifest, Standing, identity


class Replay:
    """The log of one partition group in a backup, from its snapshot on."""

    def __init__(self, folder: Folder, manifest: Manifest, group: int) -> None:
        """Read the snapshot, and make the machine of it.

        Raises:
            BackupFault: the snapshot is missing, damaged, or newer than this software; the text
                names the file.
            WrongLog, UnsupportedFormat: it is of another log, or its file's format is newer.
        """
        self._folder = folder
        self._path = folder.log(group)
        self._owner = identity(manifest.cluster, group)
        self._finished = manifest.end_of(group)
        self._standings = {
            each.index: each
            for point in manifest.points
            for each in point.groups
            if each.group == group
        }
        try:
            names = [parse_name(n, SNAPSHOT_SUFFIX) for n in folder.files.list(self._path)]
            indexes = [index for index in names if index is not None]
            if len(indexes) != 1:
                raise BackupFault(f"{self._path} has {len(indexes)} snapshots and should have one")
            snapshot = open_snapshot(folder.files, self._path, indexes[0], self._owner)
            self.state = snapshot.state()
            """The machine's state in the snapshot."""
            self.machine: Machine = restore_machine(group, self.state)
            """The machine after the last record that was handed out."""
        except FileNotFoundError as error:
            raise BackupFault(f"{self._path} is missing") from error
        except CorruptRecord as error:
            raise BackupFault(str(error)) from error
        except UnsupportedVersion as error:
            raise BackupFault(f"{self._path}: {error}") from error
        self.meta = snapshot.meta
        """The snapshot."""
        self.conf_state = decode_conf_state(self.meta.conf_state)
        """The group's members after that record."""
        self.end = self.meta.link
        """That record."""

    def records(self, last: int) -> Iterator[Record]:
        """The records after the snapshot up to `last`, each applied before it is handed out.

        Raises:
            BackupFault: a file is damaged or missing, a record is newer than this software, or the
                machine has another digest than the leader's had.
            WrongLog: a file is of another log.
        """
        self._check_standing()
        for record in self._sound():
            if self.end.index >= last:
                return
            if record.index != self.end.index + 1 or record.chain != self.end.crc:
                raise BackupFault(
                    f"{self._path}: record {record.index} does not follow record {self.end.index}: "
                    "a file is missing or of another log"
                )
            self._apply(record)
            yield record
        if self.end.index < last:
            raise BackupFault(
                f"{self._path} ends at record {self.end.index}, and the manifest names {last}: "
                "a file is missing"
            )

    def _sound(self) -> Iterator[Record]:
        first = 0
        for item in inspect_folder(self._folder.files, self._path):
            match item:
                case SegmentItem():
                    first = item.header.first
                    check_identity(item.header.identity, self._owner, item.path)
                case DamagedItem():
                    named = parse_name(item.path.rpartition("/")[2], SEGMENT_SUFFIX) or 0
                    # An increment begins a segment of its own, so this one is no part of a backup.
                    if self._finished and min(named, first or named) > self._finished:
                        return
                    text = f"{item.path}, byte {item.position}: {item.message}"
                    raise BackupFault(text)
                case RecordItem():
                    yield item.record
                case _:
                    pass

    def _apply(self, record: Record) -> None:
        if record.kind == Kind.MEMBERSHIP:
            self.conf_state = changed(self.conf_state, record)
        try:
            self.machine.apply(record)
        except UnsupportedVersion as error:
            raise BackupFault(f"{self._path}: {error}") from error
        if isinstance(self.machine, PartitionMachine):
            # No node sends these deliveries or indexes these events.
            self.machine.pop_groups.take_handed()
            self.machine.pop_groups.take_traced()
        self.end = Link(record.index, record.term, record.crc, record.timestamp)
        self._check_standing()

    def _check_standing(self) -> None:
        standing = self._standings.get(self.end.index)
        if standing is None:
            return
        found = Standing(
            standing.group, self.end.index, self.end.term, self.end.crc, self.machine.digest
        )
        if found != standing:
            raise BackupFault(
                f"{self._path}: the state after record {found.index} has term {found.term}, crc "
                f"{found.crc:08x} and digest {found.digest:08x}, and the manifest names term "
                f"{standing.term}, crc {standing.crc:08x} and digest {standing.digest:08x}"
            )


def changed(before: ConfState, record: Record) -> ConfState:
    """The members after a MEMBERSHIP record. An impossible change changes nothing."""
    changer = Changer(Membership(), {}, record.index, inflight_messages_max=1, inflight_bytes_max=1)
    changer.membership, changer.members = changer.restore(before)
    change = decode_change(record.payload)
    try:
        if change.leaves_joint:
            after, _ = changer.leave_joint()
        elif change.enters_joint:
            after, _ = changer.enter_joint(change.changes, auto_leave=change.auto_leave)
        else:
            after, _ = changer.simple(change.changes)
    except InvalidChange:
        return before
    return after.conf_state()
