"""Capture of a PostgreSQL table by logical decoding, with the plugin `pgoutput`.

`pgoutput` is in every server, and its messages have types and lengths; `test_decoding`'s are text
for people, in which other text may look like a value. The stream itself is in `replication`, the
messages in `pgoutput`.

A *slot* is the server's memory of how far a reader is: the server keeps the log from there on. The
slot is made with a snapshot of the table at the same place, and `confirm` moves the slot on.

`prepare` makes a publication of the table, and has old rows sent whole (REPLICA IDENTITY FULL): an
update leaves out large values that it did not change, and they are taken from the old row.

A position is the LSN of the transaction's commit record: the server sends transactions in that
order, each whole. A snapshot has the LSN before its slot's: records are aligned, so no other has.

A primary key is not DEFERRABLE. The server reports an alteration when it sends the first change
after it: the capture then checks the key.

Left out: a key that is made DEFERRABLE and changed back while no capture runs; partitioned tables;
generated columns, which the plugin does not send; sequences.
"""

import base64
import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from raftmq.pipeline.errors import PipelineError

from . import pgoutput
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
from .replication import FREED_SECONDS_MAX, Data, Sent, Stream, said

if TYPE_CHECKING:
    from psycopg import Connection

ROWS = 1000
"""Rows that are read at once."""
ASK_SECONDS = 0.5
"""Time between two questions how far the server is, while no change comes."""

# Values are written alike in the snapshot and in the stream, whatever the server's settings are.
_OPTIONS = (
    "-c TimeZone=UTC -c DateStyle=ISO,YMD -c IntervalStyle=iso_8601 -c extra_float_digits=1 "
    "-c bytea_output=hex -c client_encoding=UTF8"
)
_KINDS = {16: "bool", 17: "bytes", 20: "int", 21: "int", 23: "int", 26: "int"}
"""The number of a type → how its values are written; others are text."""
_MASK32 = (1 << 32) - 1

_TABLE = """
SELECT c.oid, n.nspname, c.relname, c.relkind, c.relpersistence, c.relreplident
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""
_COLUMNS = """
SELECT a.attname, a.atttypid, format_type(a.atttypid, a.atttypmod),
       coalesce(array_position(i.indkey::int2[], a.attnum), -1)
