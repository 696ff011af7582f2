"""The result files: rows for programs, tables for people.

`benchmarks.json` is one object: `date`, `command`, `machine`, `rows`, `figures`, `skipped`, and
`continues`, the dates of stopped runs whose cells it has. A row:

| field | meaning |
|---|---|
| scenario, system, version, settings | the measurement, and facts that a comparison needs |
| messages_per_s, mb_per_s | acknowledged (or delivered) messages, and their bodies' 10^6 bytes |
| p50_ms, p99_ms | latency of an acknowledgement, null where there is none |
| server_cpu_s_per_million | processor seconds of all servers for a million of these messages |
| server_mib | resident memory of the largest server right after it, mapped files included |
| ratio_to_floor | messages_per_s over the floor's in the same scenario; null without a floor |
| rounds | the measured rounds of which the row is the median; 1 in growth |
| figures, note | where a scenario grows: numbers by the names of `FIGURES`, why less was reached |

Rows of growth have a scenario such as `backlog-produce`, and name their case in `system`. A number
that is no rate is a figure: scenario, name, value, unit, and target.

`benchmarks.md` opens with raftmq beside the fastest peer of each scenario, the scenarios in which
raftmq loses, and its own targets; then it shows all of `benchmarks.json`.

Invariants:
- Pure: rows in, text out. Dates and machines are arguments.
- Every sentence that compares speeds is computed from the rows.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NotRequired, TypedDict

from bench.scenarios import GROWTH, SCENARIOS
from bench.system import READ_ALIKE

INSTALL_LINES = """\
make peers
make bench
"""


PICTURE = "benchmarks.svg"
"""Name of the picture (`bench.picture`), beside the page."""

COLUMNS = (
    "messages/s",
    "MB/s",
    "p50 ms",
    "p99 ms",
    "CPU s a million",
    "MiB",
    "ratio to floor",
    "rounds",
)
"""Headings of the numbers of a row."""

DURABLE = ("kafka-fsync", "rabbitmq", "rabbitmq-own", "nats-fsync")
"""The peers that sync on a majority before they acknowledge one message."""

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

GAP_COLUMNS = ("median ms", "shortest", "longest", "rounds", "failed rounds")
"""Headings of the numbers of a system's failovers."""


class Row(TypedDict):
    """One system in one scenario."""

    scenario: str
    system: str
    version: str
    settings: str
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


class Figure(TypedDict):
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
    figures: Sequence[Figure] = ()
    continues: Sequence[str] = ()
    """Dates of the stopped runs that this one continued."""


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


def losses(rows: Sequence[Row]) -> list[str]:
    """Sentences about each scenario in which a peer beats raftmq; the floor is no peer."""
    sentences = []
    for scenario, table in by_scenario(rows).items():
        ours = table.get("raftmq")
        for name, theirs in table.items():
            if ours is None or name in ("raftmq", "floor"):
                continue
            if theirs["messages_per_s"] > ours["messages_per_s"]:
                times = theirs["messages_per_s"] / ours["messages_per_s"]
                sentences.append(f"{scenario}: {name} has {times:.2f} times raftmq's rate.")
            if ours["p50_ms"] and theirs["p50_ms"] and theirs["p50_ms"] < ours["p50_ms"]:
                times = ours["p50_ms"] / theirs["p50_ms"]
                sentences.append(f"{scenario}: raftmq's p50 is {times:.2f} times that of {name}.")
            sentences += _lost_figures(scenario, ours, theirs)
    return sentences


def lost_costs(rows: Sequence[Row]) -> list[str]:
    """For each scenario a sentence about the peers that take less processor time a message than
    raftmq, or less memory."""
    sentences = []
    for scenario, table in by_scenario(rows).items():
        if "raftmq" not in table:
            continue
        parts = [
            part
            for field, words in (
                ("server_cpu_s_per_million", "less processor time a message"),
                ("server_mib", "less memory"),
            )
            if (part := _cheaper(table, field, words))
        ]
        if parts:
            sentences.append(f"{scenario}: {'; '.join(parts)}.")
    return sentences


