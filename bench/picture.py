"""The picture of a run: each system's rate beside raftmq's, by scenario.

    python -m bench.picture docs/benchmarks.json docs/benchmarks.svg

The axis is logarithmic: a system twice as fast as raftmq stands as far to the right of the line as
one half as fast stands to the left of it. A full mark syncs before it acknowledges, a hollow one
does not; reads have full marks. A triangle is a peer under its own load tool.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.results import Row, by_scenario
from bench.scenarios import READS, SCENARIOS, SYSTEMS

COLOURS = {
    "raftmq": "#2b6cb0",
    "floor": "#888888",
    "kafka": "#d95f02",
    "rocketmq": "#7570b3",
    "nats": "#1b9e77",
    "rabbitmq": "#e7298a",
    "pysyncobj": "#a6761d",
}
"""By the first word of a system's name."""


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw the scenarios that raftmq ran in; the same rows give the same file."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    tables = {name: table for name, table in by_scenario(rows).items() if "raftmq" in table}
    mpl.rcParams.update({"svg.hashsalt": "raftmq", "svg.fonttype": "none"})
    figure = Figure(figsize=(9, 1.6 + 0.5 * len(tables)), layout="constrained")
    axes = figure.subplots()
    axes.set_xscale("log")
    axes.axvline(1.0, color=COLOURS["raftmq"], linewidth=2)
    for height, (scenario, table) in enumerate(tables.items()):
        ours = table["raftmq"]["messages_per_s"]
        is_read = SCENARIOS[scenario].operation in READS
        for system, row in table.items():
            if system != "raftmq":
                colour = COLOURS[system.partition("-")[0]]
                axes.plot(
                    row["messages_per_s"] / ours,
                    height,
                    marker="^" if system.endswith("-own") else "o",
                    markersize=9,
                    color=colour,
                    markerfacecolor=colour if is_read or _is_synced(system) else "none",
                )
    axes.set_yticks(range(len(tables)), [SCENARIOS[name].title for name in tables])
    axes.invert_yaxis()
    # The names of the scenarios leave the axes little width.
    axes.set_xlabel("rate over raftmq's (the line):\nfaster systems to its right")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(axis="x", alpha=0.3)
    marks = [
        Line2D([], [], marker="o", color=colour, linestyle="none", label=name)
        for name, colour in COLOURS.items()
    ]
    kinds = [("o", "sends acknowledged before a sync"), ("^", "under its own load tool")]
    marks += [
        Line2D([], [], marker=mark, color="black", markerfacecolor="none", linestyle="none",
               label=label)
        for mark, label in kinds
    ]  # fmt: skip
    figure.legend(handles=marks, loc="outside upper center", ncols=4, frameon=False)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=120)


def _is_synced(system: str) -> bool:
    """Does the system acknowledge what is on a disk? False for a system of older results."""
    return system in SYSTEMS and SYSTEMS[system].synced > 0


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text())["rows"], Path(sys.argv[2]))
