"""Capture from a binary log refuses a server, a setting or a table that would lose changes.

Tests of `logged_item` run on MariaDB and on MySQL.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from raftmq.pipeline import PipelineError
from raftmq.pipeline.cdc import open_source
from raftmq.pipeline.cdc.binary_log.log_source import SETTINGS
from raftmq.pipeline.cdc.binary_log.mariadb import MariadbSource
from raftmq.pipeline.cdc.binary_log.mysql import MysqlSource
from raftmq.pipeline.cdc.change import Table
from tests.pipeline.cdc.shops import (
    Shop,
    assert_in_order,
    binary_log_shop,
    capture_all,
    contents,
    fold,
    opened,
    rows_of,
)

if TYPE_CHECKING:
    from raftmq.blocking import BlockingClient


def topic_of(shop: Shop, test: str) -> str:
    """A topic for a test and a kind of database."""
    return f"{test}-{shop.kind}"


def socket_of(shop: Shop) -> Path:
    """The socket of the shop's server."""
    return Path(shop.url.partition("=")[2])


@pytest.mark.parametrize(
    ("setting", "value", "usual"),
    [
        ("binlog_format", "STATEMENT", "ROW"),
        ("binlog_row_image", "MINIMAL", "FULL"),
        ("binlog_row_metadata", "MINIMAL", "FULL"),
    ],
)
def test_server_whose_log_has_too_little_is_refused(
    logged_item: Shop, setting: str, value: str, usual: str
) -> None:
    logged_item.execute(f"SET GLOBAL {setting} = {value}")
    try:
        source = open_source(logged_item.url, "item", "little")
        with pytest.raises(PipelineError, match=f"{setting} is {value}.*SET GLOBAL {setting}"):
            source.prepare()
        source.close()
    finally:
        logged_item.execute(f"SET GLOBAL {setting} = {usual}")


@pytest.mark.parametrize(
    ("only", "ignored", "found"),
    [
        ("other,stock", "", "leaves out the database shop: binlog_do_db is other,stock"),
        ("", "other,shop", "leaves out the database shop: binlog_ignore_db is other,shop"),
        # A session that uses another database may empty the table.
        ("shop", "", "may lack a TRUNCATE of shop.item: binlog_do_db is shop"),
        ("", "other", "may lack a TRUNCATE of shop.item: binlog_ignore_db is other"),
        ("", "", ""),
    ],
)
def test_server_whose_log_leaves_databases_out_is_refused(
    monkeypatch: pytest.MonkeyPatch, only: str, ignored: str, found: str
) -> None:
    # The filters are read from the server's file alone, so the answers are made up.
    source = MariadbSource.__new__(MariadbSource)
    source._schema, source._plain = "shop", "item"
    source.table = Table("mariadb", "shop.item", ())
    values = [(name, setting.wanted) for name, setting in SETTINGS.items()]
    status = [("binlog.000001", "4", only, ignored)]
    answers = {"SHOW GLOBAL": values, "SHOW MASTER": status}
    monkeypatch.setattr(source, "_all", lambda query, *_: answers.get(query[:11].strip(), []))
    if not found:
        assert source.prepare() == []
        return
    setting = found.partition(": ")[2].split()[0]
    with pytest.raises(PipelineError, match=f"{found}.*take {setting} out of the server's file"):
        source.prepare()


def test_statement_in_the_log_is_refused(mq: "BlockingClient", logged_item: Shop) -> None:
    capture_all(mq, logged_item, topic_of(logged_item, "statement"))
    logged_item.execute("SET SESSION binlog_format = STATEMENT")
    logged_item.execute("INSERT INTO item (id) VALUES (1)")
    with pytest.raises(PipelineError, match=r"has a statement for shop.item.*INSERT INTO item"):
        capture_all(mq, logged_item, topic_of(logged_item, "statement"))


def test_two_phase_transaction_is_refused(mq: "BlockingClient", logged_item: Shop) -> None:
    capture_all(mq, logged_item, topic_of(logged_item, "phases"))
    in_two_phases(logged_item, "INSERT INTO item (id) VALUES (1)")
    logged_item.execute("XA ROLLBACK 'both'")
    with pytest.raises(PipelineError, match=r"was changed in an XA transaction.*--snapshot"):
        capture_all(mq, logged_item, topic_of(logged_item, "phases"))
    # Nothing of it was sent, and the remedy is one.
    assert capture_all(mq, logged_item, topic_of(logged_item, "phases"), snapshot=True) == 2


