"""Capture of a MariaDB table from the server's binary log, in row format.

The package `mysql-replication` speaks the protocol of a replica and decodes the log's rows; the
server sends them as they are committed, and a heartbeat while there are none. `mariadb_values`
describes the values.

    GTID  ─  TABLE_MAP  ROWS  ROWS …  ─  XID          a transaction, in the order of commits

A position is where a transaction begins: the number in the log file's name, and the byte in it
(`number << 32 | byte`). A snapshot is read in one transaction, and the server gives its place in
the log (`binlog_snapshot_position`), so nothing is locked; the snapshot's position is one less.

The server keeps its logs for some time, whether a capture needs them or not. If they are gone when
a capture goes on, the capture fails and needs a new snapshot; marks move the place on while only
other tables are written.

Left out: MySQL, which has other identifiers and no such place of a snapshot; XA transactions; log
files over 4 GiB, which only one transaction as large makes.
"""

import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

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
    needs_snapshot,
    no_key,
    no_table,
    split_update,
)
from .mariadb_values import Cell, cell_of

if TYPE_CHECKING:
    from pymysql.connections import Connection

HEARTBEAT_SECONDS = 0.2
"""Time after which a server without changes sends a heartbeat."""
ROWS = 1000
"""Rows that are read at once."""

_SETTINGS = {
    "log_bin": ("1", "the binary log is off", "set log_bin in the server's file, and restart it"),
    "binlog_format": ("ROW", "the binary log has no rows", "SET GLOBAL binlog_format = ROW"),
    "binlog_row_image": (
        "FULL",
        "the binary log leaves out columns",
        "SET GLOBAL binlog_row_image = FULL",
    ),
    "binlog_row_metadata": (
        "FULL",
        "the binary log leaves out the names of columns",
        "SET GLOBAL binlog_row_metadata = FULL",
    ),
}
"""Setting → the value that it needs, what is wrong otherwise, and the remedy."""
_FILTERS = ("binlog_do_db", "binlog_ignore_db")
"""Settings that leave databases out of the log, in the order of `SHOW MASTER STATUS`; with the
first, the server does not read the second."""
_COLUMNS = """
SELECT column_name, data_type, column_type, datetime_precision, character_octet_length,
       generation_expression IS NOT NULL,
       coalesce((SELECT k.ordinal_position FROM information_schema.key_column_usage k
                 WHERE k.table_schema = c.table_schema AND k.table_name = c.table_name
                 AND k.constraint_name = 'PRIMARY' AND k.column_name = c.column_name), 0)
FROM information_schema.columns c WHERE table_schema = %s AND table_name = %s
ORDER BY ordinal_position
"""
_ACTIONS = """
SELECT constraint_name FROM information_schema.referential_constraints
WHERE constraint_schema = %s AND table_name = %s
AND NOT (update_rule IN ('RESTRICT', 'NO ACTION') AND delete_rule IN ('RESTRICT', 'NO ACTION'))
"""
_PURGED = 1236
_STANDALONE, _PREPARED = 1, 64
"""Flags of a transaction: one statement without a commit of its own; the first half of XA."""


