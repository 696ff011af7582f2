"""The disks behind the overlay: files in memory that know what a power loss would leave.

A tree of inodes; each folder at the top is a disk of its own (`node-1`, `node-2`), with faults of
its own. The model makes no file system calls and needs no event loop: `overlay` translates.

Durability is the least that POSIX promises: bytes are durable after a sync of their file, names
after a sync of their folder. `power_loss` keeps an arbitrary part of the rest:

| not synced | what may be left |
|---|---|
| appended bytes | each sector on its own: as written, zeros, noise; or a shorter file |
| a truncation | done or not |
| created, renamed, removed names | any subset, a rename as one |

Invariants:
- A write below what is durable is durable at once (only locks and edits of stopped nodes do that).
- A call that a fault refuses has no effect, except for the part of a write that was done before.

Sources: as `raftmq.log.files`; "Can applications recover from fsync failures" (ATC '20) for lies.
"""

import errno
import os
import stat
from dataclasses import dataclass, field
from random import Random

from raftmq.chaos.sectors import sectors

FOLDER_MODE, FILE_MODE = stat.S_IFDIR | 0o755, stat.S_IFREG | 0o644
ROOT = 1
BYTES_TOTAL = 1 << 34
"""Size of a disk without a bound, in bytes."""


@dataclass(slots=True)
class Faults:
    """The current faults of one disk."""

    refuse: dict[str, int] = field(default_factory=dict)
    """Call (`write`, `fsync`, `read`) → errno of its next one; a refused write writes a part."""
    is_lying: bool = False
    """The next sync fails, later ones succeed, and the bytes of the failed one are lost."""
    ignores_syncs: bool = False
    """Syncs succeed and keep nothing. No broker survives this; it tests the tests."""
    space_bytes: int | None = None
    """Bytes that still fit, else `ENOSPC`; None: no bound."""
    quota_bytes: int | None = None
    """Bytes that still fit, else `EDQUOT`; None: no bound."""
    is_read_only: bool = False
    """Every change and every sync fails with `EROFS`."""
    delay_ms: float = 0.0
    """Extra time of each create, open, read, write, truncate and sync."""
    is_short: bool = False
    """The next write of more than one byte writes a part only, and returns the part's length."""
    cut_at_write: int = 0
    """Kill this process in the next write, as a power loss in the middle of a write; 0: none."""
    struck: dict[str, int] = field(default_factory=dict)
    """Number of hits of each fault."""

    def strike(self, name: str) -> None:
        """Count a hit."""
        self.struck[name] = self.struck.get(name, 0) + 1


Change = dict[str, int | None]
"""Name → its new inode, or None if the name goes; applied as a whole or not at all."""


@dataclass(slots=True)
class Inode:
    """A file or a folder."""

    number: int
    disk: str
    """The folder at the top that it belongs to; empty for the root."""
    mode: int
    data: bytearray = field(default_factory=bytearray)
    durable_size: int = 0
    """The bytes before this position are durable."""
    cut: bytes = b""
    """Durable bytes from `durable_size` on that a truncation took; the truncation is not synced."""
    lied_from: int | None = None
    """The bytes from this position on look durable and are not; None: all are as they look."""
    names: dict[str, int] = field(default_factory=dict)
    durable_names: dict[str, int] = field(default_factory=dict)
    pending: list[Change] = field(default_factory=list)
    changed_ns: int = 0

    @property
    def is_folder(self) -> bool:
        """False for a file."""
        return stat.S_ISDIR(self.mode)


def refusal(number: int) -> OSError:
    """The error that a call raises for an errno."""
    return OSError(number, os.strerror(number))


