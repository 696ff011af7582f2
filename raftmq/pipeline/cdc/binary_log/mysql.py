"""Capture of a MySQL table: what differs from MariaDB.

Each transaction begins with a GTID event, or with an anonymous one where `gtid_mode` is off. Its
first statement says how it ends: after BEGIN a COMMIT or an XID ends it, XA START begins the first
half of an XA transaction, and any other statement is the whole.

MySQL does not give the place of a transaction's snapshot. So the table is locked against writers
(`LOCK TABLES … READ`) while the place is read and the transaction begins: some milliseconds, and
before them the time until the transactions that have written the table end. Other tables may be
written meanwhile, since only the table's changes have to be on the right side of the place.

JSON is binary in the log; `json_text` gives it the text that a query gives.

Left out: compressed transactions, updates of parts of JSON values; other versions than 8.0, which
were not tried. 5.7 has no names of columns in its log, 8.4 another statement for the log's place.
"""

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from raftmq.pipeline.cdc.change import Place
from raftmq.pipeline.errors import PipelineError

from .json_text import json_text
from .log_source import SETTINGS, BinaryLogSource, Setting, Transaction, place_of, quoted

if TYPE_CHECKING:
    from pymysql.connections import Connection

LOCK_SECONDS_MAX = 10
"""Time that a snapshot waits for the transactions that have written the table. New writers wait
behind the snapshot, so it does not wait long."""

_GTID, _ANONYMOUS_GTID, _COMPRESSED = 33, 34, 40
"""Types of events; `mysql-replication` decodes the first alone."""
_LOCK_TIMEOUT = 1205
_VERSION = "8.0."


class MysqlSource(BinaryLogSource):
    """See `source.Source`."""

    kind = "mysql"
    product = "MySQL"
    settings = SETTINGS | {
        "binlog_row_value_options": Setting(
            "",
            "the binary log has parts of JSON values",
            "SET GLOBAL binlog_row_value_options = ''",
        ),
        "binlog_transaction_compression": Setting(
            "OFF",
            "the binary log is compressed",
            "SET GLOBAL binlog_transaction_compression = OFF",
        ),
    }
    rights = "REPLICATION SLAVE, REPLICATION CLIENT"

    def _check_server(self, version: str) -> None:
        if "MariaDB" in version:
            raise PipelineError(f"the server is MariaDB {version}", "write mariadb://…")
        if not version.startswith(_VERSION):
            raise PipelineError(
                f"the server is MySQL {version}, and only 8.0 has been tried",
                "capture from a server or a replica of 8.0",
            )

    def _begin_snapshot(self, reader: "Connection[Any]") -> Place:
        import pymysql

        with closing(self._connect()) as locker, locker.cursor() as lock, reader.cursor() as read:
            read.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            try:
                lock.execute(f"SET SESSION lock_wait_timeout = {LOCK_SECONDS_MAX}")
                lock.execute(f"LOCK TABLES {self._name} READ")
            except pymysql.err.OperationalError as error:
                raise self._not_locked(error) from error
            place = self.now()
            read.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            # The end of its connection ends the lock.
        return place

    def _not_locked(self, error: Exception) -> PipelineError:
        if error.args[0] == _LOCK_TIMEOUT:
            return PipelineError(
                f"a transaction that has written {self.table.name} does not end, and a snapshot "
                f"waited {LOCK_SECONDS_MAX} s for it",
                "end it, and try again: information_schema.innodb_trx has the long ones",
            )
        return PipelineError(
            f"the server refuses to lock {self.table.name} for a snapshot: {error.args[-1]}",
            f"GRANT SELECT, LOCK TABLES ON {quoted(self._schema)}.* TO the user",
        )

    def _begun(self, event: Any, file: str) -> Transaction | None:
        packet = event.packet
        if packet.event_type in (_GTID, _ANONYMOUS_GTID):
            begin = place_of(file, packet.log_pos - packet.event_size)
            gtid = event.gtid if packet.event_type == _GTID else None
            return Transaction(begin, gtid, is_single=True)
        if packet.event_type == _COMPRESSED:
            raise PipelineError(
                "the binary log has a compressed transaction, which cannot be read",
                "let no session set binlog_transaction_compression, and capture with --snapshot",
            )
        if type(event).__name__ == "PartialUpdateRowsEvent":
            raise PipelineError(
                f"the binary log has a part of a JSON value of {self.table.name}",
                "let no session set binlog_row_value_options, and capture with --snapshot",
            )
        return None

    def _heard(self, transaction: Transaction, statement: str) -> None:
        if statement == "BEGIN":
            transaction.is_single = False
        elif statement.startswith("XA START"):
            transaction.is_single, transaction.is_prepared = False, True

    def _rows_of(self, event: Any) -> list[Any]:
        # The package's own decoder loses the types of numbers, and what it does not know.
        event.packet.read_binary_json = partial(_read_json, event.packet)
        return super()._rows_of(event)


def _read_json(packet: Any, size: int, is_partial: bool) -> str:
    """A JSON value of an event, after its length of `size` bytes."""
    assert not is_partial
    return json_text(packet.read(packet.read_uint_by_size(size)))