def test_two_phase_transaction_of_another_table_is_passed_over(
    mq: "BlockingClient", logged_item: Shop
) -> None:
    logged_item.execute("DROP TABLE IF EXISTS other")
    logged_item.execute("CREATE TABLE other (id INT PRIMARY KEY)")
    capture_all(mq, logged_item, topic_of(logged_item, "besides"))
    # Others commit in between, and after it.
    with binary_log_shop(logged_item.kind, socket_of(logged_item)) as besides:
        in_two_phases(logged_item, "INSERT INTO other (id) VALUES (1)")
        besides.execute("INSERT INTO item (id) VALUES (1)")
    logged_item.execute("XA COMMIT 'both'")
    logged_item.execute("INSERT INTO item (id) VALUES (2)")
    capture_all(mq, logged_item, topic_of(logged_item, "besides"))
    assert [row["id"] for row in fold(contents(mq, topic_of(logged_item, "besides")))] == [1, 2]


def in_two_phases(shop: Shop, statement: str) -> None:
    """The first phase of it."""
    shop.execute("XA START 'both'")
    shop.execute(statement)
    shop.execute("XA END 'both'")
    shop.execute("XA PREPARE 'both'")


@pytest.mark.parametrize("action", ["ON DELETE CASCADE", "ON DELETE SET NULL", "ON UPDATE CASCADE"])
def test_foreign_key_that_changes_rows_is_refused(
    mq: "BlockingClient", logged_item: Shop, action: str
) -> None:
    shop = logged_item
    topic = topic_of(shop, f"action-{action.replace(' ', '-')}")
    shop.execute("DROP TABLE IF EXISTS parent")
    shop.execute("CREATE TABLE parent (id INT PRIMARY KEY)")
    shop.execute("INSERT INTO parent VALUES (1)")
    shop.execute(
        "ALTER TABLE item ADD parent INT, ADD FOREIGN KEY up (parent) REFERENCES parent(id)"
    )
    shop.execute("INSERT INTO item (id, parent) VALUES (7, 1)")
    capture_all(mq, shop, topic)
    shop.execute("ALTER TABLE item DROP FOREIGN KEY up")
    shop.execute(f"ALTER TABLE item ADD FOREIGN KEY up (parent) REFERENCES parent (id) {action}")
    shop.execute(f"{'UPDATE parent SET id = 2' if 'UPDATE' in action else 'DELETE FROM parent'}")
    try:
        with pytest.raises(PipelineError, match=r"key up changes shop.item.*ON UPDATE RESTRICT"):
            capture_all(mq, shop, topic, snapshot=True)
    finally:
        shop.execute("DROP TABLE item")
        shop.execute("DROP TABLE parent")


def test_log_that_was_dropped_needs_a_snapshot(mq: "BlockingClient", logged_item: Shop) -> None:
    capture_all(mq, logged_item, topic_of(logged_item, "purged"))
    logged_item.execute("INSERT INTO item (id) VALUES (1)")
    logged_item.execute("FLUSH BINARY LOGS")
    (last, *_) = logged_item.execute("SHOW MASTER STATUS").fetchone()
    while len(logged_item.execute("SHOW BINARY LOGS").fetchall()) > 1:
        # The server keeps logs that have a reader, as the capture was until just now.
        logged_item.execute(f"PURGE BINARY LOGS TO '{last}'")
    with pytest.raises(PipelineError, match=r"dropped its log binlog.*--snapshot"):
        capture_all(mq, logged_item, topic_of(logged_item, "purged"))
    # t, r, and the mark that says how far it is.
    assert capture_all(mq, logged_item, topic_of(logged_item, "purged"), snapshot=True) == 3


def test_user_without_the_right_is_refused(logged_item: Shop) -> None:
    logged_item.execute("DROP USER IF EXISTS weak")
    logged_item.execute("CREATE USER weak")
    logged_item.execute("GRANT SELECT ON shop.* TO weak")
    source = open_source(logged_item.url.replace("root@", "weak@"), "item", "weak")
    with pytest.raises(PipelineError, match=r"refuses its binary log.*GRANT REPLICATION SLAVE"):
        source.now()
    source.close()