def _cheaper(table: Mapping[str, Row], field: str, words: str) -> str:
    """The peers with less of something than raftmq, and their share of raftmq's; empty: none."""
    costs = {name: row.get(field) for name, row in table.items() if name != "floor"}
    ours = costs.pop("raftmq")
    shares = {
        name: cost / ours
        for name, cost in costs.items()
        if isinstance(cost, float | int) and isinstance(ours, float | int) and cost < ours
    }
    found = sorted(shares.items(), key=lambda each: each[1])
    texts = ", ".join(f"{name} {share:.2f}" for name, share in found)
    return f"{words}: {texts} of raftmq's" if found else ""


def _lost_figures(scenario: str, ours: Row, theirs: Row) -> list[str]:
    """Sentences about the figures, and the memory beside them, in which a peer beats raftmq."""
    if "figures" not in ours or "figures" not in theirs:
        return []
    numbers = {
        name: (ours["figures"][name], theirs["figures"][name], is_more)
        for name, is_more in FIGURES.items()
        if name in ours["figures"] and name in theirs["figures"]
    }
    if ours["server_mib"] is not None and theirs["server_mib"] is not None:
        numbers["MiB"] = (ours["server_mib"], theirs["server_mib"], False)
    return [
        f"{scenario}: {name}: raftmq {own:,.12g}, {theirs['system']} {other:,.12g}."
        for name, (own, other, is_more) in numbers.items()
        if (other > own if is_more else other < own)
    ]


def best_peers(rows: Sequence[Row]) -> list[tuple[str, float, str, float]]:
    """For each scenario of raftmq and a peer: its name, raftmq's rate, the fastest peer, its rate;
    first those in which raftmq is furthest ahead."""
    found = []
    for scenario, table in by_scenario(rows).items():
        peers = {
            n: row["messages_per_s"] for n, row in table.items() if n not in ("raftmq", "floor")
        }
        if "raftmq" in table and peers:
            best = max(peers, key=peers.__getitem__)
            found.append((scenario, table["raftmq"]["messages_per_s"], best, peers[best]))
    return sorted(found, key=lambda each: -each[1] / each[3])


def targets(rows: Sequence[Row], gaps: Iterable[Gap] = ()) -> list[tuple[str, float, float, bool]]:
    """Each target of raftmq for which there are rows: claim, wanted, got, is met."""
    table = by_scenario(rows)

    def rate(scenario: str, system: str) -> float | None:
        row = table.get(scenario, {}).get(system)
        return row["messages_per_s"] if row else None

    def median(scenario: str, system: str) -> float | None:
        row = table.get(scenario, {}).get(system)
        return row["p50_ms"] if row else None

    single = "single-200B"
    rates = [
        ("produce-100B", "the floor's", "produce-100B", "floor", 0.6),
        ("produce-10kB", "the floor's", "produce-10kB", "floor", 0.75),
        ("produce-1MiB", "the floor's", "produce-1MiB", "floor", 0.7),
        ("consume-100B", "raftmq's own produce", "produce-100B", "raftmq", 2.0),
        ("consume-10kB", "the floor's", "consume-10kB", "floor", 0.5),
        ("consume-1MiB", "the floor's", "consume-1MiB", "floor", 0.5),
        ("ordered-100B", "raftmq's own pop", "pop-100B", "raftmq", 0.5),
    ]
    wanted = [
        (f"{scenario}: rate over {whose}, at least", limit, rate(scenario, "raftmq"),
         rate(other, system), True)
        for scenario, whose, other, system, limit in rates
    ]  # fmt: skip
    durable = {name: p50 for name in DURABLE if (p50 := median(single, name))}
    best = min(durable, key=durable.__getitem__, default="")
    p50s = [
        ("the floor's", "floor", 1.3),
        ("RabbitMQ's", "rabbitmq", 1.0),
        (f"that of {best}, the best peer that syncs a majority", best, 1.5),
    ]
    silences = {gap["system"]: statistics.median(gap["gaps_ms"]) for gap in gaps}
    ours = silences.pop("raftmq", None)
    quickest = min(silences, key=silences.__getitem__, default="")
    popped = table.get("pop-100B", {}).get("raftmq")
    wanted += [
        ("pop-100B: rate over reading in like batches, at least", 0.6,
         popped.get("figures", {}).get(READ_ALIKE) if popped else None, 1.0, True),
        (f"failover: silence over that of {quickest}, the quickest peer, at most", 1.0,
         ours, silences.get(quickest), False),
    ]  # fmt: skip
    wanted += [
        (f"{single}: p50 over {whose}, at most", limit, median(single, "raftmq"),
         median(single, system), False)
        for whose, system, limit in p50s
    ]  # fmt: skip
    return [
        (claim, limit, got / base, (got / base >= limit) is is_least)
        for claim, limit, got, base, is_least in wanted
        if base and got
    ]


