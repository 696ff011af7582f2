"""Verifying a backup: its files, the chain of its records, and the state that they make.

Each group's records are applied to a machine (`replay`), so a backup that passes can be restored.
A damaged group does not keep the others from being looked at.
"""

from collections.abc import Callable
from typing import NamedTuple

from raftmq.errors import RaftmqError
from raftmq.log.files import FileSystem

from .manifest import Folder, Manifest
from .replay import Replay


class VerifiedGroup(NamedTuple):
    """The finding about one partition group."""

    group: int
    """The partition group."""
    snapshot: int
    """Index of the snapshot; 0: it could not be read."""
    last: int
    """Index of the last record that is sound."""
    bytes: int
    """Bytes of the sound records."""
    fault: str
    """The first damage, with the file's name; empty: the group is whole."""


class Verified(NamedTuple):
    """The findings about a backup folder."""

    manifest: Manifest
    """The finished backups."""
    groups: list[VerifiedGroup]
    """One for each partition group of the last backup."""


def verify(
    files: FileSystem,
    path: str,
    *,
    on_bytes: Callable[[int, int], None] = lambda group, count: None,
) -> Verified:
    """Read a whole backup folder; nothing is written.

    Args:
        files: the disk.
        path: the folder.
        on_bytes: hears of each record: its partition group and its bytes.

    Raises:
        BackupFault: the manifest cannot be read, or no backup is finished.
    """
    folder = Folder(files, path)
    manifest = folder.read()
    point = folder.point(manifest)
    groups = [_verify(folder, manifest, each.group, on_bytes) for each in point.groups]
    return Verified(manifest, groups)


def _verify(
    folder: Folder, manifest: Manifest, group: int, on_bytes: Callable[[int, int], None]
) -> VerifiedGroup:
    snapshot = last = count = 0
    try:
        replay = Replay(folder, manifest, group)
        snapshot = last = replay.meta.index
        for record in replay.records(manifest.end_of(group)):
            last = record.index
            count += len(record.encoded)
            on_bytes(group, len(record.encoded))
    except RaftmqError as fault:
        return VerifiedGroup(group, snapshot, last, count, str(fault))
    return VerifiedGroup(group, snapshot, last, count, "")
