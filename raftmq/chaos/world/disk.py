"""A disk in memory that knows what a power loss would leave, and that can refuse calls.

It implements `raftmq.log.files.FileSystem`. Every file remembers what was synced and what was done
to it since; every folder likewise. `power_loss` keeps an arbitrary part of what was not synced:

| not synced | what may be left |
|---|---|
| appended bytes | each 512-byte sector of them on its own: as written, zeros, or noise; or a |
| | shorter file |
| a truncation | done or not |
| created, renamed and removed names | any subset of them, a rename as one |

Faults: `fail_at(k, errno)` refuses the k-th call from now that changes anything (a refused append
writes a random part first), `crash_at(k)` raises `PowerLoss` instead, `space` bounds all bytes.

Invariants:
- The same calls and the same random give the same bytes.
- A file open before a power loss raises `EIO` ever after.
"""

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from raftmq.log.faults import FolderLocked

SECTOR_BYTES = 512


class PowerLoss(BaseException):
    """The machine stops inside a call; not an `Exception`, so that nothing below handles it."""


@dataclass
class Inode:
    """A file's content: what the disk holds for sure, and what the system shows."""

    durable: bytes = b""
    data: bytearray = field(default_factory=bytearray)
    low: int = 0
    """The shortest the file has been since the last sync: all before it is durable."""

    def after_power_loss(self, random: Random) -> bytes:
        """What may be left of it."""
        if self.durable == self.data:
            return self.durable
        kept = self.durable[: self.low]
        if self.low < len(self.durable) and random.random() < 0.3:
            return self.durable  # neither the truncation nor what followed it happened
        size = random.choice([len(self.data), random.randint(self.low, len(self.data))])
        tail = bytearray(self.data[self.low : size])
        for start, stop in _sectors(self.low, size):
            if (fate := random.random()) < 0.5:
                part = slice(start - self.low, stop - self.low)
                tail[part] = bytes(stop - start) if fate < 0.3 else random.randbytes(stop - start)
        return kept + bytes(tail)


