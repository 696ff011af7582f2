"""The content of the pictures: panels of lines over minutes, for any renderer.

A topic has four panels: what came in and was acked, lag, retries and dead letters, waits. Over a
long time a point stands for several minutes: counts are the mean a minute, all else is the highest.

Invariants:
- A minute without a row, or of which the log held only a part, is a gap: no line crosses it, and it
  is marked. Before the topic's first minute and after its last one there are no gaps.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from .minute_facts import MINUTE_MS
from .tables import Row

POINTS_MAX = 360
"""Points of a line."""
LINES_MAX = 8
"""Lines of a panel; those with the highest points are drawn."""
COLORS = LINES_MAX
"""Distinguishable colours for groups. As many groups more have them with dots, and then again."""
TOPICS_MAX = 20
"""Topics that are drawn: the busiest ones."""

Values = Sequence[float | None]


class Line(NamedTuple):
    """One line of a panel."""

    name: str
    """The line's name in the legend."""
    values: Values
    """A value a point; None: there is none."""
    color: int = 0
    """0: of the topic itself; from 1 to `COLORS`: of a group, the same in all panels."""
    is_dashed: bool = False
    """Whether the line is dashed: it distinguishes two lines of one group."""
    is_dotted: bool = False
    """Whether the line has dots: it distinguishes two groups of one colour."""


class Panel(NamedTuple):
    """One chart."""

    title: str
    """The metric and its unit."""
    lines: tuple[Line, ...]
    """At most `LINES_MAX`."""
    left_out: int
    """Lines beyond those."""


class Axis(NamedTuple):
    """The minutes of all panels."""

    first: int
    """The first minute, milliseconds since 1970."""
    points: int
    """How many points each line has."""
    minutes: int
    """For how many minutes a point stands."""

    @property
    def times(self) -> range:
        """When each point begins, milliseconds since 1970."""
        step = self.minutes * MINUTE_MS
        return range(self.first, self.first + self.points * step, step)

    def point(self, minute: int) -> int:
        """The point of a minute."""
        return (minute - self.first) // (self.minutes * MINUTE_MS)


class Mark(NamedTuple):
    """An alert opened or closed."""

    point: int
    """The point at which the mark stands."""
    state: str
    """`open` or `closed`."""
    text: str
    """The rule and the group, as text for a tooltip."""


class Sheet(NamedTuple):
    """The drawing of one topic."""

    topic: str
    """Name of the topic."""
    panels: tuple[Panel, ...]
    """In order."""
    gaps: tuple[int, ...]
    """Points with minutes that are missing or partial."""
    marks: tuple[Mark, ...]
    """Alerts, by point."""


def axis_of(rows: Iterable[Row]) -> Axis:
    """The minutes from the first to the last row; there must be one."""
    minutes = [row["minute"] for row in rows]
    count = (max(minutes) - min(minutes)) // MINUTE_MS + 1
    each = -(-count // POINTS_MAX)
    return Axis(min(minutes), -(-count // each), each)


def sheets_of(rows: Sequence[Row], alerts: Sequence[Row], axis: Axis) -> tuple[list[Sheet], int]:
    """A sheet for each topic, the busiest first; and how many topics are left out."""
    by_topic: dict[str, list[Row]] = {}
    for row in rows:
        by_topic.setdefault(row["topic"], []).append(row)
    stored = {
        topic: sum(row["stored"] or 0 for row in of_topic) for topic, of_topic in by_topic.items()
    }
    chosen = sorted(by_topic, key=lambda topic: (-stored[topic], topic))[:TOPICS_MAX]
    marks = {
        topic: tuple(_mark(alert, axis) for alert in alerts if alert["topic"] == topic)
        for topic in chosen
    }
    sheets = [_sheet(topic, by_topic[topic], marks[topic], axis) for topic in chosen]
    return sheets, len(by_topic) - len(chosen)


def _mark(alert: Row, axis: Axis) -> Mark:
    about = f" of {alert['group']}" if alert["group"] else ""
    return Mark(axis.point(alert["minute"]), alert["state"], f"{alert['rule']}{about}")


def _sheet(topic: str, rows: Sequence[Row], marks: tuple[Mark, ...], axis: Axis) -> Sheet:
    by_group: dict[str, list[Row]] = {}
    for row in rows:
        by_group.setdefault(row["group"], []).append(row)
    own = by_group.pop("", [])
    gaps = _gaps(own or rows, axis)

    def lines(*columns: tuple[str, str], divisor: int = 1) -> list[Line]:
        is_mean = columns[0][0] in ("acked", "retries")
        return [
            Line(
                prefix + group,
                _values(of_group, name, axis, gaps, is_mean, divisor),
                color=n % COLORS + 1,
                is_dashed=name == "dead",
                is_dotted=n // COLORS % 2 == 1,
            )
            for n, (group, of_group) in enumerate(sorted(by_group.items()))
            for name, prefix in columns
            if any(row[name] is not None for row in of_group)
        ]

    stored = Line("in", _values(own, "stored", axis, gaps, is_mean=True))
    panels = (
        _panel("messages a minute", [stored, *lines(("acked", "acked: "))]),
        _panel("lag, messages", lines(("lag", ""))),
        _panel("failures a minute", lines(("retries", "retries: "), ("dead", "dead: "))),
        _panel("wait of 99 %, seconds", lines(("wait_p99_ms", ""), divisor=1000)),
    )
    within = tuple(mark for mark in marks if 0 <= mark.point < axis.points)
    return Sheet(topic, panels, tuple(sorted(gaps)), within)


def _panel(title: str, lines: Sequence[Line]) -> Panel:
    def highest(line: Line) -> float:
        return max((value for value in line.values if value is not None), default=0)

    drawn = sorted(lines, key=highest, reverse=True)[:LINES_MAX]
    return Panel(title, tuple(line for line in lines if line in drawn), len(lines) - len(drawn))


def _gaps(rows: Sequence[Row], axis: Axis) -> set[int]:
    whole: dict[int, set[int]] = {}
    for row in rows:
        if not row["is_partial"]:
            whole.setdefault(axis.point(row["minute"]), set()).add(row["minute"])
    minutes = [row["minute"] for row in rows]
    gaps = set()
    for point, time in enumerate(axis.times):
        # Before its first minute the topic did not exist.
        first = max(time, min(minutes))
        last = min(time + (axis.minutes - 1) * MINUTE_MS, max(minutes))
        wanted = (last - first) // MINUTE_MS + 1
        if len(whole.get(point, ())) < wanted:
            gaps.add(point)
    return gaps


def _values(
    rows: Iterable[Row],
    name: str,
    axis: Axis,
    gaps: set[int],
    is_mean: bool,
    divisor: int = 1,
) -> Values:
    found: dict[int, list[float]] = {}
    for row in rows:
        if row[name] is not None:
            found.setdefault(axis.point(row["minute"]), []).append(row[name] / divisor)
    chosen: Callable[[list[float]], float] = _mean if is_mean else max
    return [
        None if point in gaps or point not in found else chosen(found[point])
        for point in range(axis.points)
    ]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