def is_met(figure: Figure) -> bool | None:
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


def cells(row: Row) -> tuple[str, ...]:
    """A row as texts for people, in the order of `COLUMNS`."""
    ratio = row["ratio_to_floor"]
    return (
        row["system"],
        _rate(row["messages_per_s"], digits=0),
        _rate(row["mb_per_s"], digits=1),
        _number(row["p50_ms"], digits=2),
        _number(row["p99_ms"], digits=2),
        _number(row["server_cpu_s_per_million"], digits=2),
        _number(row["server_mib"], digits=0),
        "-" if ratio is None else f"{ratio:.3f}",
        str(row["rounds"]),
    )


def figure_cells(figure: Figure) -> tuple[str, str, str, str]:
    """A figure as texts for people: name, value, target, `yes` or `no` for a met target."""
    unit = f" {figure['unit']}" if figure["unit"] else ""
    wanted = ""
    if figure["wanted"] is not None:
        side = "at least" if figure["is_least"] else "at most"
        wanted = f"{side} {figure['wanted']:g}{unit}"
    verdict = {None: "", True: "yes", False: "no"}[is_met(figure)]
    return figure["name"], f"{figure['value']:,.2f}{unit}", wanted, verdict


def gap_cells(gap: Gap) -> tuple[str, ...]:
    """The failovers of a system as texts for people: its name, then those of `GAP_COLUMNS`."""
    gaps = gap["gaps_ms"]
    numbers = (statistics.median(gaps), min(gaps), max(gaps))
    counts = (str(len(gaps)), str(gap["failed"]))
    return gap["system"], *(f"{number:,.0f}" for number in numbers), *counts


def shortest_first(gaps: Iterable[Gap]) -> list[Gap]:
    """The systems by their median gap."""
    return sorted(gaps, key=lambda gap: statistics.median(gap["gaps_ms"]))


def markdown(result: Result, gaps: Gaps | None = None) -> str:
    """The whole page for people."""
    parts = [
        _heading(result),
        _standing(result.rows, gaps["rows"] if gaps is not None else ()),
        *(_scenario_table(name, table) for name, table in by_scenario(result.rows).items()),
        _failover(gaps) if gaps is not None else "",
        _growth(result.rows, result.figures),
        _skipped(result.skipped),
        _systems(result.rows),
    ]
    return "\n".join(part for part in parts if part)


def _ratio(row: Row, floor: float | None) -> float | None:
    return round(row["messages_per_s"] / floor, 4) if floor else None


