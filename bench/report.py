"""The page of a run, for people: `benchmarks.md`.

It opens with raftmq beside the fastest peer of each scenario, the scenarios in which raftmq loses,
and its own targets (`standing`); then it shows all of `benchmarks.json` (`results`).

Invariants:
- Pure: rows in, text out. Dates and machines are arguments.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence

from bench.results import FIGURES, Gap, Gaps, GrowthFigure, Result, Row, Skip, by_scenario, is_met
from bench.scenarios import GROWTH, READS, SCENARIOS
from bench.standing import best_peers, losses, lost_costs, targets
from bench.system import warm_up_before

INSTALL_LINES = """\
make peers
make bench ARGS="--rounds 3 --seconds 2"
.venv/bin/python -m bench.failover --rounds 9 --out docs
"""


READ_SECONDS_MIN = 1.0
"""Length of a read below which its rate is rough, in seconds."""

PICTURE = "benchmarks.svg"
"""Name of the picture (`bench.picture`), beside the page."""

COLUMNS = (
    "messages/s",
    "MB/s",
    "p50 ms",
    "p99 ms",
    "s",
    "CPU s a million",
    "MiB",
    "ratio to floor",
    "rounds",
)
"""Headings of the numbers of a row."""

GAP_COLUMNS = ("median ms", "shortest", "longest", "rounds", "failed rounds")
"""Headings of the numbers of a system's failovers."""


def cells(row: Row) -> tuple[str, ...]:
    """A row as texts for people, in the order of `COLUMNS`."""
    ratio = row["ratio_to_floor"]
    return (
        row["system"],
        _rate(row["messages_per_s"], digits=0),
        _rate(row["mb_per_s"], digits=1),
        _number(row["p50_ms"], digits=2),
        _number(row["p99_ms"], digits=2),
        _number(row.get("seconds"), digits=1),
        _number(row["server_cpu_s_per_million"], digits=2),
        _number(row["server_mib"], digits=0),
        "-" if ratio is None else f"{ratio:.3f}",
        str(row["rounds"]),
    )


def figure_cells(figure: GrowthFigure) -> tuple[str, str, str, str]:
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
        _heading(result, gaps),
        _standing(result.rows, gaps["rows"] if gaps is not None else ()),
        _method(result),
        *(_scenario_table(name, table) for name, table in by_scenario(result.rows).items()),
        _failover(gaps) if gaps is not None else "",
        _growth(result.rows, result.figures),
        _skipped(result.skipped),
        _systems(result.rows),
    ]
    return "\n".join(part for part in parts if part)


def _heading(result: Result, gaps: Gaps | None) -> str:
    apart = "" if gaps is None else " The failovers were measured in a run of their own."
    return f"""\
# Benchmarks

Written by `{result.command}` on {result.date}; do not edit.

![Each system's rate over raftmq's, by scenario]({PICTURE})

{_when(result)}{apart}{_scaled(result.scale)}
Three servers and their load share {result.machine.get("processor", "one machine")}: with more cores
the order may be another one, as a server in Go, Java or Erlang uses all of them and a raftmq node
about one.

To run it yourself, with the peers (`bench/README.md` says what `make peers` brings, how long it
takes, and how to read the ratios):

```sh
{INSTALL_LINES}```
"""


def _method(result: Result) -> str:
    facts = "\n".join(f"| {name} | {value} |" for name, value in result.machine.items())
    produce = result.seconds * SCENARIOS["produce-100B"].times
    settling = warm_up_before(result.seconds)
    return f"""\
## How it was measured

Each system ran on a fresh cluster of three server processes beside its load on one machine, one
system after another in each scenario.
A consume reads back what the produce with messages of its size stored just before, on its cluster.
Compare the ratios; the absolute numbers belong to this machine and this hour.
Each row is the median of its `rounds`; `s` is the length of the measured part.
Sends count for {result.seconds:g} s, in `produce-100B` for {produce:g} s; those of the
{settling:g} s before, a quarter of it but 1 s at most, do not.
Reads count from open consumers on (Kafka's and RocketMQ's from the first delivery on), until the
last stored message or for {result.seconds:g} s.
Servers on the JVM (Kafka, RocketMQ) repeat the same work first until its rate rises no more, and
*Versions and settings* says how long that took.
A scenario with further figures has a second table: three of them grow, and it tells the consumers,
queues or messages that a system reached, each in its own unit (*Versions and settings* names it),
within a limit of time; `s to create` ends when each has its first message.
{_continued(result.continues)}\
*The floor* is the same bytes through bare replication in this language: frames, write, fdatasync on
a majority, and no broker logic. It has one leader and one log; raftmq has three leaders, and with
large messages, which cost the processor little, passes it.
`ratio to floor` is messages a second over the floor's.
Latency is from the send to its acknowledgement in the client, with the whole window in flight.
*CPU s a million* is the processor time of all servers for a million of the counted messages; *MiB*
is the resident memory of the largest server right after the measurement. Both are the kernel's
figures.

| machine | |
|---|---|
{facts}
"""


def _when(result: Result) -> str:
    """Where the rows come from: one run, one commit, or several."""
    match list(result.commits):
        case []:
            return "All systems ran in one run."
        case [commit]:
            return f"All systems ran in one run, at commit {commit}."
        case commits:
            return f"Measured at commits {', '.join(commits)}: rows of older code are among them."


