"""A conversation with a MySQL server: recorded once, and played where there is no server.

    python -m tests.pipeline.cdc.conversation

starts a server (see `tests.process.mysql`), writes a table, captures its changes, and writes what
the server has said into `recorded/mysql.json`: the answers to queries, and the packets of the log.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

FILE = Path(__file__).parent / "recorded" / "mysql.json"
STATEMENTS = (
    "INSERT INTO goods VALUES (1, 'tea é', 12.50, '{\"a\": [1, 2.5, null]}', '2026-01-02 03:04')",
    "INSERT INTO goods (id) VALUES (2), (3)",
    "UPDATE goods SET note = json_array(cast(1.10 AS decimal(5,2)), date'2026-01-02') WHERE id = 1",
    "UPDATE goods SET id = 4 WHERE id = 3",
    "DELETE FROM goods WHERE id = 2",
    "TRUNCATE goods",
)
TABLE = (
    "CREATE TABLE goods (id int PRIMARY KEY, name varchar(50), price decimal(9, 2), note json, "
    "stamp datetime(3))"
)


class Conversation(NamedTuple):
    """What a server has said."""

    version: str
    answers: dict[str, list[list[Any]]]
    """The rows of each query, with its values, as Python writes both."""
    packets: list[str]
    """Packets of the log, in hexadecimal digits."""


@contextmanager
def played() -> Iterator[None]:
    """Inside, pymysql connects to what was recorded: the log ends with a heartbeat."""
    said = Conversation(**json.loads(FILE.read_text()))
    with mock.patch("pymysql.connect", side_effect=lambda **_: _Player(said)):
        yield


class _Player:
    """A connection as `pymysql` and `mysql-replication` use one."""

    charset = "utf8mb4"
    open = True

    def __init__(self, said: Conversation) -> None:
        self._said = said
        self._packets = iter(said.packets)
        self._rows: list[list[Any]] = []

    def get_server_info(self) -> str:
        return self._said.version

    def cursor(self) -> "_Player":
        return self

    def __enter__(self) -> "_Player":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass

    def execute(self, query: str, values: Any = None) -> None:
        self._rows = [] if query.startswith("SET ") else self._said.answers[_asked(query, values)]

    def fetchall(self) -> list[list[Any]]:
        return self._rows

    def fetchone(self) -> Any:
        row = self._rows[0]
        # The package asks for its settings on a connection whose rows are mappings.
        return {"Value": row[1]} if "BINLOG_ROW_METADATA" in row[0].upper() else row

    def _write_bytes(self, data: bytes) -> None:
        pass

    def _read_packet(self) -> Any:
        from pymysql.err import OperationalError
        from pymysql.protocol import MysqlPacket

        packet = next(self._packets, None)
        if packet is None:
            raise OperationalError(1236, "the recording ends")
        return MysqlPacket(bytes.fromhex(packet), "utf8mb4")


def _asked(query: str, values: Any) -> str:
    return repr((" ".join(query.split()), values))


def _record() -> None:
    """Write `FILE`."""
    import pymysql
    from pymysql.connections import Connection
    from pymysql.cursors import Cursor

    from raftmq.pipeline.cdc.binary_log.mysql import MysqlSource
    from raftmq.pipeline.cdc.change import Idle
    from tests.pipeline.cdc.shops import binary_log_shop
    from tests.process.mysql import mysql

    answers: dict[str, list[list[Any]]] = {}
    packets: list[str] = []
    execute: Callable[..., Any] = Cursor.execute
    read: Callable[..., Any] = Connection._read_packet

    def executing(cursor: Any, query: str, values: Any = None) -> Any:
        done = execute(cursor, query, values)
        if not query.startswith("SET "):
            rows = [list(r.values()) if isinstance(r, dict) else list(r) for r in cursor._rows]
            answers[_asked(query, values)] = rows
        return done

    def reading(connection: Any, *kinds: Any) -> Any:
        packet = read(connection, *kinds)
        # Events alone begin with a zero and have the length in their head.
        if connection is not source._connection and _is_event(packet.get_all_data()):
            packets.append(packet.get_all_data().hex())
        return packet

    with (
        mysql("log_bin=binlog", "binlog_row_metadata=FULL") as socket,
        binary_log_shop("mysql", socket) as shop,
    ):
        shop.execute(TABLE)
        with mock.patch.object(Cursor, "execute", executing):
            source = MysqlSource(shop.url, "goods", "goods")
            source.prepare()
            place = source.now()
        for statement in STATEMENTS:
            shop.execute(statement)
        with (
            mock.patch.object(Cursor, "execute", executing),
            mock.patch.object(Connection, "_read_packet", reading),
        ):
            for event in source.events(place):
                if isinstance(event, Idle):
                    break
        version = pymysql.connect(unix_socket=str(socket), user="root").get_server_info()
    FILE.parent.mkdir(exist_ok=True)
    said = Conversation(version, answers, packets)
    FILE.write_text(json.dumps(said._asdict(), indent=1, ensure_ascii=False) + "\n")


def _is_event(data: bytes) -> bool:
    return data[:1] == b"\0" and int.from_bytes(data[10:14], "little") == len(data) - 1


if __name__ == "__main__":
    _record()
