"""Damage to the files of a node that is down: rot, lost writes, missing files.

Each function damages a disk a little, durably, at a random place, and returns whether there was
anything to damage. This module does not decide whether a node must notice, nor whether the node may
be relied upon afterwards.

Sources: "Redundancy Does Not Imply Fault Tolerance" (FAST '17) and Protocol-Aware Recovery
(FAST '18) for the kinds; Jepsen's file nemeses.
"""

from collections.abc import Callable
from pathlib import PurePosixPath
from random import Random

from raftmq.chaos.sectors import SECTOR_BYTES
from raftmq.chaos.world.disk import Inode, MemoryFiles
from raftmq.log.segment import MARK_MAGIC

Damage = Callable[[MemoryFiles, Random], bool]
"""Damages a disk; False: there was nothing to damage."""


def _files(disk: MemoryFiles, *endings: str) -> list[str]:
    """The log's files with content, of these kinds."""
    endings = endings or (".log", ".snapshot", ".index")
    paths = [path for path in disk.paths() if "/groups/" in path and path.endswith(endings)]
    return [path for path in paths if disk.inode(path).data]


def _choose(disk: MemoryFiles, random: Random, *endings: str) -> Inode | None:
    """A file: half the time by its size, so that every byte is as likely as any other; else by its
    kind, as snapshots and indexes are small beside the segments."""
    paths = _files(disk, *endings)
    if not paths:
        return None
    if random.random() < 0.5:
        kind = random.choice(sorted({PurePosixPath(path).suffix for path in paths}))
        return disk.inode(random.choice([path for path in paths if path.endswith(kind)]))
    sizes = [len(disk.inode(path).data) for path in paths]
    return disk.inode(random.choices(paths, sizes)[0])


def _active_logs(disk: MemoryFiles) -> list[Inode]:
    """The last segment of each group."""
    last: dict[str, str] = {}
    for path in _files(disk, ".log"):
        last[path.rpartition("/")[0]] = path
    return [disk.inode(path) for path in last.values()]


def flip_bit(disk: MemoryFiles, random: Random) -> bool:
    """One bit of one file is inverted."""
    inode = _choose(disk, random)
    if inode is None:
        return False
    inode.data[random.randrange(len(inode.data))] ^= 1 << random.randrange(8)
    inode.sync()
    return True


def zero_sector(disk: MemoryFiles, random: Random) -> bool:
    """A sector reads as zeros."""
    inode = _choose(disk, random)
    if inode is None:
        return False
    start = random.randrange(0, len(inode.data), SECTOR_BYTES)
    stop = min(start + SECTOR_BYTES, len(inode.data))
    inode.data[start:stop] = bytes(stop - start)
    inode.sync()
    return True


def spoil_sectors(disk: MemoryFiles, random: Random) -> bool:
    """Some sectors in a row become unreadable."""
    inode = _choose(disk, random)
    if inode is None:
        return False
    start = random.randrange(0, len(inode.data), SECTOR_BYTES)
    inode.spoil(start, start + SECTOR_BYTES * random.choice((1, 1, 8)))
    return True


def spoil_end(disk: MemoryFiles, random: Random) -> bool:
    """Some sectors at the end of a log become unreadable: not all records there are applied."""
    logs = _active_logs(disk)
    if not logs:
        return False
    inode = random.choice(logs)
    stop = len(inode.data)
    inode.spoil(max(0, stop - SECTOR_BYTES * random.choice((1, 8, 64))), stop)
    return True


def misdirect(disk: MemoryFiles, random: Random) -> bool:
    """A piece of some file is found where another belongs."""
    source, target = _choose(disk, random), _choose(disk, random)
    if source is None or target is None:
        return False
    size = min(SECTOR_BYTES * random.randint(1, 8), len(source.data), len(target.data))
    start = random.randint(0, len(source.data) - size)
    piece = bytes(source.data[start : start + size])
    at = random.randint(0, len(target.data) - size)
    target.data[at : at + size] = piece
    target.sync()
    return True


def lose_write(disk: MemoryFiles, random: Random) -> bool:
    """The bytes of the last sync were never written: zeros, or a shorter file."""
    logs = [inode for inode in _active_logs(disk) if len(inode.synced) > 1]
    if not logs:
        return False
    inode = random.choice(logs)
    before = min(inode.synced[-2], len(inode.data))
    if random.random() < 0.5:
        inode.data[before:] = bytes(len(inode.data) - before)
    else:
        del inode.data[before:]
    inode.sync()
    return True


def travel(disk: MemoryFiles, random: Random) -> bool:
    """A file is as it was some syncs ago."""
    paths = [path for path in _files(disk, ".log") if len(disk.inode(path).synced) > 1]
    if not paths:
        return False
    inode = disk.inode(random.choice(paths))
    del inode.data[random.choice(inode.synced[:-1]) :]
    inode.sync()
    return True


def cut_tail(disk: MemoryFiles, random: Random) -> bool:
    """The last segment of a log has lost its end."""
    logs = _active_logs(disk)
    if not logs:
        return False
    inode = random.choice(logs)
    del inode.data[-random.randint(1, max(len(inode.data) // 2, 1)) :]
    inode.sync()
    return True


def drop_file(disk: MemoryFiles, random: Random) -> bool:
    """A segment, a snapshot or an index is missing."""
    paths = _files(disk)
    if not paths:
        return False
    disk.remove(random.choice(paths))
    return True


def lose_hard_state(disk: MemoryFiles, random: Random) -> bool:
    """A log's last record of term and vote, and all after it, is gone."""
    logs = [inode for inode in _active_logs(disk) if inode.data.count(MARK_MAGIC) > 1]
    if not logs:
        return False
    inode = random.choice(logs)
    del inode.data[inode.data.rfind(MARK_MAGIC) :]
    inode.sync()
    return True


def reorder_syncs(disk: MemoryFiles, random: Random) -> bool:
    """Of two logs that were synced one after the other, the earlier sync is lost."""
    logs = [inode for inode in _active_logs(disk) if len(inode.synced) > 1]
    if len(logs) < 2:
        return False
    inode = random.choice(logs)
    del inode.data[min(inode.synced[-2], len(inode.data)) :]
    inode.sync()
    return True
