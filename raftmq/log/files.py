"""The disk as the log sees it: two small protocols, and the real one over `os`.

All calls block; they are made on a node's disk thread, or at start. Files only ever grow at their
end (`append`), apart from `truncate`, which recovery uses. Errors are `OSError` with its `errno`,
as the system gives them: the store knows which of them are final.

When writes are durable:

| call | durable after |
|---|---|
| `File.append`, `File.truncate` | `File.datasync` of that file |
| `open(create=True)`, `rename`, `unlink`, `make_folder` | `sync_folder` of the folder |

Until then a power loss may keep any part of a call's effect, of each call independently.

Sources: "All File Systems Are Not Created Equal" (OSDI '14) for that last sentence.
"""

import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import ClassVar, Protocol
from weakref import WeakSet

from raftmq.log.faults import FolderLocked

LOCK_NAME = "LOCK"
"""The file inside a folder that carries the folder's lock."""

NEW_SUFFIX = ".new"
"""Ends the name of a file that is being written; it means nothing yet."""

UNREADABLE = frozenset(
    {errno.EIO, errno.EUCLEAN, errno.EBADMSG, errno.ENODATA, errno.EILSEQ, errno.EREMOTEIO}
)
"""Errors of a read where the medium lost the bytes: the block layer's errors and the checksum
errors of file systems. Others (no descriptors, no memory, no permission) say nothing of the bytes.
"""

_SECTOR_BYTES = 512
"""The smallest piece that a disk loses at once."""

_HOLE = bytes.fromhex("d1e7a3f05b9c4826") * (_SECTOR_BYTES // 8)
"""Stands for a sector that was lost. Zeros would not do: a message may consist of them."""

_BUFFERS_MAX = 1024
"""Buffers of one `writev`: the system's IOV_MAX."""

_datasync = getattr(os, "fdatasync", os.fsync)


class Pages(Protocol):
    """A mapped file. A part of it may be touched only after `File.pread` has read that part, which
    says whether the medium still has the bytes. They stay in the system's cache as a rule."""

    def __len__(self) -> int:
        """Bytes in the file."""

    def __getitem__(self, key: slice, /) -> memoryview:
        """A part of it."""


class File(Protocol):
    """An open file. Several threads may `pread` while one appends."""

    def pread(self, size: int, offset: int) -> bytes:
        """`size` bytes from `offset` on; fewer only where the file ends."""

    def append(self, buffers: Sequence[bytes]) -> None:
        """Write all buffers at the file's end, in order.

        Raises:
            OSError: a part may have been written, which may end inside a buffer.
        """

    def datasync(self) -> None:
        """Make all that was appended or truncated durable, with the size needed to read it."""

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""

    def size(self) -> int:
        """Bytes in the file now."""

    def map(self) -> Pages:
        """The whole file as it is now, read-only; valid as long as the view is held.

        The system ends a process that touches a page which the medium lost: see `Pages`.
        """

    def close(self) -> None:
        """Give the file back. Also happens when the last reference goes."""


class Lock(Protocol):
    """A held lock."""

    def close(self) -> None:
        """Release it."""


class FileSystem(Protocol):
    """Folders and files by path."""

    def open(self, path: str, *, writable: bool = False) -> File:
        """Open a file that exists. Raises `FileNotFoundError`."""

    def create(self, path: str) -> File:
        """A new empty file, writable; one of that name is emptied."""

    def list(self, folder: str) -> list[str]:
        """The names in a folder, sorted. Raises `FileNotFoundError`."""

    def make_folder(self, path: str) -> None:
        """Make a folder and those above it; one that exists is left as it is."""

    def rename(self, old: str, new: str) -> None:
        """Give a file another name in the same folder, replacing the file of that name."""

    def unlink(self, path: str) -> None:
        """Remove a name. Raises `FileNotFoundError`."""

    def sync_folder(self, folder: str) -> None:
        """Make the folder's names durable."""

    def lock(self, folder: str) -> Lock:
        """Hold a folder exclusively, until closed or until the process ends.

        Raises:
            FolderLocked: another process or store holds it.
        """

    def free_bytes(self, folder: str) -> int:
        """Space left for this process on the folder's disk."""


def read_filled(file: File, size: int, offset: int) -> bytes:
    """As `File.pread`, with other bytes where the medium lost some: no frame checks out there.

    Raises `OSError` for other reasons than those in `UNREADABLE`.
    """
    try:
        return file.pread(size, offset)
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
    size = max(min(size, file.size() - offset), 0)
    if size <= _SECTOR_BYTES:
        # A second try: a passing error must not count as rot.
        with suppress(OSError):
            return file.pread(size, offset)
        return _HOLE[:size]
    # In halves, so that one lost sector hides no more than itself.
    half = (size // 2 + _SECTOR_BYTES - 1) // _SECTOR_BYTES * _SECTOR_BYTES
    return read_filled(file, half, offset) + read_filled(file, size - half, offset + half)


def prepare(files: FileSystem, folder: str, name: str, parts: Sequence[bytes]) -> File:
    """Write a durable file under `name` with `NEW_SUFFIX`; `publish` gives the file its name.

    Raises:
        OSError: as the system says. The unfinished file is removed as far as the system lets us.
    """
    path = f"{folder}/{name}{NEW_SUFFIX}"
    file = files.create(path)
    try:
        file.append(parts)
        file.datasync()
    except OSError:
        file.close()
        with suppress(OSError):
            files.unlink(path)
        raise
    return file


def publish(files: FileSystem, folder: str, name: str) -> None:
    """Give a prepared file its name, durably. Raises `OSError`: either name may stand."""
    files.rename(f"{folder}/{name}{NEW_SUFFIX}", f"{folder}/{name}")
    files.sync_folder(folder)


class RealFile:
    """A `File` of the operating system."""

    __slots__ = ("_descriptor",)

    def __init__(self, path: str, flags: int) -> None:
        self._descriptor = -1
        self._descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)

    def __del__(self) -> None:
        self.close()

    def pread(self, size: int, offset: int) -> bytes:
        """Read at a position; one system call, unless the system stops short of the end."""
        data = os.pread(self._descriptor, size, offset)
        if len(data) == size:
            return data
        parts = [data]
        while data and sum(map(len, parts)) < size:
            done = sum(map(len, parts))
            data = os.pread(self._descriptor, size - done, offset + done)
            parts.append(data)
        return b"".join(parts)

    def append(self, buffers: Sequence[bytes]) -> None:
        """Write at the end; one system call for up to 1,024 buffers."""
        if len(buffers) > _BUFFERS_MAX:
            buffers = [b"".join(buffers)]
        written = os.writev(self._descriptor, buffers)
        if written == sum(map(len, buffers)):
            return
        rest = memoryview(b"".join(buffers))[written:]
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]

    def datasync(self) -> None:
        """`fdatasync`, or `fsync` where the system lacks it."""
        _datasync(self._descriptor)

    def truncate(self, size: int) -> None:
        """Cut the file."""
        os.ftruncate(self._descriptor, size)

    def size(self) -> int:
        """Bytes in the file."""
        return os.fstat(self._descriptor).st_size

    def map(self) -> memoryview:
        """Map the file; the map keeps a descriptor of its own."""
        if self.size() == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(self._descriptor, 0, prot=mmap.PROT_READ))

    def close(self) -> None:
        """Close the descriptor."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class RealFiles:
    """The operating system's `FileSystem`."""

    def open(self, path: str, *, writable: bool = False) -> RealFile:
        """Open a file that exists; writable ones only append."""
        return RealFile(path, os.O_RDWR | os.O_APPEND if writable else os.O_RDONLY)

    def create(self, path: str) -> RealFile:
        """Make an empty file for appending."""
        return RealFile(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC)

    def list(self, folder: str) -> list[str]:
        """Sorted names."""
        return sorted(os.listdir(folder))

    def make_folder(self, path: str) -> None:
        """`mkdir -p`, each new name made durable in the folder above it.

        The name of a folder that exists is made durable, too: the process that made the folder may
        not have synced the name, and a power loss would take the folder with all inside.
        """
        parent = os.path.dirname(os.path.abspath(path))
        if os.path.isdir(path):
            # A parent that this process may not read is its owner's to sync.
            with suppress(PermissionError):
                self.sync_folder(parent)
            return
        if not os.path.isdir(parent):
            self.make_folder(parent)
        os.mkdir(path, 0o700)
        self.sync_folder(parent)

    def rename(self, old: str, new: str) -> None:
        """Atomic replacement."""
        os.rename(old, new)

    def unlink(self, path: str) -> None:
        """Remove a name."""
        os.unlink(path)

    def sync_folder(self, folder: str) -> None:
        """`fsync` of the folder itself, also where the process has no descriptor left."""
        descriptor = _SPARE.open_folder(folder)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
            _SPARE.hold()

    def lock(self, folder: str) -> "RealLock":
        """`flock` on the folder's lock file, with the holder's process id inside for people."""
        return RealLock(os.path.join(folder, LOCK_NAME))

    def free_bytes(self, folder: str) -> int:
        """Space that an ordinary user may still take."""
        figures = os.statvfs(folder)
        return figures.f_bavail * figures.f_frsize


