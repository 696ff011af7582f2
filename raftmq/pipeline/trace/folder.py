"""The state of a trace on disk: which files count, and how far each log was read.

`trace.json` holds all of it, and is replaced as a whole:

    {"version": 1, "runs": 13, "next": {"1": 5001, "2": 731}, "stale": ["2026-11-22T10"],
     "hours": {"2026-11-22T10": {"built": 12, "ranges": {"3/0": [0, 512]}}},
     "trims": {"3/0/1": 100}, "lost": [[1, 2, 40]], "cluster": "shop"}

| field | meaning |
|---|---|
| runs | runs that were committed; files of events of others do not count |
| next | by partition group: the next record to read |
| stale | hours that have got events since they were built |
| hours | by hour: the run after which it was built (-1: never); by topic's id and queue, which |
| | messages were stored in it: [first, after the last) |
| trims | by topic's id, queue and attachment: up to where retention was seen to trim |
| lost | records that retention took unread: [partition group, first, after the last) |
| cluster | the id of the cluster that it is of |

Invariants:
- A file has its name only when all of it is durable; a name has the number of its run.
- One process writes at a time.

Left out: object stores, as in `raftmq.pipeline.durable`.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from raftmq.pipeline import durable
from raftmq.pipeline.errors import PipelineError

VERSION = 1
"""The version of the format of `trace.json`."""
NAME = "trace.json"
"""The file that describes the folder."""
EVENTS, TIMELINES, QUANTILES = "events", "timelines", "quantiles"
"""The tables."""
NEVER = -1
"""The value of `Hour.built` for an hour that was never built."""


@dataclass(frozen=True, slots=True)
class Hour:
    """The messages stored in one hour, as far as is known."""

    built: int = NEVER
    """The run after which its timelines were built."""
    ranges: dict[str, list[int]] = field(default_factory=dict)
    """`topic id/queue` → the first offset, and the offset after the last."""


@dataclass(frozen=True, slots=True)
class State:
    """The content of `trace.json`; see the heading."""

    version: int = VERSION
    """The version of the format."""
    runs: int = 0
    """How many runs count: 0 to `runs - 1`."""
    next: dict[str, int] = field(default_factory=dict)
    """Partition group → the next record to read."""
    stale: list[str] = field(default_factory=list)
    """Hours to be built, in order."""
    hours: dict[str, Hour] = field(default_factory=dict)
    """Hour (`2026-11-22T10`, UTC) → the messages stored in it."""
    trims: dict[str, int] = field(default_factory=dict)
    """`topic id/queue/attachment` → the offset after the last trimmed message."""
    lost: list[list[int]] = field(default_factory=list)
    """Records that retention took unread: [partition group, first, after the last)."""
    cluster: str = ""
    """The cluster's id; empty before the first run."""


def load(folder: Path) -> State:
    """The durable state; an empty one if the folder is new.

    Raises:
        PipelineError: the state is of another version or unreadable, or the folder is no trace's.
    """
    path = folder / NAME
    if not path.exists():
        if folder.exists() and any(folder.iterdir()) and not (folder / "lock").exists():
            raise PipelineError(f"{folder} is not empty, and no trace", "name a folder of its own")
        return State()
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        version = found["version"]
        if version != VERSION:
            message = f"{path} is of version {version}, and this software reads {VERSION}"
            raise PipelineError(message, "use the software that wrote it, or another folder")
        hours = {name: Hour(**each) for name, each in found.pop("hours").items()}
        return State(**found, hours=hours)
    except (KeyError, TypeError, ValueError) as error:
        raise PipelineError(f"{path} cannot be read: {error}", "name another folder") from error


def save(folder: Path, state: State) -> None:
    """Replace the durable state; the new one is durable on return."""
    durable.replace(folder / NAME, json.dumps(asdict(state)).encode())


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Inside, no other process writes into the folder, which is made if it is missing.

    Raises:
        PipelineError: another process writes into it, or it is no folder of a trace.
    """
    load(folder)
    durable.make_folders(folder)
    with durable.locked(folder / "lock", busy=f"another process writes into {folder}"):
        yield


def remove_strays(folder: Path, state: State) -> int:
    """Remove files that do not count: those of killed runs, and of hours that were rebuilt since.

    Returns how many.
    """
    count = 0
    for table in (EVENTS, TIMELINES, QUANTILES):
        for path in (folder / table).rglob("*"):
            if path.is_file() and not _counts(path, table, state):
                path.unlink()
                count += 1
    return count


def files(folder: Path, table: str, state: State, since: str = "") -> list[str]:
    """The files of a table that count, of the hour `since` and later, in order."""
    found = (folder / table).rglob("*.parquet")
    return sorted(
        str(path) for path in found if _counts(path, table, state) and hour_of(path) >= since
    )


def _counts(path: Path, table: str, state: State) -> bool:
    run = run_of(path)
    if run is None:
        return False
    if table == EVENTS:
        return run < state.runs
    hour = state.hours.get(hour_of(path))
    return hour is not None and hour.built == run


def run_of(path: Path) -> int | None:
    """The run that wrote a file; None: the file is unfinished, or not a run's.

    >>> run_of(Path("r00012-p3.parquet")), run_of(Path(".r00012-p3.parquet.77.unfinished"))
    (12, None)
    """
    run, _, rest = path.name.partition("-")
    is_whole = run[:1] == "r" and run[1:].isdecimal() and rest.endswith(".parquet")
    return int(run[1:]) if is_whole else None


def hour_of(path: Path) -> str:
    """The hour of a file.

    >>> hour_of(Path("events/dt=2026-11-22/hour=10/r00012-p3.parquet"))
    '2026-11-22T10'
    """
    return f"{path.parts[-3].removeprefix('dt=')}T{path.parts[-2].removeprefix('hour=')}"


def path_of(root: Path, hour: str, run: int, part: int) -> Path:
    """The path of a table's file of an hour: the reverse of `run_of` and `hour_of`."""
    day, _, number = hour.partition("T")
    return root / f"dt={day}" / f"hour={number}" / f"r{run:05}-p{part}.parquet"


def built(state: State, hours: list[str]) -> State:
    """The state after the next run has built these hours."""
    known = state.hours | {hour: replace(state.hours[hour], built=state.runs) for hour in hours}
    stale = [hour for hour in state.stale if hour not in hours]
    return replace(state, runs=state.runs + 1, hours=known, stale=stale)
