"""The manifest of a backup folder: which backups are finished, and up to where each one goes.

    {"format": 1, "cluster": "shop", "points": [
        {"at_ms": 1796025600000, "groups": [
            {"group": 1, "index": 4711, "term": 3, "crc": 2316999337, "digest": 99120355}, ...]},
        ...]}

The file is written when the folder is begun, without points, and after each finished backup with
one point more. Records behind the last point belong to a backup that was stopped: the next one
goes on there.

Invariants:
- A point is added once all records up to its indexes are durable in the folder.
- Points are never changed or removed, and the indexes of a later one are not lower.
"""

from typing import NamedTuple

import msgspec

from raftmq.errors import RaftmqError
from raftmq.log import checked_json
from raftmq.log.files import LOCK_NAME, NEW_SUFFIX, FileSystem
from raftmq.log.segment import Identity

FILE = "manifest.json"
GROUPS = "groups"
FORMAT = 1
NODE = 0
"""The node's number in a backup's files: no node has it, so none opens them as its own."""


class BackupFault(RaftmqError):
    """A backup folder, or a folder to restore into, cannot be used; the text names the file."""


class Standing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The end of one backup in one partition group."""

    group: int
    """The partition group; 0: the system group."""
    index: int
    """The last record of the backup."""
    term: int
    """That record's term."""
    crc: int
    """That record's CRC-32C: by the chain it stands for all records before it."""
    digest: int
    """The digest of the leader's machine after that record."""


class Point(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One finished backup."""

    at_ms: int
    """When it was begun, milliseconds since 1970 by the clock of the machine that made it."""
    groups: list[Standing]
    """All partition groups by number."""


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `manifest.json`."""

    format: int
    """Version of the folder's layout."""
    cluster: str
    """The cluster's id."""
    points: list[Point] = []
    """The finished backups, oldest first."""

    def end_of(self, group: int) -> int:
        """The highest index that a finished backup has of a group; 0: none has the group."""
        standings = [each for point in self.points for each in point.groups]
        return max((each.index for each in standings if each.group == group), default=0)


class Folder(NamedTuple):
    """A backup folder on a disk."""

    files: FileSystem
    """The disk."""
    path: str
    """The folder."""

    def log(self, group: int) -> str:
        """The folder of a partition group's log."""
        return f"{self.path}/{GROUPS}/{group:05d}"

    def read(self) -> Manifest:
        """The manifest.

        Raises:
            BackupFault: there is none, or it is damaged or of a newer format.
        """
        name = f"{self.path}/{FILE}"
        try:
            fields = checked_json.read(self.files, self.path, FILE)
            if fields is None:
                raise BackupFault(f"{name} is missing: {self.path} holds no backup")
            manifest = msgspec.convert(fields, Manifest)
        except (ValueError, NotADirectoryError) as error:
            raise BackupFault(f"{name} cannot be read: {error}") from error
        if manifest.format > FORMAT:
            text = f"{name} has format {manifest.format}, this software knows {FORMAT}: upgrade it"
            raise BackupFault(text)
        return manifest

    def begin(self, cluster: str) -> Manifest:
        """The manifest of a folder for backups of a cluster; a blank folder gets one, durably.

        Raises:
            BackupFault: the folder has other files or backups of another cluster.
        """
        blank = {LOCK_NAME, FILE + NEW_SUFFIX}
        if not set(self.files.list(self.path)) - blank:
            manifest = Manifest(FORMAT, cluster)
            self.write(manifest)
            return manifest
        manifest = self.read()
        if manifest.cluster != cluster:
            text = f"{self.path} has backups of cluster {manifest.cluster!r}, not of {cluster!r}"
            raise BackupFault(text)
        return manifest

    def point(self, manifest: Manifest, number: int | None = None) -> Point:
        """A finished backup by its number, from 1; None: the last one.

        Raises:
            BackupFault: there is no such backup.
        """
        points = manifest.points
        if not points:
            raise BackupFault(f"{self.path} has no finished backup: take it again")
        if number is None:
            return points[-1]
        if not 1 <= number <= len(points):
            raise BackupFault(f"{self.path} has backups 1 to {len(points)}, not {number}")
        return points[number - 1]

    def write(self, manifest: Manifest) -> None:
        """Replace the manifest; durable on return."""
        checked_json.write(self.files, self.path, FILE, msgspec.to_builtins(manifest))


def identity(cluster: str, group: int) -> Identity:
    """The owner of a log in a backup folder."""
    return Identity(cluster, NODE, group)
