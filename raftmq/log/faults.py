"""The faults of a log on a disk, as types that say what is still true after each.

| fault | what is still true | what to do |
|---|---|---|
| `DiskFull` | the failed append left nothing behind | free space, append again |
| `NoDescriptor` | nothing was written | close something, append again |
| `FsyncFailed` | nothing since the last sync is known to be durable | stop the process |
| `WriteFailed` | nothing since the last sync is known to be durable | stop the process |
| `RotFound` | bytes that were durable no longer check out | repair from peers, or cut |
| `RecordsLost` | synced records are gone without a trace | start again: the member abstains |
| `FolderLocked` | nothing was touched | stop the other process |
| `WrongLog` | nothing was touched | give the right folder |
| `UnsupportedFormat` | nothing was touched | upgrade |
| `Dropped` | retention took the records | start at `first_index` |

Sources: "Can Applications Recover from fsync Failures?" (ATC '20) for `FsyncFailed`;
Protocol-Aware Recovery (FAST '18) for `RotFound`.
"""

from raftmq.errors import RaftmqError


class LogFault(RaftmqError):
    """The base of all faults of a log and its files."""


class DiskFull(LogFault):
    """No space was left. The append that met it had no effect; later ones may succeed."""


class NoDescriptor(DiskFull):
    """The process has as many files and sockets open as it may; nothing was written, as above."""


class WriteFailed(LogFault):
    """The disk refused a write. Final: every later call of this store raises it again."""


class FsyncFailed(WriteFailed):
    """The disk refused a sync. Final: the kernel may have dropped the pages and marked them clean,
    so that a second sync would report a success for data that was lost."""


class RotFound(LogFault):
    """Bytes that were durable do not check out. They are neither cut nor served."""

    def __init__(self, message: str, *, file: str, position: int) -> None:
        super().__init__(f"{file}, byte {position}: {message}")
        self.message = message
        """The fault, without file and position."""
        self.file = file
        """Path of the damaged file."""
        self.position = position
        """Byte at which the first damaged frame starts."""


class RecordsLost(LogFault):
    """Records that were synced and acknowledged are gone. A note in the folder says so."""


class FolderLocked(LogFault):
    """Another process (or another store of this one) holds the folder."""


class WrongLog(LogFault):
    """The folder holds the log of another cluster, node or group."""


class UnsupportedFormat(LogFault):
    """A file was written in a newer format than this software reads."""


class Dropped(LogFault):
    """The records are no longer kept: retention, or a snapshot, took their place."""

    def __init__(self, index: int, *, first_index: int) -> None:
        super().__init__(f"record {index} is no longer kept; the log starts at {first_index}")
        self.index = index
        """A record that is gone."""
        self.first_index = first_index
        """The first record that is kept."""
