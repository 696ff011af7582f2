"""Damage to the files of a stopped node, as from a bad disk, a bad backup or a mistake.

Each function edits a data folder and returns a description of the damage, or an empty string if
there was nothing to damage. The functions work on any folder, on the overlay or not.

Invariants:
- Only segment files are edited, apart from `wipe` and `clone`: a node derives or refuses the rest.
- The same folder and the same random give the same damage.

Sources: TigerBeetle's and Jepsen's file corruptions (bitflip, truncate, misdirected writes).
"""

import os
import shutil
from pathlib import Path
from random import Random

from raftmq.chaos.sectors import SECTOR_BYTES
from raftmq.log.segment import HEADER_BYTES, MARK_BYTES, SEGMENT_SUFFIX

FIRST_FRAME = HEADER_BYTES + MARK_BYTES
"""Position in a segment of the first frame after the segment's header and first mark."""


def segments(data: Path) -> dict[Path, list[Path]]:
    """Group folder → its segment files that hold frames, oldest first."""
    found: dict[Path, list[Path]] = {}
    for path in sorted(data.glob(f"groups/*/*{SEGMENT_SUFFIX}")):
        if path.stat().st_size > FIRST_FRAME:
            found.setdefault(path.parent, []).append(path)
    return found


def _segment(data: Path, random: Random) -> Path | None:
    files = [path for group in segments(data).values() for path in group]
    return random.choice(files) if files else None


def flip_bit(data: Path, random: Random) -> str:
    """One bit of a segment's content changes."""
    path = _segment(data, random)
    if path is None:
        return ""
    at = random.randrange(FIRST_FRAME, path.stat().st_size)
    with _Edited(path) as file:
        byte = os.pread(file.fileno(), 1, at)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 1 << random.randrange(8)]), at)
    return f"a bit of byte {at} of {_name(path)}"


def zero_sector(data: Path, random: Random) -> str:
    """A sector of a segment reads as zeros."""
    path = _segment(data, random)
    if path is None:
        return ""
    size = path.stat().st_size
    at = random.randrange(FIRST_FRAME, size) // SECTOR_BYTES * SECTOR_BYTES
    start = max(at, FIRST_FRAME)
    with _Edited(path) as file:
        os.pwrite(file.fileno(), bytes(min(at + SECTOR_BYTES, size) - start), start)
    return f"zeros from byte {start} of {_name(path)}"


def misdirect(data: Path, random: Random) -> str:
    """A piece of a segment overwrites another piece of the segment."""
    path = _segment(data, random)
    if path is None:
        return ""
    size = path.stat().st_size
    length = min(SECTOR_BYTES, (size - FIRST_FRAME) // 2)
    if length < 1:
        return ""
    start, to = random.sample(range(FIRST_FRAME, size - length + 1), 2)
    with _Edited(path) as file:
        os.pwrite(file.fileno(), os.pread(file.fileno(), length, start), to)
    return f"{length} bytes of byte {start} at byte {to} of {_name(path)}"


def cut_tail(data: Path, random: Random) -> str:
    """The end of a group's last segment is missing."""
    groups = segments(data)
    if not groups:
        return ""
    path = random.choice(sorted(groups.items()))[1][-1]
    size = path.stat().st_size
    left = random.randrange(FIRST_FRAME, size)
    with _Edited(path) as file:
        os.ftruncate(file.fileno(), left)
    return f"the last {size - left} bytes of {_name(path)}"


def lose_segment(data: Path, random: Random) -> str:
    """A segment in the middle of a group's log is missing."""
    middles = [path for group in segments(data).values() for path in group[1:-1]]
    if not middles:
        return ""
    path = random.choice(middles)
    path.unlink()
    _sync_folder(path.parent)
    return _name(path)


def wipe(data: Path, random: Random) -> str:
    """Everything in the folder is gone."""
    found = sorted(data.iterdir()) if data.exists() else []
    if not found:
        return ""
    for path in found:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    _sync_folder(data)
    return "everything"


def keep_copy(data: Path, aside: Path) -> None:
    """Copy a folder to `aside`, for `restore` and `go_back`."""
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(data, aside)


def restore(aside: Path, data: Path) -> None:
    """Replace the files of `data` by those of `aside`."""
    wipe(data, Random(0))
    shutil.copytree(aside, data, dirs_exist_ok=True)
    _sync_all(data)


def go_back(data: Path, aside: Path, random: Random) -> str:
    """A group's newest segment that grew since `aside` was copied gets its old content."""
    now = {path.name: path for path in segments(data).get(_some_group(data, random), [])}
    if not now:
        return ""
    group = next(iter(now.values())).parent
    before = aside / group.relative_to(data)
    for path in sorted(now.values(), reverse=True):
        old = before / path.name
        if old.exists() and FIRST_FRAME < old.stat().st_size < path.stat().st_size:
            size = path.stat().st_size
            with _Edited(path) as file:
                os.ftruncate(file.fileno(), 0)
                os.pwrite(file.fileno(), old.read_bytes(), 0)
            return f"{_name(path)} lost {size - old.stat().st_size} bytes"
    return ""


def _some_group(data: Path, random: Random) -> Path:
    groups = sorted(segments(data))
    return random.choice(groups) if groups else data


def _name(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


class _Edited:
    """A file open for edits; the edits are synced at the end."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("r+b", buffering=0)

    def __enter__(self) -> "_Edited":
        return self

    def fileno(self) -> int:
        """The file's descriptor."""
        return self._file.fileno()

    def __exit__(self, *_: object) -> None:
        os.fsync(self._file.fileno())
        self._file.close()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(descriptor)
    os.close(descriptor)


def _sync_all(data: Path) -> None:
    for path in (data, *data.rglob("*")):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