class _Spare:
    """A descriptor held back for syncing folders: a changed name that cannot be synced is final."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: int | None = None

    def hold(self) -> None:
        """Hold a descriptor back, if the process may open one."""
        with self._lock:
            self._take()

    def open_folder(self, folder: str) -> int:
        """Open a folder, with the spare descriptor if no other is left."""
        flags = os.O_RDONLY | os.O_DIRECTORY
        try:
            return os.open(folder, flags)
        except OSError as error:
            if error.errno not in {errno.EMFILE, errno.ENFILE}:
                raise
        with self._lock:
            held, self._held = self._held, None
            if held is not None:
                os.close(held)
            try:
                return os.open(folder, flags)
            except OSError:
                self._take()
                raise

    def _take(self) -> None:
        if self._held is None:
            with suppress(OSError):
                self._held = os.open(os.devnull, os.O_RDONLY)


_SPARE = _Spare()


class RealLock:
    """A held `flock`. The system releases it when the process ends, however it ends.

    A lock belongs to the open file, which a forked child shares: the child closes its copy at once,
    so that it does not hold the folder after its parent's end.
    """

    __slots__ = ("__weakref__", "_descriptor")

    _held: ClassVar["WeakSet[RealLock]"] = WeakSet()

    def __init__(self, path: str) -> None:
        self._descriptor = -1
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise FolderLocked(
                f"{os.path.dirname(path)} is in use by process {holder or 'unknown'}: "
                "a data folder serves one process at a time"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        self._descriptor = descriptor
        RealLock._held.add(self)

    @classmethod
    def _forked(cls) -> None:
        for lock in list(cls._held):
            lock.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Release the folder."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


os.register_at_fork(after_in_child=RealLock._forked)
