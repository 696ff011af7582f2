"""The measurements of a benchmark: every answer with its time, and the figures made of them.

Latencies are kept one by one (16 bytes each), not in buckets: a run of a minute has a few hundred
thousand answers. A percentile counts answers; each stands for one batch.
"""

from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raftmq.cli.exits import Failure
from raftmq.cli.output import Result, Table

PLOT_POINTS_MAX = 20_000
RATE_SECONDS = 0.25
"""Width of a step in the plot of the rate."""


@dataclass(slots=True)
class Record:
    """The answers of one run."""

    started: float = 0.0
    """The start of the run, on the event loop's clock."""
    messages: int = 0
    """Messages that were answered."""
    errors: int = 0
    """Messages that were refused or not answered in time."""
    at: "array[float]" = field(default_factory=lambda: array("d"))
    """The time of each answer, in seconds from the start."""
    latencies: "array[float]" = field(default_factory=lambda: array("d"))
    """The latency of each answer, in seconds."""
    counts: "array[int]" = field(default_factory=lambda: array("I"))
    """The number of messages of each answer."""

    def add(self, now: float, seconds: float, count: int) -> None:
        """Add an answer that came at `now` after `seconds`, for `count` messages."""
        self.messages += count
        self.at.append(now - self.started)
        self.latencies.append(seconds)
        self.counts.append(count)

    def percentiles_ms(self) -> dict[str, float | None]:
        """p50, p90, p99, p99.9 and the maximum; None if there was no answer."""
        import numpy

        names = {"p50_ms": 50, "p90_ms": 90, "p99_ms": 99, "p999_ms": 99.9, "max_ms": 100}
        if not self.latencies:
            return dict.fromkeys(names)
        values = numpy.percentile(numpy.frombuffer(self.latencies), list(names.values())) * 1000
        return {name: round(float(v), 3) for name, v in zip(names, values, strict=True)}


def figures(
    kind: str, record: Record, *, seconds: float, size: int, settings: dict[str, Any]
) -> dict[str, Any]:
    """A run's figures, as `-o json` prints them."""
    rate = record.messages / seconds if seconds else 0.0
    return {
        "bench": kind,
        "messages": record.messages,
        "errors": record.errors,
        "seconds": round(seconds, 3),
        "messages_per_s": round(rate, 1),
        "mb_per_s": round(rate * size / 1e6, 3),
        **record.percentiles_ms(),
        "settings": settings,
    }


def result_of(figures: dict[str, Any]) -> Result:
    """The figures as a command's result."""
    latency = [name for name in figures if name.endswith("_ms")]
    columns = ["messages", "errors", "seconds", "messages_per_s", "mb_per_s", *latency]
    cells = ["-" if figures[name] is None else f"{figures[name]:,}" for name in columns]
    headings = [">" + name.upper() for name in columns]
    tables = [Table(headings, [cells], title=f"bench {figures['bench']}")]
    if "log" in figures:
        tables.append(Table(["LOG", ">"], figures["log"].items()))
    return Result(figures, tables)


def check_plot(path: Path | None) -> None:
    """Refuse a plot before the run that could not be drawn after it.

    Raises:
        ModuleNotFoundError: the extra `plots` is not installed.
        Failure: the folder does not exist, or the suffix names no known format.
    """
    if path is None:
        return
    import matplotlib

    matplotlib.use("agg")
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise Failure(f"{path} has no suffix that says its kind", fix="name it .png, .svg or .pdf")
    if not path.absolute().parent.is_dir():
        raise Failure(f"there is no folder {path.absolute().parent}", fix="make it first")


def plot(path: Path, record: Record, title: str) -> None:
    """Draw latency and rate over time."""
    import matplotlib.pyplot as pyplot
    import numpy

    at = numpy.frombuffer(record.at)
    latencies = numpy.frombuffer(record.latencies) * 1000
    step = max(1, len(at) // PLOT_POINTS_MAX)
    figure, (upper, lower) = pyplot.subplots(2, 1, sharex=True, figsize=(10, 6))
    upper.plot(at[::step], latencies[::step], ".", markersize=2, color="#2b6cb0")
    upper.set(ylabel="latency of a batch, ms", yscale="log", title=title)
    if len(at):
        edges = numpy.arange(0, at.max() + 2 * RATE_SECONDS, RATE_SECONDS)
        sums, _ = numpy.histogram(at, bins=edges, weights=numpy.frombuffer(record.counts, "u4"))
        lower.step(edges[:-1], sums / RATE_SECONDS, where="post", color="#2f855a")
    lower.set(ylabel="messages/s", xlabel="seconds", ylim=(0, None))
    for axes in (upper, lower):
        axes.grid(visible=True, alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
