"""Capture refuses a database that is not ready and names the remedy, before any send or loss."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from raftmq.pipeline import PipelineError
from raftmq.pipeline.cdc import open_source
from raftmq.pipeline.cdc.change import Table
from raftmq.pipeline.cdc.change_capture import capture
from raftmq.pipeline.cdc.mariadb import _SETTINGS, MariadbSource
from tests.pipeline.cdc.shops import (
    Shop,
    capture_all,
    contents,
    fold,
    mariadb_shop,
    opened,
    postgresql_shop,
    rows_of,
)
from tests.process.databases import postgresql

if TYPE_CHECKING:
    from raftmq.blocking import BlockingClient


def test_postgresql_whose_log_has_too_little_is_refused() -> None:
    with postgresql() as server, postgresql_shop(server) as shop:
        shop.create()
        source = open_source(shop.url, "item", "little")
        with pytest.raises(PipelineError, match=r"wal_level is replica.*SET wal_level = logical"):
            source.prepare()
        source.close()


def test_postgresql_user_without_the_right_is_refused(postgresql_item: Shop) -> None:
    postgresql_item.execute("DROP ROLE IF EXISTS weak")
    postgresql_item.execute("CREATE ROLE weak LOGIN")
    url = postgresql_item.url.replace("user=postgres", "user=weak&dbname=postgres")
    source = open_source(url, "item", "weak")
    with pytest.raises(PipelineError, match=r"user weak may not.*ALTER ROLE weak REPLICATION"):
        source.prepare()
    source.close()


def test_postgresql_key_that_is_deferrable_is_refused(
    mq: "BlockingClient", postgresql_item: Shop
) -> None:
    shop = postgresql_item
    shop.execute("INSERT INTO item (id, name) VALUES (1, 'tea'), (2, 'cup')")
    capture_all(mq, shop, "deferrable")
    with opened(shop, "deferrable") as source:
        shop.execute("ALTER TABLE item DROP CONSTRAINT item_pkey, ADD PRIMARY KEY (id) DEFERRABLE")
        shop.execute("UPDATE item SET id = 3 - id")
        # While a capture runs, and when one is started.
        refused = pytest.raises(PipelineError, match=r"item is DEFERRABLE.*ADD PRIMARY KEY \(id\)")
        with refused:
            list(capture(mq, source, "deferrable", until=source.now()))
        with refused:
            capture_all(mq, shop, "deferrable")
    # Nothing of it was sent. With another key it goes on.
    assert [row["name"] for row in fold(contents(mq, "deferrable"))] == ["tea", "cup"]
    shop.execute("ALTER TABLE item DROP CONSTRAINT item_pkey, ADD PRIMARY KEY (id)")
    capture_all(mq, shop, "deferrable", snapshot=True)
    assert [row["name"] for row in fold(contents(mq, "deferrable"))] == ["cup", "tea"]


def test_postgresql_key_that_is_another_ends_a_capture_that_runs(
    mq: "BlockingClient", postgresql_item: Shop
) -> None:
    shop = postgresql_item
    shop.execute("ALTER TABLE item ALTER name SET NOT NULL")
    capture_all(mq, shop, "another-key")
    with opened(shop, "another-key") as source:
        shop.execute("ALTER TABLE item DROP CONSTRAINT item_pkey, ADD PRIMARY KEY (name)")
        shop.execute("INSERT INTO item (id, name) VALUES (1, 'tea'), (1, 'cup')")
        with pytest.raises(PipelineError, match=r"columns of public.item have changed"):
            list(capture(mq, source, "another-key", until=source.now()))


def test_postgresql_slot_that_is_gone_needs_a_snapshot(
    mq: "BlockingClient", postgresql_item: Shop
) -> None:
    capture_all(mq, postgresql_item, "gone")
    with opened(postgresql_item, "gone") as source:
        (drop,) = [each for each in source.undo() if "slot" in each]
        source.execute([drop])
    with pytest.raises(PipelineError, match=r"slot raftmq_gone.* is gone.*--snapshot"):
        capture_all(mq, postgresql_item, "gone")
    assert capture_all(mq, postgresql_item, "gone", snapshot=True) == 2


def test_postgresql_publication_that_was_missing_needs_a_snapshot(
    mq: "BlockingClient", postgresql_item: Shop
) -> None:
    shop = postgresql_item
    capture_all(mq, shop, "missing")
    with opened(shop, "elsewhere") as other:
        # The publication is the table's, for all topics.
        other.execute(other.undo())
    shop.execute("INSERT INTO item (id) VALUES (1)")
    # It is made again by then, and was not there when the row was written.
    for _ in range(2):
        with pytest.raises(PipelineError, match=r"publication .* not exist.*--snapshot"):
            capture_all(mq, shop, "missing")
    capture_all(mq, shop, "missing", snapshot=True)
    assert fold(contents(mq, "missing")) == rows_of(shop, "missing")


def test_postgresql_slot_in_use_is_refused(
    mq: "BlockingClient", postgresql_item: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftmq.pipeline.cdc.replication.FREED_SECONDS_MAX", 0.1)
    capture_all(mq, postgresql_item, "used")
    with opened(postgresql_item, "used") as one, opened(postgresql_item, "used") as other:
        place = one.now()
        running = one.events(place)
        next(running)
        with pytest.raises(PipelineError, match=r"is active for PID.*pg_replication_slots"):
            next(other.events(place))
        running.close()  # type: ignore[attr-defined]  # it is a generator


def test_database_that_cannot_be_reached_is_told(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"PostgreSQL cannot be reached"):
        open_source(f"postgresql:///x?host={tmp_path}", "item", "t")
    with pytest.raises(PipelineError, match=r"there is no SQLite file"):
        open_source(f"sqlite:{tmp_path}/none.db", "item", "t")
    (tmp_path / "text.db").write_text("no database at all, but a text of some length\n" * 99)
    with pytest.raises(PipelineError, match=r"cannot be read: file is not a database"):
        open_source(f"sqlite:{tmp_path}/text.db", "item", "t")
    with pytest.raises(PipelineError, match=r"names no database"):
        open_source("oracle://x", "item", "t")


@pytest.mark.parametrize(
    ("setting", "value", "usual"),
    [
        ("binlog_format", "STATEMENT", "ROW"),
        ("binlog_row_image", "MINIMAL", "FULL"),
        ("binlog_row_metadata", "NO_LOG", "FULL"),
    ],
)
def test_mariadb_whose_log_has_too_little_is_refused(
    mariadb_item: Shop, setting: str, value: str, usual: str
) -> None:
    mariadb_item.execute(f"SET GLOBAL {setting} = {value}")
    try:
        source = open_source(mariadb_item.url, "item", "little")
        with pytest.raises(PipelineError, match=f"{setting} is {value}.*SET GLOBAL {setting}"):
            source.prepare()
        source.close()
    finally:
        mariadb_item.execute(f"SET GLOBAL {setting} = {usual}")


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
def test_mariadb_whose_log_leaves_databases_out_is_refused(
    monkeypatch: pytest.MonkeyPatch, only: str, ignored: str, found: str
) -> None:
    # The filters are read from the server's file alone, so the answers are made up.
    source = MariadbSource.__new__(MariadbSource)
    source._schema, source._plain = "shop", "item"
    source.table = Table("mariadb", "shop.item", ())
    usual: dict[str, list[tuple[str, ...]]]
    usual = {f"SELECT @@global.{name}": [(wanted[0],)] for name, wanted in _SETTINGS.items()}
    usual["SHOW MASTER STATUS"] = [("binlog.000001", "4", only, ignored)]
    monkeypatch.setattr(source, "_all", lambda query, *_: usual.get(query, []))
    if not found:
        assert source.prepare() == []
        return
    setting = found.partition(": ")[2].split()[0]
    with pytest.raises(PipelineError, match=f"{found}.*take {setting} out of the server's file"):
        source.prepare()


def test_mariadb_statement_in_the_log_is_refused(mq: "BlockingClient", mariadb_item: Shop) -> None:
    capture_all(mq, mariadb_item, "statement")
    mariadb_item.execute("SET SESSION binlog_format = STATEMENT")
    mariadb_item.execute("INSERT INTO item (id) VALUES (1)")
    with pytest.raises(PipelineError, match=r"has a statement for shop.item.*INSERT INTO item"):
        capture_all(mq, mariadb_item, "statement")


def test_mariadb_two_phase_transaction_is_refused(mq: "BlockingClient", mariadb_item: Shop) -> None:
    capture_all(mq, mariadb_item, "phases")
    in_two_phases(mariadb_item, "INSERT INTO item (id) VALUES (1)")
    mariadb_item.execute("XA ROLLBACK 'both'")
    with pytest.raises(PipelineError, match=r"was changed in an XA transaction.*--snapshot"):
        capture_all(mq, mariadb_item, "phases")
    # Nothing of it was sent, and the remedy is one.
    assert capture_all(mq, mariadb_item, "phases", snapshot=True) == 2


def test_mariadb_two_phase_transaction_of_another_table_is_passed_over(
    mq: "BlockingClient", mariadb_item: Shop
) -> None:
    mariadb_item.execute("CREATE OR REPLACE TABLE other (id INT PRIMARY KEY)")
    capture_all(mq, mariadb_item, "besides")
    in_two_phases(mariadb_item, "INSERT INTO other (id) VALUES (1)")
    # Others commit in between, and after it.
    with mariadb_shop(Path(mariadb_item.url.partition("=")[2])) as besides:
        besides.execute("INSERT INTO item (id) VALUES (1)")
    mariadb_item.execute("XA COMMIT 'both'")
    mariadb_item.execute("INSERT INTO item (id) VALUES (2)")
    capture_all(mq, mariadb_item, "besides")
    assert [row["id"] for row in fold(contents(mq, "besides"))] == [1, 2]


def in_two_phases(shop: Shop, statement: str) -> None:
    """The first phase of it."""
    shop.execute("XA START 'both'")
    shop.execute(statement)
    shop.execute("XA END 'both'")
    shop.execute("XA PREPARE 'both'")


@pytest.mark.parametrize("action", ["ON DELETE CASCADE", "ON DELETE SET NULL", "ON UPDATE CASCADE"])
def test_mariadb_foreign_key_that_changes_rows_is_refused(
    mq: "BlockingClient", mariadb_item: Shop, action: str
) -> None:
    shop = mariadb_item
    topic = f"action-{action.replace(' ', '-')}"
    shop.execute("CREATE OR REPLACE TABLE parent (id INT PRIMARY KEY)")
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


def test_mariadb_log_that_was_dropped_needs_a_snapshot(
    mq: "BlockingClient", mariadb_item: Shop
) -> None:
    capture_all(mq, mariadb_item, "purged")
    mariadb_item.execute("INSERT INTO item (id) VALUES (1)")
    mariadb_item.execute("FLUSH BINARY LOGS")
    (last, *_) = mariadb_item.execute("SHOW MASTER STATUS").fetchone()
    while len(mariadb_item.execute("SHOW BINARY LOGS").fetchall()) > 1:
        # MariaDB keeps logs that have a reader, as the capture was until just now.
        mariadb_item.execute(f"PURGE BINARY LOGS TO '{last}'")
    with pytest.raises(PipelineError, match=r"dropped its log binlog.*--snapshot"):
        capture_all(mq, mariadb_item, "purged")
    # t, r, and the mark that says how far it is.
    assert capture_all(mq, mariadb_item, "purged", snapshot=True) == 3


def test_mariadb_user_without_the_right_is_refused(mariadb_item: Shop) -> None:
    mariadb_item.execute("CREATE OR REPLACE USER weak")
    mariadb_item.execute("GRANT SELECT ON shop.* TO weak")
    source = open_source(mariadb_item.url.replace("root@", "weak@"), "item", "weak")
    with pytest.raises(PipelineError, match=r"refuses its binary log.*GRANT REPLICATION SLAVE"):
        source.now()
    source.close()


def test_sqlite_file_that_is_an_older_copy_is_refused(
    mq: "BlockingClient", sqlite_item: Shop, tmp_path: Path
) -> None:
    capture_all(mq, sqlite_item, "older")
    path = Path(sqlite_item.url.removeprefix("sqlite:"))
    sqlite_item.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(path, tmp_path / "copy.db")
    sqlite_item.execute("INSERT INTO item (id) VALUES (1)")
    capture_all(mq, sqlite_item, "older")
    copy = Shop(f"sqlite:{tmp_path}/copy.db", sqlite_item.execute, sqlite_item.abort)
    with pytest.raises(PipelineError, match=r"an older copy.*another topic"):
        capture_all(mq, copy, "older")


def test_sqlite_table_that_is_captured_elsewhere_is_refused(
    mq: "BlockingClient", sqlite_item: Shop
) -> None:
    capture_all(mq, sqlite_item, "here")
    capture_all(mq, sqlite_item, "there")
    with pytest.raises(PipelineError, match=r"go to the topic there, one at a time.*--snapshot"):
        capture_all(mq, sqlite_item, "here")


def test_table_that_is_not_prepared_is_told_and_undo_takes_all_back(
    mq: "BlockingClient", sqlite_item: Shop
) -> None:
    source = open_source(sqlite_item.url, "item", "undone")
    everything = "SELECT name, sql FROM sqlite_master WHERE name LIKE '%item%' ORDER BY name"
    before = sqlite_item.execute(everything).fetchall()
    with pytest.raises(PipelineError, match=r"item is not prepared.*cdc prepare"):
        list(capture(mq, source, "undone", until=source.now()))
    source.execute(source.prepare())
    assert source.prepare() == []
    assert sqlite_item.execute(everything).fetchall() != before
    source.execute(source.undo())
    assert sqlite_item.execute(everything).fetchall() == before
    source.close()
