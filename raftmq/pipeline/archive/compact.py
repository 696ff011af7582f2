"""Many small files of an hour become one, sorted by queue and offset.

    b000017-p0000-….parquet ┐
    b000017-p0001-….parquet ├─> c00000043-….parquet     version 43: whole, names it in their place
    b000018-p0000-….parquet ┘

1. For each topic and hour with more than one file a new file is written, durable, beside them. Its
   digest has to be that of the old ones added up.
2. One new version of the manifest, a whole one, names the new files in place of the old. This is
   the switch: a reader sees all of the old state or all of the new one.
3. Replaced files are *retired*: readers that began before may still need them. The next compaction
   (or this one, without a grace) removes them, and versions before the newest whole one.

A compaction killed at any line leaves the old state or the new one, and perhaps files that no
version names; the next compaction removes these first. A driver may archive meanwhile: its versions
come before or after the switch.
"""

import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from raftmq.pipeline import durable
from raftmq.pipeline.errors import PipelineError

from .commit import breaks, ranges_of
from .digest import add
from .manifest import (
    FOLDER,
    File,
    Version,
    append,
    changing,
    history,
    load,
    now,
    path_of,
    versions,
)
from .parts import HOUR_MICROSECONDS, Part
from .reader import rows_of

GRACE_SECONDS = 3600.0
"""Time that replaced files stay for readers that have begun."""

_LETTER = "c"


class Hour(NamedTuple):
    """A topic's files of an hour."""

    topic: str
    """Name of the topic."""
    hour: int
    """Hours since 1970, UTC."""
    files: list[File]
    """More than one."""

    @property
    def rows(self) -> int:
        """Rows of all its files."""
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        """Size of all its files."""
        return sum(file.bytes for file in self.files)


def plan(archive: Path, *, until: int | None = None) -> list[Hour]:
    """The hours that a compaction would work on.

    Args:
        archive: its folder.
        until: only hours that ended before, milliseconds since 1970; None: the present hour, to
            which messages still come, is left out.

    Raises:
        PipelineError: there is no archive, or its manifest is damaged.
    """
    until = now() if until is None else until
    found: dict[tuple[str, int], list[File]] = {}
    for file in load(archive).files:
        found.setdefault((file.topic, file.first // HOUR_MICROSECONDS), []).append(file)
    return [
        Hour(topic, hour, files)
        for (topic, hour), files in sorted(found.items())
        if len(files) > 1 and (hour + 1) * HOUR_MICROSECONDS <= until * 1000
    ]


def compact(
    archive: Path, *, until: int | None = None, grace: float = GRACE_SECONDS
) -> Iterator[Hour]:
    """Compact, and yield each hour once its new file is durable; the switch comes at the end.

    Args:
        archive: its folder.
        until: as in `plan`.
        grace: seconds that replaced files stay; 0: they are removed at once, and readers that
            began before may fail.

    Raises:
        PipelineError: another compaction runs, or a file is damaged: nothing is replaced.
    """
    busy = f"another compaction of {archive} runs"
    with durable.locked(archive / "_manifest" / "compact.lock", busy=busy):
        sweep(archive, _LETTER)
        new: list[File] = []
        old: list[File] = []
        for hour in plan(archive, until=until):
            new.append(_merge(archive, hour))
            old.extend(hour.files)
            yield hour
        _switch(archive, new, old, grace=grace)


def sweep(archive: Path, letter: str) -> int:
    """Remove files that no version names, of attempts that were given up; returns their number.

    Call it only while no other process writes files whose names begin with this letter.
    """
    removed = 0
    # Under this lock a commit comes before, and its files are known, or after, and is refused.
    with changing(archive):
        state = load(archive)
        known = {file.path for file in state.files} | {path for path, _ in state.retired}
        for path in sorted((archive / FOLDER).glob(f"*{durable.UNFINISHED}")):
            path.unlink()
        for path in sorted((archive / "data").glob("*/*/*/*")):
            is_ours = path.name.removeprefix(".").startswith(letter)
            if is_ours and str(path.relative_to(archive)) not in known:
                path.unlink()
                removed += 1
    return removed


def _merge(archive: Path, hour: Hour) -> File:
    """Write one file with the rows of all files of an hour; durable, and in no version yet."""
    name = f"{_LETTER}{now():013}-{secrets.token_hex(4)}"
    part = Part(archive, hour.topic, hour.hour, name)
    try:
        for rows in _sorted(archive, hour):
            part.add(rows)
        merged = part.close()
    finally:
        part.abandon()
    digest = add(*(file.digest for file in hour.files))
    if (merged.rows, merged.digest) != (hour.rows, digest):
        (archive / merged.path).unlink()
        raise PipelineError(
            f"rows of {hour.files[0].path.rpartition('/')[0]} are not those that were written",
            "`raftmq pipeline archive verify DIR --deep` names the file; restore it from a copy",
        )
    return merged


def _sorted(archive: Path, hour: Hour) -> Iterator[pa.RecordBatch]:
    for (topic, queue), ranges in ranges_of(hour.files).items():
        for expected, start in breaks(ranges, None):
            if start < expected:
                raise PipelineError(
                    f"offsets {start} to {expected} of queue {queue} of {topic} are in two files",
                    "`raftmq pipeline archive verify DIR` names them",
                )
        for each in ranges:
            yield from rows_of(archive, hour.files, topic, each)


def _switch(archive: Path, new: list[File], old: list[File], *, grace: float) -> None:
    """Replace old files by new ones in one version, if there are any; remove retired files."""
    with changing(archive):
        # Loaded again, under the lock: a driver may have added versions since the plan.
        state = load(archive)
        if new:
            replaced = {file.path for file in old}
            moment = now()
            state = replace(
                state,
                version=state.version + 1,
                is_whole=True,
                written=moment,
                query=None,
                batch=None,
                files=(*(file for file in state.files if file.path not in replaced), *new),
                retired=(*_present(archive, state), *((file.path, moment) for file in old)),
            )
            append(archive, state)
        _remove(archive, state, grace=grace)


def _remove(archive: Path, state: Version, *, grace: float) -> None:
    """Remove retired files whose grace is over, and versions that no longer count."""
    end = now() - round(grace * 1000)
    _unlink(archive / path for path, moment in state.retired if moment <= end)
    first = history(archive)[0].version
    _unlink(path_of(archive, number) for number in versions(archive) if number < first)


def _present(archive: Path, state: Version) -> Iterator[tuple[str, int]]:
    """Retired files that are not yet removed."""
    return (each for each in state.retired if (archive / each[0]).exists())


def _unlink(paths: Iterable[Path]) -> None:
    folders = set()
    for path in paths:
        with suppress(FileNotFoundError):
            path.unlink()
        folders.add(path.parent)
    for folder in sorted(folders):
        if folder.exists():
            durable.sync_folder(folder)
