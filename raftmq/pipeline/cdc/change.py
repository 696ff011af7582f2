"""The rows of a table at one place of its log, the changes after it, and the message of a change.

A message's body is one JSON object:

    {"op": "u", "source": "postgresql", "table": "public.orders", "schema": "5f0c1a2b3c4d",
     "position": 22184704, "seq": 3, "last": true, "lsn": "0/1528700", "txid": "731",
     "pk": {"id": 7}, "before": {"id": 7, "paid": false}, "after": {"id": 7, "paid": true}}

| field | meaning |
|---|---|
| op | see `Op` |
| source | the kind of database: `sqlite`, `postgresql`, `mariadb`, `mysql` |
| table | its full name there |
| schema | the fingerprint of the table's columns |
| position | the transaction's place in the order of commits; grows, see `Place` |
| seq | the change's number within its position, from 1; 0 for a mark |
| last | whether the transaction ends with it |
| lsn | the place in the database's own words |
| txid | the transaction, in the database's own words; null: unknown |
| pk | the primary key: column → value; null for `t` and `m` |
| before, after | the row: column → value; null where there is none |
| columns | only of `t`: the table's columns, each as [name, kind, type, place in the key] |

The message's key is the primary key as text (of several columns: a JSON array), its tag is `op`.
An update that changes the primary key is two changes, `d` of the old and `c` of the new.

A value is null, a number (kind `int`, up to 64 bits), true or false (`bool`), or text: base64 of
bytes (`bytes`), and for all other types what the database writes (`text`): decimals keep their
scale, dates and times are ISO 8601, in UTC where they have a zone.

Invariants:
- In a topic (position, seq) grows from message to message: it proves the order of commits, and that
  nothing is there twice.
- Messages after a `t` do not depend on messages before it.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

from raftmq.pipeline.errors import PipelineError

Value = int | bool | str | None
Row = Mapping[str, Value]


class Op(StrEnum):
    """The kind of a change."""

    EMPTY = "t"
    """All rows are gone: it was truncated, or a snapshot begins."""
    READ = "r"
    """A row of a snapshot."""
    CREATE = "c"
    """A row was inserted."""
    UPDATE = "u"
    """A row was changed."""
    DELETE = "d"
    """A row was deleted."""
    MARK = "m"
    """Nothing: all changes of positions below this one are in the topic."""


class Column(NamedTuple):
    """A column of the table, generated ones left out."""

    name: str
    """The name in the database."""
    kind: str
    """How values are written: `int`, `bool`, `bytes` or `text`."""
    type: str
    """The type in the database's words."""
    key: int
    """The place in the primary key, from 1; 0: not in the primary key."""


class Place(NamedTuple):
    """A place between transactions: all that is before it is known."""

    position: int
    """Transactions of lower positions are before it, the others are not."""
    lsn: str
    """The place in the database's words."""


class Change(NamedTuple):
    """One change, in the order of commits."""

    op: Op
    position: int
    """The position of its transaction."""
    seq: int
    """Within the position, from 1."""
    lsn: str
    """The transaction's place in the database's words."""
    txid: str | None
    """The transaction in the database's words."""
    before: Row | None = None
    """The row before it, with all columns."""
    after: Row | None = None
    """The row after it, with all columns."""


class Commit(NamedTuple):
    """The transaction of the changes before it has ended."""

    reached: Place
    """The place after it."""


class Idle(NamedTuple):
    """The database has no further change now."""

    reached: Place
    """The place up to which all is known."""


Event = Change | Commit | Idle


class Table(NamedTuple):
    """A table that is captured."""

    source: str
    """The kind of database."""
    name: str
    """The table's full name."""
    columns: tuple[Column, ...]
    """The columns in the table's order."""

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of the primary key, in its order."""
        return tuple(column.name for column in sorted(self.columns, key=_key_place) if column.key)

    @property
    def schema(self) -> str:
        """The fingerprint of the columns."""
        return _fingerprint(self.columns)


class Snapshot(NamedTuple):
    """The table's rows at one place, of one consistent read."""

    place: Place
    """The place: above the position of each change that the rows hold, below each later change."""
    rows: Iterator[Row]
    """All rows, by primary key; to be read while the snapshot is open."""


class Message(NamedTuple):
    """A change as a message."""

    body: bytes
    """JSON, see the head of this file."""
    key: str | None
    """The primary key as text."""
    tag: str
    """The `Op`."""


def message_of(table: Table, change: Change, *, is_last: bool) -> Message:
    """A change as the message that is sent.

    Raises:
        PipelineError: a column of the primary key is NULL.
    """
    row = change.before if change.op is Op.DELETE else change.after
    pk = None if row is None else {name: row[name] for name in table.key}
    if pk is not None and None in pk.values():
        raise PipelineError(
            f"a row of {table.name} has NULL in its primary key {', '.join(table.key)}",
            "declare the columns of the key NOT NULL, and give the row a value",
        )
    content: dict[str, Any] = {
        "op": change.op,
        "source": table.source,
        "table": table.name,
        "schema": table.schema,
        "position": change.position,
        "seq": change.seq,
        "last": is_last,
        "lsn": change.lsn,
        "txid": change.txid,
        "pk": pk,
        "before": change.before,
        "after": change.after,
    }
    if change.op is Op.EMPTY:
        content["columns"] = table.columns
    body = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    return Message(body, None if pk is None else _key_text(tuple(pk.values())), change.op)


def split_update(
    table: Table, before: Row, after: Row
) -> Iterator[tuple[Op, Row | None, Row | None]]:
    """An update as one change, or as two where it gives the row another primary key."""
    if all(before[name] == after[name] for name in table.key):
        yield Op.UPDATE, before, after
    else:
        yield Op.DELETE, before, None
        yield Op.CREATE, None, after


def columns_of(content: Iterable[Iterable[Any]]) -> tuple[Column, ...]:
    """The columns that a `t` lists."""
    return tuple(Column(*each) for each in content)


@lru_cache(maxsize=16)
def needs_snapshot(what: str) -> PipelineError:
    """An error that only a new snapshot mends."""
    return PipelineError(what, "`raftmq pipeline cdc capture … --snapshot` begins again, in order")


def no_table(database: str, table: str) -> PipelineError:
    """The error: there is no such table."""
    return PipelineError(f"{database} has no table {table!r}", "give the name of one with --table")


def no_key(table: str) -> PipelineError:
    """The error: a table without a primary key, whose rows cannot be identified."""
    return PipelineError(
        f"the table {table} has no primary key, so its rows cannot be told apart",
        f"give it one: ALTER TABLE {table} ADD PRIMARY KEY (…)",
    )


def _fingerprint(columns: tuple[Column, ...]) -> str:
    """Cached, as each message needs it."""
    return hashlib.sha256(json.dumps(columns).encode()).hexdigest()[:12]


def _key_text(values: tuple[Value, ...]) -> str:
    if len(values) == 1 and not isinstance(values[0], bool):
        return str(values[0])
    return json.dumps(values, ensure_ascii=False, separators=(",", ":"))


def _key_place(column: Column) -> int:
    return column.key
