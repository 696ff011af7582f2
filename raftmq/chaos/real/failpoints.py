"""Failpoints: named places in a node's work where its process can be made to end.

A failpoint sits at a call of the interface between a node and the outside, so that the code between
two failpoints is the product's own, unchanged. A name says when, which call, and on which kind of
file:

    before-datasync-segment     a write to the log was made, its sync is about to begin
    after-rename-snapshot       a snapshot has its name, the folder is not synced yet
    inside-append-segment       half of a write to the log is made
    after-receive               bytes came from a connection, and are not parsed yet

`FailpointFiles` wraps a disk and calls `reached(name)` at each failpoint.

Invariants:
- Every name that is called is in `FAILPOINTS`, or belongs to a kind of file and a call that the
  product never combines; tests compare the list with a running store.
- Without faults a wrapped disk does what the disk does.

Sources: etcd's gofail; the brief list of places in ALICE (OSDI '14).
"""

import os
from collections.abc import Callable, Sequence

from raftmq.log.files import NEW_SUFFIX, File, FileSystem, Lock, Pages

Reached = Callable[[str], None]
"""Called with the name of each failpoint that is passed; from any thread."""

_KINDS = {
    ".log": "segment",
    ".index": "index",
    ".snapshot": "snapshot",
    ".partial": "partial",
    ".void": "void",
    "node.json": "identity",
    "peers.json": "peers",
}
"""Suffix of a file's name → kind of the file."""

_FILE_CALLS = {
    "segment": ("create", "append", "datasync", "rename", "unlink"),
    "index": ("append", "rename"),
    "snapshot": ("append", "datasync", "rename", "unlink"),
    "partial": ("append", "datasync"),
    "identity": ("datasync", "rename"),
    "peers": ("datasync", "rename"),
}

FAILPOINTS: tuple[str, ...] = (
    *(
        f"{when}-{call}-{kind}"
        for kind, calls in _FILE_CALLS.items()
        for call in calls
        for when in ("before", "after")
    ),
    "inside-append-segment",
    "inside-append-index",
    "inside-append-snapshot",
    "before-sync-folder",
    "after-sync-folder",
    "before-send",
    "after-send",
    "after-receive",
    "after-connect",
)
"""Every failpoint that is worth setting."""

RARE = frozenset(
    {
        *("before-append-partial", "after-append-partial"),
        *("before-datasync-partial", "after-datasync-partial"),
        *("before-datasync-identity", "after-datasync-identity"),
        *("before-rename-identity", "after-rename-identity"),
        *("before-datasync-peers", "after-datasync-peers"),
        *("before-rename-peers", "after-rename-peers"),
        *("before-unlink-segment", "after-unlink-segment"),
        *("before-unlink-snapshot", "after-unlink-snapshot"),
    }
)
"""Failpoints that a running node may never reach again: a node passes them when the node is new,
receives a snapshot, or drops old segments."""


def kind_of(path: str) -> str:
    """The kind of a file, by its name; a file under its temporary name has its final kind.

    >>> kind_of("d/groups/00001/00000000000000000002.log.new"), kind_of("d/LOCK")
    ('segment', 'other')
    """
    name = path.removesuffix(NEW_SUFFIX)
    return next((kind for end, kind in _KINDS.items() if name.endswith(end)), "other")


class FailpointFile:
    """A `File` with failpoints around the calls that change it."""

    def __init__(self, file: File, path: str, reached: Reached) -> None:
        self._file = file
        self._kind = kind_of(path)
        self._reached = reached

    def pread(self, size: int, offset: int) -> bytes:
        """As the file."""
        return self._file.pread(size, offset)

    def append(self, buffers: Sequence[bytes]) -> None:
        """As the file; in two halves if the process is to end between the halves."""
        self._reached(f"before-append-{self._kind}")
        inside = f"inside-append-{self._kind}"
        if getattr(self._reached, "wants", _nothing)(inside):
            data = b"".join(buffers)
            self._file.append([data[: len(data) // 2]])
            self._reached(inside)
            self._file.append([data[len(data) // 2 :]])
        else:
            self._file.append(buffers)
        self._reached(f"after-append-{self._kind}")

    def datasync(self) -> None:
        """As the file."""
        self._reached(f"before-datasync-{self._kind}")
        self._file.datasync()
        self._reached(f"after-datasync-{self._kind}")

    def truncate(self, size: int) -> None:
        """As the file."""
        self._file.truncate(size)

    def size(self) -> int:
        """As the file."""
        return self._file.size()

    def map(self) -> Pages:
        """As the file."""
        return self._file.map()

    def close(self) -> None:
        """As the file."""
        self._file.close()


def _nothing(name: str) -> bool:
    return False


class FailpointFiles:
    """A `FileSystem` with failpoints around the calls that change it."""

    def __init__(self, files: FileSystem, reached: Reached) -> None:
        self._files = files
        self._reached = reached

    def open(self, path: str, *, writable: bool = False) -> File:
        """As the disk."""
        file = self._files.open(path, writable=writable)
        return FailpointFile(file, path, self._reached) if writable else file

    def create(self, path: str) -> File:
        """As the disk."""
        self._reached(f"before-create-{kind_of(path)}")
        file = FailpointFile(self._files.create(path), path, self._reached)
        self._reached(f"after-create-{kind_of(path)}")
        return file

    def list(self, folder: str) -> list[str]:
        """As the disk."""
        return self._files.list(folder)

    def make_folder(self, path: str) -> None:
        """As the disk."""
        self._files.make_folder(path)

    def rename(self, old: str, new: str) -> None:
        """As the disk."""
        self._reached(f"before-rename-{kind_of(new)}")
        self._files.rename(old, new)
        self._reached(f"after-rename-{kind_of(new)}")

    def unlink(self, path: str) -> None:
        """As the disk."""
        # An unlink of a temporary file drops a file that was never in use under its final kind.
        kind = "other" if path.endswith(NEW_SUFFIX) else kind_of(path)
        self._reached(f"before-unlink-{kind}")
        self._files.unlink(path)
        self._reached(f"after-unlink-{kind}")

    def sync_folder(self, folder: str) -> None:
        """As the disk."""
        self._reached("before-sync-folder")
        self._files.sync_folder(folder)
        self._reached("after-sync-folder")

    def lock(self, folder: str) -> Lock:
        """As the disk."""
        return self._files.lock(folder)

    def free_bytes(self, folder: str) -> int:
        """As the disk."""
        return self._files.free_bytes(os.fspath(folder))
