"""Rules: which rows of the report are an alert, and when it begins and ends.

    [[rule]]
    name = "dead-letters"
    metric = "dead"          # a column of the report, or one of `METRICS`
    is = ">"                 # > >= < <= == !=
    threshold = 0
    minutes = 1              # minutes in a row
    topic = "orders*"        # optional, as is `group`: a pattern

A rule is judged for each topic and group by itself, once a minute, when the minute is closed. An
alert opens in the first minute in which its rule was broken for `minutes` minutes in a row, and
closes in the first minute in which it is not. A metric without a value breaks nothing.

Invariants:
- Alerts are numbered from 1 on; they follow from rows and rules alone.
"""

import operator
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from raftmq.pipeline.errors import PipelineError

from .minute_facts import Key
from .tables import ROW, Row

COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
METRICS = {
    "lag_growth": "lag, less what it was in the minute before",
    "unattended": "never handed out, in a minute in which no consumer had or settled anything",
    "retry_percent": "retries, of a hundred hand-outs",
    "missing": "1 where the log was trimmed before it was read, 0 elsewhere",
}
"""Metrics that a rule can use beside columns of the report."""


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rule."""

    name: str
    """The name of the rule and of its alerts."""
    metric: str
    """A number of the report, or one of `METRICS`."""
    comparison: str = msgspec.field(name="is", default=">")
    """The comparison of metric and threshold that holds when the rule is broken."""
    threshold: float = 0
    """In the metric's unit."""
    minutes: int = 1
    """Number of minutes in a row, 1 or more."""
    topic: str = "*"
    """A pattern, as of file names."""
    group: str = "*"
    """A pattern; the topic itself has the empty group."""

    def concerns(self, key: Key) -> bool:
        """Whether the rule judges this topic and group."""
        return fnmatchcase(key[0], self.topic) and fnmatchcase(key[1], self.group)

    def is_broken(self, value: float | None) -> bool:
        """Whether this value breaks it."""
        return value is not None and COMPARISONS[self.comparison](value, self.threshold)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    rule: list[Rule]


def read(path: Path | None = None) -> list[Rule]:
    """The rules in a file; None: those that are built in.

    Raises:
        PipelineError: the file cannot be read, or a rule in it is wrong.
    """
    text = built_in() if path is None else _text(path)
    where = "the built-in rules" if path is None else str(path)
    fix = "correct it; `raftmq pipeline report rules` prints an example"
    try:
        rules = msgspec.convert(tomllib.loads(text), _File).rule
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise PipelineError(f"{where} cannot be read: {error}", fix) from error
    for problem in _problems(rules):
        raise PipelineError(f"{where}: {problem}", fix)
    return rules


def built_in() -> str:
    """The rules of a report without a file of rules, as TOML."""
    return resources.files(__package__).joinpath("rules.toml").read_text("utf-8")


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineError(f"{path} cannot be read: {error}", "name a file of rules") from error


def _problems(rules: Sequence[Rule]) -> Iterator[str]:
    numbers = [name for name, kind in ROW.items() if kind in ("int64", "float64")]
    seen: set[str] = set()
    for rule in rules:
        if rule.name in seen or not rule.name:
            yield f"two rules have the name {rule.name!r}, or it is empty"
        seen.add(rule.name)
        if rule.metric not in (*numbers, *METRICS):
            yield f"there is no metric {rule.metric!r}: it is {', '.join((*numbers, *METRICS))}"
        if rule.comparison not in COMPARISONS:
            yield f"{rule.comparison!r} is no comparison: it is {' '.join(COMPARISONS)}"
        if rule.minutes < 1:
            yield f"rule {rule.name!r} needs minutes of 1 or more"


