"""Capture peculiar to SQLite: triggers in its own order, one writer at a time."""

from random import Random

import pytest

from raftmq.pipeline import PipelineError
from raftmq.pipeline.cdc import open_source
from raftmq.pipeline.cdc.change import Change, Commit, Idle
from tests.pipeline.cdc.shops import Shop, assert_in_order, fold, opened, rows_of, seen


@pytest.mark.parametrize("trigger", ["TRIGGER", "TEMP TRIGGER"])
def test_row_that_a_trigger_writes_again_is_told_as_it_is(sqlite_item: Shop, trigger: str) -> None:
    shop, random = sqlite_item, Random(13)
    shop.create(trigger=trigger)
    with opened(shop, "again") as source, source.snapshot(is_first=True) as snapshot:
        assert list(snapshot.rows) == []
    shop.write(random, 400)
    with opened(shop, "again") as source:
        found = seen(source, snapshot.place)
    assert_in_order(found)
    # SQLite runs temporary triggers before all others.
    assert fold(found, fits=trigger == "TRIGGER") == rows_of(shop, "again")


def test_row_that_its_foreign_key_writes_again_is_told_as_it_is(sqlite_item: Shop) -> None:
    shop = sqlite_item
    shop.execute("DROP TABLE item")
    shop.execute(
        "CREATE TABLE item (id INTEGER PRIMARY KEY, "
        "parent INTEGER REFERENCES item ON UPDATE CASCADE ON DELETE CASCADE)"
    )
    shop.execute("PRAGMA foreign_keys = ON")
    with opened(shop, "parents") as source, source.snapshot(is_first=True) as snapshot:
        assert list(snapshot.rows) == []
    shop.execute("INSERT INTO item VALUES (1, 1), (2, 1), (3, 2), (4, 4), (5, 4)")
    shop.execute("UPDATE item SET id = 9 WHERE id = 1")
    shop.execute("DELETE FROM item WHERE id = 4")
    with opened(shop, "parents") as source:
        found = seen(source, snapshot.place)
    rows = [{"id": 2, "parent": 9}, {"id": 3, "parent": 2}, {"id": 9, "parent": 9}]
    assert fold(found, fits=False) == rows_of(shop, "parents") == rows


def test_trigger_that_is_newer_than_those_of_the_capture_is_refused(sqlite_item: Shop) -> None:
    shop = sqlite_item
    newer = "CREATE TRIGGER newer AFTER UPDATE OF name ON {} BEGIN SELECT 1; END"
    with opened(shop, "newer") as source, source.snapshot(is_first=True) as snapshot:
        assert list(snapshot.rows) == []
    with opened(shop, "newer") as source:
        shop.create("other")
        shop.execute(newer.format("other"))
        assert source.prepare() == []
        # While a capture runs ...
        assert seen(source, snapshot.place) == []
        shop.execute("DROP TRIGGER newer")
        shop.execute(newer.format("ITEM"))
        with pytest.raises(PipelineError, match=r"has a newer one.*cdc prepare.*--snapshot"):
            seen(source, snapshot.place)
    # ... and when one is started.
    source = open_source(shop.url, "item", "newer")
    missing = source.prepare()
    assert [each.split()[1] for each in missing] == ["TRIGGER", "TRIGGER", "TRIGGER", "FROM"]
    source.execute(missing)
    assert source.prepare() == []
    with pytest.raises(PipelineError, match=r"no snapshot of item was made"):
        source.check(snapshot.place)
    source.close()


