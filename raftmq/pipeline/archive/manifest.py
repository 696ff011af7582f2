"""The manifest: the files of an archive, version by version.

    _manifest/00000000000000000041.json    {"version": 41, "files": [...], "ends": {...}, ...}
    _manifest/00000000000000000042.json

A version adds the files of one micro-batch, or, after a compaction, names all files (`is_whole`):
then earlier versions no longer count. So an archive is its newest whole version and those after it.
A reader that has listed the versions sees one state, whatever happens meanwhile; a file that no
version names is not part of the archive.

| field of a version | meaning |
|---|---|
| format | 1 |
| version | its number, from 1, without a gap |
| is_whole | `files` are all there are; else they are added to those of the version before |
| written | when, milliseconds since 1970 |
| query, batch | Spark's query and micro-batch that wrote it; null after a compaction |
| topics | topic → its id in the cluster, as its first archived message was read |
| ends | topic → queue → the offset after the last one archived |
| files | see below |
| retired | of a whole version: [path, when] of files that were replaced and perhaps removed since |

| field of a file | meaning |
|---|---|
| path | below the archive's folder |
| topic | its only topic |
| rows, bytes | how many, and the file's size |
| digest | of its rows (`raftmq.pipeline.archive.digest`), 16 hexadecimal digits |
| ranges | [queue, start, end) of offsets, in the order of its rows |
| first, last | the least and the greatest `timestamp`, microseconds since 1970 |

Invariants:
- A version is durable, and so is every file it names, before anything builds on it.
- Ranges of a queue never overlap. `ends` is the greatest end of each.
- Versions are added one at a time, under a lock, by a process that has read the one before.

Sources: Delta Lake's log (Armbrust et al., VLDB 2020), which has checkpoints beside its versions
where a whole version is one itself.
"""

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from raftmq.pipeline import durable
from raftmq.pipeline.errors import PipelineError

FORMAT = 1
FOLDER = "_manifest"
_TRIES = 10
"""Times that versions are listed, if one is gone before it was read."""


class MissingVersion(PipelineError):
    """A version is not there, and a later one builds on it."""


class Range(NamedTuple):
    """Offsets of a queue."""

    queue: int
    """The queue in its topic."""
    start: int
    """The first offset."""
    end: int
    """The offset after the last one."""


@dataclass(frozen=True, slots=True)
class File:
    """One Parquet file; the fields are those of the module's second table."""

    path: str
    topic: str
    rows: int
    bytes: int
    digest: int
    ranges: tuple[Range, ...]
    first: int
    last: int

    @property
    def hour(self) -> str:
        """`2026-11-22 09`: the hour whose messages it holds, UTC."""
        _, day, hour, _ = self.path.split("/")[1:]
        return f"{day.removeprefix('dt=')} {hour.removeprefix('hour=')}"


Ends = dict[str, dict[int, int]]
"""Topic → queue → the offset after the last one."""


@dataclass(frozen=True, slots=True)
class Version:
    """One version; the fields are those of the module's first table."""

    version: int = 0
    is_whole: bool = True
    written: int = 0
    query: str | None = None
    batch: int | None = None
    topics: dict[str, int] = field(default_factory=dict)
    ends: Ends = field(default_factory=dict)
    files: tuple[File, ...] = ()
    retired: tuple[tuple[str, int], ...] = ()

    def end(self, topic: str, queue: int) -> int | None:
        """The offset after the last archived one; None: the queue has none."""
        return self.ends.get(topic, {}).get(queue)


def is_archive(folder: Path) -> bool:
    """Whether the folder is an archive."""
    return (folder / FOLDER).is_dir()


def create(folder: Path) -> None:
    """Make an archive of a folder that is new, empty or one already."""
    check_usable(folder)
    durable.make_folders(folder / FOLDER)


def check_usable(folder: Path) -> None:
    """Refuse a folder that has other files in it.

    Raises:
        PipelineError: the folder has other files.
    """
    if folder.exists() and not is_archive(folder) and any(folder.iterdir()):
        fix = "name a new or empty folder"
        raise PipelineError(f"{folder} has files in it and is not an archive", fix)


def newest(folder: Path) -> Version:
    """The last version: the ends of all queues, but only the files that it added itself."""
    for _ in range(_TRIES):
        numbers = versions(folder)
        if not numbers:
            return Version()
        try:
            return read(folder, numbers[-1])
        except FileNotFoundError:
            # A compaction has removed this version since, so there is a newer one.
            continue
    raise _restless(folder)


