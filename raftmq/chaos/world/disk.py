"""A disk in memory that knows what a power loss would leave, and that can refuse and lie.

It implements `raftmq.log.files.FileSystem`. Every file remembers what was synced and what was done
to it since; every folder likewise. `power_loss` keeps an arbitrary part of what was not synced:

| not synced | what may be left |
|---|---|
| appended bytes | each 512-byte sector of them on its own: as written, zeros, or noise; or a |
| | shorter file |
| a truncation | done or not |
| created, renamed and removed names | any subset of them, a rename as one |

Faults while it is used:

| call or field | what happens |
|---|---|
| `fail_at(k, errno)` | the k-th changing call from now is refused, an append after a random part |
| `crash_at(k)` | the machine stops inside the k-th changing call, a part of it may be done |
| `crash_at_failpoint(name, after=)` | the same before or after the next call of that name |
| `fail_next(operation, errno)` | the next call of that operation is refused; `pread` too |
| `space`, `full_errno` | bytes of all files together, and the error beyond |
| `spoil(path, start, stop)` | reads of these bytes are refused with `EIO`, for good |
| `is_read_only` | every changing call is refused with `EROFS` |
| `lie_next()` | the next sync is refused and what it should have saved is lost at a power loss |
| `short_next()` | the next write takes a part, or is interrupted before it |

Damage to files at rest is in `damage`.

Invariants:
- The same calls and the same random generator give the same bytes.
- A file opened before a power loss or the end of its process is unusable afterwards, and so is a
  `Mount`: a dead process changes nothing.

Sources: "All File Systems Are Not Created Equal" (OSDI '14) for what is kept; lazyfs; "Can
Applications Recover from fsync Failures?" (ATC '20) for the lie.
"""

import errno
import os
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import NoReturn

from raftmq.chaos.world.inode import Folder, Inode
from raftmq.log.faults import FolderLocked
from raftmq.log.files import Pages

__all__ = [
    "FAILPOINTS",
    "Inode",
    "MemoryFile",
    "MemoryFiles",
    "Mount",
    "PageLost",
    "PowerLoss",
]

DISK_CALLS = {"sync": "datasync", "write": "append", "read": "pread"}
"""By kind of call: the operation for `fail_next`."""

FAILPOINTS = tuple(
    f"{operation} {kind}"
    for operation, kinds in {
        "create": ("log", "snapshot", "partial", "index", "json"),
        "append": ("log", "snapshot", "partial", "index", "json"),
        "datasync": ("log", "snapshot", "partial", "index", "json"),
        "rename": ("log", "snapshot", "index", "json"),
        "sync_folder": ("groups", "data"),
        "unlink": ("log", "snapshot", "index"),
    }.items()
    for kind in kinds
)
"""Names of failpoints: an operation and the kind of file, by its ending; folders by name."""


class PowerLoss(BaseException):
    """The machine stops inside a call; not an `Exception`, so that nothing below handles it."""


class PageLost(AssertionError):
    """A process touched a mapped page that the disk lost: the system would end it."""


class MappedFile:
    """A mapped file: touching a bad sector ends the process, as SIGBUS does."""

    def __init__(self, inode: Inode) -> None:
        self._data, self._inode = memoryview(bytes(inode.data)), inode

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, key: slice, /) -> memoryview:
        start, stop, _ = key.indices(len(self._data))
        if not self._inode.is_readable(start, stop):
            raise PageLost("SIGBUS: a mapped page cannot be read")
        return self._data[key]


class MemoryFile:
    """An open file of a `MemoryFiles`."""

    __slots__ = ("_closed", "_disk", "_epoch", "_inode", "_path")

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
        self._disk.refuse("pread", self._path)
        if not self._inode.is_readable(offset, offset + size):
            raise OSError(errno.EIO, os.strerror(errno.EIO), self._path)
        return bytes(memoryview(self._inode.data)[offset : offset + size])

    def append(self, buffers: Sequence[bytes]) -> None:
        """Write at the end; a refused call writes a part."""
        self._check()
        data = b"".join(buffers)
        disk = self._disk
        for piece in disk.pieces(data):
            disk.reserve(self._inode, piece, self._path)
            disk.enter("append", self._path, partial(self._append, piece), len(piece))
            self._append(piece)
        disk.leave("append", self._path)

    def _append(self, data: bytes, size: int | None = None) -> None:
        self._inode.data += data[:size]

    def datasync(self) -> None:
        """Make the content durable."""
        self._check()
        inode = self._inode
        # Noted before the refusal: the system shows bytes that a power loss will take.
        if self._disk.is_lying:
            inode.lost.append((inode.low, len(inode.data)))
        try:
            self._disk.enter("datasync", self._path)
        except OSError:
            self._disk.on_sync_failed(self._path)
            raise
        inode.sync()
        self._disk.leave("datasync", self._path)

    def truncate(self, size: int) -> None:
        """Cut the file."""
        self._check()
        self._disk.enter("truncate", self._path)
        self._inode.cut(size)

    def size(self) -> int:
        """Bytes in the file."""
        self._check()
        return len(self._inode.data)

    def map(self) -> Pages:
        """A copy of the file as it is now; bad sectors of the copy must not be touched."""
        self._check()
        mapped = MappedFile(self._inode)
        return mapped if self._inode.unreadable else mapped[:]

    def close(self) -> None:
        """Close the file: later calls raise `OSError`."""
        self._closed = True


