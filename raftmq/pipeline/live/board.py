"""A live board: topics, windows of event time, groups and measures; and its TOML file.

    topics = ["trades"]
    window = "1s"
    lateness = "2s"
    json = "cents bigint, buyer string, at timestamp"
    event = "json.at"
    by = ["tag", "json.shop as shop"]
    sum = ["json.cents as cents"]
    distinct = ["json.buyer as buyers"]
    top = 10
    order = "cents"

Only `topics` must be there. Expressions are Spark's SQL over the row (`raftmq.pipeline.rows`), and
over `json`, the body read by these names and types, if they are given: a misfit field is null.

Invariants:
- A board that exists can be counted: names are unique, and `order` is one of them.
"""

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from raftmq.pipeline.errors import PipelineError

_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_RESERVED = ("window_start", "window_end", "count", "group", "closed", "sketches")
_NAME = re.compile(r"[A-Za-z_]\w{0,62}")


@dataclass(frozen=True, slots=True)
class Named:
    """An expression and the name of its values."""

    name: str
    """A column's name in files, JSON and on the page."""
    expression: str
    """Spark's SQL."""


@dataclass(frozen=True, slots=True)
class Board:
    """The messages, groups and measures of a board, and how long a window stays open."""

    topics: tuple[str, ...]
    """The topics that are read."""
    window_ms: int = 1000
    """A window's length; windows begin at multiples of it since 1970."""
    lateness_ms: int = 2000
    """How far event time goes on after a window's end before the window is closed."""
    event: str = "timestamp"
    """When a message happened: an expression that is a timestamp."""
    ahead_ms: int = 60_000
    """A message whose event time is further than this beyond its storing is left out: one wrong
    clock would close all windows early."""
    json: str = ""
    """The body's fields as names and types; empty: the body is not read as JSON."""
    where: str = ""
    """Only messages for which this is true; empty: all."""
    by: tuple[Named, ...] = ()
    """Groups; none: one for all."""
    sums: tuple[Named, ...] = ()
    """Sums: of whole numbers exactly, of others as doubles."""
    distincts: tuple[Named, ...] = ()
    """How many different values, approximately: see `raftmq.pipeline.live.hyperloglog`."""
    top: int = 0
    """Groups that are kept of each closed window, the first by `order`; 0: all."""
    order: str = "count"
    """The measure that groups are ranked by, highest first."""

    @property
    def measures(self) -> tuple[str, ...]:
        """The names of the measures: the count, sums, distinct values."""
        return ("count", *(named.name for named in (*self.sums, *self.distincts)))

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of the groups' expressions."""
        return tuple(named.name for named in self.by)

    @property
    def expressions(self) -> tuple[str, ...]:
        """All SQL texts."""
        named = (*self.by, *self.sums, *self.distincts)
        return (self.event, *filter(None, [self.where]), *(one.expression for one in named))

    def __post_init__(self) -> None:
        """Raise `PipelineError` where two fields do not fit together."""
        if not self.topics:
            raise _wrong("topics", "there is none", 'name one: topics = ["orders"]')
        # SQLite and Spark compare names without regard to case.
        names = [name.lower() for name in (*_RESERVED, *self.groups, *self.measures[1:])]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise _wrong("by, sum, distinct", f"the name {twice} is taken twice",
                         "give one of them another: \"EXPRESSION as NAME\"")  # fmt: skip
        if self.order not in self.measures:
            raise _wrong("order", f"there is no measure {self.order!r}",
                         f"take one of {', '.join(self.measures)}")  # fmt: skip


def load(path: Path) -> dict[str, Any]:
    """The table of a TOML file, for `parse`.

    Raises:
        PipelineError: the file cannot be read.
    """
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise PipelineError(f"cannot read {path}: {error.strerror}", "name a file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PipelineError(f"{path} is not TOML: {error}", "correct it there") from error


def parse(table: Mapping[str, Any]) -> Board:
    """The board of a table as TOML gives it.

    >>> board = parse({"topics": ["trades"], "by": ["tag"], "sum": ["json.cents as cents"]})
    >>> board.groups, board.measures
    (('tag',), ('count', 'cents'))

    Raises:
        PipelineError: names the field, what is wrong with it and what would be right.
    """
    for name in table:
        if name not in _FIELDS:
            close = get_close_matches(name, _FIELDS) or list(_FIELDS)
            raise _wrong(name, "there is no such field", f"did you mean {' or '.join(close)}?")
    values = {}
    for name, value in table.items():
        attribute, reading = _FIELDS[name]
        values[attribute] = reading(name, value)
    if "topics" not in values:
        raise _wrong("topics", "it is missing", 'name one or more: topics = ["orders"]')
    return Board(**values)


def plain(board: Board) -> dict[str, Any]:
    """The board as plain JSON values: attribute → value; a store compares boards by them."""
    found: dict[str, Any] = {}
    for field in fields(board):
        value = getattr(board, field.name)
        if isinstance(value, tuple):
            value = [one if isinstance(one, str) else [one.name, one.expression] for one in value]
        found[field.name] = value
    return found


def _texts(name: str, value: object) -> tuple[str, ...]:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list | tuple) or not all(isinstance(one, str) for one in values):
        raise _wrong(name, f"{value!r} is no list of texts", f'write {name} = ["...", "..."]')
    return tuple(values)


def _named(name: str, value: object) -> tuple[Named, ...]:
    return tuple(_one_named(name, text) for text in _texts(name, value))


def _one_named(field: str, text: str) -> Named:
    found = re.fullmatch(r"(.+?)\s+as\s+(\S+)\s*", text, re.IGNORECASE | re.DOTALL)
    expression, called = (found[1], found[2]) if found else (text, text.rpartition(".")[2])
    if not _NAME.fullmatch(called):
        raise _wrong(field, f"{text!r} has no name that can be a column's",
                     f'give it a name: "{expression} as NAME"')  # fmt: skip
    return Named(called, expression.strip())


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _wrong(name, f"{value!r} is no text", f'write {name} = "..."')
    return value.strip()


def _duration(name: str, value: object) -> int:
    found = re.fullmatch(r"(\d+)(ms|s|m|h)", value) if isinstance(value, str) else None
    if found is None:
        raise _wrong(name, f"{value!r} is no duration", f'write {name} = "10s": 500ms, 1s, 1m, 1h')
    milliseconds = int(found[1]) * _UNITS[found[2]]
    if name == "window" and not 100 <= milliseconds <= 24 * 3_600_000:
        raise _wrong(name, f"{value} is out of range", "take 100ms to 24h")
    return milliseconds


def _count(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 100_000:
        raise _wrong(name, f"{value!r} is no number of groups", f"write {name} = 10; 0 keeps all")
    return value


def _wrong(field: str, what: str, right: str) -> PipelineError:
    return PipelineError(f"the board's field {field}: {what}", right)


_FIELDS: dict[str, tuple[str, Callable[[str, object], Any]]] = {
    "topics": ("topics", _texts),
    "window": ("window_ms", _duration),
    "lateness": ("lateness_ms", _duration),
    "event": ("event", _text),
    "ahead": ("ahead_ms", _duration),
    "json": ("json", _text),
    "where": ("where", _text),
    "by": ("by", _named),
    "sum": ("sums", _named),
    "distinct": ("distincts", _named),
    "top": ("top", _count),
    "order": ("order", _text),
}
"""Name in the file → attribute, and the function that reads its value."""
