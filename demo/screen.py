"""The terminal's output: notes, progress bars and, at the end, the table.

Notes and bars go to stderr; without a terminal the bars become a line from time to time. The table
(or the JSON) goes to stdout, by `__main__`. `transcript` keeps all output, so that a picture of a
real run can be drawn.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Table
from rich.text import Text

from .report import Check, Report

TABLE_WIDTH = 78
"""Width of the table: it fits a terminal of 80 columns."""
PLAIN_STEPS = 5
"""Without a terminal: number of progress lines in a quick run."""
PLAIN_SECONDS = 15.0
"""Without a terminal: the longest time without a line while something is shown."""


class Screen:
    """The output of notes and progress. Made once a run."""

    def __init__(self, console: Console) -> None:
        self.transcript: list[RenderableType] = []
        """The output in order; the bars as they were at their end."""
        self._console = console
        self._started = time.monotonic()
        self._progress: Progress | None = None
        self._plain_next = self._plain_until = 0.0

    def note(self, words: str, *, style: str = "") -> None:
        """Show a line, with the seconds since the start."""
        seconds = time.monotonic() - self._started
        line = Text.assemble((f"{seconds:6.1f} s  ", "dim"), (words, style))
        self._show(line)

    @contextmanager
    def progress(self, total: int, groups: Sequence[str]) -> Iterator[None]:
        """Show the progress of sending and reading for the length of the block."""
        progress = self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=40, complete_style="cyan", finished_style="green"),
            TextColumn("{task.completed:>7,.0f}/{task.total:,.0f}"),
            _Rate(),
            console=self._console,
            transient=True,
            auto_refresh=False,
            disable=not self._console.is_terminal,
        )
        for name in ("sent and acked", *(f"read by {group}" for group in groups)):
            progress.add_task(name.ljust(15), total=total)
        try:
            with progress:
                yield
        finally:
            self._progress = None
            if self._console.is_terminal:
                self._show(Padding(Group(*progress.get_renderables()), (1, 0, 1, 0)))

    def show(self, acked: int, read: dict[str, int]) -> None:
        """Move the bars."""
        progress = self._progress
        assert progress is not None
        for task, count in zip(progress.tasks, (acked, *read.values()), strict=True):
            progress.update(task.id, completed=count)
        total = progress.tasks[0].total or 1
        if self._console.is_terminal:
            progress.refresh()
            return
        # The slowest group reads on for minutes after the last message is acked.
        done = (acked + sum(read.values())) / (1 + len(read)) / total
        if done >= self._plain_next or time.monotonic() >= self._plain_until:
            self._plain_until = time.monotonic() + PLAIN_SECONDS
            self._plain_next = (int(done * PLAIN_STEPS) + 1) / PLAIN_STEPS
            readers = ", ".join(f"read by {name} {count:,}" for name, count in read.items())
            self.note(f"acked {acked:,} of {total:,.0f}, {readers}")

    def _show(self, line: RenderableType) -> None:
        self.transcript.append(line)
        self._console.print(line, soft_wrap=not self._console.is_terminal)


class _Rate(ProgressColumn):
    """Messages a second at present; empty once all are there."""

    def render(self, task: Task) -> Text:
        """One cell."""
        if task.finished or not task.speed:
            return Text("")
        return Text(f"{task.speed:>8,.0f}/s", style="dim")


def tables(report: Report) -> RenderableType:
    """The report as a person reads it."""
    holds = verdict(
        report.checks, "each acked message once to each group, as sent, in order by key"
    )
    return Group("", proof(report.checks, "What the clients saw"), "", _figures(report), "", holds)


def verdict(checks: Sequence[Check], words: str) -> Text:
    """One line; `words` say what holds."""
    broken = sum(not check.holds for check in checks)
    if not broken:
        return Text.assemble((" HOLDS ", "bold #0d1117 on green"), "  ", words)
    words = f"{broken} of {len(checks)} checks are violated"
    return Text.assemble((" BROKEN ", "bold #0d1117 on red"), "  ", words)


def proof(checks: Sequence[Check], title: str) -> RenderableType:
    """A line for each promise, a column for each consumer group; below, examples of violations."""
    groups = list(dict.fromkeys(check.group for check in checks if check.group))
    table = _table(title)
    table.add_column("promise")
    for group in groups or ["all"]:
        table.add_column(group, justify="center")
    for promise in dict.fromkeys(check.promise for check in checks):
        found = {check.group: check for check in checks if check.promise == promise}
        cells = [_cell(found.get(group) or found.get("")) for group in groups or [""]]
        table.add_row(promise, *cells)
    broken = [
        Text(f"{check.group}{': ' if check.group else ''}{example}", style="red")
        for check in checks
        for example in check.examples
    ]
    return Group(table, *broken)


def _table(title: str, *, show_header: bool = True) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold cyan",
        show_header=show_header,
        header_style="bold",
        border_style="dim",
        box=box.HORIZONTALS,
        min_width=TABLE_WIDTH,
    )


def _cell(check: Check | None) -> Text:
    if check is None:
        return Text("")
    if check.holds:
        return Text("yes", style="green")
    return Text(f"no: {check.violations:,}", style="bold red")


def _figures(report: Report) -> Table:
    figures = report.figures
    table = _table("What it took", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    keyless = f"{figures.keyless:,} without a tail number: no key, no order"
    table.add_row("messages", f"{figures.messages:,}", keyless)
    table.add_row("sent and acked", f"{figures.send_per_s:,.0f}/s", "the failover included")
    for group, rate in figures.read_per_s.items():
        table.add_row(f"read by {group}", f"{rate:,.0f}/s", "while it was sent")
    refused = f"{figures.refused:,} late acknowledgements refused"
    table.add_row("frozen consumer", f"had {figures.frozen_with:,}", refused)
    failover = "longest pause of receipts after the kill"
    table.add_row("failover", f"{figures.failover_seconds:.2f} s", failover)
    memory = f"{figures.memory_bytes_max / 2**20:,.0f} MiB"
    table.add_row("memory", memory, "of producer, readers and checker, at most")
    took = f"of which {figures.ready_seconds:.1f} s until the cluster was ready"
    table.add_row("in all", f"{figures.total_seconds:.1f} s", took)
    return table
