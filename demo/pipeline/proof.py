"""The proof: the jobs' results, compared with those of plain Python.

Nothing here asks Spark or the cluster: the windows and the archive are read as the Parquet files
they are, and the archive's by what its manifest names.
"""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from demo.flights import Flight
from demo.report import Check
from raftmq.pipeline.archive.manifest import load

EXAMPLES_MAX = 3

Windows = dict[tuple[str, str], tuple[int, int]]
"""(day, carrier) → (departures, miles)."""


def expected(flights: Iterable[Flight]) -> Windows:
    """The expected windows of the board, counted flight by flight.

    >>> body = b'{"time_hour":"2013-01-01T10:00:00Z","distance":1400}'
    >>> expected([Flight(0, body, None, "UA", {})])
    {('2013-01-01', 'UA'): (1, 1400)}
    """
    counts: Counter[tuple[str, str]] = Counter()
    miles: Counter[tuple[str, str]] = Counter()
    for flight in flights:
        row = json.loads(flight.body)
        place = (row["time_hour"][:10], flight.tag)
        counts[place] += 1
        miles[place] += row["distance"] or 0
    return {place: (counts[place], miles[place]) for place in counts}


def windows_of(folder: Path) -> Windows:
    """The closed windows that the job `live` wrote."""
    found: Windows = {}
    for path in sorted(folder.glob("*.parquet")):
        for row in parquet.read_table(path).to_pylist():
            place = (f"{row['window_start']:%Y-%m-%d}", row["carrier"])
            assert place not in found, place
            found[place] = (row["count"], row["miles"])
    return found


def archived(folder: Path) -> pa.Table:
    """All rows of the files that the archive's manifest names."""
    files = load(folder).files
    # The names of its folders hold topic and hour, as the rows do.
    return pa.concat_tables(
        parquet.read_table(folder / file.path, partitioning=None) for file in files
    )


def check_windows(wanted: Windows, found: Windows) -> list[Check]:
    """Are the windows those that were counted one by one?"""
    missing = [f"{place} is not there" for place in sorted(wanted.keys() - found.keys())]
    invented = [f"{place} was never flown" for place in sorted(found.keys() - wanted.keys())]
    wrong = [
        f"{place}: {found[place]}, counted {wanted[place]}"
        for place in sorted(wanted.keys() & found.keys())
        if wanted[place] != found[place]
    ]
    return [
        _check("each window is there", "live", missing),
        _check("none was invented", "live", invented),
        _check("counts and sums are exact", "live", wrong),
    ]


def check_archive(rows: pa.Table, sent: dict[int, Flight], ends: dict[int, int]) -> list[Check]:
    """Does the archive hold each message once, as it was sent?

    Args:
        rows: all that it holds.
        sent: row number → the flight.
        ends: queue → the offset after its last message.
    """
    places = Counter(zip(rows["queue"].to_pylist(), rows["offset"].to_pylist(), strict=True))
    wanted = {(queue, offset) for queue, end in ends.items() for offset in range(end)}
    lost = [f"queue {queue}, offset {offset}" for queue, offset in sorted(wanted - set(places))]
    twice = [f"{place} {count} times" for place, count in places.items() if count > 1]
    altered = []
    seen: Counter[int] = Counter()
    bodies, keys, tags = (rows[name].to_pylist() for name in ("body", "key", "tag"))
    for body, key, tag, props in zip(bodies, keys, tags, rows["props"].to_pylist(), strict=True):
        number = int(dict(props)["row"])
        seen[number] += 1
        flight = sent.get(number)
        if flight is None or (body, key, tag) != (flight.body, flight.key, flight.tag):
            altered.append(f"row {number}")
    unseen = [f"row {number}" for number in sorted(sent.keys() - seen.keys())]
    return [
        _check("each offset of each queue is there", "archive", lost),
        _check("each of them once", "archive", twice),
        _check("as sent: body, key, tag", "archive", altered),
        _check("each departure is there", "archive", unseen),
    ]


def _check(promise: str, job: str, wrong: list[str]) -> Check:
    return Check(promise, job, len(wrong), wrong[:EXAMPLES_MAX])
