"""Capture refuses a database that is not ready and names the remedy, before any send or loss."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from raftmq.pipeline import PipelineError
from raftmq.pipeline.cdc import open_source
from raftmq.pipeline.cdc.change_capture import capture
from tests.pipeline.cdc.shops import (
    Shop,
    capture_all,
    contents,
    fold,
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
