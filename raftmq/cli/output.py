"""The output of commands: tables and JSON on stdout, progress and notes on stderr.

A command returns a `Result`, and `with_output` prints it as `-o` says:

    @command()
    @with_output
    @with_session
    def list_(session: Session) -> Result:
        topics = session.run(lambda mq: mq.admin.list_topics())
        return Result(topics, [Table(["NAME", ">QUEUES"], [(t.name, t.queues) for t in topics])])

A command that prints while it runs, or prints bytes, takes `output_option`, and says at its
printing why.

On a terminal a table has rich's colours and fits the width; elsewhere a table is plain text with
one line for each row, however long, for `awk` and `grep`. NO_COLOR is honoured. Progress is a bar
on a terminal and one line every few seconds elsewhere.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, Self, TypeVar

import click

from .exits import Failure
from .printable import printable, printable_json, printable_lines

if TYPE_CHECKING:
    import rich.table
    from rich.console import Console
    from rich.progress import Progress, TaskID


F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")

NOT_EXECUTED = "nothing was changed: add --execute to do it"
"""The note after a dry run."""

LINE_SECONDS = 5.0
"""Seconds between two lines of progress where no bar can be drawn."""

_WIDE = 110
"""Columns of a terminal in which a bar has room beside the words and figures."""


class Table(NamedTuple):
    """Rows under headings; a cell's control characters are escaped.

    A column whose heading starts with `>` is right-aligned. On a narrow terminal cells are folded,
    but below a heading with `!` they stay whole, so that they can be copied, and below a heading
    with `~` they are cut.
    """

    columns: Sequence[str]
    rows: Iterable[Sequence[object]]
    title: str = ""
    """The line above the headings."""


class Note(str):
    """A line for people that goes to stderr; `-o json` leaves it out."""

    __slots__ = ()


class Lines(list[Any]):
    """Values that `-o json` prints one a line."""


class Result(NamedTuple):
    """The findings of a command, for programs and for people; `with_output` prints them."""

    document: Any
    """The JSON document, or `Lines`. Named tuples, dataclasses and structs become objects."""
    shown: Iterable[Table | str] = ()
    """The tables and lines for people, in their order; not looked at with `-o json`."""
    notes: Sequence[str] = ()
    """Lines for stderr, whatever the output."""
    code: int = 0
    failure: Failure | None = None
    """Raised once all is printed."""


def output_option(*choices: str, default: str = "table") -> Callable[[F], F]:
    """The option `-o`, passed as `output`, for commands that call `print_result` themselves or
    print while they run."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(choices or ("table", "json")),
        default=default,
        help=f"How to print.  [default: {default}]",
    )


def with_output(command: Callable[P, Result | None]) -> Callable[..., int]:
    """Give a command the option `-o`, and print its `Result` as tables or as JSON."""

    @output_option()
    @wraps(command)
    def wrapper(output: str, *args: P.args, **kwargs: P.kwargs) -> int:
        result = command(*args, **kwargs)
        return 0 if result is None else print_result(result, output)

    return wrapper


def print_result(result: Result, output: str) -> int:
    """Print a result; returns the exit code. Raises the result's failure after that."""
    if output != "json":
        print_shown(result.shown)
    elif isinstance(result.document, Lines):
        for value in result.document:
            print_line(value)
    else:
        document = json.dumps(_plain(result.document), indent=2, ensure_ascii=False)
        click.echo(printable_json(document))
    for each in result.notes:
        note(each)
    if result.failure is not None:
        raise result.failure
    return result.code


def print_shown(shown: Iterable[Table | str]) -> None:
    """Print tables and lines for people; control characters are escaped."""
    for each in shown:
        if isinstance(each, Table):
            print_table(each)
        elif isinstance(each, Note):
            note(each)
        else:
            click.echo(printable_lines(each))


def print_line(value: Any) -> None:
    """Print one JSON value on a line of its own."""
    click.echo(printable_json(json.dumps(_plain(value), ensure_ascii=False)))


def _plain(value: Any) -> Any:
    """The value with named tuples, dataclasses and structs as dicts, at any depth."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    elif hasattr(value, "__dataclass_fields__"):
        value = {name: getattr(value, name) for name in value.__dataclass_fields__}
    elif hasattr(value, "__struct_fields__"):
        value = {name: getattr(value, name) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def print_table(table: Table) -> None:
    """Print a table, on a terminal in its width."""
    for line in _drawn_lines(table) if sys.stdout.isatty() else plain_lines(table):
        click.echo(line.rstrip())


def plain_lines(table: Table) -> Iterator[str]:
    """The table as plain text, with one line for each row.

    >>> list(plain_lines(Table(["NAME", ">QUEUES"], [("orders", 8), ("\u8ba2\u5355", 16)])))
    ['NAME    QUEUES', 'orders       8', '\u8ba2\u5355        16']
    """
    if table.title:
        yield printable(table.title)
    rows = [[column.lstrip(">!~") for column in table.columns]]
    rows += [[printable(str(cell)) for cell in row] for row in table.rows]
    is_right = [column.startswith(">") for column in table.columns]
    widths = [max(map(_width, cells)) for cells in zip(*rows, strict=True)]
    for row in rows:
        cells = []
        for cell, width, right in zip(row, widths, is_right, strict=True):
            space = " " * (width - _width(cell))
            cells.append(space + cell if right else cell + space)
        yield "  ".join(cells)


def _width(text: str) -> int:
    """Columns of a terminal that a text takes."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(char) else 1 + (east_asian_width(char) in "FW") for char in text)


def _drawn_lines(table: Table) -> list[str]:
    from rich.console import Console

    console = Console(highlight=False)
    with console.capture() as capture:
        console.print(drawn(table))
    return capture.get().splitlines()


def drawn(table: Table) -> "rich.table.Table":
    """A table for a terminal, for callers that print with rich themselves."""
    from rich.table import Table as RichTable
    from rich.text import Text

    made = RichTable(title=table.title or None, title_justify="left", box=None, pad_edge=False)
    made.expand = any(column.startswith("~") for column in table.columns)
    for column in table.columns:
        made.add_column(
            column.lstrip(">!~"),
            justify="right" if column.startswith(">") else "left",
            header_style="bold",
            no_wrap=column.startswith(("!", "~")),
            overflow="ellipsis" if column.startswith("~") else "fold",
            # A column that may be cut gets the width that the others leave.
            ratio=1 if column.startswith("~") else None,
        )
    for row in table.rows:
        made.add_row(*(Text(printable(str(cell))) for cell in row))
    return made


def dash(value: object | None, unknown: str = "-") -> object:
    """A cell of a table; an unknown value is a dash.

    >>> dash(0), dash(None), dash(None, "none")
    (0, '-', 'none')
    """
    return unknown if value is None else value


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
