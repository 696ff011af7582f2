"""The rows of a run, for programs.

`benchmarks.json` is one object: `date`, `command`, `machine`, `rows`, `figures`, `skipped`, and
`continues`, the dates of stopped runs whose cells it has, and `commits`, those of the code that
measured. A row:

| field | meaning |
|---|---|
| scenario, system, version, settings | the measurement, and facts that a comparison needs |
| messages, seconds | the counted messages, and the time in which they were counted |
| messages_per_s, mb_per_s | acknowledged (or delivered) messages, and their bodies' 10^6 bytes |
| p50_ms, p99_ms | latency of an acknowledgement, null where there is none |
| server_cpu_s_per_million | processor seconds of all servers for a million of these messages |
| server_mib | resident memory of the largest server right after it, mapped files included |
| ratio_to_floor | messages_per_s over the floor's in the same scenario; null without a floor |
| rounds | the measured rounds of which the row is the median; 1 in growth |
| figures, note | where a scenario grows: numbers by the names of `FIGURES`, why less was reached |

Rows of growth have a scenario such as `backlog-produce`, and name their case in `system`. A number
that is no rate is a figure: scenario, name, value, unit, and target.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NotRequired, TypedDict

from bench.scenarios import SCENARIOS
from bench.system import READ_ALIKE

FIGURES = {
    "consumers": True,
    "queues": True,
    "s to create": False,
    "messages": True,
    "messages/s at first": True,
    "messages/s at last": True,
    "messages/s read": True,
    "CPU at rest %": False,
    READ_ALIKE: True,
}
"""Further numbers of a row, in the order of the page; True: more is better. `CPU at rest %` is the
processor time of all servers, in percent of one processor."""


class Row(TypedDict):
    """One system in one scenario."""

    scenario: str
    system: str
    version: str
    settings: str
    messages: NotRequired[int]
    seconds: NotRequired[float]
    messages_per_s: float
    mb_per_s: float
    p50_ms: float | None
    p99_ms: float | None
    server_cpu_s_per_million: float | None
    """None: not measured."""
    server_mib: float | None
    """None: not measured."""
    ratio_to_floor: float | None
    rounds: int
    """Measured rounds; the row is that of their median rate."""
    figures: NotRequired[dict[str, float]]
    """Numbers by the names of `FIGURES`."""
    note: NotRequired[str]
    """The reason why less was reached than was wanted; empty: all was reached."""


class Skip(TypedDict):
    """A cell without a row."""

    system: str
    scenario: str | None
    """The scenario; None: the system could not run in any."""
    reason: str


class GrowthFigure(TypedDict):
    """One number of a scenario of growth."""

    scenario: str
    name: str
    """Name of the measured quantity, for people."""
    value: float
    unit: str
    """Unit of the value; empty: a ratio."""
    wanted: float | None
    """The target; None: the figure is only reported."""
    is_least: bool
    """True: `value` should be at least `wanted`; False: at most."""


class Gap(TypedDict):
    """The failovers of one system."""

    system: str
    version: str
    settings: str
    gaps_ms: list[float]
    """The longest silence of each round, in milliseconds, in the order of the rounds."""
    failed: int
    """Rounds without a number: nothing was acknowledged for 90 s, or the system did not start."""


class Gaps(TypedDict):
    """All failovers of one run of `bench.failover`."""

    date: str
    command: str
    commit: NotRequired[str]
    """The commit that was measured."""
    rows: list[Gap]


@dataclass(frozen=True, slots=True)
class Result:
    """All results of one run."""

    date: str
    command: str
    seconds: float
    rounds: int
    machine: Mapping[str, str]
    rows: Sequence[Row]
    skipped: Sequence[Skip]
    figures: Sequence[GrowthFigure] = ()
    continues: Sequence[str] = ()
    """Dates of the stopped runs that this one continued."""
    commits: Sequence[str] = ()
    """The commits that the rows were measured at, the first one first; `+`: with changes."""
    scale: float = 1.0
    """By what the amounts of queues, consumers and messages were multiplied, for a trial."""


def median_row(rounds: Sequence[Row]) -> Row:
    """The row of the round with the median rate: a measured row, not a mixture of two."""
    middle = statistics.median_low([row["messages_per_s"] for row in rounds])
    row = next(row for row in rounds if row["messages_per_s"] == middle)
    return {**row, "rounds": len(rounds)}


def with_ratios(rows: Iterable[Row]) -> list[Row]:
    """The same rows with `ratio_to_floor` filled in."""
    rows = list(rows)
    floors = {row["scenario"]: row["messages_per_s"] for row in rows if row["system"] == "floor"}
    return [{**row, "ratio_to_floor": _ratio(row, floors.get(row["scenario"]))} for row in rows]


def is_met(figure: GrowthFigure) -> bool | None:
    """Does the figure meet its target? None if it has no target."""
    value, wanted = figure["value"], figure["wanted"]
    if wanted is None:
        return None
    return value >= wanted if figure["is_least"] else value <= wanted


def by_scenario(rows: Iterable[Row]) -> dict[str, dict[str, Row]]:
    """Scenario → system → row, in the order of `SCENARIOS`; rows of growth are left out."""
    table: dict[str, dict[str, Row]] = {}
    rows = [row for row in rows if row["scenario"] in SCENARIOS]
    for row in sorted(rows, key=lambda row: list(SCENARIOS).index(row["scenario"])):
        table.setdefault(row["scenario"], {})[row["system"]] = row
    return table


def _ratio(row: Row, floor: float | None) -> float | None:
    return round(row["messages_per_s"] / floor, 4) if floor else None
