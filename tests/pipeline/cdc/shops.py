"""A table in each kind of database, written at random, and the table rebuilt from the topic."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from raftmq.blocking import BlockingClient
from raftmq.pipeline.cdc import capture, open_source
from raftmq.pipeline.cdc.change import Change, Idle, Place, message_of
from raftmq.pipeline.cdc.source import Source

if TYPE_CHECKING:
    from raftmq.pipeline.cdc.change import Row

KEYS = 40
"""Few, so that keys come again after they were deleted."""

_TRIGGERS = {
    "sqlite": (
        (
            "CREATE TRIGGER item_stamp AFTER UPDATE OF name ON item WHEN NEW.name IS NOT OLD.name "
            "BEGIN UPDATE item SET price = coalesce(price, 0) + 1 WHERE id = NEW.id; END"
        ),
        (
            "CREATE TRIGGER item_move AFTER INSERT ON item WHEN NEW.name = '' BEGIN "
            "DELETE FROM item WHERE id = (MOVED); "
            "UPDATE item SET id = (MOVED) WHERE id = NEW.id; END"
        ),
        (
            "CREATE TRIGGER item_back AFTER DELETE ON item "
            "WHEN OLD.fresh IS NULL AND OLD.name = '' "
            "BEGIN INSERT INTO item (id) VALUES (OLD.id); END"
        ),
    ),
    "postgresql": (
        (
            "CREATE OR REPLACE FUNCTION item_again() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "CASE TG_OP WHEN 'INSERT' THEN DELETE FROM item WHERE id = (MOVED); "
            "UPDATE item SET id = (MOVED) WHERE id = NEW.id; "
            "WHEN 'UPDATE' THEN UPDATE item SET price = coalesce(price, 0) + 1 WHERE id = NEW.id; "
            "ELSE INSERT INTO item (id) VALUES (OLD.id); END CASE; RETURN NULL; END $$"
        ),
        (
            "CREATE TRIGGER item_stamp AFTER UPDATE OF name ON item FOR EACH ROW "
            "WHEN (NEW.name IS DISTINCT FROM OLD.name) EXECUTE FUNCTION item_again()"
        ),
        (
            "CREATE TRIGGER item_move AFTER INSERT ON item FOR EACH ROW WHEN (NEW.name = '') "
            "EXECUTE FUNCTION item_again()"
        ),
        (
            "CREATE TRIGGER item_back AFTER DELETE ON item FOR EACH ROW "
            "WHEN (OLD.fresh IS NULL AND OLD.name = '') EXECUTE FUNCTION item_again()"
        ),
    ),
    # No trigger of MariaDB or MySQL writes the table that it belongs to: it has the statement's row
    # alone.
    "mariadb": (
        (
            "CREATE TRIGGER item_stamp BEFORE UPDATE ON item FOR EACH ROW SET NEW.price = "
            "IF(NEW.name <=> OLD.name, NEW.price, coalesce(NEW.price, 0) + 1)"
        ),
    ),
}
_TRIGGERS["mysql"] = _TRIGGERS["mariadb"]
"""Triggers of the shop: they write each row a second time, move rows, and bring rows back."""
_UPSERTS = {
    "sqlite": "INSERT OR REPLACE INTO item (id, name) VALUES (?, ?)",
    "postgresql": "INSERT INTO item (id, name) VALUES (?, ?) "
    "ON CONFLICT (id) DO UPDATE SET id = excluded.id, name = excluded.name",
    "mariadb": "REPLACE INTO item (id, name) VALUES (?, ?)",
    "mysql": "REPLACE INTO item (id, name) VALUES (?, ?)",
}


@dataclass
class Shop:
    """A database with one table, `item(id, name, price, data, fresh)`."""

    url: str
    """What `open_source` takes."""
    execute: Callable[..., Any]
    """Run a statement with `?` for each value."""
    abort: type[Exception]
    """The database's error for a key that is there already."""
    has_words: bool = False
    """Whether keys are words, equal in any case where the database captures such keys."""

    @property
    def kind(self) -> str:
        """`sqlite`, `postgresql`, `mariadb` or `mysql`."""
        return self.url.partition(":")[0]

    def create(
        self, table: str = "item", *, has_words: bool = False, trigger: str = "TRIGGER"
    ) -> None:
        """Make an empty table, with triggers that write each row a second time: with `TEMP TRIGGER`
        SQLite runs them first."""
        self.has_words = has_words
        self.execute(f"DROP TABLE IF EXISTS {table}")
        blob = "bytea" if self.kind == "postgresql" else "blob"
        key = "integer"
        if has_words:
            key = "varchar(20)"
            if self.kind == "postgresql":
                # The usual collation of MariaDB and MySQL is such a one.
                self.execute(
                    "CREATE COLLATION IF NOT EXISTS any_case "
                    "(provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
                )
                key += " COLLATE any_case"
        self.execute(
            f"CREATE TABLE {table} (id {key} PRIMARY KEY, name varchar(200), "
            f"price decimal(9,2), data {blob}, fresh boolean)"
        )
        moved = "NEW.id || '00'" if has_words else "NEW.id + 4000"
        for statement in _TRIGGERS[self.kind]:
            statement = statement.replace("CREATE TRIGGER", f"CREATE {trigger}")
            self.execute(statement.replace("item", table).replace("MOVED", moved))

    def write(self, random: Random, transactions: int) -> None:
        """Random transactions, some rolled back."""
        for _ in range(transactions):
            self.execute("BEGIN")
            try:
                for _ in range(random.choice([1, 1, 2, 5, 30])):
                    self._statement(random)
            except self.abort:
                self.execute("ROLLBACK")
                continue
            self.execute(random.choice(["COMMIT", "COMMIT", "COMMIT", "ROLLBACK"]))

    def _key(self, random: Random) -> int | str:
        number = random.randrange(KEYS)
        return f"{random.choice('kK')}{number}" if self.has_words else number

    def _statement(self, random: Random) -> None:
        key, other = self._key(random), self._key(random)
        name = random.choice([None, "", "é€𝄞 'x'", "name\n\\" + str(random.random())])
        match random.randrange(8):
            case 0 | 1:
                # One that is there would end nearly each long transaction.
                self.execute("DELETE FROM item WHERE id = ?", key)
                values = (key, name, f"{random.randrange(10**6) / 100}", random.randbytes(100))
                self.execute("INSERT INTO item VALUES (?, ?, ?, ?, ?)", *values, True)
            case 2 | 3:
                self.execute("UPDATE item SET name = ?, fresh = NULL WHERE id = ?", name, key)
            case 4:
                self.execute("DELETE FROM item WHERE id = ?", key)
            case 5:
                self.execute(_UPSERTS[self.kind], key, name)
            case 6:
                self.execute("UPDATE item SET name = ? WHERE id < ?", name, key)
            case _:
                # Another key, which fails if it is taken.
                self.execute("UPDATE item SET id = ? WHERE id = ?", other, key)


