"""A run as a folder: all that a report, a replay, or the checker of another tool needs.

| file | holds |
|---|---|
| `outcome.json` | world, schedule, verdict, violations, counts, coverage, time line, trace hash |
| `history.parquet` | what clients saw, if the world has any; see `raftmq.checkers.history` |
| `report.html` | the page |
| `replay.txt` | the command that plays the run again |

Invariants:
- `read_outcome` returns an outcome equal to the one that `write_outcome` got, history included.
"""

from pathlib import Path
from typing import Any

import msgspec

from raftmq.chaos.faults import Schedule, World
from raftmq.chaos.outcome import Coverage, Happening, Outcome, Violation
from raftmq.chaos.report.case import of_outcome
from raftmq.chaos.report.page import page
from raftmq.checkers import Verdict
from raftmq.checkers.history import read_parquet, write_parquet

OUTCOME = "outcome.json"
HISTORY = "history.parquet"
REPORT = "report.html"
REPLAY = "replay.txt"


class NotAnOutcome(ValueError):
    """A folder has no readable outcome; the message says why."""


class _Stored(msgspec.Struct, frozen=True):
    """The content of `outcome.json`."""

    world: str
    schedule: msgspec.Raw
    verdict: str
    violations: tuple[Violation, ...]
    trace_hash: str
    counts: dict[str, int]
    coverage: list[tuple[str, str, str, str, int]]
    simulated_seconds: float
    vacuous: str
    timeline: tuple[Happening, ...]
    replay_options: tuple[str, ...] = ()
    compared: dict[str, int] = {}
    struck: dict[str, int] = {}


def write_outcome(outcome: Outcome, folder: Path) -> Path:
    """Store a run and its report; returns the report's path."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = _Stored(
        outcome.world.value, msgspec.Raw(outcome.schedule.to_json().encode()),
        outcome.verdict.value, outcome.violations, outcome.trace_hash,
        dict(outcome.counts), [(*key, count) for key, count in outcome.coverage.items()],
        outcome.simulated_seconds, outcome.vacuous, outcome.timeline,
        outcome.replay_options, dict(outcome.compared), dict(outcome.struck),
    )  # fmt: skip
    encoded = msgspec.json.format(msgspec.json.encode(stored))
    (folder / OUTCOME).write_bytes(encoded + b"\n")
    (folder / REPLAY).write_text(outcome.replay_line() + "\n")
    # The folder may hold an older run: its history must not be read as this run's.
    (folder / HISTORY).unlink(missing_ok=True)
    if outcome.history is not None:
        write_parquet(outcome.history, folder / HISTORY)
    report = folder / REPORT
    report.write_text(page(of_outcome(outcome)), encoding="utf-8")
    return report


def read_outcome(folder: Path) -> Outcome:
    """Load a run.

    Raises:
        NotAnOutcome: there is no `outcome.json`, or the file cannot be read.
        NotAHistory: `history.parquet` exists and cannot be read.
    """
    try:
        stored = msgspec.json.decode((folder / OUTCOME).read_bytes(), type=_Stored)
        schedule = Schedule.from_json(bytes(stored.schedule).decode())
        world, verdict = World(stored.world), Verdict(stored.verdict)
    except (OSError, ValueError, msgspec.DecodeError) as problem:
        raise NotAnOutcome(f"{folder} holds no outcome of a run: {problem}") from problem
    history = folder / HISTORY
    coverage: dict[Any, int] = {Coverage(*key): count for *key, count in stored.coverage}
    return Outcome(
        world, schedule, verdict, stored.violations,
        stored.trace_hash, stored.counts, coverage, stored.simulated_seconds, stored.vacuous,
        read_parquet(history) if history.exists() else None,
        stored.timeline, stored.replay_options, stored.compared, stored.struck,
    )  # fmt: skip