def _sectors(start: int, stop: int) -> list[tuple[int, int]]:
    """The pieces of [start, stop) between multiples of the sector size."""
    pieces = []
    while start < stop:
        end = min(stop, (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
        pieces.append((start, end))
        start = end
    return pieces


@dataclass
class Folder:
    """Names: those on the disk for sure, and changes since the last sync, each done as a whole."""

    durable: dict[str, Inode] = field(default_factory=dict)
    names: dict[str, Inode] = field(default_factory=dict)
    pending: list[dict[str, Inode | None]] = field(default_factory=list)


class MemoryFile:
    """An open file of a `MemoryFiles`."""

    def __init__(self, disk: "MemoryFiles", inode: Inode, path: str) -> None:
        self._disk = disk
        self._inode = inode
        self._path = path
        self._epoch = disk.epoch
        self._closed = False

    def _check(self) -> None:
        if self._closed or self._epoch != self._disk.epoch:
            raise OSError(errno.EBADF, "closed, or open before a power loss", self._path)

    def pread(self, size: int, offset: int) -> bytes:
        """Bytes at a position."""
        self._check()
        return bytes(self._inode.data[offset : offset + size])

    def append(self, buffers: Sequence[bytes]) -> None:
        """Write at the end; a refused call writes a part."""
        self._check()
        data = b"".join(buffers)
        self._disk.reserve(self._inode, data, self._path)
        self._disk.enter("append", self._path, lambda cut: self._append(data[:cut]), len(data))
        self._append(data)

    def _append(self, data: bytes) -> None:
        self._inode.data += data

    def datasync(self) -> None:
        """Make durable what is there."""
        self._check()
        self._disk.enter("datasync", self._path)
        self._inode.durable = bytes(self._inode.data)
        self._inode.low = len(self._inode.data)

    def truncate(self, size: int) -> None:
        """Cut the file."""
        self._check()
        self._disk.enter("truncate", self._path)
        del self._inode.data[size:]
        self._inode.low = min(self._inode.low, size)

    def size(self) -> int:
        """Bytes in the file."""
        self._check()
        return len(self._inode.data)

    def map(self) -> memoryview:
        """A copy of the file as it is now."""
        self._check()
        return memoryview(bytes(self._inode.data))

    def close(self) -> None:
        """Use it no more."""
        self._closed = True


class MemoryLock:
    """A held folder lock."""

    def __init__(self, disk: "MemoryFiles", folder: str) -> None:
        self._disk = disk
        self._folder = folder

    def close(self) -> None:
        """Release the folder."""
        self._disk.locked.discard(self._folder)


class MemoryFiles:
    """The whole disk. One thread only."""

    def __init__(self, random: Random | None = None, space: int | None = None) -> None:
        self.random = random or Random(0)
        self.space = space
        """Bytes of all files together, or None for no bound; may be changed at any time."""
        self.epoch = 0
        """Power losses so far."""
        self.locked: set[str] = set()
        self.calls = 0
        """Changing calls so far."""
        self.trace: list[str] = []
        """Each of them, as `operation name`."""
        self._folders: dict[str, Folder] = {"": Folder()}
        self._fault: tuple[int, int] | None = None
        self._crash: int | None = None

    # Faults.

    def fail_at(self, k: int, error: int) -> None:
        """Refuse the k-th changing call from now (1: the next) with this `errno`, once."""
        self._fault = (self.calls + k, error)

    def crash_at(self, k: int) -> None:
        """Raise `PowerLoss` in the k-th changing call from now; a part of it may be done."""
        self._crash = self.calls + k

    def power_loss(self, random: Random | None = None) -> None:
        """Forget what was not synced, save for an arbitrary part; files and locks are released."""
        random = random or self.random
        for folder in self._folders.values():
            names = dict(folder.durable)
            for change in folder.pending:
                if random.random() < 0.5:
                    _apply(names, change)
            folder.names, folder.durable, folder.pending = names, dict(names), []
        inodes = {id(i): i for f in self._folders.values() for i in f.names.values()}
        for inode in inodes.values():
            inode.durable = inode.after_power_loss(random)
            inode.data = bytearray(inode.durable)
            inode.low = len(inode.durable)
        self._release()

    def kill(self) -> None:
        """The process ends; the system keeps all that it was told."""
        self._release()

    def _release(self) -> None:
        self.epoch += 1
        self.locked.clear()
        self._fault = self._crash = None

    def flip(self, path: str, bit: int) -> None:
        """Invert one bit of a file, durably."""
        inode = self._inode(path)
        inode.data[bit // 8] ^= 1 << bit % 8
        inode.durable = bytes(inode.data)
        inode.low = len(inode.data)

    def bytes_of(self, path: str) -> bytes:
        """A file's content."""
        return bytes(self._inode(path).data)

    def put(self, path: str, data: bytes) -> None:
        """Write a file, durably, past all faults."""
        folder, name = os.path.split(path)
        inode = Inode(data, bytearray(data), len(data))
        self._folders[folder].names[name] = self._folders[folder].durable[name] = inode

    def copy(self) -> "MemoryFiles":
        """The same disk with nothing pending on files, for trying something on it."""
        twin = MemoryFiles(Random(0), self.space)
        for path, folder in self._folders.items():
            twin._folders[path] = Folder()
            for name, inode in folder.names.items():
                twin.put(f"{path}/{name}" if path else name, bytes(inode.data))
        return twin

    def durable_bytes(self, path: str) -> int:
        """How many bytes of a file a power loss cannot take."""
        return self._inode(path).low

    # What the protocol's calls share.

    def enter(
        self,
        operation: str,
        path: str,
        partly: Callable[[int], None] | None = None,
        size: int = 0,
    ) -> None:
        """Count a changing call; refuse it, or stop the machine inside it, if that is due."""
        self.calls += 1
        self.trace.append(f"{operation} {os.path.basename(path)}")
        fails = self._fault is not None and self.calls == self._fault[0]
        crashes = self._crash is not None and self.calls == self._crash
        if (fails or crashes) and partly is not None:
            partly(self.random.randint(0, size))
        if crashes:
            raise PowerLoss(self.trace[-1])
        if fails:
            assert self._fault is not None
            error, self._fault = self._fault[1], None
            raise OSError(error, os.strerror(error), path)

    def reserve(self, inode: Inode, data: bytes, path: str) -> None:
        """Write what fits and raise if not all of it does."""
        if self.space is not None and self._used() + len(data) > self.space:
            inode.data += data[: max(self.space - self._used(), 0)]
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def _used(self) -> int:
        inodes = {id(i): i for f in self._folders.values() for i in f.names.values()}
        return sum(len(inode.data) for inode in inodes.values())

    def _inode(self, path: str) -> Inode:
        folder, name = os.path.split(path)
        try:
            return self._folders[folder].names[name]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None

    def _change(self, folder: str, change: dict[str, Inode | None]) -> None:
        _apply(self._folders[folder].names, change)
        self._folders[folder].pending.append(change)

    # The protocol.

    def open(self, path: str, *, writable: bool = False) -> MemoryFile:
        """A file that exists."""
        return MemoryFile(self, self._inode(path), path)

    def create(self, path: str) -> MemoryFile:
        """A new or emptied file."""
        self.enter("create", path)
        folder, name = os.path.split(path)
        inode = self._folders[folder].names.get(name)
        if inode is None:
            inode = Inode()
            self._change(folder, {name: inode})
        else:
            inode.data.clear()
            inode.low = 0
        return MemoryFile(self, inode, path)

    def list(self, folder: str) -> list[str]:
        """Sorted names."""
        if folder not in self._folders:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)
        inner = [path for path in self._folders if path and os.path.dirname(path) == folder]
        return sorted([*self._folders[folder].names, *map(os.path.basename, inner)])

    def make_folder(self, path: str) -> None:
        """Make a folder, durably."""
        self._folders.setdefault(path, Folder())

    def rename(self, old: str, new: str) -> None:
        """Another name in the same folder."""
        self.enter("rename", new)
        folder, old_name = os.path.split(old)
        assert os.path.dirname(new) == folder
        self._change(folder, {old_name: None, os.path.basename(new): self._inode(old)})

    def unlink(self, path: str) -> None:
        """Remove a name."""
        self._inode(path)
        self.enter("unlink", path)
        folder, name = os.path.split(path)
        self._change(folder, {name: None})

    def sync_folder(self, folder: str) -> None:
        """Make the names durable."""
        self.enter("sync_folder", folder)
        self._folders[folder].durable = dict(self._folders[folder].names)
        self._folders[folder].pending = []

    def lock(self, folder: str) -> MemoryLock:
        """Hold a folder until closed or killed."""
        if folder in self.locked:
            raise FolderLocked(f"{folder} is in use: a data folder serves one process at a time")
        self.locked.add(folder)
        return MemoryLock(self, folder)

    def free_bytes(self, folder: str) -> int:
        """What `space` leaves."""
        return 2**40 if self.space is None else max(self.space - self._used(), 0)


class Disk(MemoryFiles):
    """A disk whose every sync can be made to fail."""

    sync_error = 0
    """The `errno` of all syncs from now on; 0: they succeed."""

    def used(self) -> int:
        """Bytes in all files."""
        return self._used()

    def enter(
        self,
        operation: str,
        path: str,
        partly: Callable[[int], None] | None = None,
        size: int = 0,
    ) -> None:
        """Count a changing call; refuse it if it is a sync and syncs are to fail."""
        super().enter(operation, path, partly, size)
        if operation == "datasync" and self.sync_error:
            raise OSError(self.sync_error, os.strerror(self.sync_error), path)


def _apply(names: dict[str, Inode], change: dict[str, Inode | None]) -> None:
    for name, inode in change.items():
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode
