"""The overlay: a FUSE file system under the data folders, so that disks can fail.

    python -m raftmq.chaos.real.disk.overlay FOLDER SEED

mounts `overlay_model` at FOLDER through FUSE and takes orders on stdin, one JSON object a line;
each order gets one line back. The overlay unmounts and ends when stdin closes, so it ends with the
process that started it.

| order | answer |
|---|---|
| `{"set": {field: value, ...}, "disk": D}` | `{}`: fields of `Faults` |
| `{"process": P, "disk": D}` | `{}`: process P works on disk D, and asks about its space |
| `{"refuse": {call: errno}, "disk": D}` | `{}`: the next such call fails |
| `{"spare": D}`, `{"strike": D}` | `{}`: its faults do not strike; they do again |
| `{"power_loss": D}` | `{"bytes": ..., "names": ...}`: what was not synced |
| `{"evict": D}` | `{"bytes": ...}` |
| `{"heal": D}` | `{"struck": {...}}`: hits of each fault; all faults are gone |

Invariants:
- The kernel caches no names and no attributes, and drops a file's pages when the file is opened: a
  process that starts sees the disk, not a cache.

Sources: pyfuse3, which runs on trio; lazyfs for the idea of a file system that forgets.
"""

import errno
import importlib
import os
import signal
import stat
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from importlib.util import find_spec
from typing import Any, TypeVar, cast

import msgspec
import trio

from .overlay_model import BYTES_TOTAL, FILE_MODE, FOLDER_MODE, Faults, Inode, OverlayModel

# Only `main` needs pyfuse3, and `disks.why_no_overlay` asks first; the module loads without it.
pyfuse3: Any = importlib.import_module("pyfuse3") if find_spec("pyfuse3") else None

BLOCK_BYTES = 4096
F = TypeVar("F", bound=Callable[..., Awaitable[Any]])


def _answers(call: F) -> F:
    """Answer the kernel with the errno of an `OSError` that the model raises."""

    @wraps(call)
    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return await call(*args, **kwargs)
        except OSError as error:
            raise pyfuse3.FUSEError(error.errno or errno.EIO) from error

    return cast("F", wrapped)


