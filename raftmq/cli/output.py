"""The output of commands: tables and JSON on stdout, progress and notes on stderr.

On a terminal a table has rich's colours and fits the width; elsewhere a table is plain text with
one line for each row, however long, for `awk` and `grep`. NO_COLOR is honoured. Progress is a bar
on a terminal and one line every few seconds elsewhere.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID
    from rich.table import Table

F = TypeVar("F", bound=Callable[..., Any])

LINE_SECONDS = 5.0
"""Seconds between two lines of progress where no bar can be drawn."""

_WIDE = 110
"""Columns of a terminal in which a bar has room beside the words and figures."""

_WIDTH_MAX = 10_000
"""Width in columns if stdout is no terminal: enough that no cell is cut or wrapped."""


def output_option(*choices: str, default: str = "table") -> Callable[[F], F]:
    """The option `-o`, passed as `output`."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(choices or ("table", "json")),
        default=default,
        help=f"How to print.  [default: {default}]",
    )


def print_json(value: Any) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_line(value: Any) -> None:
    """Print one JSON value on a line of its own."""
    click.echo(json.dumps(value, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Print a table with these headings; a cell's control characters are escaped.

    A column whose heading starts with `>` is right-aligned. On a narrow terminal cells are folded,
    but below a heading with `!` they stay whole, so that they can be copied, and below a heading
    with `~` they are cut.
    """
    from rich.console import Console

    is_terminal = sys.stdout.isatty()
    console = Console(width=None if is_terminal else _WIDTH_MAX, highlight=False)
    with console.capture() as capture:
        console.print(table_of(columns, rows, title))
    for line in capture.get().splitlines():
        click.echo(line.rstrip())


def table_of(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> "Table":
    """The table of `print_table`, for callers that print with rich themselves."""
    from rich.table import Table
    from rich.text import Text

    is_terminal = sys.stdout.isatty()
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    table.expand = is_terminal and any(column.startswith("~") for column in columns)
    for column in columns:
        is_right = column.startswith(">")
        table.add_column(
            column.lstrip(">!~"),
            justify="right" if is_right else "left",
            header_style="bold",
            no_wrap=not is_terminal or column.startswith(("!", "~")),
            overflow="ellipsis" if column.startswith("~") else "fold",
            # A column that may be cut gets the width that the others leave.
            ratio=1 if is_terminal and column.startswith("~") else None,
        )
    for row in rows:
        table.add_row(*(Text(printable(str(cell))) for cell in row))
    return table


def printable(text: str) -> str:
    r"""A name or a text on one line of a terminal: characters that are not printable are escaped.

    >>> print(printable("a\nb \x1b[31m \u00fc"))
    a\nb \x1b[31m ü
    """
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def printable_lines(text: str) -> str:
    """A text of several lines, each of them printable."""
    return "\n".join(map(printable, text.split("\n")))


def dash(value: object | None) -> object:
    """A cell of a table; an unknown value is a dash.

    >>> dash(0), dash(None)
    (0, '-')
    """
    return "-" if value is None else value


def note(message: str) -> None:
    """Print lines for people on stderr; control characters other than newlines are escaped."""
    click.echo(printable_lines(message), err=True)


def time_text(milliseconds: int) -> str:
    """A timestamp as local ISO time with its zone."""
    from datetime import UTC, datetime

    moment = datetime.fromtimestamp(milliseconds / 1000, UTC).astimezone()
    return moment.isoformat(timespec="milliseconds")


def duration_text(seconds: float) -> str:
    """A duration in its two largest units, as the options take it.

    >>> [duration_text(s) for s in (0, 0.25, 1.5, 10, 90, 3599.6, 7320, 604800)]
    ['0s', '250ms', '1.5s', '10s', '1m30s', '1h', '2h2m', '7d']
    """
    if 0 < seconds < 1:
        return f"{seconds * 1000:.4g}ms"
    if seconds < 60:
        return f"{seconds:.4g}s"
    parts = []
    seconds = round(seconds)
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2])


def bytes_text(count: float) -> str:
    """A number of bytes with its unit.

    >>> bytes_text(512), bytes_text(10 * 1024**2), bytes_text(1536)
    ('512 B', '10.0 MiB', '1.5 KiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            break
        count /= 1024
    return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"


class Meter:
    """Progress on stderr, as a context manager: amount done of `total`, rate, time left."""

    def __init__(
        self,
        what: str,
        *,
        total: float | None = None,
        unit: str = "messages",
        is_shown: bool = True,
    ) -> None:
        self._what = what
        self._total = total
        self._unit = unit
        self._is_shown = is_shown
        self._done = 0.0
        self._started = self._printed = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if self._is_shown and sys.stderr.isatty():
            from rich.console import Console

            self._bar = _bar(Console(stderr=True), self._unit)
            self._task = self._bar.add_task(self._what, total=self._total)
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    @property
    def done(self) -> float:
        """The amount done, in the meter's unit."""
        return self._done

    def advance(self, count: float, what: str | None = None) -> None:
        """Add to the amount done; `what` replaces the words before the bar."""
        self._done += count
        self._what = what or self._what
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._done, description=self._what)
        elif self._is_shown and time.monotonic() - self._printed >= LINE_SECONDS:
            self._printed = time.monotonic()
            note(self._line())

    def _line(self) -> str:
        rate = self._done / max(1e-9, time.monotonic() - self._started)
        of = f" of {self._total:,.0f}" if self._total else ""
        return f"{self._what}: {self._done:,.0f}{of} {self._unit}, {_rate_text(rate)}/s"


def _rate_text(rate: float) -> str:
    """A rate; rates below 10 have a decimal, so that slow ones are not shown as 0.

    >>> _rate_text(12_345.6), _rate_text(0.37)
    ('12,346', '0.4')
    """
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"


def _bar(console: "Console", unit: str) -> "Progress":
    from rich.progress import (
        BarColumn,
        Progress,
        ProgressColumn,
        SpinnerColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        """The rate in units per second."""

        def render(self, task: Task) -> Text:
            return Text(f"{_rate_text(task.speed or 0)} {unit}/s")

    # A rate of seconds per second would mean nothing.
    counts = [] if unit == "s" else [TextColumn("{task.completed:,.0f}"), Rate()]
    # On a narrow terminal the bar is left out, so that no figure is cut.
    is_wide = console.width >= _WIDE
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        *([BarColumn(bar_width=30)] if is_wide else []),
        *counts,
        TimeElapsedColumn(),
        *([TimeRemainingColumn()] if is_wide else []),
        console=console,
        transient=True,
    )