@contextmanager
def opened(shop: Shop, topic: str, table: str = "item") -> Iterator[Source]:
    """The table, prepared for capture."""
    source = open_source(shop.url, table, topic)
    try:
        source.execute(source.prepare())
        yield source
    finally:
        source.close()


def capture_all(mq: BlockingClient, shop: Shop, topic: str, *, snapshot: bool = False) -> int:
    """Capture what is there now; how many messages were sent."""
    with opened(shop, topic) as source:
        steps = capture(mq, source, topic, until=source.now(), snapshot=snapshot)
        return sum(step.sent for step in steps)


def rows_of(shop: Shop, topic: str) -> "list[Row]":
    """The table as the database has it, in the order of the key."""
    with opened(shop, topic) as source, source.snapshot(is_first=False) as snapshot:
        return sorted(snapshot.rows, key=_by_key)


def contents(mq: BlockingClient, topic: str) -> list[dict[str, Any]]:
    """The topic's messages from the beginning."""
    end = mq.admin.describe_topic(topic).queues[0].end
    found: list[dict[str, Any]] = []
    with mq.consumer(topic, start="earliest") as consumer:
        while len(found) < end:
            found += [
                json.loads(message.body) | {"key": message.key} for message in consumer.fetch(1000)
            ]
    return found