def _scaled(scale: float) -> str:
    if scale == 1.0:
        return ""
    return f" Amounts of queues, consumers and messages are multiplied by {scale:g}."


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
    """The further figures of a scenario, and each row's note; else nothing."""
    found = figure_names(rows)
    if not found:
        return ""
    lines = "\n".join(f"| {' | '.join(figure_texts(row, found))} |" for row in rows)
    notes = "\n".join(f"- {row['system']}: {row['note']}." for row in rows if row.get("note"))
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
    at = f", at commit {gaps['commit']}" if "commit" in gaps else ""
    return f"""\
## Failover

The longest silence of a client that sends one message after the other, from SIGKILL of the leader
of its queue on, in milliseconds: the election, the way to the new leader, and the pauses of each
client. Timeouts of elections are each system's defaults; RocketMQ's brokers register and report
sooner than by default, and the clients of Kafka and RocketMQ look for leaders each second
(`bench/README.md` has the settings).
A killed process on one machine closes its connections, and a system that watches them hears of the
death at once: raftmq and RabbitMQ do. A machine that falls silent costs the election timeout.
A round in which nothing was acknowledged for 90 s has failed, and is in no number. Written by
`{gaps["command"]}` on {gaps["date"]}{at}.

| system | {" | ".join(GAP_COLUMNS)} |
|---|{"---:|" * len(GAP_COLUMNS)}
{lines}
"""


def _growth(rows: Sequence[Row], figures: Sequence[GrowthFigure]) -> str:
    if not figures:
        return ""
    heading = """\
## raftmq: cost as work grows

Each scenario compares raftmq with itself: the plain case and the grown one take turns in one run.
A ratio is the median over neighbouring windows, so it may differ from the quotient of two rows.
The servers' processor time a message does not depend on who else uses the machine.
The loads are small ones of this section's own: its rates are not those above.
"""
    found = {figure["scenario"] for figure in figures}
    return "\n".join([heading, *(_growth_of(n, rows, figures) for n in GROWTH if n in found)])


def _growth_of(name: str, rows: Sequence[Row], figures: Sequence[GrowthFigure]) -> str:
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


def _figure_line(figure: GrowthFigure) -> str:
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
        f"| {SCENARIOS[scenario].title} | "
        f"{_rate(ours, digits=0)} | {name} | {_rate(theirs, digits=0)} | "
        f"{'' if ours >= theirs else '**'}{ours / theirs:.2f}{'' if ours >= theirs else '**'} |"
        for scenario, ours, name, theirs in best_peers(rows)
    )
    nowhere = "Nowhere in this run." if best_peers(rows) else "No peer was measured in this run."
    lost = "\n".join(f"- {each}" for each in losses(rows)) or nowhere
    costs = "\n".join(f"- {each}" for each in lost_costs(rows)) or nowhere
    short = _short_reads(rows)
    lines = "\n".join(
        f"| {claim} | {limit:g} | {got:.2f} | {'yes' if is_met else '**no**'} |"
        for claim, limit, got, is_met in targets(rows, gaps)
    )
    return f"""\
## raftmq beside the fastest peer

Messages a second; the floor is no peer, and some peers acknowledge before anything is synced.
Kafka, NATS and RabbitMQ have a second row by their own load tools (`-own`). RocketMQ's load is Java
on RocketMQ's own client library, as its tool would be.
raftmq, Kafka and RocketMQ have six queues; NATS has one stream and RabbitMQ one queue, each a Raft
group with one leader. raftmq's and Kafka's queues have three leaders, RocketMQ's one master.
RabbitMQ is the newest version among Debian 12's packages; RabbitMQ 4 is not, and was not measured.
*Ordered by key*: in raftmq any consumer may take a key, and can settle each message by itself; here
it acknowledges the lists that it gets. RabbitMQ's row there has one active consumer of one queue,
and NATS one message out at a time. Kafka and RocketMQ have no such consumers.
*In order by queue*: each consumer owns queues. raftmq's row is a group with assigned queues: each
fetch is followed by an awaited commit, synced on a majority, and the client checks each batch's
checksum. Kafka's commits are asynchronous and reach page caches.

| scenario | raftmq | fastest peer | its rate | raftmq over it |
|---|---:|---|---:|---:|
{places}
{short}
## Where raftmq loses to a peer

{lost}

## Where a peer costs less

{costs}

## raftmq against its own targets

| target | wanted | got | met |
|---|---:|---:|---|
{lines}
"""


def _short_reads(rows: Sequence[Row]) -> str:
    """A warning about rates that were measured for less than a second; empty: there are none."""
    found = [
        f"{scenario} by {name} ({row['seconds']:.2f} s)"
        for scenario, table in by_scenario(rows).items()
        if SCENARIOS[scenario].operation in READS
        for name, row in table.items()
        if name != "floor" and row.get("seconds", READ_SECONDS_MIN) < READ_SECONDS_MIN
    ]
    if not found:
        return ""
    which = ", ".join(found)
    return f"\nThese rates are rough, as the messages were read in less than a second: {which}.\n"


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
