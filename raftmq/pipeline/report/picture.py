"""The report as a PNG, by matplotlib."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .charts import Axis, Panel, Sheet, axis_of, sheets_of
from .tables import Row

TOPICS_MAX = 6
"""Topics of a picture: a picture of more topics is too high to look at."""
_COLORS = (
    "#344054",
    "#2e6fd9",
    "#e07a1f",
    "#17895c",
    "#9156d6",
    "#d43d5c",
    "#0f8fa3",
    "#8a7a12",
    "#c2379a",
)
"""By `Line.color`."""
_STYLES = {
    (False, False): "-",
    (True, False): "--",
    (False, True): ":",
    (True, True): "-.",
}
"""By `Line.is_dashed` and `Line.is_dotted`."""


def draw(rows: Sequence[Row], alerts: Sequence[Row], path: Path) -> None:
    """Draw these minutes, of which there must be one, and alerts.

    Raises:
        ModuleNotFoundError: the extra `plots` is not installed.
        OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    axis = axis_of(rows)
    sheets = sheets_of(rows, alerts, axis)[0][:TOPICS_MAX]
    count = len(sheets[0].panels)
    figure = Figure(figsize=(5 * count, 3.2 * len(sheets)), dpi=110, layout="constrained")
    places = figure.subplots(len(sheets), count, squeeze=False)
    for sheet, row in zip(sheets, places, strict=True):
        for panel, place in zip(sheet.panels, row, strict=True):
            _draw(panel, sheet, axis, place)
    figure.savefig(path, format="png")


def _draw(panel: Panel, sheet: Sheet, axis: Axis, place: Any) -> None:
    from matplotlib import dates

    times = [datetime.fromtimestamp(time / 1000, UTC) for time in axis.times]
    ends = [*times[1:], datetime.fromtimestamp(axis.times.stop / 1000, UTC)]
    for point in sheet.gaps:
        place.axvspan(times[point], ends[point], color="#98a2b3", alpha=0.3, linewidth=0)
    for line in panel.lines:
        values = [float("nan") if value is None else value for value in line.values]
        kind = {"color": _COLORS[line.color], "ls": _STYLES[line.is_dashed, line.is_dotted]}
        # A marker shows a point alone, which has no line.
        place.plot(times, values, **kind, linewidth=1.4, marker=".", ms=2.5, label=line.name)
    for mark in sheet.marks:
        color, style = ("#d92d20", "--") if mark.state == "open" else ("#079455", ":")
        place.axvline(times[mark.point], color=color, linewidth=0.8, linestyle=style)
    place.set_title(f"{sheet.topic}: {panel.title}", fontsize=9, loc="left")
    place.set_ylim(bottom=0)
    place.set_xlim(times[0], ends[-1] if axis.points == 1 else times[-1])
    axes: Any = dates  # its classes have no types
    locator = axes.AutoDateLocator(minticks=3, maxticks=7)
    place.xaxis.set_major_locator(locator)
    place.xaxis.set_major_formatter(axes.ConciseDateFormatter(locator))
    place.tick_params(labelsize=7)
    place.grid(alpha=0.25)
    place.spines[["top", "right"]].set_visible(False)
    if panel.lines:
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14), "ncols": 4}
        place.legend(fontsize=7, frameon=False, **below)
