"""Capture of a MariaDB table: what differs from MySQL.

Each transaction begins with a GTID event, whose flags say how it ends. The server gives the place
of a transaction's snapshot (`binlog_snapshot_position`), so nothing is locked.
"""

from typing import TYPE_CHECKING, Any

from raftmq.pipeline.cdc.change import Place
from raftmq.pipeline.errors import PipelineError

from .log_source import BinaryLogSource, Transaction, place_of

if TYPE_CHECKING:
    from pymysql.connections import Connection

_STANDALONE, _PREPARED = 1, 64
"""Flags of a transaction: one statement without a commit of its own; the first half of XA."""


class MariadbSource(BinaryLogSource):
    """See `source.Source`."""

    kind = "mariadb"
    product = "MariaDB"
    rights = "REPLICATION SLAVE, BINLOG MONITOR"

    def _check_server(self, version: str) -> None:
        if "MariaDB" not in version:
            raise PipelineError(f"the server is MySQL {version}", "write mysql://…")

    def _begin_snapshot(self, reader: "Connection[Any]") -> Place:
        with reader.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            cursor.execute("SHOW STATUS LIKE 'binlog\\_snapshot\\_%'")
            found = {name.lower(): value for name, value in cursor.fetchall()}
        return place_of(found["binlog_snapshot_file"], int(found["binlog_snapshot_position"]))

    def _begun(self, event: Any, file: str) -> Transaction | None:
        if type(event).__name__ != "MariadbGtidEvent":
            return None
        return Transaction(
            place_of(file, event.packet.log_pos - event.packet.event_size),
            event.gtid,
            is_single=bool(event.flags & _STANDALONE),
            is_prepared=bool(event.flags & _PREPARED),
        )