def _heading(result: Result) -> str:
    facts = "\n".join(f"| {name} | {value} |" for name, value in result.machine.items())
    return f"""\
# Benchmarks

Written by `{result.command}` on {result.date}; do not edit.

![Each system's rate over raftmq's, by scenario]({PICTURE})

All systems ran in one run, one after another in each scenario, each on a fresh cluster of three
server processes beside its load on one machine.
A consume reads back what the produce with messages of its size stored just before, on its cluster.
Compare the ratios; the absolute numbers belong to this machine and this hour.
Each row is the median of its `rounds`, of {result.seconds:g} s each after a warm-up.
Three scenarios grow, and have a second table: the consumers, queues or messages that a system
reached, each in its own unit (*Versions and settings* names it), within a limit of time.
{_continued(result.continues)}\
*The floor* is the same bytes through bare replication: frames, write, fdatasync on a majority, and
no broker logic.
It is the limit of this language on this machine; `ratio to floor` is messages a second over the
floor's.
Latency is from the send to its acknowledgement in the client, with the whole window in flight.
*CPU s a million* is the processor time of all servers for a million of the counted messages; *MiB*
is the resident memory of the largest server right after the measurement. Both are the kernel's
figures.

To run it yourself, with the peers (`bench/README.md` says what `make peers` brings, and how long it
takes):

```sh
{INSTALL_LINES}```

| machine | |
|---|---|
{facts}
"""


def _continued(dates: Sequence[str]) -> str:
    if not dates:
        return ""
    times = "once" if len(dates) == 1 else f"{len(dates)} times"
    return (
        f"The run began on {dates[0]}, was stopped {times} and went on: some cells that a ratio\n"
        "compares lie further apart than others.\n"
    )


def _scenario_table(name: str, table: Mapping[str, Row]) -> str:
    ordered = sorted(table.values(), key=lambda row: -row["messages_per_s"])
    lines = "\n".join(_line(row) for row in ordered)
    return f"""\
## {SCENARIOS[name].title} (`{name}`)

| system | {" | ".join(COLUMNS)} |
|---|{"---:|" * len(COLUMNS)}
{lines}
{_figures_table(ordered)}"""


def _figures_table(rows: Sequence[Row]) -> str:
    """The figures of a scenario that grows, each row's note, and its unit; else nothing."""
    found = figure_names(rows)
    if not found:
        return ""
    lines = "\n".join(f"| {' | '.join(figure_texts(row, found))} |" for row in rows)
    notes = "\n".join(
        f"- {row['system']} did not reach all: {row['note']}." for row in rows if row.get("note")
    )
    return f"""
| system | {" | ".join(found)} |
|---|{"---:|" * len(found)}
{lines}
{notes and f"{chr(10)}{notes}{chr(10)}"}"""


def figure_names(rows: Sequence[Row]) -> list[str]:
    """The names of the rows' figures, in the order of `FIGURES`."""
    return [name for name in FIGURES if any(name in row.get("figures", {}) for row in rows)]


def figure_texts(row: Row, names: Sequence[str]) -> tuple[str, ...]:
    """A row's system and figures as texts for people."""
    figures = row.get("figures", {})
    numbers = (f"{figures[n]:,.12g}" if n in figures else "-" for n in names)
    return row["system"], *numbers


def _failover(gaps: Gaps) -> str:
    lines = "\n".join(f"| {' | '.join(gap_cells(gap))} |" for gap in shortest_first(gaps["rows"]))
    return f"""\
## Failover

The longest silence of a client that sends one message after the other, from SIGKILL of the leader
of its queue on, in milliseconds: the election, the way to the new leader, and the pauses of each
client, with each system's own timeouts. A round in which nothing was acknowledged for 90 s has
failed, and is in no number. Written by `{gaps["command"]}` on {gaps["date"]}.

| system | {" | ".join(GAP_COLUMNS)} |
|---|{"---:|" * len(GAP_COLUMNS)}
{lines}
"""


def _growth(rows: Sequence[Row], figures: Sequence[Figure]) -> str:
    if not figures:
        return ""
    heading = """\
## raftmq: cost as work grows

Each scenario compares raftmq with itself: the plain case and the grown one take turns in one run.
A ratio is the median over neighbouring windows, so it may differ from the quotient of two rows.
The servers' processor time a message does not depend on who else uses the machine.
"""
    found = {figure["scenario"] for figure in figures}
    return "\n".join([heading, *(_growth_of(n, rows, figures) for n in GROWTH if n in found)])