def load(folder: Path) -> Version:
    """The state of the archive: its newest version, with all files.

    Raises:
        PipelineError: there is no archive, or a version is missing or unreadable.
    """
    error: PipelineError | None = None
    for _ in range(_TRIES):
        try:
            return merged(history(folder))
        except FileNotFoundError:
            continue
        except MissingVersion as missing:
            # A folder that changes while it is listed may show neither the old version nor the
            # new one, so it is listed again.
            error = missing
    raise error or _restless(folder)


def history(folder: Path) -> list[Version]:
    """The newest whole version and those after it; version 1 may be first without being whole.

    Raises:
        PipelineError: as `load`.
        FileNotFoundError: a compaction has removed one since they were listed: list them again.
    """
    if not is_archive(folder):
        fix = "`raftmq pipeline archive run TOPIC --to DIR` makes one"
        raise PipelineError(f"{folder} is not an archive", fix)
    numbers = versions(folder)
    found: list[Version] = []
    for number in range(numbers[-1] if numbers else 0, 0, -1):
        if number not in numbers:
            raise MissingVersion(
                f"version {number} of the manifest is missing in {folder / FOLDER}",
                "restore it from a copy; the files that it named are still in data/",
            )
        found.insert(0, read(folder, number))
        if found[0].is_whole:
            break
    return found


def merged(found: list[Version]) -> Version:
    """The state after these versions."""
    if not found:
        return Version()
    files = tuple(file for version in found for file in version.files)
    return replace(found[-1], is_whole=True, files=files, retired=found[0].retired)


def versions(folder: Path) -> list[int]:
    """The numbers of the versions there are, ascending."""
    names = (path.stem for path in (folder / FOLDER).glob("*.json"))
    return sorted(int(name) for name in names if name.isdecimal())


def path_of(folder: Path, version: int) -> Path:
    """The file of a version."""
    return folder / FOLDER / f"{version:020}.json"


@contextmanager
def changing(folder: Path) -> Iterator[Version]:
    """Inside, no other process adds a version; gives the newest one."""
    with durable.locked(folder / FOLDER / "lock"):
        yield newest(folder)


def append(folder: Path, version: Version) -> None:
    """Add the next version; on return it is durable. Only within `changing`."""
    durable.create(path_of(folder, version.version), _encode(version))


def read(folder: Path, number: int) -> Version:
    """One version.

    Raises:
        FileNotFoundError: there is none of that number.
        PipelineError: it is damaged, or of a newer format.
    """
    path = path_of(folder, number)
    text = path.read_bytes()
    try:
        plain = json.loads(text)
        if plain["format"] == FORMAT:
            return _decode(plain)
    except (ValueError, KeyError, TypeError) as error:
        raise PipelineError(f"{path} is damaged", "restore it from a copy") from error
    raise PipelineError(f"{path} has format {plain['format']}", "install a newer raftmq")


def ends_after(ends: Ends, files: Iterable[File]) -> Ends:
    """The ends of the queues after these files have been added."""
    after = {topic: dict(queues) for topic, queues in ends.items()}
    for file in files:
        queues = after.setdefault(file.topic, {})
        for queue, _, end in file.ranges:
            queues[queue] = max(end, queues.get(queue, 0))
    return after


def now() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def _encode(version: Version) -> bytes:
    plain = asdict(version)
    for file in plain["files"]:
        file["digest"] = f"{file['digest']:016x}"
    return json.dumps({"format": FORMAT, **plain}, separators=(",", ":")).encode()


def _decode(plain: dict[str, Any]) -> Version:
    del plain["format"]
    plain["files"] = tuple(_decode_file(file) for file in plain["files"])
    plain["retired"] = tuple((path, moment) for path, moment in plain["retired"])
    plain["ends"] = {
        topic: {int(queue): end for queue, end in queues.items()}
        for topic, queues in plain["ends"].items()
    }
    return Version(**plain)


def _decode_file(plain: dict[str, Any]) -> File:
    ranges = tuple(Range(*each) for each in plain.pop("ranges"))
    return File(digest=int(plain.pop("digest"), 16), ranges=ranges, **plain)


def _restless(folder: Path) -> PipelineError:
    what = f"the versions in {folder / FOLDER} are removed faster than they can be read"
    return PipelineError(what, "try again when no compaction runs")
