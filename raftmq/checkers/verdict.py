"""A checker's report: a verdict, the anomalies it rests on, and their explanations.

| verdict | meaning |
|---|---|
| valid | the promise held, and the history could have shown otherwise |
| invalid | the promise was broken; `anomalies` says how, `counts` how often |
| unknown | neither is known; `reason` says why |

A history without calls that could break the promise is *vacuous*: its verdict is unknown, never
valid. A list of reports is as bad as its worst.

Invariants:
- An invalid report names at least one anomaly; a valid one names none; an unknown one has a reason.
- A valid report has compared something: the verdict carries the count, and 0 is refused.

Sources: Jepsen's checkers (valid? = true, false, :unknown), Elle's explanations.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np

from raftmq.checkers.servers.evidence import EntryAt, Evidence

from .dictionary import ANOMALIES
from .history import NONE, History, Integers

EXAMPLES_MAX = 8
"""Anomalies of one name that are explained; all are counted."""

AROUND_ROWS = 3
"""Rows of the same key that are shown before and after an anomaly."""

ROWS_SHOWN_MAX = 40
"""Rows printed for an anomaly, as a poll may have thousands of messages."""


INVARIANT_NUMBER = re.compile(r"[RLQV]\d+")


class Verdict(Enum):
    """The answer of a checker."""

    VALID = "valid"
    INVALID = "invalid"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One broken promise, with the part of the history that shows it."""

    name: str
    """A key of `ANOMALIES`, or the number of an invariant, such as R1."""
    fact: str
    """One sentence on what happened, with names and numbers."""
    operations: tuple[int, ...] = ()
    """The minimal sub-history: these operations alone show the anomaly."""
    values: tuple[int, ...] = ()
    """Codes of the values concerned; of an operation on many messages only these matter."""
    entries: tuple[EntryAt, ...] = ()
    """The log entries involved, if evidence was given: see `with_entries`."""

    def __post_init__(self) -> None:
        is_known = self.name in ANOMALIES or INVARIANT_NUMBER.fullmatch(self.name)
        assert is_known, f"{self.name} is not in the dictionary of anomalies"


@dataclass(frozen=True, slots=True)
class Report:
    """The result of one checker."""

    checker: str
    verdict: Verdict
    reason: str = ""
    """Why the verdict is unknown; empty otherwise."""
    anomalies: tuple[Anomaly, ...] = ()
    """At most `EXAMPLES_MAX` of each name, tolerated ones included."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """How often each anomaly occurred, beside other figures such as `acknowledged`."""
    tolerated: frozenset[str] = frozenset()
    """Names of anomalies that do not make the verdict invalid."""
    compared: int = 0
    """Single comparisons that could have shown an anomaly. A valid report made at least one."""

    def __post_init__(self) -> None:
        assert bool(self.reason) == (self.verdict is Verdict.UNKNOWN), self
        assert self.compared > 0 or self.verdict is not Verdict.VALID, f"{self.checker} is vacuous"

    def names(self) -> set[str]:
        """The names of the anomalies that were found."""
        return {anomaly.name for anomaly in self.anomalies}


def judged(
    checker: str,
    anomalies: Iterable[Anomaly],
    counts: Mapping[str, int],
    *,
    compared: int,
    tolerated: frozenset[str] = frozenset(),
    doubt: str = "",
) -> Report:
    """A report: invalid if an anomaly is not tolerated, else unknown if in doubt, else valid.

    A checker that compared nothing is in doubt: it could not have found an anomaly.
    """
    found = tuple(anomalies)
    if any(anomaly.name not in tolerated for anomaly in found):
        return Report(checker, Verdict.INVALID, "", found, counts, tolerated, compared)
    doubt = doubt or ("" if compared else "vacuous: it compared nothing")
    verdict = Verdict.UNKNOWN if doubt else Verdict.VALID
    return Report(checker, verdict, doubt, found, counts, tolerated, compared)


def vacuous(checker: str, why: str) -> Report:
    """The report on a history that could not have shown anything."""
    return Report(checker, Verdict.UNKNOWN, f"vacuous: {why}")


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Invalid if any verdict is; else unknown if any is, or there is none; else valid."""
    seen = set(verdicts)
    if Verdict.INVALID in seen:
        return Verdict.INVALID
    return Verdict.VALID if seen == {Verdict.VALID} else Verdict.UNKNOWN


def with_entries(report: Report, evidence: Evidence) -> Report:
    """The report, with each anomaly naming the log entries that held its values."""
    anomalies = tuple(
        replace(anomaly, entries=evidence.entries_of(anomaly.values))
        for anomaly in report.anomalies
    )
    return replace(report, anomalies=anomalies)


def explain(report: Report, history: History) -> str:
    """The report as text: each anomaly with its meaning, minimal sub-history and surroundings."""
    why = f" ({report.reason})" if report.reason else ""
    lines = [f"{report.checker}: {report.verdict.value}{why}"]
    lines += [f"  {name}: {count}" for name, count in report.counts.items()]
    for anomaly in report.anomalies:
        lines += ["", f"{anomaly.name}: {anomaly.fact}"]
        lines += [f"  {ANOMALIES[anomaly.name]}"] if anomaly.name in ANOMALIES else []
        rows = minimal_rows(history, anomaly)
        lines += ["  the operations that show it:"] if len(rows) else []
        lines += [f"    {history.describe(row)}" for row in rows[:ROWS_SHOWN_MAX]]
        around = rows_around(history, rows)
        if len(around):
            lines += ["  around them:", *(f"    {history.describe(row)}" for row in around)]
        if anomaly.entries:
            lines += ["  in the logs:", *(f"    {entry}" for entry in anomaly.entries)]
    return "\n".join(lines)


def minimal_rows(history: History, anomaly: Anomaly) -> Integers:
    """The rows of an anomaly's minimal sub-history, without other messages of the same calls."""
    rows = np.flatnonzero(np.isin(history.operation, anomaly.operations))
    if not anomaly.values:
        return rows
    return rows[np.isin(history.value[rows], [NONE, *anomaly.values])]


def rows_around(history: History, rows: Integers) -> Integers:
    """A few rows of the same keys just before, just after and between `rows`."""
    if not len(rows):
        return rows
    keys = np.unique(history.key[rows])
    keys = keys[keys != NONE]
    same = np.flatnonzero(np.isin(history.key, keys)) if len(keys) else np.arange(len(history))
    places = np.searchsorted(same, rows)
    near = (places[:, None] + np.arange(-AROUND_ROWS, AROUND_ROWS + 1)).ravel()
    near = np.unique(near[(near >= 0) & (near < len(same))])
    return np.setdiff1d(same[near], rows)[:ROWS_SHOWN_MAX]