class MariadbSource:
    """See `source.Source`."""

    def __init__(self, database: str, table: str, topic: str) -> None:
        parts = urlsplit(database)
        schema, _, name = table.rpartition(".")
        self._schema = schema or unquote(parts.path.strip("/"))
        self._address: dict[str, Any] = {
            "user": unquote(parts.username or ""),
            "password": unquote(parts.password or ""),
            "host": parts.hostname or "127.0.0.1",
            "port": parts.port or 3306,
            "charset": "utf8mb4",
        }
        socket = parse_qs(parts.query).get("unix_socket")
        if socket:
            self._address["unix_socket"] = socket[0]
        self._connection = self._connect()
        try:
            self._cells = self._describe(name)
        except BaseException:
            self._connection.close()
            raise
        columns = tuple(cell.column for cell in self._cells)
        self.table = Table("mariadb", f"{self._schema}.{name}", columns)
        self._name = f"{_quoted(self._schema)}.{_quoted(name)}"
        self._plain = name
        self._topic = topic

    def prepare(self) -> list[str]:
        """See `Source.prepare`. Settings of the server are checked, and never changed."""
        for setting, (wanted, wrong, fix) in _SETTINGS.items():
            found = self._all(f"SELECT @@global.{setting}")[0][0]
            if str(found).upper() != wanted:
                raise PipelineError(f"{wrong}: {setting} is {found}", fix)
        self._check_filters()
        for (name,) in self._all(_ACTIONS, self._schema, self._plain):
            # InnoDB carries out these actions by itself, on each replica again: no log has them.
            raise PipelineError(
                f"the foreign key {name} changes {self.table.name} where its parent is changed, "
                "and the binary log does not have these changes",
                f"make {name} again with ON DELETE RESTRICT ON UPDATE RESTRICT",
            )
        return []

    def undo(self) -> list[str]:
        """See `Source.undo`. Nothing was left."""
        return []

    def execute(self, statements: list[str]) -> None:
        """See `Source.execute`."""
        assert not statements

    @contextmanager
    def claim(self) -> Iterator[None]:
        """See `Source.claim`. A lock of the connection, which ends with it."""
        name = f"raftmq-{self._number:x}"
        if self._all("SELECT GET_LOCK(%s, 5)", name)[0][0] != "1":
            raise PipelineError(
                f"another capture of {self.table.name} is running", "end it, or let it work"
            )
        try:
            yield
        finally:
            if self._connection.open:
                self._all("SELECT RELEASE_LOCK(%s)", name)

    def now(self) -> Place:
        """See `Source.now`."""
        file, byte = self._asked("SHOW MASTER STATUS")[0][:2]
        return _place(file, int(byte))

    def check(self, after: Place) -> None:
        """See `Source.check`."""
        if self.now().position < after.position:
            raise PipelineError(
                "the topic is ahead of the server's binary log: it was captured from another "
                "server, or the log was reset",
                "give the right server, or another topic",
            )
        file = after.lsn.rpartition(":")[0]
        if file not in [row[0] for row in self._asked("SHOW BINARY LOGS")]:
            raise needs_snapshot(f"the server has dropped its log {file}")

    @contextmanager
    def snapshot(self, *, is_first: bool) -> Iterator[Snapshot]:
        """See `Source.snapshot`."""
        from pymysql.cursors import SSCursor

        with closing(self._connect()) as reader:
            with reader.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
                cursor.execute("SHOW STATUS LIKE 'binlog\\_snapshot\\_%'")
                found = {name.lower(): value for name, value in cursor.fetchall()}
            file, byte = found["binlog_snapshot_file"], int(found["binlog_snapshot_position"])
            place = _place(file, byte)
            with reader.cursor(SSCursor) as cursor:
                yield Snapshot(Place(place.position - 1, place.lsn), self._rows(cursor))

    def events(self, after: Place) -> Iterator[Event]:
        """See `Source.events`."""
        import pymysql
        from pymysqlreplication import BinLogStreamReader

        file, _, byte = after.lsn.rpartition(":")
        stream = BinLogStreamReader(
            connection_settings=dict(self._address),
            # The server has one replica of a number at a time: it ends that of a killed capture.
            server_id=self._number,
            blocking=True,
            resume_stream=True,
            log_file=file,
            log_pos=int(byte),
            only_schemas=[self._schema],
            only_tables=[self._plain],
            slave_heartbeat=HEARTBEAT_SECONDS,
            pymysql_wrapper=_Connections(2),
            enable_logging=False,
        )
        try:
            yield from self._decode(stream)
        except pymysql.err.OperationalError as error:
            raise _explained(error) from error
        finally:
            stream.close()

    def confirm(self, reached: Place) -> None:
        """See `Source.confirm`. Does nothing: the server keeps its logs for a time of its own."""

    def close(self) -> None:
        """See `Source.close`."""
        self._connection.close()

    # -- inside ----------------------------------------------------------------------------------

    @property
    def _number(self) -> int:
        """The replica's number for this table and topic, above those that people give servers."""
        text = f"{self._topic} {self.table.name}"
        return zlib.crc32(text.encode()) | 1 << 31

    def _describe(self, name: str) -> tuple[Cell, ...]:
        engine = self._all(
            "SELECT engine FROM information_schema.tables WHERE table_schema = %s "
            "AND table_name = %s AND table_type = 'BASE TABLE'",
            self._schema,
            name,
        )
        if not engine:
            raise no_table(f"the database {self._schema}", name)
        if engine[0][0] != "InnoDB":
            raise PipelineError(
                f"{name} is a table of {engine[0][0]}, which has no consistent reads",
                f"ALTER TABLE {name} ENGINE = InnoDB",
            )
        cells = tuple(
            cell_of(
                Column(column, "", words, int(key)),
                type_,
                digits=int(digits or 0),
                width=int(width or 0),
                is_generated=generated == "1",
            )
            for column, type_, words, digits, width, generated, key in self._all(
                _COLUMNS, self._schema, name
            )
        )
        if not any(cell.column.key for cell in cells):
            raise no_key(name)
        return cells

    def _check_filters(self) -> None:
        """Refuse filters that may keep changes of the table out of the log; no variable shows them.

        A filter judges rows by the database of their table, and statements, as TRUNCATE, by the
        database that the session uses. So it may leave out a TRUNCATE where it leaves out no row.
        """
        listed = dict(zip(_FILTERS, self._asked("SHOW MASTER STATUS")[0][2:4], strict=True))
        for setting, text in listed.items():
            names = (text or "").split(",")
            if not any(names):
                continue
            found = f"the binary log may lack a TRUNCATE of {self.table.name}"
            if (self._schema in names) != (setting == "binlog_do_db"):
                found = f"the binary log leaves out the database {self._schema}"
            raise PipelineError(
                f"{found}: {setting} is {text}",
                f"take {setting} out of the server's file, and restart it; let replicas filter",
            )

    def _decode(self, stream: Any) -> Iterator[Event]:
        begin: Place | None = None
        gtid, flags, seq = "", 0, 0
        for event in stream:
            kind = type(event).__name__
            here = _place(stream.log_file, stream.log_pos)
            if kind == "MariadbGtidEvent":
                begin = _place(stream.log_file, event.packet.log_pos - event.packet.event_size)
                gtid, flags, seq = event.gtid, event.flags, 0
            elif kind in ("WriteRowsEvent", "UpdateRowsEvent", "DeleteRowsEvent"):
                assert begin is not None
                self._check_event(event, flags)
                for op, before, after in self._changes(kind, event.rows):
                    seq += 1
                    yield Change(op, begin.position, seq, begin.lsn, gtid, before, after)
            elif kind == "QueryEvent":
                if begin is not None and self._empties(event):
                    seq += 1
                    yield Change(Op.EMPTY, begin.position, seq, begin.lsn, gtid)
                if flags & _STANDALONE or event.query.upper() == "COMMIT":
                    begin = None
                    yield Commit(here)
            elif kind == "XidEvent":
                begin = None
                yield Commit(here)
            elif kind == "HeartbeatLogEvent" and begin is None:
                yield Idle(here)

    def _changes(self, kind: str, rows: list[Any]) -> Iterator[tuple[Op, Row | None, Row | None]]:
        for row in rows:
            if kind == "WriteRowsEvent":
                yield Op.CREATE, None, self._row(row["values"], row["none_sources"])
            elif kind == "DeleteRowsEvent":
                yield Op.DELETE, self._row(row["values"], row["none_sources"]), None
            else:
                before = self._row(row["before_values"], row["before_none_sources"])
                after = self._row(row["after_values"], row["after_none_sources"])
                yield from split_update(self.table, before, after)

    def _row(self, values: Mapping[str, Any], nothings: Mapping[str, str]) -> Row:
        return {
            cell.column.name: cell.logged(values[cell.column.name], nothings.get(cell.column.name))
            for cell in self._cells
        }

    def _check_event(self, event: Any, flags: int) -> None:
        if [column.name for column in event.columns] != [c.name for c in self.table.columns]:
            raise needs_snapshot(f"the columns of {self.table.name} have changed")
        if flags & _PREPARED:
            raise PipelineError(
                f"{self.table.name} was changed in an XA transaction, whose end is unknown",
                "write it in ordinary transactions, and capture with --snapshot",
            )

    def _empties(self, event: Any) -> bool:
        """Whether a statement empties the table; others that concern it end the capture."""
        query = _COMMENTS.sub("", event.query, count=1)
        words = query.split(None, 1)
        schema = event.schema.decode() if isinstance(event.schema, bytes) else event.schema
        if not words or not _names(event.query, self._plain):
            return False
        if schema != self._schema and not _names(event.query, self._schema):
            return False
        match words[0].upper():
            case "TRUNCATE":
                return True
            case "ALTER" | "DROP" | "RENAME" | "CREATE" if not _INDEX.match(query):
                # Also for a foreign key that changes rows: the next capture meets it in `prepare`.
                raise needs_snapshot(f"{self.table.name} was changed by {event.query!r:.80}")
            case "INSERT" | "UPDATE" | "DELETE" | "REPLACE" | "LOAD":
                raise PipelineError(
                    f"the binary log has a statement for {self.table.name} and not its rows: "
                    f"{event.query!r:.80}",
                    "let no session set binlog_format, and capture with --snapshot",
                )
        return False

    def _rows(self, cursor: Any) -> Iterator[Row]:
        names = ", ".join(cell.selected(_quoted(cell.column.name)) for cell in self._cells)
        order = ", ".join(map(_quoted, self.table.key))
        cursor.execute(f"SELECT {names} FROM {self._name} ORDER BY {order}")
        while rows := cursor.fetchmany(ROWS):
            for row in rows:
                pairs = zip(self._cells, row, strict=True)
                yield {cell.column.name: cell.read(value) for cell, value in pairs}

    def _connect(self) -> "Connection[Any]":
        try:
            import pymysql
            import pymysqlreplication  # noqa: F401  # it is asked for here, and not in mid-stream
        except ImportError as error:
            raise PipelineError(
                "mysql-replication is not installed", "pip install 'raftmq[cdc]'"
            ) from error
        # Without converters values come as the server writes them.
        settings = {**self._address, "conv": {}, "autocommit": True}
        settings["init_command"] = "SET time_zone = '+00:00'"
        try:
            return pymysql.connect(**settings)
        except pymysql.err.OperationalError as error:
            raise PipelineError(
                f"MariaDB cannot be reached: {error.args[-1]}",
                "mariadb://user:password@host:port/name names it, ?unix_socket=PATH its socket",
            ) from error

    def _all(self, query: str, *values: Any) -> list[Any]:
        with self._connection.cursor() as cursor:
            cursor.execute(query, values or None)
            return list(cursor.fetchall())

    def _asked(self, query: str) -> list[Any]:
        """The rows of a query that needs a right of its own."""
        import pymysql

        try:
            return self._all(query)
        except pymysql.err.OperationalError as error:
            raise _explained(error) from error


