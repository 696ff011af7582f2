"""The report as one HTML page: charts in SVG, no script, nothing fetched from elsewhere.

Colours follow the reader's choice of light or dark. Values are in the tooltip of each point.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from math import ceil, floor, log10

from raftmq import pages
from raftmq.words import counted

from .alerts import iso
from .charts import Axis, Line, Mark, Panel, Sheet, axis_of, sheets_of
from .minute_facts import MINUTE_MS
from .tables import Row

WIDTH, HEIGHT = 560, 190
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 14, 22
"""Margins of a chart, for its labels."""
TICKS_MAX = 4
"""Values on the vertical axis, beside 0."""
ALERTS_SHOWN = 10
"""The newest alerts, above the charts; older ones are folded away."""
ALERTS_MAX = 200
"""Alerts of the page, the newest ones."""
MARKS = {"open": "h10l-5 9z", "closed": "m1 0h8v8h-8z"}
"""State of an alert → the path of its mark, from its upper left corner: a triangle, a square."""


def page(rows: Sequence[Row], alerts: Sequence[Row]) -> str:
    """The page of these minutes, of which there must be one, and alerts."""
    axis = axis_of(rows)
    sheets, left_out = sheets_of(rows, alerts, axis)
    end = max(row["minute"] for row in rows) + MINUTE_MS
    each = "" if axis.minutes == 1 else f"; a point stands for {axis.minutes} minutes"
    parts = [
        "<h1>Messages, minute by minute</h1>",
        f'<p class="faint">{_span(axis.first, end)}{each}.</p>',
        _totals(rows),
        _legend_of_marks(),
        _alerts(alerts),
        *(_sheet(sheet, axis) for sheet in sheets),
    ]
    if left_out:
        told = f"Not drawn: {counted(left_out, 'topic')} with fewer messages; name one."
        parts.append(f'<p class="faint">{told}</p>')
    return pages.page("raftmq report", parts, style=pages.asset(__package__, "page.css"))


def _totals(rows: Sequence[Row]) -> str:
    """All topics and groups together: counts of all minutes, and the lag of the last one."""
    last = max(row["minute"] for row in rows)
    names = {"stored": "in", "acked": "acked", "retries": "retries", "dead": "dead letters"}
    counts = [f"{sum(row[name] or 0 for row in rows):,} {told}" for name, told in names.items()]
    lag = sum(row["lag"] or 0 for row in rows if row["minute"] == last)
    return f'<p class="totals">{", ".join(counts)}; a lag of {lag:,} at the end.</p>'


def _span(first: int, end: int) -> str:
    return f"From {minute(first)} to {minute(end)} UTC"


def minute(time_ms: int) -> str:
    """A minute for people, UTC."""
    return f"{iso(time_ms)[:10]} {iso(time_ms)[11:16]}"


def _legend_of_marks() -> str:
    return (
        '<p class="marks faint">'
        f'<svg width="12" height="12"><path class="open" d="M1 2{MARKS["open"]}"/></svg> '
        'an alert opens <svg width="12" height="12">'
        f'<path class="closed" d="M1 2{MARKS["closed"]}"/></svg> '
        'it closes <svg width="26" height="12"><rect class="gap" width="26" height="12"/></svg> '
        "minutes that are missing or partial</p>"
    )


def _alerts(alerts: Sequence[Row]) -> str:
    if not alerts:
        return '<p class="faint">No alerts.</p>'
    color = {"open": "bad", "closed": "good"}
    lines = [
        (
            minute(each["minute"]),
            pages.Html(f'<span class="{color[each["state"]]}">{each["state"]}</span>'),
            each["rule"], each["topic"], each["group"] or "-",
            number(each["value"]), number(each["peak"]),
        )
        for each in sorted(alerts, key=lambda each: -each["number"])[:ALERTS_MAX]
    ]  # fmt: skip
    still = {(each["rule"], each["topic"], each["group"]): each["state"] for each in alerts}
    count = sum(state == "open" for state in still.values())
    told = f"{counted(len(alerts), 'change')} of alerts, {count} open now"
    names = ["minute", "alert", "rule", "topic", "group", "#value", "#peak"]
    shown, older = lines[:ALERTS_SHOWN], lines[ALERTS_SHOWN:]
    parts = pages.table(names, shown)
    if older:
        parts += pages.fold(f"{len(older)} older", pages.table(names, older))
    return pages.fold(told, parts, is_open=count > 0)


def _sheet(sheet: Sheet, axis: Axis) -> str:
    charts = "\n".join(_panel(panel, sheet, axis) for panel in sheet.panels if panel.lines)
    return f'<h2>{escape(sheet.topic)}</h2>\n<div class="sheet">{charts}</div>'


def _panel(panel: Panel, sheet: Sheet, axis: Axis) -> str:
    names = [
        f'<span><i class="{_style(line)}"></i>{escape(line.name)} '
        f"<b>{number(_last(line))}</b></span>"
        for line in panel.lines
    ]
    if panel.left_out:
        names.append(f"<span>and {panel.left_out} lower</span>")
    return (
        f"<figure><figcaption>{escape(panel.title)}</figcaption>\n{_chart(panel, sheet, axis)}\n"
        f'<div class="legend">{"".join(names)}</div></figure>'
    )


def _last(line: Line) -> float | None:
    return next((value for value in reversed(line.values) if value is not None), None)


def _chart(panel: Panel, sheet: Sheet, axis: Axis) -> str:
    values = [value for line in panel.lines for value in line.values if value is not None]
    ticks = ticks_to(max(values, default=0))
    scale = _Scale(axis, ticks[-1])
    parts = [
        *_grid(ticks, scale),
        *_times(axis, scale),
        *_gaps(sheet.gaps, scale),
        *(_line(line, scale) for line in panel.lines),
        *_marks(sheet.marks, scale),
        *_tips(panel, axis, scale),
    ]
    label = escape(f"{panel.title} of {sheet.topic}")
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}"'
    return f"<svg {box}>{''.join(parts)}</svg>"


class _Scale:
    """From points and values to where they are drawn."""

    def __init__(self, axis: Axis, highest: float) -> None:
        self.step = (WIDTH - LEFT - RIGHT) / axis.points
        self._highest = highest

    def x(self, point: float) -> float:
        return round(LEFT + (point + 0.5) * self.step, 1)

    def y(self, value: float) -> float:
        return round(HEIGHT - BOTTOM - value / self._highest * (HEIGHT - TOP - BOTTOM), 1)


def ticks_to(highest: float) -> list[float]:
    """Round values from 0 to at least this one.

    >>> ticks_to(7), ticks_to(130), ticks_to(0)
    ([0, 2, 4, 6, 8], [0, 50, 100, 150], [0, 1])
    """
    if highest <= 0:
        return [0, 1]
    size = 10.0 ** floor(log10(highest / TICKS_MAX))
    step = next(size * n for n in (1, 2, 5, 10) if size * n * TICKS_MAX >= highest)
    found = [round(n * step, 12) for n in range(ceil(round(highest / step, 9)) + 1)]
    return [int(each) if each == int(each) else each for each in found]


def number(value: float | None) -> str:
    """A number for people: short, with a unit of thousands.

    >>> [number(each) for each in (None, 0, 0.25, 950, 12_345, 2_000_000)]
    ['-', '0', '0.25', '950', '12.3k', '2M']
    """
    if value is None:
        return "-"
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size * 10 or (abs(value) >= size and value % (size / 10) == 0):
            return f"{value / size:.3g}{unit}"
    return f"{value:.4g}" if abs(value) >= 10 or value == int(value) else f"{value:.2g}"


def _grid(ticks: Sequence[float], scale: _Scale) -> Iterator[str]:
    for tick in ticks:
        y = scale.y(tick)
        yield f'<path class="grid" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 3.5}" text-anchor="end">{number(tick)}</text>'


def _times(axis: Axis, scale: _Scale) -> Iterator[str]:
    """A label at round times, about six."""
    length = axis.points * axis.minutes
    steps = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 10_080)
    step = next((each for each in steps if length / each <= 7), steps[-1]) * MINUTE_MS
    form = "%d %b" if step >= 1440 * MINUTE_MS else "%H:%M"
    for point, time in enumerate(axis.times):
        # A point that stands for some minutes may begin before the round time.
        into = -time % step
        if into < axis.minutes * MINUTE_MS:
            x, at = scale.x(point), datetime.fromtimestamp((time + into) / 1000, UTC)
            yield f'<text x="{x}" y="{HEIGHT - 6}" text-anchor="middle">{at:{form}}</text>'


def _gaps(gaps: Sequence[int], scale: _Scale) -> Iterator[str]:
    for first, last in _stretches(gaps):
        x, width = scale.x(first - 0.5), round((last - first + 1) * scale.step, 1)
        yield (
            f'<rect class="gap" x="{x}" y="{TOP}" width="{width}" height="{HEIGHT - TOP - BOTTOM}">'
            "<title>missing or partial</title></rect>"
        )


def _stretches(points: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Points that follow each other, as first and last."""
    first = before = None
    for point in points:
        if before is None or point != before + 1:
            if first is not None and before is not None:
                yield first, before
            first = point
        before = point
    if first is not None and before is not None:
        yield first, before