class Overlay:
    """Answers the kernel's calls from the model; `main` combines it with pyfuse3's operations."""

    supports_dot_lookup = False

    def __init__(self, model: OverlayModel) -> None:
        self.model = model
        """The disks."""
        self._threads: dict[int, int] = {}
        self.processes: dict[int, str] = {}
        """Process → the disk it works on."""

    def _disk_of(self, thread: int) -> str:
        if thread not in self._threads:
            process = _process_of(thread)
            if process not in self.processes:
                return ""
            self._threads[thread] = process
        return self.processes.get(self._threads[thread], "")

    async def _slow(self, inode: Inode) -> None:
        delay_ms = self.model.striking(inode.disk).delay_ms if inode.disk else 0.0
        if delay_ms:
            await trio.sleep(delay_ms / 1000)

    @_answers
    async def lookup(self, parent_inode: Any, name: bytes, ctx: Any = None) -> Any:
        """Find a name in a folder."""
        return _attributes(self.model.lookup(parent_inode, os.fsdecode(name)))

    @_answers
    async def getattr(self, inode: Any, ctx: Any = None) -> Any:
        """Size and kind."""
        return _attributes(self.model.inode(inode))

    @_answers
    async def setattr(self, inode: Any, attr: Any, fields: Any, fh: Any, ctx: Any) -> Any:
        """Truncate a file; changes of other attributes succeed and are ignored."""
        found = self.model.inode(inode)
        if fields.update_size:
            await self._slow(found)
            self.model.truncate(inode, attr.st_size)
        return _attributes(found)

    @_answers
    async def mkdir(self, parent_inode: Any, name: bytes, mode: Any, ctx: Any) -> Any:
        """Make a folder."""
        return _attributes(self.model.make(parent_inode, os.fsdecode(name), FOLDER_MODE))

    @_answers
    async def rmdir(self, parent_inode: Any, name: bytes, ctx: Any) -> None:
        """Remove an empty folder."""
        self.model.unlink(parent_inode, os.fsdecode(name))

    @_answers
    async def create(
        self, parent_inode: Any, name: bytes, mode: Any, flags: Any, ctx: Any
    ) -> tuple[Any, Any]:
        """Create a file and open it."""
        inode = self.model.make(parent_inode, os.fsdecode(name), FILE_MODE)
        await self._slow(inode)
        return pyfuse3.FileInfo(fh=inode.number), _attributes(inode)

    @_answers
    async def open(self, inode: Any, flags: int, ctx: Any) -> Any:
        """Open a file that exists; the kernel drops its cached pages of the file."""
        found = self.model.inode(inode)
        if flags & os.O_TRUNC:
            self.model.truncate(inode, 0)
        await self._slow(found)
        return pyfuse3.FileInfo(fh=inode, keep_cache=False)

    @_answers
    async def read(self, fh: Any, off: int, size: int) -> bytes:
        """Read bytes."""
        await self._slow(self.model.inode(fh))
        return self.model.read(fh, off, size)

    @_answers
    async def write(self, fh: Any, off: int, buf: bytes) -> int:
        """Write bytes; `cut_at_write` kills a process in the middle of the call."""
        inode = self.model.inode(fh)
        await self._slow(inode)
        faults = self.model.striking(inode.disk)
        written = self.model.write(fh, off, buf)
        # After the write: the power loss that follows decides which sectors of it stay.
        if faults.cut_at_write:
            victim, faults.cut_at_write = faults.cut_at_write, 0
            faults.strike("cut_at_write")
            os.kill(victim, signal.SIGKILL)
        return written

    @_answers
    async def fsync(self, fh: Any, datasync: bool) -> None:
        """Make a file durable."""
        await self._slow(self.model.inode(fh))
        self.model.sync(fh)

    @_answers
    async def opendir(self, inode: Any, ctx: Any) -> Any:
        """Open a folder."""
        self.model.inode(inode)
        return inode

    @_answers
    async def fsyncdir(self, fh: Any, datasync: bool) -> None:
        """Make names durable."""
        await self._slow(self.model.inode(fh))
        self.model.sync(fh)

    @_answers
    async def readdir(self, fh: Any, start_id: int, token: Any) -> None:
        """Names, by inode number, so that a later call goes on where this one ended."""
        names = self.model.inode(fh).names
        for name, number in sorted(names.items(), key=lambda item: item[1]):
            if number <= start_id:
                continue
            attributes = _attributes(self.model.inode(number))
            if not pyfuse3.readdir_reply(token, os.fsencode(name), attributes, number):
                return

    @_answers
    async def rename(
        self,
        parent_inode_old: Any,
        name_old: bytes,
        parent_inode_new: Any,
        name_new: bytes,
        flags: Any,
        ctx: Any,
    ) -> None:
        """Rename a file or a folder."""
        old, new = os.fsdecode(name_old), os.fsdecode(name_new)
        self.model.rename(parent_inode_old, old, parent_inode_new, new)

    @_answers
    async def unlink(self, parent_inode: Any, name: bytes, ctx: Any) -> None:
        """Remove a name."""
        self.model.unlink(parent_inode, os.fsdecode(name))

    @_answers
    async def statfs(self, ctx: Any) -> Any:
        """A disk's space. The kernel names the thread that asks, not the folder: a node gets the
        space of its own disk."""
        disk = self._disk_of(ctx.pid)
        free = self.model.free_bytes(disk) if disk else BYTES_TOTAL
        data = pyfuse3.StatvfsData()
        data.f_bsize = data.f_frsize = BLOCK_BYTES
        data.f_blocks = BYTES_TOTAL // BLOCK_BYTES
        data.f_bfree = data.f_bavail = free // BLOCK_BYTES
        data.f_files = data.f_ffree = data.f_favail = 1 << 20
        data.f_namemax = 255
        return data

    async def flush(self, fh: Any) -> None:
        """Nothing: no write is buffered."""

    async def release(self, fh: Any) -> None:
        """A file is closed."""

    async def releasedir(self, fh: Any) -> None:
        """A folder is closed."""

    async def forget(self, inode_list: Sequence[tuple[Any, int]]) -> None:
        """Nothing: the model keeps its inodes itself."""

    @_answers
    async def access(self, inode: Any, mode: int, ctx: Any) -> bool:
        """True: every access is allowed."""
        return True