_COMMENTS = re.compile(r"(\s+|/\*(?!M?!).*?\*/|(--(?=\s|$)|#)[^\n]*(\n|$)|/\*M?!\d*)*", re.DOTALL)
"""Comments before a statement; of one that the server executes (`/*!`) its beginning alone."""
_INDEX = re.compile(r"\s*(CREATE|DROP)\s+(UNIQUE\s+|FULLTEXT\s+)?INDEX\b", re.IGNORECASE)


class _Connections:
    """Makes the reader's first connections, and refuses more.

    The reader would connect again by itself, in mid-transaction.
    """

    def __init__(self, count: int) -> None:
        self._left = count

    def __call__(self, **settings: Any) -> Any:
        import pymysql

        if self._left == 0:
            raise PipelineError("the server ended the connection", "start the capture again: it "
                                "goes on where it was")  # fmt: skip
        self._left -= 1
        if "db" in settings:
            settings["database"] = settings.pop("db")
        return pymysql.connect(**settings)


def _explained(error: Exception) -> PipelineError:
    code, text = (*error.args, "")[:2]
    if code == _PURGED:
        return needs_snapshot(f"the server cannot go on from there: {text}")
    return PipelineError(
        f"the server refuses its binary log: {text}",
        "GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO the user",
    )


def _place(file: str, byte: int) -> Place:
    """
    >>> _place("binlog.000002", 4)
    Place(position=8589934596, lsn='binlog.000002:4')
    """
    return Place(int(file.rpartition(".")[2]) << 32 | byte, f"{file}:{byte}")


def _names(statement: str, name: str) -> bool:
    """Whether a name is in a statement, as a word.

    >>> _names("truncate `t`", "t"), _names("truncate tt", "t")
    (True, False)
    """
    return re.search(rf"(?<![\w$]){re.escape(name)}(?![\w$])", statement, re.IGNORECASE) is not None


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
