"""Capture of a table from the server's binary log, in row format: what MariaDB and MySQL share.

The package `mysql-replication` speaks the protocol of a replica and decodes the log's rows; the
server sends them as they are committed, and a heartbeat while there are none. `values` describes
the values.

    GTID  ─  TABLE_MAP  ROWS  ROWS …  ─  XID          a transaction, in the order of commits

A position is where a transaction begins: the number in the log file's name, and the byte in it
(`number << 32 | byte`). A snapshot is read in one transaction whose place in the log is known; the
snapshot's position is one less.

The server keeps its logs for some time, whether a capture needs them or not. If they are gone when
a capture goes on, the capture fails and needs a new snapshot; marks move the place on while only
other tables are written.

Left out: XA transactions; log files over 4 GiB, which only one transaction as large makes.
"""

import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from raftmq.pipeline.cdc.change import (
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
from raftmq.pipeline.errors import PipelineError

from .values import Cell, cell_of

if TYPE_CHECKING:
    from pymysql.connections import Connection

HEARTBEAT_SECONDS = 0.2
"""Time after which a server without changes sends a heartbeat."""
ROWS = 1000
"""Rows that are read at once."""


class Setting(NamedTuple):
    """A setting of the server that a capture depends on."""

    wanted: str
    """The value as `SHOW VARIABLES` has it. A server without the setting has it `OFF`."""
    wrong: str
    """What another value does."""
    fix: str
    """The remedy."""


SETTINGS = {
    "log_bin": Setting(
        "ON", "the binary log is off", "set log_bin in the server's file, and restart it"
    ),
    "binlog_format": Setting("ROW", "the binary log has no rows", "SET GLOBAL binlog_format = ROW"),
    "binlog_row_image": Setting(
        "FULL", "the binary log leaves out columns", "SET GLOBAL binlog_row_image = FULL"
    ),
    "binlog_row_metadata": Setting(
        "FULL",
        "the binary log leaves out the names of columns",
        "SET GLOBAL binlog_row_metadata = FULL",
    ),
}
"""The settings of both databases, by name."""
_FILTERS = ("binlog_do_db", "binlog_ignore_db")
"""Settings that leave databases out of the log, in the order of `SHOW MASTER STATUS`; with the
first, the server does not read the second."""
_COLUMNS = """
SELECT column_name, data_type, column_type, datetime_precision, character_octet_length,
       coalesce(generation_expression, '') <> '', character_set_name,
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


@dataclass(slots=True)
class Transaction:
    """A transaction of the log, while it is read."""

    begin: Place
    txid: str | None
    """Its global identifier; None: it has none."""
    is_single: bool
    """It is one statement, without a commit of its own."""
    is_prepared: bool = False
    """It is the first half of an XA transaction."""


class BinaryLogSource(ABC):
    """See `source.Source`. Subclasses have what differs between the databases."""

    kind: ClassVar[str]
    """The database as messages and addresses name it."""
    product: ClassVar[str]
    """The database as people name it."""
    settings: ClassVar[Mapping[str, Setting]] = SETTINGS
    rights: ClassVar[str]
    """The rights on the whole server that a capture needs."""

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
            self._check_server(self._connection.get_server_info())
            self._cells = self._describe(name)
        except BaseException:
            self._connection.close()
            raise
        columns = tuple(cell.column for cell in self._cells)
        self.table = Table(self.kind, f"{self._schema}.{name}", columns)
        self._name = f"{quoted(self._schema)}.{quoted(name)}"
        self._plain = name
        self._topic = topic

    def prepare(self) -> list[str]:
        """See `Source.prepare`. Settings of the server are checked, and never changed."""
        names = ", ".join(f"'{name}'" for name in self.settings)
        values = dict(self._all(f"SHOW GLOBAL VARIABLES WHERE variable_name IN ({names})"))
        for name, (wanted, wrong, fix) in self.settings.items():
            found = values.get(name, "OFF")
            if found.upper() != wanted:
                raise PipelineError(f"{wrong}: {name} is {found or 'empty'}", fix)
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
        return place_of(file, int(byte))

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
            place = self._begin_snapshot(reader)
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
            # Without them, a kind of event that the package does not know is passed over.
            filter_non_implemented_events=False,
        )
        try:
            yield from self._decode(stream)
        except pymysql.err.OperationalError as error:
            raise self._explained(error) from error
        finally:
            stream.close()

    def confirm(self, reached: Place) -> None:  # noqa: B027  # it does nothing
        """See `Source.confirm`. Does nothing: the server keeps its logs for a time of its own."""

    def close(self) -> None:
        """See `Source.close`."""
        self._connection.close()

    # -- what differs ----------------------------------------------------------------------------

    @abstractmethod
    def _check_server(self, version: str) -> None:
        """Refuse a server that is of another kind, or too old or new."""

    @abstractmethod
    def _begin_snapshot(self, reader: "Connection[Any]") -> Place:
        """Begin a transaction on a new connection that reads one state of the table. The
        changes in that state are before the returned place, and all others are behind it."""

    @abstractmethod
    def _begun(self, event: Any, file: str) -> Transaction | None:
        """The transaction that begins with an event; None: none does.

        Raises:
            PipelineError: the event may hide changes of the table.
        """

    def _heard(self, transaction: Transaction, statement: str) -> None:  # noqa: B027  # as a rule
        """Note what a statement within the transaction says about it."""

    def _rows_of(self, event: Any) -> list[Any]:
        """The rows of an event, decoded."""
        try:
            rows: list[Any] = event.rows
        except UnicodeDecodeError as error:
            raise PipelineError(
                f"a text of {self.table.name} cannot be read: {error}",
                f"ALTER TABLE {self._plain} CONVERT TO CHARACTER SET utf8mb4, and capture with "
                "--snapshot",
            ) from error
        return rows

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
                character_set=character_set,
            )
            for column, type_, words, digits, width, generated, character_set, key in self._all(
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
        current: Transaction | None = None
        seq = 0
        for event in stream:
            kind = type(event).__name__
            here = place_of(stream.log_file, stream.log_pos)
            begun = self._begun(event, stream.log_file)
            if begun is not None:
                current, seq = begun, 0
            elif kind == "HeartbeatLogEvent" and current is None:
                yield Idle(here)
            elif current is None:
                continue
            elif kind in ("WriteRowsEvent", "UpdateRowsEvent", "DeleteRowsEvent"):
                self._check_event(event, current)
                for op, before, after in self._changes(kind, self._rows_of(event)):
                    seq += 1
                    yield _change(op, current, seq, before, after)
            elif kind == "QueryEvent":
                self._heard(current, event.query)
                if self._empties(event):
                    seq += 1
                    yield _change(Op.EMPTY, current, seq)
                if current.is_single or event.query.upper() == "COMMIT":
                    current = None
                    yield Commit(here)
            elif kind in ("XidEvent", "XAPrepareEvent"):
                current = None
                yield Commit(here)

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

    def _check_event(self, event: Any, transaction: Transaction) -> None:
        names = [column.name for column in self.table.columns]
        described = [column.name for column in event.columns]
        for bits in _bitmaps(event):
            logged = [
                name for place, name in enumerate(described) if bits[place // 8] >> place % 8 & 1
            ]
            if set(logged) < set(names) <= set(described):
                raise PipelineError(
                    f"the binary log leaves out columns of {self.table.name}",
                    "let no session set binlog_row_image, and capture with --snapshot",
                )
            # MySQL describes hidden columns of indexes, and has no values of them.
            if logged != names:
                raise needs_snapshot(f"the columns of {self.table.name} have changed")
        if transaction.is_prepared:
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
        names = ", ".join(cell.selected(quoted(cell.column.name)) for cell in self._cells)
        order = ", ".join(map(quoted, self.table.key))
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
                f"{self.product} cannot be reached: {error.args[-1]}",
                f"{self.kind}://user:password@host:port/name names it, ?unix_socket=PATH its "
                "socket",
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
            raise self._explained(error) from error

    def _explained(self, error: Exception) -> PipelineError:
        code, text = (*error.args, "")[:2]
        if code == _PURGED:
            return needs_snapshot(f"the server cannot go on from there: {text}")
        return PipelineError(
            f"the server refuses its binary log: {text}", f"GRANT {self.rights} ON *.* TO the user"
        )


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


def _change(
    op: Op,
    transaction: Transaction,
    seq: int,
    before: Row | None = None,
    after: Row | None = None,
) -> Change:
    begin = transaction.begin
    return Change(op, begin.position, seq, begin.lsn, transaction.txid, before, after)


def _bitmaps(event: Any) -> Iterator[bytes]:
    """Which columns an event has values of, a bit each: of an update before and after."""
    yield event.columns_present_bitmap
    if type(event).__name__ == "UpdateRowsEvent":
        yield event.columns_present_bitmap2


def place_of(file: str, byte: int) -> Place:
    """A place in the log.

    >>> place_of("binlog.000002", 4)
    Place(position=8589934596, lsn='binlog.000002:4')
    """
    return Place(int(file.rpartition(".")[2]) << 32 | byte, f"{file}:{byte}")


def _names(statement: str, name: str) -> bool:
    """Whether a name is in a statement, as a word.

    >>> _names("truncate `t`", "t"), _names("truncate tt", "t")
    (True, False)
    """
    return re.search(rf"(?<![\w$]){re.escape(name)}(?![\w$])", statement, re.IGNORECASE) is not None


def quoted(name: str) -> str:
    """A name as a statement has it."""
    return "`" + name.replace("`", "``") + "`"
