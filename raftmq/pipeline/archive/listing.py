"""The contents of an archive, by topic and day."""

from pathlib import Path
from typing import NamedTuple

from .commit import ranges_of
from .manifest import File, load


class Day(NamedTuple):
    """A topic's messages that were stored on a day, UTC."""

    topic: str
    """Name of the topic."""
    day: str
    """`2026-11-22`."""
    hours: int
    """Hours that have messages."""
    files: int
    """Parquet files."""
    rows: int
    """Messages."""
    bytes: int
    """Size of the files."""
    offsets: dict[int, tuple[int, int]]
    """Queue → first offset, and the one after the last."""


def days(archive: Path) -> list[Day]:
    """All days, by topic.

    Raises:
        PipelineError: there is no archive, or its manifest is damaged.
    """
    found: dict[tuple[str, str], list[File]] = {}
    for file in load(archive).files:
        found.setdefault((file.topic, file.hour.partition(" ")[0]), []).append(file)
    return [_day(topic, day, files) for (topic, day), files in sorted(found.items())]


def _day(topic: str, day: str, files: list[File]) -> Day:
    offsets = {
        queue: (ranges[0].start, max(each.end for each in ranges))
        for (_, queue), ranges in ranges_of(files).items()
    }
    return Day(
        topic, day, len({file.hour for file in files}), len(files),
        sum(file.rows for file in files), sum(file.bytes for file in files), offsets,
    )  # fmt: skip