def test_user_who_may_not_lock_the_table_is_refused(mq: "BlockingClient", mysql_item: Shop) -> None:
    mysql_item.execute("DROP USER IF EXISTS weak")
    mysql_item.execute("CREATE USER weak")
    mysql_item.execute("GRANT SELECT ON shop.* TO weak")
    mysql_item.execute("GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO weak")
    weak = Shop(mysql_item.url.replace("root@", "weak@"), mysql_item.execute, mysql_item.abort)
    with pytest.raises(PipelineError, match=r"to lock shop.item.*SELECT, LOCK TABLES ON `shop`"):
        capture_all(mq, weak, "no-lock")
    mysql_item.execute("GRANT LOCK TABLES ON shop.* TO weak")
    # These are all rights that it needs.
    mysql_item.execute("INSERT INTO item (id) VALUES (1)")
    capture_all(mq, weak, "no-lock")
    assert fold(contents(mq, "no-lock")) == rows_of(mysql_item, "no-lock")


def test_login_by_password_over_a_port(mq: "BlockingClient", mysql_item: Shop) -> None:
    """MySQL's usual kind of password goes over a port only under the server's public key."""
    mysql_item.execute("DROP USER IF EXISTS far")
    mysql_item.execute("CREATE USER far IDENTIFIED WITH caching_sha2_password BY 'p@ss'")
    mysql_item.execute("GRANT ALL ON *.* TO far")
    (port,) = mysql_item.execute("SELECT @@port").fetchone()
    url = f"mysql://far:p%40ss@127.0.0.1:{port}/shop"
    mysql_item.execute("INSERT INTO item (id) VALUES (1)")
    assert capture_all(mq, Shop(url, mysql_item.execute, mysql_item.abort), "far") == 3
    with pytest.raises(
        PipelineError, match=r"MySQL cannot be reached: Access denied.*mysql://user"
    ):
        open_source(url.replace("p%40ss", "wrong"), "item", "far")


def test_snapshots_among_writes_are_at_their_places(
    mq: "BlockingClient", logged_item: Shop
) -> None:
    """Each change is in the snapshot or after it, and not in both."""
    topic = topic_of(logged_item, "among")
    with (
        binary_log_shop(logged_item.kind, socket_of(logged_item)) as writer,
        ThreadPoolExecutor(1) as thread,
    ):
        for turn in range(8):
            writing = thread.submit(writer.write, Random(turn), 60)
            capture_all(mq, logged_item, topic, snapshot=True)
            writing.result()
    capture_all(mq, logged_item, topic)
    found = contents(mq, topic)
    assert_in_order(found)
    assert fold(found) == rows_of(logged_item, topic)