class OverlayModel:
    """All disks."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.faults: dict[str, Faults] = {}
        """Disk → its faults."""
        self.spared: set[str] = set()
        """Disks that no fault strikes at present."""
        self._inodes = {ROOT: Inode(ROOT, "", FOLDER_MODE)}
        self._next = ROOT + 1

    def of(self, disk: str) -> Faults:
        """The faults of a disk."""
        return self.faults.setdefault(disk, Faults())

    def striking(self, disk: str) -> Faults:
        """The faults that a call on a disk meets: none while the disk is spared."""
        return Faults() if disk in self.spared else self.of(disk)

    def inode(self, number: int) -> Inode:
        """The inode of a number. Raises `ESTALE` if it is gone, for example by a power loss."""
        try:
            return self._inodes[number]
        except KeyError:
            raise refusal(errno.ESTALE) from None

    def lookup(self, folder: int, name: str) -> Inode:
        """The inode of a name in a folder. Raises `ENOENT` if there is no such name."""
        number = self.inode(folder).names.get(name)
        if number is None:
            raise refusal(errno.ENOENT)
        return self._inodes[number]

    def used_bytes(self, disk: str) -> int:
        """Bytes in all files of a disk."""
        return sum(len(inode.data) for inode in self._inodes.values() if inode.disk == disk)

    def free_bytes(self, disk: str) -> int:
        """Bytes that still fit on a disk."""
        faults = self.striking(disk)
        bounds = [b for b in (faults.space_bytes, faults.quota_bytes) if b is not None]
        return max(min(bounds, default=BYTES_TOTAL - self.used_bytes(disk)), 0)

    # Calls that change something

    def make(self, folder: int, name: str, mode: int) -> Inode:
        """A new file or folder."""
        parent = self.inode(folder)
        disk = parent.disk or name
        self._check_change(disk)
        if name in parent.names:
            raise refusal(errno.EEXIST)
        inode = Inode(self._next, disk, mode)
        self._next += 1
        self._inodes[inode.number] = inode
        self._rename(parent, {name: inode.number})
        return inode

    def rename(self, folder: int, old: str, new_folder: int, new: str) -> None:
        """Give a file or folder another name; an inode under the new name is replaced."""
        parent = self.inode(folder)
        inode = self.lookup(folder, old)
        self._check_change(parent.disk)
        if folder == new_folder:
            self._rename(parent, {old: None, new: inode.number})
        else:
            # Each folder has its own pending names: a power loss may keep one half of the rename.
            self._rename(parent, {old: None})
            self._rename(self.inode(new_folder), {new: inode.number})

    def unlink(self, folder: int, name: str) -> None:
        """Remove a name; a process that has the file open keeps the inode."""
        inode = self.lookup(folder, name)
        if inode.names:
            raise refusal(errno.ENOTEMPTY)
        self._check_change(inode.disk)
        self._rename(self.inode(folder), {name: None})

    def write(self, number: int, offset: int, data: bytes) -> int:
        """Write, and return the number of bytes written. Raises the errno of a fault."""
        inode = self.inode(number)
        faults = self.striking(inode.disk)
        self._check_change(inode.disk)
        if "write" in faults.refuse:
            self._put(inode, offset, data[: self.random.randrange(len(data) + 1)])
            self._refuse(faults, "write")
        if faults.is_short and len(data) > 1:
            faults.is_short = False
            faults.strike("short")
            data = data[: self.random.randrange(1, len(data))]
        self._reserve(inode, offset, data, faults)
        self._put(inode, offset, data)
        return len(data)

    def truncate(self, number: int, size: int) -> None:
        """Cut a file, or fill it with zeros."""
        inode = self.inode(number)
        self._check_change(inode.disk)
        if size < inode.durable_size:
            # A later truncation cuts before an earlier one: its bytes go in front.
            inode.cut = bytes(inode.data[size : inode.durable_size]) + inode.cut
            inode.durable_size = size
        if size < len(inode.data):
            del inode.data[size:]
        else:
            inode.data += bytes(size - len(inode.data))

    def sync(self, number: int) -> None:
        """Make a file or a folder's names durable."""
        inode = self.inode(number)
        faults = self.striking(inode.disk)
        if faults.is_read_only:
            raise refusal(errno.EROFS)
        if faults.is_lying and not inode.is_folder:
            faults.is_lying = False
            faults.strike("lies")
            if inode.lied_from is None:
                inode.lied_from = inode.durable_size
            # As a kernel that marks the pages clean after a failed sync: later syncs succeed.
            self._keep(inode)
            raise refusal(errno.EIO)
        self._refuse(faults, "fsync")
        if not faults.ignores_syncs:
            self._keep(inode)

    def read(self, number: int, offset: int, size: int) -> bytes:
        """Bytes of a file."""
        inode = self.inode(number)
        self._refuse(self.striking(inode.disk), "read")
        return bytes(inode.data[offset : offset + size])

    # Ends of a machine

    def power_loss(self, disk: str) -> dict[str, int]:
        """Forget what was not synced, except for an arbitrary part.

        Returns the number of unsynced bytes and names before the loss.
        """
        lost = {"bytes": 0, "names": 0}
        for inode in [i for i in self._inodes.values() if i.disk == disk]:
            if inode.is_folder:
                lost["names"] += len(inode.pending)
                self._lose_names(inode)
            else:
                lost["bytes"] += len(inode.data) - inode.durable_size
                self._lose_bytes(inode)
        # Bytes that a sync lied about count as durable above, and were in memory only.
        self.evict(disk)
        self._collect()
        return lost

    def evict(self, disk: str) -> int:
        """Zero the bytes that a sync lied about, as an emptied cache does; returns their number."""
        gone = 0
        for inode in self._inodes.values():
            if inode.disk == disk and inode.lied_from is not None:
                gone += max(len(inode.data) - inode.lied_from, 0)
                inode.data[inode.lied_from :] = bytes(max(len(inode.data) - inode.lied_from, 0))
                inode.lied_from = None
        return gone

    # -- inside ----------------------------------------------------------------------------------

    def _check_change(self, disk: str) -> None:
        if self.striking(disk).is_read_only:
            raise refusal(errno.EROFS)

    def _refuse(self, faults: Faults, call: str) -> None:
        number = faults.refuse.pop(call, 0)
        if number:
            faults.strike(call)
            raise refusal(number)

    def _reserve(self, inode: Inode, offset: int, data: bytes, faults: Faults) -> None:
        """Take the space for a write. Raises `ENOSPC` or `EDQUOT`, and takes none, if it lacks."""
        grows = max(offset + len(data) - len(inode.data), 0)
        for bound, number in (
            (faults.space_bytes, errno.ENOSPC),
            (faults.quota_bytes, errno.EDQUOT),
        ):
            if bound is not None and grows > bound:
                faults.strike(errno.errorcode[number])
                raise refusal(number)
        if faults.space_bytes is not None:
            faults.space_bytes -= grows
        if faults.quota_bytes is not None:
            faults.quota_bytes -= grows

    def _put(self, inode: Inode, offset: int, data: bytes) -> None:
        if offset > len(inode.data):
            inode.data += bytes(offset - len(inode.data))
        inode.data[offset : offset + len(data)] = data

    def _keep(self, inode: Inode) -> None:
        inode.durable_size, inode.cut = len(inode.data), b""
        inode.durable_names, inode.pending = dict(inode.names), []

    def _rename(self, folder: Inode, change: Change) -> None:
        _apply(folder.names, change)
        # The names in the root are the disks: a power loss of one machine removes no disk.
        if folder.number == ROOT:
            self._keep(folder)
        else:
            folder.pending.append(change)

    def _lose_names(self, folder: Inode) -> None:
        names = dict(folder.durable_names)
        for change in folder.pending:
            if self.random.random() < 0.5:
                _apply(names, change)
        folder.names, folder.durable_names, folder.pending = names, dict(names), []

    def _lose_bytes(self, inode: Inode) -> None:
        random, durable = self.random, inode.durable_size
        if inode.cut and random.random() < 0.5:
            # Neither the truncation nor the writes after it reached the disk.
            inode.data[durable:] = inode.cut
        else:
            size = random.choice([len(inode.data), random.randint(durable, len(inode.data))])
            del inode.data[size:]
            # In half of the cases the sectors that remain are intact; else each may be torn.
            torn = random.choice([0.0, 0.5])
            for start, stop in sectors(durable, size):
                if random.random() < torn:
                    length = stop - start
                    is_noise = random.random() < 0.4
                    inode.data[start:stop] = random.randbytes(length) if is_noise else bytes(length)
        self._keep(inode)

    def _collect(self) -> None:
        """Forget inodes without a name: after a power loss no process has them open."""
        named = {n for inode in self._inodes.values() for n in inode.names.values()} | {ROOT}
        for number in [n for n in self._inodes if n not in named]:
            del self._inodes[number]


def _apply(names: dict[str, int], change: Change) -> None:
    for name, number in change.items():
        if number is None:
            names.pop(name, None)
        else:
            names[name] = number