FROM pg_attribute a LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
ORDER BY a.attnum
"""
_IS_DEFERRABLE = "SELECT NOT indimmediate FROM pg_index WHERE indrelid = %s AND indisprimary"


class PostgresqlSource:
    """See `source.Source`."""

    def __init__(self, database: str, table: str, topic: str) -> None:
        self._database = database
        self._connection = self._connect()
        self._name: str
        try:
            self._types, self.table = self._describe(table)
        except BaseException:
            self._connection.close()
            raise
        self._publication = f"raftmq_{_fingerprint(self.table.name)}"
        self._slot = f"raftmq_{_fingerprint(f'{topic} {self.table.name}')}"
        self._stream: Stream | None = None

    def prepare(self) -> list[str]:
        """See `Source.prepare`."""
        self._check_server()
        self._check_key()
        statements = []
        if self._identity != "f":
            statements.append(f"ALTER TABLE {self._name} REPLICA IDENTITY FULL")
        publication = self._publication
        query = "SELECT 1 FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid "
        query += "WHERE p.pubname = %s AND r.prrelid = %s"
        if self._one(query, publication, self._oid) is None:
            if self._one("SELECT 1 FROM pg_publication WHERE pubname = %s", publication):
                statements.append(f"DROP PUBLICATION {publication}")
            statements.append(f"CREATE PUBLICATION {publication} FOR TABLE ONLY {self._name}")
        return statements

    def undo(self) -> list[str]:
        """See `Source.undo`. The slot of another topic stays."""
        statements = [f"DROP PUBLICATION IF EXISTS {self._publication}"]
        if self._identity == "f":
            statements.append(f"ALTER TABLE {self._name} REPLICA IDENTITY DEFAULT")
        if self._slot_row() is not None:
            statements.append(f"SELECT pg_drop_replication_slot('{self._slot}')")
        return statements

    def execute(self, statements: list[str]) -> None:
        """See `Source.execute`."""
        import psycopg

        try:
            with self._connection.transaction():
                for statement in statements:
                    self._connection.execute(statement.encode())
        except psycopg.errors.InsufficientPrivilege as error:
            raise PipelineError(
                f"this user may not prepare {self.table.name}: {_line(error)}",
                "let the table's owner, with CREATE on the database, prepare it",
            ) from error
        row = self._one(_TABLE, self._name)
        assert row is not None
        self._identity = row[-1]

    @contextmanager
    def claim(self) -> Iterator[None]:
        """See `Source.claim`. An advisory lock of the connection, which ends with it."""
        number = int(hashlib.sha256(self._slot.encode()).hexdigest()[:15], 16)
        deadline = time.monotonic() + FREED_SECONDS_MAX
        while not self._scalar("SELECT pg_try_advisory_lock(%s)", number):
            if time.monotonic() > deadline:
                raise PipelineError(
                    f"another capture of {self.table.name} is running", "end it, or let it work"
                )
            time.sleep(0.1)
        try:
            yield
        finally:
            if not self._connection.closed:
                self._scalar("SELECT pg_advisory_unlock(%s)", number)

    def now(self) -> Place:
        """See `Source.now`."""
        # A message of our own: its commit is flushed, so the stream will reach its place.
        text = self._scalar("SELECT pg_logical_emit_message(true, 'raftmq', '')::text")
        return Place(_number(text), text)

    def check(self, after: Place) -> None:
        """See `Source.check`."""
        slot = self._slot_row()
        if slot is None:
            raise needs_snapshot(f"the replication slot {self._slot} is gone, and with it changes")
        if slot[1] == "lost":
            raise needs_snapshot(f"the server has dropped the log that the slot {self._slot} needs")
        if self.now().position < after.position:
            raise PipelineError(
                "the topic is ahead of the server: it was captured from another, or this one was "
                "restored from a backup",
                "give the right server, or another topic",
            )

    @contextmanager
    def snapshot(self, *, is_first: bool) -> Iterator[Snapshot]:
        """See `Source.snapshot`."""
        slot = self._slot if is_first else f"{self._slot}_{time.time_ns():x}"
        if is_first and self._slot_row() is not None:
            # The slot is of a snapshot that was not finished, or that this one replaces.
            self._scalar("SELECT pg_drop_replication_slot(%s)", slot)
        temporary = "" if is_first else "TEMPORARY "
        with (
            closing(self._connect(replication="database")) as replication,
            closing(self._connect()) as reader,
        ):
            command = f"CREATE_REPLICATION_SLOT {slot} {temporary}LOGICAL pgoutput"
            result = replication.pgconn.exec_(f"{command} (SNAPSHOT 'export')".encode())
            if not result.ntuples:
                raise PipelineError(
                    f"no replication slot can be made: {said(result)}",
                    "give the user REPLICATION, and raise max_replication_slots if all are used",
                )
            values = [result.get_value(0, column) or b"" for column in range(result.nfields)]
            lsn, exported = values[1].decode(), values[2].decode()
            with reader.transaction():
                reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                reader.execute(f"SET TRANSACTION SNAPSHOT '{exported}'".encode())
                yield Snapshot(Place(_number(lsn) - 1, lsn), self._rows(reader))

    def events(self, after: Place) -> Iterator[Event]:
        """See `Source.events`. The slot knows where to begin."""
        # The connection is only closed: in mid-stream nothing can be rolled back.
        with closing(self._connect(replication="database")) as connection:
            stream = self._stream = Stream(connection, self._slot, self._publication)
            yield from self._decode(stream)

    def confirm(self, reached: Place) -> None:
        """See `Source.confirm`."""
        assert self._stream is not None
        self._stream.confirm(reached.position)

    def close(self) -> None:
        """See `Source.close`."""
        self._connection.close()

    # -- inside ----------------------------------------------------------------------------------

    def _describe(self, table: str) -> tuple[tuple[tuple[str, int], ...], Table]:
        row = self._one(_TABLE, table)
        if row is None:
            raise no_table("the database", table)
        self._oid, schema, name, kind, persistence, self._identity = row
        if kind != "r" or persistence != "p":
            raise PipelineError(
                f"{table} is no ordinary table: it is partitioned, foreign, a view, or not logged",
                "capture its partitions one by one, or the tables below the view",
            )
        self._name = f"{_quoted(schema)}.{_quoted(name)}"
        found = self._connection.execute(_COLUMNS, (self._oid,)).fetchall()
        columns = tuple(
            Column(name, _KINDS.get(type_, "text"), words, place + 1)
            for name, type_, words, place in found
        )
        if not any(column.key for column in columns):
            raise no_key(table)
        types = tuple((row[0], row[1]) for row in found)
        return types, Table("postgresql", f"{schema}.{name}", columns)

    def _decode(self, stream: Stream) -> Iterator[Event]:
        begin: pgoutput.Begin | None = None
        seq = 0
        asked = time.monotonic()
        for each in stream.read():
            if isinstance(each, Data):
                match pgoutput.decode(each.content):
                    case pgoutput.Begin() as begin:
                        seq = 0
                    case pgoutput.End(lsn):
                        begin = None
                        yield Commit(_place(lsn))
                    case pgoutput.Relation() as relation:
                        self._check_relation(relation)
                    case None:
                        pass
                    case decoded:
                        assert begin is not None
                        at, txid = _place(begin.lsn), str(begin.txid)
                        for op, before, after in self._changes(decoded):
                            seq += 1  # noqa: SIM113  # over all messages of the transaction
                            yield Change(op, at.position, seq, at.lsn, txid, before, after)
            elif isinstance(each, Sent):
                if begin is None and each.lsn:
                    yield Idle(_place(each.lsn))
            elif time.monotonic() - asked > ASK_SECONDS:
                asked = time.monotonic()
                stream.ask()

    def _changes(self, decoded: pgoutput.Decoded) -> Iterator[tuple[Op, Row | None, Row | None]]:
        match decoded:
            case pgoutput.Insert(_, new):
                yield Op.CREATE, None, self._row(new)
            case pgoutput.Update(_, old, new):
                assert old is not None, "old rows are sent whole: the relation was checked"
                yield from split_update(self.table, self._row(old), self._row(new))
            case pgoutput.Delete(_, old):
                yield Op.DELETE, self._row(old), None
            case pgoutput.Truncate():
                yield Op.EMPTY, None, None

    def _check_key(self) -> None:
        """Refuse a DEFERRABLE key.

        Rows that exchange keys cannot be distinguished from a row that takes another key and then
        its own again: both are two updates, of the same rows before and after.
        """
        if self._scalar(_IS_DEFERRABLE, self._oid):
            name = self.table.name
            raise PipelineError(
                f"the primary key of {name} is DEFERRABLE: rows may have the same key for some "
                "time, and cannot be told apart",
                f"ALTER TABLE {name} DROP CONSTRAINT …, ADD PRIMARY KEY "
                f"({', '.join(self.table.key)}); without DEFERRABLE",
            )

    def _check_relation(self, relation: pgoutput.Relation) -> None:
        """Refuse a table that has changed; the publication has this table alone."""
        # The server's message has the columns, and not the key.
        if relation.columns != self._types or self._describe(self._name)[1] != self.table:
            raise needs_snapshot(f"the columns of {self.table.name} have changed")
        self._check_key()
        if not relation.is_full:
            raise PipelineError(
                f"the server does not send the old rows of {self.table.name} whole",
                "`raftmq pipeline cdc prepare …`, then capture with --snapshot",
            )

    def _check_server(self) -> None:
        level = self._scalar("SHOW wal_level")
        if level != "logical":
            raise PipelineError(
                f"the server's wal_level is {level}: its log has too little to read changes from",
                "ALTER SYSTEM SET wal_level = logical; and restart the server",
            )
        query = "SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user"
        if not self._scalar(query):
            user = self._scalar("SELECT current_user")
            raise PipelineError(
                f"the user {user} may not read the server's log", f"ALTER ROLE {user} REPLICATION;"
            )

    def _slot_row(self) -> Any:
        query = "SELECT slot_name, wal_status FROM pg_replication_slots WHERE slot_name = %s"
        return self._one(query, self._slot)

    def _rows(self, reader: "Connection") -> Iterator[Row]:
        names = ", ".join(_quoted(column.name) for column in self.table.columns)
        order = ", ".join(map(_quoted, self.table.key))
        query = f"SELECT {names} FROM ONLY {self._name} ORDER BY {order}"
        reader.execute(f"DECLARE raftmq_rows NO SCROLL CURSOR FOR {query}".encode())
        while True:
            result = reader.execute(f"FETCH {ROWS} FROM raftmq_rows".encode()).pgresult
            assert result is not None
            for row in range(result.ntuples):
                values = [result.get_value(row, column) for column in range(result.nfields)]
                yield self._row([None if v is None else v.decode() for v in values])
            if result.ntuples < ROWS:
                return

    def _row(self, values: Sequence[str | None]) -> Row:
        columns = self.table.columns
        return {c.name: _value(c.kind, v) for c, v in zip(columns, values, strict=True)}

    def _connect(self, **more: Any) -> "Connection":
        try:
            import psycopg
        except ImportError as error:
            raise PipelineError("psycopg is not installed", "pip install 'raftmq[cdc]'") from error
        try:
            return psycopg.connect(self._database, autocommit=True, options=_OPTIONS, **more)
        except psycopg.Error as error:
            raise PipelineError(
                f"PostgreSQL cannot be reached: {_line(error)}",
                "postgresql://user:password@host:port/name names it; the user needs REPLICATION, "
                "and a line for its connections in pg_hba.conf",
            ) from error

    def _one(self, query: str, *values: Any) -> Any:
        return self._connection.execute(query.encode(), values).fetchone()

    def _scalar(self, query: str, *values: Any) -> Any:
        return self._one(query, *values)[0]


def _value(kind: str, text: str | None) -> Value:
    if text is None:
        return None
    match kind:
        case "int":
            return int(text)
        case "bool":
            return text == "t"
        case "bytes":
            return base64.b64encode(bytes.fromhex(text[2:])).decode()
    return text


def _place(lsn: int) -> Place:
    return Place(lsn, f"{lsn >> 32:X}/{lsn & _MASK32:X}")


def _number(lsn: str) -> int:
    """
    >>> _number("1/1F"), _place(_number("1/1F")).lsn
    (4294967327, '1/1F')
    """
    high, _, low = lsn.partition("/")
    return int(high, 16) << 32 | int(low, 16)


def _fingerprint(text: str) -> str:
    """A name that fits a slot: lower case, digits and _, up to 63 in all."""
    clean = "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in text)
    return f"{clean.lower()[:30]}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