class MemoryLock:
    """A held folder lock."""

    def __init__(self, disk: "MemoryFiles", folder: str) -> None:
        self._disk = disk
        self._folder = folder
        self._epoch = disk.epoch

    def close(self) -> None:
        """Release the folder, unless the end of its process did: another may hold it by now."""
        if self._epoch == self._disk.epoch:
            self._disk.locked.discard(self._folder)


class MemoryFiles:
    """The whole disk. One thread only."""

    def __init__(self, random: Random | None = None, space: int | None = None) -> None:
        self.random = random or Random(0)
        self.space = space
        """Bytes of all files together, or None for no bound; may be changed at any time."""
        self.full_errno = errno.ENOSPC
        """The `errno` of a write beyond `space`."""
        self.sync_error = 0
        """The `errno` of all syncs from now on; 0: they succeed."""
        self.is_read_only = False
        """True: each changing call is refused."""
        self.epoch = 0
        """Power losses and ends of processes so far."""
        self.locked: set[str] = set()
        self.taken: set[str] = set()
        """Paths of files that a fault removed: the process that owns them did not."""
        self.calls = 0
        """Changing calls so far."""
        self.is_lying = False
        """The next sync loses the bytes that it should save."""
        self.on_call: Callable[[str], None] = lambda _: None
        """Called with each changing call, as `operation path`."""
        self.on_sync_failed: Callable[[str], None] = lambda _: None
        """Called with the path of each file whose sync is refused."""
        self.on_effect: Callable[[str], None] = lambda _: None
        """Called with the effect of each fault that strikes a call."""
        self.on_stop: Callable[[], None] = lambda: None
        """Called when the machine is about to stop inside a call."""
        self.trace: list[str] | None = []
        """Each changing call, as `operation name`; None: not kept."""
        self._folders: dict[str, Folder] = {"": Folder()}
        self._fault: tuple[int, int] | None = None
        self._crash: int | None = None
        self._failpoints: set[tuple[str, bool]] = set()
        self._refusals: dict[str, int] = {}
        self._is_short = False

    # Faults.

    def fail_at(self, k: int, error: int) -> None:
        """Refuse the k-th changing call from now (1: the next) with this `errno`, once."""
        self._fault = (self.calls + k, error)

    def crash_at(self, k: int) -> None:
        """Raise `PowerLoss` in the k-th changing call from now; a part of it may be done."""
        self._crash = self.calls + k

    def crash_at_failpoint(self, name: str, *, after: bool) -> None:
        """Raise `PowerLoss` before or after the next call of that name; see `FAILPOINTS`."""
        self._failpoints.add((name, after))

    def fail_next(self, operation: str, error: int) -> None:
        """Refuse the next call of an operation with this `errno`, once."""
        self._refusals[operation] = error

    def lie_next(self) -> None:
        """Refuse the next sync with `EIO` and lose what it should have saved: see the heading."""
        self.is_lying = True
        self.fail_next("datasync", errno.EIO)

    def short_next(self) -> None:
        """Let the next write take only a part at first, or be interrupted before it begins.

        The write goes on with the rest, as `raftmq.log.files.RealFile` does.
        """
        self._is_short = True

    def calm(self) -> None:
        """Take back all faults that have not struck yet."""
        self._fault = self._crash = self.space = None
        self._failpoints.clear()
        self._refusals.clear()
        self.is_lying = self._is_short = self.is_read_only = False
        self.sync_error, self.full_errno = 0, errno.ENOSPC

    def power_loss(self, random: Random | None = None) -> None:
        """Forget what was not synced, save for an arbitrary part; files and locks are released."""
        random = random or self.random
        for folder in self._folders.values():
            names = dict(folder.durable)
            for change in folder.pending:
                if random.random() < 0.5:
                    _apply(names, change)
            folder.names, folder.durable, folder.pending = names, dict(names), []
        for inode in self.inodes():
            inode.lose_power(random)
        self._release()

    def drop_caches(self) -> None:
        """Drop from the system's memory too what the disk dropped after a refused sync."""
        for inode in self.inodes():
            if inode.lost:
                inode.lose_power(self.random)

    def kill(self) -> None:
        """The process ends; the system keeps all bytes that the process wrote."""
        self._release()

    def _release(self) -> None:
        self.epoch += 1
        self.locked.clear()
        self._fault = self._crash = None
        self._failpoints.clear()
        self._refusals.clear()
        self.is_lying = False

    # Reading and writing past all faults.

    def used(self) -> int:
        """Bytes in all files."""
        return sum(len(inode.data) for inode in self.inodes())

    def inodes(self) -> list[Inode]:
        """All files, each once."""
        inodes = {id(i): i for f in self._folders.values() for i in f.names.values()}
        return list(inodes.values())

    def paths(self) -> list[str]:
        """All files, sorted."""
        return sorted(
            f"{path}/{name}" for path, folder in self._folders.items() for name in folder.names
        )

    def inode(self, path: str) -> Inode:
        """A file's content."""
        folder, name = os.path.split(path)
        try:
            return self._folders[folder].names[name]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None

    def bytes_of(self, path: str) -> bytes:
        """A file's content."""
        return bytes(self.inode(path).data)

    def put(self, path: str, data: bytes) -> None:
        """Write a file, durably, past all faults."""
        folder, name = os.path.split(path)
        self._folders[folder].names[name] = self._folders[folder].durable[name] = Inode.of(data)

    def remove(self, path: str) -> None:
        """Remove a file, durably, past all faults; the process that owns it does not know."""
        self.taken.add(path)
        folder, name = os.path.split(path)
        self._folders[folder].names.pop(name, None)
        self._folders[folder].durable.pop(name, None)

    def flip(self, path: str, bit: int) -> None:
        """Invert one bit of a file, durably."""
        inode = self.inode(path)
        inode.data[bit // 8] ^= 1 << bit % 8
        inode.sync()

    def spoil(self, path: str, start: int, stop: int) -> None:
        """Make bytes of a file unreadable, `EIO`, until they are cut off, or the file replaced."""
        self.inode(path).spoil(start, stop)

    def digest(self) -> int:
        """Checksum of all names and bytes."""
        total = 0
        for path in self.paths():
            total = zlib.crc32(self.inode(path).data, zlib.crc32(path.encode(), total))
        return total

    def copy(self) -> "MemoryFiles":
        """A copy of the disk for trials, with all its files durable as they are."""
        twin = MemoryFiles(Random(0), self.space)
        for path, folder in self._folders.items():
            twin._folders[path] = Folder()
            for name, inode in folder.names.items():
                whole = f"{path}/{name}" if path else name
                twin.put(whole, bytes(inode.data))
                twin.inode(whole).unreadable = list(inode.unreadable)
        return twin

    def become(self, other: "MemoryFiles") -> None:
        """Take over the content of another disk, which must not be used afterwards."""
        self._folders = other._folders

    def mount(self) -> "Mount":
        """The disk as one process sees it."""
        return Mount(self)

    # Shared by the protocol's calls.

    def enter(
        self,
        operation: str,
        path: str,
        partly: Callable[[int], None] | None = None,
        size: int = 0,
    ) -> None:
        """Count a changing call; refuse the call, or stop the machine inside it, if that is due."""
        self.calls += 1
        self.on_call(f"{operation} {path}")
        if self.trace is not None:
            self.trace.append(f"{operation} {os.path.basename(path)}")
        fails = self._fault is not None and self.calls == self._fault[0]
        crashes = self._crash is not None and self.calls == self._crash
        if (fails or crashes) and partly is not None:
            partly(self.random.randint(0, size))
        if crashes:
            self._stop(f"{operation} {path}")
        self._reach(operation, path, after=False)
        if fails:
            assert self._fault is not None
            error, self._fault = self._fault[1], None
            raise OSError(error, os.strerror(error), path)
        if self.is_read_only:
            self.on_effect("changes refused")
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        if operation == "datasync" and self.sync_error:
            raise OSError(self.sync_error, os.strerror(self.sync_error), path)
        self.refuse(operation, path, partly, size)

    def refuse(
        self,
        operation: str,
        path: str,
        partly: Callable[[int], None] | None = None,
        size: int = 0,
    ) -> None:
        """Refuse a call if `fail_next` asked for that."""
        if operation not in self._refusals:
            return
        error = self._refusals.pop(operation)
        self.on_effect(f"{operation} refused")
        if operation == "datasync":
            self.is_lying = False
        if partly is not None:
            partly(self.random.randint(0, size))
        raise OSError(error, os.strerror(error), path)

    def leave(self, operation: str, path: str) -> None:
        """A changing call is done."""
        self._reach(operation, path, after=True)

    def _reach(self, operation: str, path: str, *, after: bool) -> None:
        if self._failpoints and (f"{operation} {kind_of(path)}", after) in self._failpoints:
            self._failpoints.clear()
            self._stop(f"{'after' if after else 'before'} {operation} {path}")

    def _stop(self, where: str) -> NoReturn:
        """Stop the machine here; `on_stop` runs first and may do what the stop entails."""
        self.on_effect("failpoints reached")
        self.on_stop()
        raise PowerLoss(where)

    def pieces(self, data: bytes) -> list[bytes]:
        """The pieces of a write that single system calls take."""
        if not self._is_short or len(data) < 2:
            return [data]
        self._is_short = False
        self.on_effect("writes in two parts")
        cut = self.random.randrange(len(data))
        return [data[:cut], data[cut:]]

    def reserve(self, inode: Inode, data: bytes, path: str) -> None:
        """If `data` does not fit, write the part that fits, and raise."""
        if self.space is None:
            return
        room = self.space - self.used()
        if len(data) > room:
            inode.data += data[: max(room, 0)]
            self.on_effect("space told as scarce")
            raise OSError(self.full_errno, os.strerror(self.full_errno), path)

    def _change(self, folder: str, change: dict[str, Inode | None]) -> None:
        _apply(self._folders[folder].names, change)
        self._folders[folder].pending.append(change)

    # The protocol.

    def open(self, path: str, *, writable: bool = False) -> MemoryFile:
        """A file that exists."""
        return MemoryFile(self, self.inode(path), path)

    def create(self, path: str) -> MemoryFile:
        """A new or emptied file."""
        self.enter("create", path)
        folder, name = os.path.split(path)
        inode = self._folders[folder].names.get(name)
        if inode is None:
            inode = Inode()
            self._change(folder, {name: inode})
        else:
            inode.cut(0)
        self.leave("create", path)
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
        """Give a file another name in the same folder."""
        self.enter("rename", new)
        folder, old_name = os.path.split(old)
        assert os.path.dirname(new) == folder
        self._change(folder, {old_name: None, os.path.basename(new): self.inode(old)})
        self.leave("rename", new)

    def unlink(self, path: str) -> None:
        """Remove a name."""
        self.inode(path)
        self.enter("unlink", path)
        folder, name = os.path.split(path)
        self._change(folder, {name: None})
        self.leave("unlink", path)

    def sync_folder(self, folder: str) -> None:
        """Make the names durable."""
        self.enter("sync_folder", folder)
        self._folders[folder].durable = dict(self._folders[folder].names)
        self._folders[folder].pending = []
        self.leave("sync_folder", folder)

    def lock(self, folder: str) -> MemoryLock:
        """Hold a folder until closed or killed."""
        if folder in self.locked:
            raise FolderLocked(f"{folder} is in use: a data folder serves one process at a time")
        self.locked.add(folder)
        return MemoryLock(self, folder)

    def free_bytes(self, folder: str) -> int:
        """Free bytes, by `space`."""
        if self.space is None:
            return 2**40
        self.on_effect("space told as scarce")
        return max(self.space - self.used(), 0)


class Mount:
    """The disk as one process sees it; unusable once the process has ended."""

    def __init__(self, disk: MemoryFiles) -> None:
        self._disk = disk
        self._epoch = disk.epoch

    def _alive(self) -> MemoryFiles:
        if self._epoch != self._disk.epoch:
            raise OSError(errno.EBADF, "the process that calls is dead")
        return self._disk

    def open(self, path: str, *, writable: bool = False) -> MemoryFile:
        """A file that exists."""
        return self._alive().open(path, writable=writable)

    def create(self, path: str) -> MemoryFile:
        """A new or emptied file."""
        return self._alive().create(path)

    def list(self, folder: str) -> list[str]:
        """Sorted names."""
        return self._alive().list(folder)

    def make_folder(self, path: str) -> None:
        """Make a folder, durably."""
        self._alive().make_folder(path)

    def rename(self, old: str, new: str) -> None:
        """Give a file another name in the same folder."""
        self._alive().rename(old, new)

    def unlink(self, path: str) -> None:
        """Remove a name."""
        self._alive().unlink(path)

    def sync_folder(self, folder: str) -> None:
        """Make the names durable."""
        self._alive().sync_folder(folder)

    def lock(self, folder: str) -> MemoryLock:
        """Hold a folder until closed or killed."""
        return self._alive().lock(folder)

    def free_bytes(self, folder: str) -> int:
        """Free bytes."""
        return self._alive().free_bytes(folder)


def kind_of(path: str) -> str:
    """The kind of a file, for the names of failpoints."""
    name = os.path.basename(path).removesuffix(".new")
    if "." in name:
        return name.rpartition(".")[2]
    return "groups" if name.isdigit() else name


def _apply(names: dict[str, Inode], change: dict[str, Inode | None]) -> None:
    for name, inode in change.items():
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode
