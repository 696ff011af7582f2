"""Capture of a SQLite table: triggers write each change into a table beside it.

    raftmq_log_orders      id | op | b0 | b1 | … | a0 | a1 | …     the row before and after
    raftmq_captures        name | topic | confirmed                progress of captures

The triggers run in the transaction of the change, so the log has exactly the committed changes.
`sqlite_log` describes the entries.

SQLite has one writer at a time: ids grow in the order of commits. A read sees whole transactions,
but not where each of them ends; so the changes of one look count as one transaction (`last`), and
there is no `txid`. A look reads the last id, and then the changes up to there in pieces: no lock is
held while they are sent.

SQLite wakes no process that waits for writes by other processes: the capture looks at
`PRAGMA data_version`, a counter in the file's head, every `LOOK_SECONDS`.

Positions: 2 x id for a change; the odd ones between are for snapshots.

Left out:
- Rows that `INSERT OR REPLACE` removes because of a UNIQUE constraint that is not the primary key:
  SQLite tells triggers of them only in connections with `PRAGMA recursive_triggers = ON`.
- A `before` that fits where a TEMP trigger, or a row's foreign key to itself, writes the row again:
  SQLite runs these before our triggers. `after` is right there too.
- Writes while a snapshot is read: writers wait, unless the file is in WAL mode.
"""

import base64
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from raftmq.pipeline import durable
from raftmq.pipeline.errors import PipelineError

from .change import (
    Change,
    Column,
    Commit,
    Event,
    Idle,
    Op,
    Place,
    Row,
    Snapshot,
    Table,
    Value,
    needs_snapshot,
    no_key,
    no_table,
    split_update,
)
from .sqlite_log import quoted, statements_of, triggers_of

LOOK_SECONDS = 0.05
"""Time between two looks at the file's counter."""
ROWS = 1000
"""Rows that are read at once."""
WRITER_SECONDS_MAX = 60.0
"""Time to wait for another writer."""


class SqliteSource:
    """See `source.Source`."""

    def __init__(self, path: str, table: str, topic: str) -> None:
        if not Path(path).is_file():
            raise PipelineError(f"there is no SQLite file {path!r}", "give the path of one")
        self._path = path
        self._topic = topic
        self._connection = sqlite3.connect(
            path, timeout=WRITER_SECONDS_MAX, isolation_level=None, check_same_thread=False
        )
        try:
            columns = self._columns(table)
        except sqlite3.DatabaseError as error:
            self._connection.close()
            raise PipelineError(f"{path} cannot be read: {error}", "give a SQLite file") from error
        except PipelineError:
            self._connection.close()
            raise
        self.table = Table("sqlite", table, columns)
        self._log = f"raftmq_log_{table}"

    def prepare(self) -> list[str]:
        """See `Source.prepare`."""
        self._check_key()
        found = dict(self._all("SELECT name, sql FROM sqlite_master"))
        are_last = self._are_newest()
        missing = [
            sql
            for name, sql in statements_of(self.table, self._log).items()
            if found.get(name) != sql or (name in triggers_of(self._log) and not are_last)
        ]
        # Changes may have passed unseen: each capture has to begin with a snapshot.
        return missing + self._forgetting() if missing else []

    def undo(self) -> list[str]:
        """See `Source.undo`."""
        triggers = [f"DROP TRIGGER IF EXISTS {quoted(name)}" for name in triggers_of(self._log)]
        return [*triggers, f"DROP TABLE IF EXISTS {quoted(self._log)}", *self._forgetting()]

    def execute(self, statements: list[str]) -> None:
        """See `Source.execute`."""
        with self._transaction("IMMEDIATE"):
            for statement in statements:
                if statement.startswith("CREATE TRIGGER"):
                    # A trigger that was made for other columns has the same name.
                    name = statement.split('"')[1]
                    self._connection.execute(f"DROP TRIGGER IF EXISTS {quoted(name)}")
                if statement == statements_of(self.table, self._log)[self._log]:
                    self._renew_log(statement)
                else:
                    self._connection.execute(statement)

    @contextmanager
    def claim(self) -> Iterator[None]:
        """See `Source.claim`. A lock on a file beside the database, which the system ends."""
        path = Path(f"{self._path}-raftmq-{self.table.name}")
        busy = f"another capture of {self.table.name} is running"
        with durable.locked(path, busy=busy, fix="end it, or let it work"):
            yield

    def now(self) -> Place:
        """See `Source.now`."""
        return _place(self._last_id())

    def check(self, after: Place) -> None:
        """See `Source.check`."""
        confirmed = self._confirmed()
        # Half of a position, rounded down, is the last id that is there, or more.
        if after.position // 2 < confirmed // 2 - 1:
            raise needs_snapshot(
                f"the topic ends before position {confirmed}, and changes of {self.table.name} up "
                "to there were dropped when they had been sent"
            )
        if after.position > self.now().position:
            raise PipelineError(
                f"the topic is ahead of {self._path}: it was captured from another file, or this "
                "one is an older copy",
                "give the right file, or another topic",
            )

    @contextmanager
    def snapshot(self, *, is_first: bool) -> Iterator[Snapshot]:
        """See `Source.snapshot`."""
        if is_first:
            with self._transaction("IMMEDIATE"):
                statement = "INSERT OR REPLACE INTO raftmq_captures VALUES (?, ?, 0)"
                self._connection.execute(statement, (self.table.name, self._topic))
                # An id is used up, so that each snapshot has a place of its own.
                log = quoted(self._log)
                self._connection.execute(f"INSERT INTO {log} (op) VALUES ('{Op.MARK}')")
                self._connection.execute(f"DELETE FROM {log} WHERE op = '{Op.MARK}'")
        with self._transaction("DEFERRED"):
            last = self._last_id()
            yield Snapshot(Place(2 * last + 1, str(last)), self._rows())

    def events(self, after: Place) -> Iterator[Event]:
        """See `Source.events`."""
        # The mark of position 2n, and the snapshot of 2n - 1, are before the change n.
        done = (after.position + 1) // 2 - 1
        version = -1
        shape: Any = None
        while True:
            found = self._all("PRAGMA data_version")[0][0]
            if found != version:
                version = found
                # One read, so up to `end` are whole transactions of these columns.
                with self._transaction("DEFERRED"):
                    shape = self._checked(shape)
                    end = self._last_id()
                for row in self._changes(done, end):
                    done = row[0]
                    yield from self._change(row)
                # If the log was made again between two pieces, the later pieces are lost.
                shape = self._checked(shape)
                yield Commit(_place(done))
            yield Idle(_place(done))
            time.sleep(LOOK_SECONDS)

    def confirm(self, reached: Place) -> None:
        """See `Source.confirm`."""
        with self._transaction("IMMEDIATE"):
            before = (reached.position + 1) // 2
            self._connection.execute(f"DELETE FROM {quoted(self._log)} WHERE id < ?", (before,))
            statement = "UPDATE raftmq_captures SET confirmed = ? WHERE name = ? AND topic = ?"
            values = (reached.position, self.table.name, self._topic)
            self._connection.execute(statement, values)

    def close(self) -> None:
        """See `Source.close`."""
        self._connection.close()

    # -- inside ----------------------------------------------------------------------------------

    def _columns(self, table: str) -> tuple[Column, ...]:
        found = self._all("SELECT name, type, pk FROM pragma_table_info(?)", table)
        if not found:
            raise no_table(self._path, table)
        if not any(key for _, _, key in found):
            raise no_key(table)
        return tuple(Column(name, _kind(type_), type_, key) for name, type_, key in found)

    def _check_key(self) -> None:
        """Refuse keys that may be equal though their texts differ.

        Messages and the rebuilt table know a row by its key's text, and `INSERT OR REPLACE` does
        not show which row it has removed.
        """
        name = self.table.name
        query = (
            "SELECT c.name, c.coll FROM pragma_index_list(?) AS i, pragma_index_xinfo(i.name) AS c "
            "WHERE i.origin = 'pk' AND c.key AND c.coll <> 'BINARY' COLLATE NOCASE"
        )
        for column, collation in self._all(query, name):
            raise PipelineError(
                f"the key {name}.{column} has the collation {collation}, so keys of different "
                "text may be equal",
                f"make {name} again with the key COLLATE BINARY, and its values in one case",
            )
        for column in self.table.columns:
            # Without a type 1 and 1.0 are stored as they come, and are equal.
            if column.key and not column.type:
                raise PipelineError(
                    f"the key {name}.{column.name} is declared without a type, so keys of "
                    "different text may be equal",
                    f"make {name} again with the type of its values, as TEXT or INTEGER",
                )

    def _confirmed(self) -> int:
        """The position up to which changes may be gone from the log.

        Raises:
            PipelineError: the topic has no snapshot since the log began, as `prepare` forgets all
                captures whenever it changes anything; or another topic has the changes.
        """
        name = self.table.name
        query = "SELECT topic, confirmed FROM raftmq_captures WHERE name = ?"
        found = self._all(query, name)
        if not found:
            raise needs_snapshot(
                f"no snapshot of {name} was made for the topic {self._topic} since the table was "
                "prepared"
            )
        topic, confirmed = found[0]
        if topic != self._topic:
            raise needs_snapshot(f"changes of {name} go to the topic {topic}, one at a time")
        return int(confirmed)

    def _checked(self, shape: Any) -> Any:
        """The number of the file's schema; if it is not `shape`, table and capture are checked."""
        found = self._all("PRAGMA schema_version")[0][0]
        if found != shape:
            self._check_columns()
            self._confirmed()
        return found

    def _check_columns(self) -> None:
        if self._columns(self.table.name) != self.table.columns:
            raise needs_snapshot(f"the columns of {self.table.name} have changed")
        if self.prepare():
            raise PipelineError(
                f"the triggers of {self.table.name} were changed or are gone, or the table has a "
                "newer one, which SQLite runs before them",
                "`raftmq pipeline cdc prepare …`, then capture with --snapshot",
            )

    def _are_newest(self) -> bool:
        """Whether our triggers are the table's newest, which run first."""
        query = (
            "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ? COLLATE NOCASE "
            "ORDER BY rowid DESC LIMIT 3"
        )
        return {name for (name,) in self._all(query, self.table.name)} == set(
            triggers_of(self._log)
        )

    def _renew_log(self, statement: str) -> None:
        """Make the log in place of one for other columns; ids go on, so that positions grow."""
        last = self._last_id()
        self._connection.execute(f"DROP TABLE IF EXISTS {quoted(self._log)}")
        self._connection.execute(statement)
        self._connection.execute("INSERT INTO sqlite_sequence VALUES (?, ?)", (self._log, last))

    def _forgetting(self) -> list[str]:
        if not self._has("raftmq_captures"):
            return []
        return [f"DELETE FROM raftmq_captures WHERE name = {_literal(self.table.name)}"]

    def _has(self, name: str) -> bool:
        return bool(self._all("SELECT 1 FROM sqlite_master WHERE name = ?", name))

    def _last_id(self) -> int:
        if not self._has("sqlite_sequence"):
            return 0
        found = self._all("SELECT seq FROM sqlite_sequence WHERE name = ?", self._log)
        return int(found[0][0]) if found else 0

    def _changes(self, after: int, end: int) -> Iterator[tuple[Any, ...]]:
        query = f"SELECT * FROM {quoted(self._log)} WHERE id > ? AND id <= ? ORDER BY id LIMIT ?"
        # Each read is over before its rows are sent: an open read would lock the file for writers
        # while the cluster does not answer.
        try:
            while rows := self._all(query, after, end, ROWS):
                yield from rows
                after = rows[-1][0]
        except sqlite3.OperationalError:
            # `prepare --undo` may have dropped the log between two pieces.
            self._check_columns()
            raise

    def _change(self, row: tuple[Any, ...]) -> Iterator[Change]:
        number, op, *values = row
        count = len(self.table.columns)
        position, lsn = 2 * number, str(number)
        before = None if op == Op.CREATE else self._row(values[:count])
        after = None if op == Op.DELETE else self._row(values[count:])
        if before is None or after is None:
            yield Change(Op(op), position, 1, lsn, None, before, after)
            return
        # The `d` of a key that was changed has an entry of its own.
        *_, (part, old, new) = split_update(self.table, before, after)
        yield Change(part, position, 1, lsn, None, old, new)

    def _rows(self) -> Iterator[Row]:
        names = ", ".join(quoted(column.name) for column in self.table.columns)
        order = ", ".join(map(quoted, self.table.key))
        query = f"SELECT {names} FROM {quoted(self.table.name)} ORDER BY {order}"
        cursor = self._connection.execute(query)
        while rows := cursor.fetchmany(ROWS):
            yield from map(self._row, rows)

    def _row(self, values: Any) -> Row:
        columns = self.table.columns
        return {c.name: self._value(c, v) for c, v in zip(columns, values, strict=True)}

    def _value(self, column: Column, value: Any) -> Value:
        """The value as messages write it; one that does not fit its column's kind is refused."""
        match column.kind, value:
            case _, None:
                return None
            case "int", int():
                return value
            case "bool", 0 | 1:
                return bool(value)
            case "bytes", bytes():
                return base64.b64encode(value).decode()
            case "text", str():
                return value
            case "text", int() | float():
                return repr(value)
        raise PipelineError(
            f"{self.table.name}.{column.name} is {column.type} and holds "
            f"{type(value).__name__} {value!r:.40}",
            "correct the value, or declare the column with the type that it holds",
        )

    def _all(self, query: str, *values: Any) -> list[Any]:
        return self._connection.execute(query, values).fetchall()

    @contextmanager
    def _transaction(self, kind: str) -> Iterator[None]:
        self._connection.execute(f"BEGIN {kind}")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")


def _place(last: int) -> Place:
    return Place(2 * last + 2, str(last))


def _kind(declared: str) -> str:
    """SQLite's own rules of affinity, and booleans.

    >>> [_kind(t) for t in ("INTEGER", "BIGINT", "BOOLEAN", "BLOB", "DECIMAL(10,2)", "TEXT", "")]
    ['int', 'int', 'bool', 'bytes', 'text', 'text', 'text']
    """
    declared = declared.upper()
    for word, kind in (("INT", "int"), ("BOOL", "bool"), ("BLOB", "bytes")):
        if word in declared:
            return kind
    return "text"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
