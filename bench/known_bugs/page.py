"""The results of all runs by version, and the page that shows them."""

import json
from dataclasses import dataclass, field
from typing import Any, Self

from bench.known_bugs.bugs import BUGS
from raftmq.checkers import INVARIANTS

ERRORS_MAX = 5
"""Distinct exceptions of pysyncobj that are kept."""

INTRODUCTION = (
    "pysyncobj is a Raft in Python that this harness was not written for.",
    "An old version of it has bugs that others found and published.",
    "It runs in the core simulator, as today's does, through its own `Transport`, on virtual",
    "time, network and faults, and is judged by the checkers that judge raftmq.",
    "",
    "Connections are streams, as TCP's: nothing is lost, doubled or out of order while one",
    "stands; where the network is cut, bytes wait, and after 3.5 s the connection breaks.",
    "Processes are killed and paused; the journal file stays as it was.",
    "",
)
"""The introduction of the page."""

MEANINGS = {"V3": "all agree in the end"}
"""Meanings of names that are no invariants of the checkers."""


@dataclass(slots=True)
class First:
    """The first seed in which a bug, a broken invariant or an exception showed."""

    seed: int
    text: str
    seeds: int = 1
    """Number of seeds in which the break showed."""


@dataclass(slots=True)
class Found:
    """The results of all runs of one version."""

    first: int
    """The first seed."""
    version: str = ""
    seeds: int = 0
    vacuous: int = 0
    acked: int = 0
    crashes: int = 0
    elections: int = 0
    bugs: dict[int, First] = field(default_factory=dict)
    """By place in `BUGS`."""
    broken: dict[str, First] = field(default_factory=dict)
    """By invariant."""
    errors: dict[str, First] = field(default_factory=dict)
    """By exception that pysyncobj raised."""

    def add(self, row: dict[str, Any]) -> None:
        """Add one run, a row of `play`."""
        self.version = row["version"]
        self.seeds += 1
        self.vacuous += row["is_vacuous"]
        counts = row["counts"]
        self.acked += counts.get("acked", 0)
        self.crashes += counts.get("crashes", 0)
        self.elections += counts.get("elections", 0)
        seed = row["seed"]
        for number, text in row["bugs"].items():
            _note(self.bugs, int(number), seed, text)
        for name, text in row["broken"].items():
            _note(self.broken, name, seed, text)
        for text in row["errors"]:
            if text in self.errors or len(self.errors) < ERRORS_MAX:
                _note(self.errors, text, seed, text)

    def to_json(self) -> dict[str, Any]:
        """The results as plain values, for JSON."""
        plain: dict[str, Any] = {name: getattr(self, name) for name in _PLAIN}
        for name in _TABLES:
            table = getattr(self, name)
            plain[name] = {
                str(key): {"seed": one.seed, "seeds": one.seeds, "text": one.text}
                for key, one in table.items()
            }
        return plain

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Self:
        """The results from plain values of `to_json`."""
        tables: dict[str, Any] = {
            name: {
                (int(key) if name == "bugs" else key): First(**one)
                for key, one in plain[name].items()
            }
            for name in _TABLES
        }
        fields: dict[str, Any] = {name: plain[name] for name in _PLAIN}
        return cls(**fields, **tables)


_PLAIN = ("first", "version", "seeds", "vacuous", "acked", "crashes", "elections")
_TABLES = ("bugs", "broken", "errors")


def _note(table: dict[Any, First], key: object, seed: int, text: str) -> None:
    if key in table:
        table[key].seeds += 1
    else:
        table[key] = First(seed, text)


def page(text: str) -> str:
    """The text of docs/chaos/known-bugs.md, from the text of the JSON beside it."""
    read = json.loads(text)
    versions = [Found.from_json(one) for one in read["versions"]]
    old, new = versions
    published = [(number, bug) for number, bug in enumerate(BUGS) if bug.invariant]
    found_old, found_new = (sum(n in one.bugs for n, _ in published) for one in versions)
    lines = ["# The hall of known bugs", "", *INTRODUCTION]
    lines.append(
        f"{found_old} of {len(published)} are found in {old.version}, "
        f"{found_new} in {new.version}, which is today's."
    )
    lines.append(
        f"Written by `make known-bugs` on {read['day']}: {old.seeds} seeds from "
        f"{old.first} on, {read['seconds']:.0f} simulated seconds each."
    )
    lines.append("")
    lines.append(
        f"| issue | what is wrong | invariant | {old.version}: seed | number of seeds "
        f"| {new.version} |"
    )
    lines.append("|---|---|---|---|---|---|")
    for number, bug in published:
        lines.append(
            f"| [#{bug.issue}](https://github.com/bakwc/PySyncObj/issues/{bug.issue}) | {bug.what} "
            f"| {_meaning(bug.invariant)} | {_first(old.bugs.get(number))} "
            f"| {_in_seeds(new.bugs.get(number))} |"
        )
    lines += ["", "The old version has all bugs at once, so that the last break (L8) may come of"]
    lines += ["several of them. The first seed of each shows:", ""]
    for number, _ in published:
        if number in old.bugs:
            first = old.bugs[number]
            lines.append(f"- seed {first.seed}: {first.text}")
    lines += _other(versions) + _not_run()
    return "\n".join(lines) + "\n"


def _other(versions: list[Found]) -> list[str]:
    lines = ["", "## All broken invariants", ""]
    header = " | ".join(f"{one.version}: seed | number of seeds" for one in versions)
    lines += [f"| invariant | {header} |", "|---|---|---|---|---|"]
    for name in sorted({name for one in versions for name in one.broken}, key=_order):
        cells = " | ".join(_first(one.broken.get(name)) for one in versions)
        lines.append(f"| {_meaning(name)} | {cells} |")
    lines.append("")
    for one in versions:
        lines.append(
            f"- {one.version}: {one.seeds} runs, {one.elections:,} elections, {one.crashes:,} "
            f"crashes, {one.acked:,} acknowledged; {one.vacuous} runs were vacuous; "
            f"{sum(first.seeds for first in one.errors.values())} runs in which it raised."
        )
    return lines


def _not_run() -> list[str]:
    lines = ["", "## Not run", "", "| issue | what is wrong | why not |", "|---|---|---|"]
    for bug in BUGS:
        if bug.reason:
            link = f"[#{bug.issue}](https://github.com/bakwc/PySyncObj/issues/{bug.issue})"
            lines.append(f"| {link} | {bug.what} | {bug.reason} |")
    lines += ["", "Compaction and changes of members are not run either, and clocks are right:"]
    lines += ["pysyncobj reads a monotonic one."]
    return lines


def _first(first: First | None) -> str:
    return "- | 0" if first is None else f"{first.seed} | {first.seeds}"


def _in_seeds(first: First | None) -> str:
    return "not found" if first is None else f"seed {first.seed}, in {first.seeds}"


def _meaning(name: str) -> str:
    return f"{name} {INVARIANTS[name].name if name in INVARIANTS else MEANINGS[name]}"


def _order(name: str) -> tuple[str, int]:
    return name[0], int(name[1:])