def test_table_that_is_prepared_again_while_it_is_read_needs_a_snapshot(
    sqlite_item: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftmq.pipeline.cdc.sqlite.ROWS", 2)
    shop = sqlite_item
    shop.execute("INSERT INTO item (id) VALUES (1), (2), (3), (4), (5)")
    with opened(shop, "unseen") as source:
        with source.snapshot(is_first=True) as snapshot:
            read = [next(snapshot.rows)]
            shop.execute("DROP TRIGGER raftmq_log_item_insert")
            shop.execute("INSERT INTO item (id) VALUES (6)")
            with opened(shop, "unseen"):
                shop.execute("INSERT INTO item (id) VALUES (7)")
            read += snapshot.rows
        # The rows 6 and 7 are not among them, and the log has 7 alone: 6 would be lost.
        assert [row["id"] for row in read] == [1, 2, 3, 4, 5]
        with pytest.raises(PipelineError, match=r"since the table was prepared.*--snapshot"):
            seen(source, snapshot.place)


def test_log_that_is_made_again_while_it_is_read_needs_a_snapshot(
    sqlite_item: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftmq.pipeline.cdc.sqlite.ROWS", 2)
    shop = sqlite_item
    for again in (False, True):
        with opened(shop, "renewed") as source:
            with source.snapshot(is_first=True) as snapshot:
                assert list(snapshot.rows) == []
            shop.execute("INSERT INTO item (id) VALUES (1), (2), (3), (4), (5)")
            events = source.events(snapshot.place)
            assert isinstance(next(events), Change)
            other = open_source(shop.url, "item", "renewed")
            other.execute(other.undo())
            if again:
                other.execute(other.prepare())
            other.close()
            assert isinstance(next(events), Change)
            # No `Commit` comes: the other changes of the transaction went with the log.
            with pytest.raises(PipelineError, match="--snapshot"):
                next(events)
        shop.execute("DELETE FROM item")


def test_others_write_the_file_while_changes_are_sent(
    sqlite_item: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftmq.pipeline.cdc.sqlite.ROWS", 7)
    shop = sqlite_item
    # Elsewhere readers and writers do not meet.
    shop.execute("PRAGMA journal_mode = DELETE")
    shop.execute("PRAGMA busy_timeout = 0")
    with opened(shop, "sent") as source, source.snapshot(is_first=True) as snapshot:
        assert list(snapshot.rows) == []
    shop.execute("BEGIN")
    for key in range(30):
        shop.execute("INSERT INTO item (id) VALUES (?)", key)
    shop.execute("COMMIT")
    with opened(shop, "sent") as source:
        events, found = source.events(snapshot.place), []
        while not isinstance(event := next(events), Commit):
            assert isinstance(event, Change)
            found.append(event.position)
            shop.execute("INSERT INTO item (id) VALUES (?)", 100 + len(found))
        # Rows written meanwhile belong to the next look.
        assert len(found) == 30
        assert event.reached.position == found[-1] + 2
        assert isinstance(next(events), Idle)
        event = next(events)
        assert isinstance(event, Change)
        assert event.position == found[-1] + 2


@pytest.mark.parametrize(
    ("columns", "wrong"),
    [
        ("id TEXT PRIMARY KEY COLLATE NOCASE, name TEXT", "key item.id has the collation NOCASE"),
        (
            "n INTEGER, id TEXT, name TEXT, PRIMARY KEY (n, id COLLATE RTRIM)",
            "key item.id has the collation RTRIM",
        ),
        ("id PRIMARY KEY, name TEXT", "key item.id is declared without a type"),
    ],
)
def test_keys_that_are_equal_and_of_different_text_are_refused(
    sqlite_item: Shop, columns: str, wrong: str
) -> None:
    shop = sqlite_item
    shop.execute("DROP TABLE item")
    shop.execute(f"CREATE TABLE item ({columns})")
    source = open_source(shop.url, "item", "equal")
    with pytest.raises(PipelineError, match=wrong):
        source.prepare()
    # Taken back in any case.
    source.execute(source.undo())
    source.close()


def test_keys_are_told_apart_where_only_their_column_s_collation_makes_them_equal(
    sqlite_item: Shop,
) -> None:
    shop = sqlite_item
    shop.execute("DROP TABLE item")
    columns = "id TEXT COLLATE NOCASE, name TEXT COLLATE NOCASE, PRIMARY KEY (id COLLATE BINARY)"
    shop.execute(f"CREATE TABLE item ({columns})")
    with opened(shop, "apart") as source, source.snapshot(is_first=True) as snapshot:
        assert list(snapshot.rows) == []
    shop.execute("INSERT INTO item VALUES ('a', 'tea'), ('A', 'cup'), ('b', 'pot')")
    shop.execute("UPDATE item SET id = 'B' WHERE id = 'b'")
    shop.execute("DELETE FROM item WHERE id = 'a' COLLATE BINARY")
    with opened(shop, "apart") as source:
        found = seen(source, snapshot.place)
    rows = [{"id": "A", "name": "cup"}, {"id": "B", "name": "pot"}]
    assert fold(found) == rows_of(shop, "apart") == rows
