"""Offsets that retention took before they were archived, as the source has noted them.

    _gaps/*.parquet    topic, queue, start, end, seen_at

The source writes this table if the job goes on in spite of loss (`archive run --skip-lost`); the
table holds a row for each range of offsets, [start, end).
"""

from collections.abc import Iterator
from pathlib import Path

FOLDER = "_gaps"


class Gaps:
    """The table; it is read at the first question."""

    def __init__(self, archive: Path) -> None:
        """Args: the archive's folder."""
        self._archive = archive
        self._ranges: dict[tuple[str, int], list[tuple[int, int]]] | None = None

    def covers(self, topic: str, queue: int, start: int, end: int) -> bool:
        """Whether all offsets of [start, end) are known to be lost."""
        if self._ranges is None:
            self._ranges = _read(self._archive / FOLDER)
        for first, last in self._ranges.get((topic, queue), []):
            if first <= start < last:
                start = last
        return start >= end


def _read(folder: Path) -> dict[tuple[str, int], list[tuple[int, int]]]:
    found: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for topic, queue, start, end in _rows(folder):
        found.setdefault((topic, queue), []).append((start, end))
    for ranges in found.values():
        ranges.sort()
    return found


def _rows(folder: Path) -> Iterator[tuple[str, int, int, int]]:
    import pyarrow.parquet as pq

    columns = ["topic", "queue", "start", "end"]
    for path in sorted(folder.glob("*.parquet")):
        for row in pq.read_table(path, columns=columns, partitioning=None).to_pylist():
            yield row["topic"], row["queue"], row["start"], row["end"]