def _process_of(thread: int) -> int:
    """The process of a thread; 0 if it is gone."""
    try:
        with open(f"/proc/{thread}/status") as lines:
            words = next(line.split() for line in lines if line.startswith("Tgid:"))
    except (OSError, StopIteration):
        return 0
    return int(words[1])


def _attributes(inode: Inode) -> Any:
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = inode.number
    entry.st_mode = inode.mode
    entry.st_size = len(inode.data)
    entry.st_blksize = BLOCK_BYTES
    entry.st_blocks = len(inode.data) // 512 + 1
    entry.st_nlink = 2 if stat.S_ISDIR(inode.mode) else 1
    entry.st_uid, entry.st_gid = os.getuid(), os.getgid()
    entry.st_atime_ns = entry.st_mtime_ns = entry.st_ctime_ns = inode.changed_ns
    # The kernel must ask each time: it does not hear of the changes that a power loss makes.
    entry.attr_timeout = entry.entry_timeout = 0
    return entry


def obey(overlay: Overlay, order: dict[str, Any]) -> dict[str, Any]:
    """Carry out an order; see the module's heading."""
    model, disk = overlay.model, str(order.get("disk", ""))
    match order:
        case {"process": process}:
            overlay.processes[process] = disk
            return {}
        case {"set": fields}:
            for name, value in fields.items():
                assert hasattr(model.of(disk), name), name
                setattr(model.of(disk), name, value)
            return {}
        case {"refuse": calls}:
            model.of(disk).refuse.update(calls)
            return {}
        case {"spare": which}:
            model.spared.add(which)
            return {}
        case {"strike": which}:
            model.spared.discard(which)
            return {}
        case {"power_loss": which}:
            return dict(model.power_loss(which))
        case {"evict": which}:
            return {"bytes": model.evict(which)}
        case {"heal": which}:
            struck = model.of(which).struck
            model.faults[which] = Faults()
            return {"struck": struck}
        case _:
            raise ValueError(f"no such order: {order}")


async def _take_orders(overlay: Overlay, nursery: trio.Nursery) -> None:
    stream = trio.lowlevel.FdStream(os.dup(0))
    waiting = b""
    while data := await stream.receive_some(65_536):
        *lines, waiting = (waiting + data).split(b"\n")
        for line in lines:
            answer = obey(overlay, msgspec.json.decode(line))
            os.write(1, msgspec.json.encode(answer) + b"\n")
    nursery.cancel_scope.cancel()


async def _main(overlay: Overlay) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_take_orders, overlay, nursery)
        nursery.start_soon(pyfuse3.main)
        os.write(1, b"{}\n")


def main(folder: str, seed: int) -> None:
    """Mount, serve until stdin closes, unmount."""
    # A terminal's Ctrl-C is for the process that started us, which then closes stdin.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    overlay: Any = type("Mounted", (Overlay, pyfuse3.Operations), {})(OverlayModel(seed))
    options = {*pyfuse3.default_options, "fsname=raftmq-chaos"} - {"default_permissions"}
    pyfuse3.init(overlay, folder, options)
    try:
        trio.run(_main, overlay)
    finally:
        pyfuse3.close(unmount=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