def test_snapshot_does_not_wait_for_ever_for_a_writer(
    mq: "BlockingClient", mysql_item: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftmq.pipeline.cdc.binary_log.mysql.LOCK_SECONDS_MAX", 1)
    mysql_item.execute("BEGIN")
    mysql_item.execute("INSERT INTO item (id) VALUES (1)")
    with pytest.raises(PipelineError, match=r"written shop.item does not end.*waited 1 s.*end it"):
        capture_all(mq, mysql_item, "waits")
    mysql_item.execute("COMMIT")
    capture_all(mq, mysql_item, "waits")
    assert [row["id"] for row in fold(contents(mq, "waits"))] == [1]


def test_transactions_without_identifiers_are_captured(
    mq: "BlockingClient", mysql_item: Shop
) -> None:
    """As with `gtid_mode = OFF`, which is MySQL's default."""
    capture_all(mq, mysql_item, "anonymous")
    mysql_item.execute("SET GLOBAL gtid_mode = ON_PERMISSIVE")
    try:
        mysql_item.execute("SET gtid_next = 'ANONYMOUS'")
        mysql_item.execute("BEGIN")
        mysql_item.execute("INSERT INTO item (id) VALUES (1), (2)")
        mysql_item.execute("DELETE FROM item WHERE id = 2")
        mysql_item.execute("COMMIT")
        mysql_item.execute("SET gtid_next = 'ANONYMOUS'")
        mysql_item.execute("TRUNCATE item")
        # With `gtid_mode = ON` the server sends none of them, also none of earlier logs.
        capture_all(mq, mysql_item, "anonymous")
    finally:
        mysql_item.execute("SET gtid_next = 'AUTOMATIC'")
        mysql_item.execute("SET GLOBAL gtid_mode = ON")
    mysql_item.execute("INSERT INTO item (id) VALUES (3)")
    capture_all(mq, mysql_item, "anonymous")
    found = [change for change in contents(mq, "anonymous") if change["op"] != "m"][1:]
    assert [(c["op"], c["key"], c["last"]) for c in found] == [
        ("c", "1", False), ("c", "2", False), ("d", "2", True), ("t", None, True), ("c", "3", True),
    ]  # fmt: skip
    assert [change["txid"] is None for change in found] == [True] * 4 + [False]


@pytest.mark.parametrize(
    ("setting", "value", "statement", "found"),
    [
        (
            "binlog_row_value_options", "PARTIAL_JSON",
            "UPDATE notes SET note = json_set(note, '$.a', 2)", "a part of a JSON value",
        ),
        ("binlog_row_image", "MINIMAL", "UPDATE notes SET note = '{}'", "leaves out columns"),
        ("binlog_row_image", "MINIMAL", "DELETE FROM notes", "leaves out columns"),
    ],
)  # fmt: skip
def test_session_that_logs_less_is_refused(
    mq: "BlockingClient", logged_item: Shop, setting: str, value: str, statement: str, found: str
) -> None:
    shop = logged_item
    if shop.kind == "mariadb" and setting == "binlog_row_value_options":
        pytest.skip("MariaDB has no binary JSON, and always logs the whole")
    topic = topic_of(shop, f"less-{statement[:6]}-{value}")
    shop.execute("DROP TABLE IF EXISTS notes")
    shop.execute("CREATE TABLE notes (id integer PRIMARY KEY, note json, other integer)")
    shop.execute("INSERT INTO notes VALUES (1, json_object('a', 1, 'b', repeat('x', 999)), 7)")
    with opened(shop, topic, "notes") as source:
        place = source.now()
        shop.execute(f"SET SESSION {setting} = {value}")
        shop.execute(statement)
        with pytest.raises(PipelineError, match=rf"{found}.*let no session set {setting}"):
            list(source.events(place))


def test_index_of_an_expression_is_no_column(mq: "BlockingClient", mysql_item: Shop) -> None:
    """MySQL keeps a hidden column for it, which the log describes without values."""
    mysql_item.execute("CREATE INDEX twice ON item ((price * 2))")
    capture_all(mq, mysql_item, "expression")
    mysql_item.write(Random(5), 20)
    capture_all(mq, mysql_item, "expression")
    assert fold(contents(mq, "expression")) == rows_of(mysql_item, "expression")


def test_server_of_the_other_kind_is_refused(logged_item: Shop) -> None:
    other = {"mariadb": "mysql", "mysql": "mariadb"}[logged_item.kind]
    with pytest.raises(PipelineError, match=rf"(?i)the server is {logged_item.kind}.*write "):
        open_source(logged_item.url.replace(logged_item.kind, other, 1), "item", "other")


@pytest.mark.parametrize("version", ["5.7.44-log", "8.4.2", "9.1.0"])
def test_version_of_mysql_that_was_not_tried_is_refused(version: str) -> None:
    source = MysqlSource.__new__(MysqlSource)
    with pytest.raises(PipelineError, match=rf"MySQL {version}, and only 8.0 has been tried"):
        source._check_server(version)
    source._check_server("8.0.15")


def test_log_that_is_compressed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # MySQL compresses from 8.0.20 on, so the answers are made up.
    source = MysqlSource.__new__(MysqlSource)
    values = {name: setting.wanted for name, setting in MysqlSource.settings.items()}
    values["binlog_transaction_compression"] = "ON"
    monkeypatch.setattr(source, "_all", lambda *_: list(values.items()))
    with pytest.raises(PipelineError, match=r"compression is ON.*compression = OFF"):
        source.prepare()
    # A session may set it for itself.
    event: Any = SimpleNamespace(packet=SimpleNamespace(event_type=40))
    with pytest.raises(PipelineError, match=r"a compressed transaction.*let no session set"):
        source._begun(event, "binlog.000001")