def fold(changes: list[dict[str, Any]], *, fits: bool = True) -> "list[Row]":
    """The table that complete transactions make. Each change has to fit the row that is there: so
    none is missing, and none is there twice or in another order. SQLite does not tell which row an
    INSERT OR REPLACE has removed."""
    rows: dict[str, Any] = {}
    ends = [number for number, change in enumerate(changes) if change["last"]]
    for change in changes[: ends[-1] + 1] if ends else []:
        match change["op"]:
            case "t":
                rows.clear()
            case "m":
                pass
            case op:
                before = rows.pop(change["key"], None)
                is_replaced = change["source"] == "sqlite" and op == "c"
                assert before == change["before"] or is_replaced or not fits, change
                if op != "d":
                    rows[change["key"]] = change["after"]
    return sorted(rows.values(), key=_by_key)


def _by_key(row: "Row") -> tuple[int, str]:
    """The order of numbers, and the same one for words in each database."""
    return len(str(row["id"])), str(row["id"])


def assert_in_order(changes: list[dict[str, Any]]) -> None:
    """(position, seq) grows: the order of commits, nothing twice."""
    places = [(change["position"], change["seq"]) for change in changes]
    assert all(one < other for one, other in pairwise(places))


def seen(source: Source, after: Place) -> list[dict[str, Any]]:
    """Messages that a capture would send of the changes that are there now, without a cluster."""
    found: list[dict[str, Any]] = []
    for event in source.events(after):
        if isinstance(event, Idle):
            break
        if isinstance(event, Change):
            message = message_of(source.table, event, is_last=True)
            found.append(json.loads(message.body) | {"key": message.key})
    return found


def written_past_the_triggers(shop: Shop, *statements: str) -> None:
    """Change a SQLite table so that no trigger sees it, as nothing should."""
    query = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
    triggers = shop.execute(query).fetchall()
    for name, _ in triggers:
        shop.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        shop.execute(statement)
    for _, sql in triggers:
        shop.execute(sql)


@contextmanager
def sqlite_shop(folder: Path) -> Iterator[Shop]:
    """A file."""
    import sqlite3

    path = folder / "shop.db"
    connection = sqlite3.connect(path, isolation_level=None, timeout=60, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")

    def execute(statement: str, *values: Any) -> Any:
        return connection.execute(statement, values)

    try:
        yield Shop(f"sqlite:{path}", execute, sqlite3.IntegrityError)
    finally:
        connection.close()


@contextmanager
def postgresql_shop(server: str) -> Iterator[Shop]:
    """The database of a server, which is named as libpq takes it."""
    import psycopg

    connection = psycopg.connect(server, autocommit=True)

    def execute(statement: str, *values: Any) -> Any:
        return connection.execute(statement.replace("?", "%s").encode(), values)

    try:
        yield Shop(f"postgresql:///?{server.replace(' ', '&')}", execute, psycopg.IntegrityError)
    finally:
        connection.close()


@contextmanager
def binary_log_shop(kind: str, socket: Path) -> Iterator[Shop]:
    """The database `shop` of a MariaDB or MySQL server."""
    import pymysql

    connection = pymysql.connect(unix_socket=str(socket), user="root", autocommit=True)

    def execute(statement: str, *values: Any) -> Any:
        with connection.cursor() as cursor:
            cursor.execute(statement.replace("?", "%s"), values)
            return cursor

    try:
        execute("CREATE DATABASE IF NOT EXISTS shop CHARACTER SET utf8mb4")
        execute("USE shop")
        url = f"{kind}://root@localhost/shop?unix_socket={socket}"
        yield Shop(url, execute, pymysql.err.IntegrityError)
    finally:
        connection.close()