def _growth_of(name: str, rows: Sequence[Row], figures: Sequence[Figure]) -> str:
    rates = "\n".join(
        f"| {row['scenario'].partition('-')[2]} | {system} | {rate} | {megabytes} | {p50} | {p99} |"
        for row in rows
        if row["scenario"].partition("-")[0] == name and row["scenario"] not in SCENARIOS
        for system, rate, megabytes, p50, p99, *_ in [cells(row)]
    )
    table = f"""\
| operation | case | messages/s | MB/s | p50 ms | p99 ms |
|---|---|---:|---:|---:|---:|
{rates}

"""
    lines = "\n".join(_figure_line(figure) for figure in figures if figure["scenario"] == name)
    return f"""\
### {GROWTH[name]} (`{name}`)

{table if rates else ""}| figure | got | wanted | met |
|---|---:|---:|---|
{lines}
"""


def _figure_line(figure: Figure) -> str:
    name, got, wanted, verdict = figure_cells(figure)
    return f"| {name} | {got} | {wanted} | {verdict.replace('no', '**no**')} |"


def _line(row: Row) -> str:
    name, *figures = cells(row)
    name = f"**{name}**" if name == "raftmq" else name
    return "| " + " | ".join((name, *figures)) + " |"


def _rate(value: float, *, digits: int) -> str:
    return f"{value:,.{digits if value >= 10 else 2}f}"


def _number(value: float | None, *, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _standing(rows: Sequence[Row], gaps: Sequence[Gap]) -> str:
    if not any(row["system"] == "raftmq" for row in rows):
        return "## raftmq\n\nraftmq was not part of this run.\n"
    places = "\n".join(
        f"| {SCENARIOS[scenario].title} | {_rate(ours, digits=0)} | {name} | "
        f"{_rate(theirs, digits=0)} | {'' if ours >= theirs else '**'}{ours / theirs:.2f}"
        f"{'' if ours >= theirs else '**'} |"
        for scenario, ours, name, theirs in best_peers(rows)
    )
    lost = "\n".join(f"- {each}" for each in losses(rows)) or "Nowhere in this run."
    costs = "\n".join(f"- {each}" for each in lost_costs(rows)) or "Nowhere in this run."
    lines = "\n".join(
        f"| {claim} | {limit:g} | {got:.2f} | {'yes' if is_met else '**no**'} |"
        for claim, limit, got, is_met in targets(rows, gaps)
    )
    return f"""\
## raftmq beside the fastest peer

Messages a second; the floor is no peer, and some peers acknowledge before anything is synced.
Kafka, NATS and RabbitMQ have a second row by their own load tools (`-own`). RocketMQ's load is Java
on RocketMQ's own client library, as its tool would be.

| scenario | raftmq | fastest peer | its rate | raftmq over it |
|---|---:|---|---:|---:|
{places}

## Where raftmq loses to a peer

{lost}

## Where a peer costs less

{costs}

## raftmq against its own targets

| target | wanted | got | met |
|---|---:|---:|---|
{lines}
"""


def _skipped(skipped: Sequence[Skip]) -> str:
    if not skipped:
        return ""
    scenarios: dict[tuple[str, str], list[str]] = {}
    for skip in skipped:
        found = scenarios.setdefault((skip["system"], skip["reason"]), [])
        found += [skip["scenario"]] if skip["scenario"] else []
    lines = "\n".join(
        f"- {', '.join((system, *names))}: {reason}"
        for (system, reason), names in scenarios.items()
    )
    return f"## Not measured\n\n{lines}\n"


def _systems(rows: Sequence[Row]) -> str:
    settings: dict[tuple[str, str], dict[str, list[str]]] = {}
    for row in rows:
        if row["scenario"] not in SCENARIOS:
            continue
        key = (row["system"], row["version"])
        settings.setdefault(key, {}).setdefault(row["settings"], []).append(row["scenario"])
    lines = []
    for (system, version), texts in settings.items():
        lines += [
            f"| {system} | {version} | {text} | {', '.join(scenarios)} |"
            for text, scenarios in texts.items()
        ]
    table = "\n".join(lines)
    return f"""\
## Versions and settings

| system | version | settings | scenarios |
|---|---|---|---|
{table}
"""