class Alert(msgspec.Struct, frozen=True):
    """An alert opens or closes."""

    number: int
    """From 1 on, within a report."""
    state: str
    """`open` or `closed`."""
    rule: str
    """The name of the rule."""
    topic: str
    """Name of the topic."""
    group: str
    """The consumer group; empty: it is about the topic itself."""
    minute: int
    """The minute that decided it, milliseconds since 1970."""
    since: int
    """The first minute of those in which the rule was broken."""
    metric: str
    """The rule's metric."""
    value: float | None
    """The metric in that minute; None: it had no value."""
    peak: float
    """The value farthest from the threshold, since then."""
    threshold: float
    """The rule's threshold."""


class _Streak(msgspec.Struct):
    """A rule that is broken."""

    since: int
    count: int
    peak: float
    is_open: bool = False


class Judge(msgspec.Struct):
    """The memory of the rules from minute to minute."""

    streaks: dict[tuple[str, str, str], _Streak] = {}
    """By rule, topic, group: rules that are broken."""
    before: dict[Key, int | None] = {}
    """The lag of the last row of each topic and group."""
    number: int = 0
    """The number of the last alert; 0: there was none."""

    def judge(self, rules: Sequence[Rule], rows: Sequence[Row]) -> list[Alert]:
        """The alerts that a minute opens and closes, given all its rows."""
        found: list[Alert] = []
        for row in rows:
            key = (row["topic"], row["group"])
            values = row | self._metrics(row, key)
            self.before[key] = row["lag"]
            for rule in rules:
                if rule.concerns(key):
                    found += self._judge(rule, key, row["minute"], values[rule.metric])
        return [*found, *self._ended(rules, rows)]

    def _metrics(self, row: Row, key: Key) -> dict[str, float | None]:
        growth, share = None, None
        before = self.before.get(key)
        if before is not None and row["lag"] is not None:
            growth = row["lag"] - before
        if row["handed_out"]:
            share = 100 * row["retries"] / row["handed_out"]
        return {
            "lag_growth": growth,
            "unattended": 0 if row["consumers"] else row["fresh"],
            "retry_percent": share,
            # A topic or group in its first row misses no minute.
            "missing": int(row["is_partial"] and key in self.before),
        }

    def _judge(self, rule: Rule, key: Key, minute: int, value: float | None) -> Iterator[Alert]:
        place = (rule.name, *key)
        streak = self.streaks.get(place)
        if not rule.is_broken(value):
            if streak is not None:
                yield from self._close(rule, place, minute, value)
            return
        assert value is not None
        if streak is None:
            streak = self.streaks[place] = _Streak(minute, 0, value)
        streak.count += 1
        streak.peak = max(streak.peak, value, key=lambda each: abs(each - rule.threshold))
        if not streak.is_open and streak.count >= rule.minutes:
            streak.is_open = True
            yield self._alert("open", rule, place, streak, minute, value)

    def _close(
        self, rule: Rule, place: tuple[str, str, str], minute: int, value: float | None
    ) -> Iterator[Alert]:
        streak = self.streaks.pop(place)
        if streak.is_open:
            yield self._alert("closed", rule, place, streak, minute, value)

    def _ended(self, rules: Sequence[Rule], rows: Sequence[Row]) -> Iterator[Alert]:
        """Close the alerts of topics and groups without a row: they are gone, and break no rule."""
        if not rows:
            return
        there: Mapping[Key, Any] = {(row["topic"], row["group"]): row for row in rows}
        by_name = {rule.name: rule for rule in rules}
        for place in [place for place in self.streaks if place[1:] not in there]:
            if place[0] in by_name:
                yield from self._close(by_name[place[0]], place, rows[0]["minute"], None)
        for key in self.before.keys() - there.keys():
            del self.before[key]

    def _alert(
        self,
        state: str,
        rule: Rule,
        place: tuple[str, str, str],
        streak: _Streak,
        minute: int,
        value: float | None,
    ) -> Alert:
        self.number += 1
        return Alert(
            self.number, state, *place, minute, streak.since, rule.metric, value, streak.peak,
            rule.threshold,
        )  # fmt: skip