def _style(line: Line) -> str:
    return f"c{line.color}" + " dashed" * line.is_dashed + " dotted" * line.is_dotted


def _line(line: Line, scale: _Scale) -> str:
    known = [point for point, value in enumerate(line.values) if value is not None]
    parts: list[str] = []
    alone: list[str] = []
    for first, last in _stretches(known):
        values = line.values[first : last + 1]
        xy = [
            f"{scale.x(point)} {scale.y(value)}"
            for point, value in enumerate(values, first)
            if value is not None
        ]
        # One point alone is a dot: a thick line of no length with round ends.
        (parts if len(xy) > 1 else alone).append("M" + "L".join(xy if len(xy) > 1 else [*xy, *xy]))
    drawn = (("line", parts), ("line alone", alone))
    return "".join(
        f'<path class="{name} {_style(line)}" d="{"".join(found)}"/>'
        for name, found in drawn
        if found
    )


def _marks(marks: Sequence[Mark], scale: _Scale) -> Iterator[str]:
    for mark in marks:
        x = scale.x(mark.point)
        yield (
            f'<path class="{mark.state}" d="M{x - 5} 2{MARKS[mark.state]}">'
            f"<title>{escape(mark.text)}: {mark.state}</title></path>"
        )


def _tips(panel: Panel, axis: Axis, scale: _Scale) -> Iterator[str]:
    """An invisible column a point, whose tooltip shows the point's values."""
    for point, time in enumerate(axis.times):
        lines = [f"{line.name}: {number(line.values[point])}" for line in panel.lines]
        text = escape("\n".join([minute(time), *lines]))
        yield (
            f'<rect class="tip" x="{scale.x(point - 0.5)}" y="{TOP}" width="{scale.step:.1f}" '
            f'height="{HEIGHT - TOP - BOTTOM}"><title>{text}</title></rect>'
        )
