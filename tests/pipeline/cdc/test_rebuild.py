"""The table that Spark makes of a topic's changes is the database's."""

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from raftmq.pipeline.cdc.change import Change, Column, Op, Row, Table, message_of
from raftmq.pipeline.cdc.change_capture import capture
from raftmq.pipeline.cdc.differences import differing, noting
from raftmq.pipeline.cdc.digest import digest_in_spark, digest_of, summed
from raftmq.pipeline.cdc.rebuild import changes, last_emptied, merged, plan, rebuild
from raftmq.pipeline.cdc.verify import source_digest, verify
from raftmq.pipeline.cdc.versions import current, path_of
from tests.pipeline.cdc.shops import (
    Shop,
    capture_all,
    contents,
    opened,
    rows_of,
    written_past_the_triggers,
)
from tests.pipeline.nodes import Nodes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from raftmq.blocking import BlockingClient

TABLE = Table(
    "sqlite",
    "it.em",
    (
        Column("a.b", "int", "INTEGER", 2),
        Column("text", "text", "TEXT", 1),
        Column("data", "bytes", "BLOB", 0),
        Column("is`so", "bool", "BOOLEAN", 0),
    ),
)
"""With names that Spark takes apart, and a key of two columns in another order."""


def row_of(number: int, text: str, data: str | None = None, is_so: bool | None = None) -> Row:
    return {"a.b": number, "text": text, "data": data, "is`so": is_so}


def messages(
    spark: "SparkSession", steps: "list[tuple[Op, Row | None, Row | None]]"
) -> "DataFrame":
    """Changes as the source yields them, one offset and one position each."""
    rows = []
    for number, (op, before, after) in enumerate(steps):
        change = Change(op, number, 1, str(number), None, before, after)
        message = message_of(TABLE, change, is_last=True)
        rows.append((number, message.key, message.tag, message.body))
    return spark.createDataFrame(rows, "offset bigint, key string, tag string, body binary")


def values(table: "DataFrame") -> list[list[Any]]:
    columns = [column.name for column in TABLE.columns]
    return sorted([row[name] for name in columns] for row in table.collect())


def test_last_change_of_each_key_holds_and_an_emptied_table_is_empty(
    spark: "SparkSession",
) -> None:
    one, other, third = row_of(1, "x"), row_of(1, "y", "AAEC", True), row_of(-5, "x", None, False)
    steps: list[tuple[Op, Row | None, Row | None]] = [
        (Op.EMPTY, None, None),
        (Op.READ, None, row_of(7, "gone")),
        (Op.EMPTY, None, None),
        (Op.READ, None, one),
        (Op.CREATE, None, other),
        (Op.CREATE, None, third),
        (Op.DELETE, one, None),
        (Op.MARK, None, None),
        (Op.UPDATE, other, {**other, "is`so": None}),
        (Op.CREATE, None, {**one, "data": ""}),
        (Op.DELETE, third, None),
    ]
    found = messages(spark, steps)
    assert last_emptied(found, None) == (2, TABLE)
    assert last_emptied(found, 1) == (0, TABLE)
    table = merged(None, changes(found, TABLE, 3, None), TABLE)
    assert values(table) == [[1, "x", b"", None], [1, "y", b"\0\1\2", None]]
    # The same in two steps, the first of which ends in the middle.
    before = merged(None, changes(found, TABLE, 3, 6), TABLE)
    assert values(before) == [[-5, "x", None, False], [1, "y", b"\0\1\2", True]]
    after = merged(before, changes(found.where("offset > 6"), TABLE, 0, None), TABLE)
    assert values(after) == values(table)


def test_digest_is_the_same_in_spark_and_in_python(spark: "SparkSession") -> None:
    random = Random(3)
    rows = []
    for number in range(300):
        text = "".join(random.choices("aé€𝄞~:\n\"\\ '", k=random.randrange(8)))
        data = random.choice([None, "", "AAEC" * random.randrange(60)])
        rows.append(row_of(random.randrange(-(2**63), 2**63), f"{number}{text}", data,
                           random.choice([None, True, False])))  # fmt: skip
    found = messages(spark, [(Op.CREATE, None, row) for row in rows])
    table = merged(None, changes(found, TABLE, 0, None), TABLE).cache()
    wanted = digest_of(row.values() for row in reversed(rows))
    assert digest_in_spark(table, TABLE.columns) == wanted
    # Of a table with one row less, and of none.
    assert digest_in_spark(table.where("text != '7'").limit(299), TABLE.columns) != wanted
    assert digest_in_spark(table.limit(0), TABLE.columns) == digest_of([])


def test_rows_that_differ_are_named_by_keys_of_any_columns(
    spark: "SparkSession", tmp_path: Path
) -> None:
    rows = [row_of(number, f"{number}, it", "AAEC", number % 2 == 0) for number in range(300)]
    found = messages(spark, [(Op.CREATE, None, row) for row in rows])
    table = merged(None, changes(found, TABLE, 0, None), TABLE)
    here = [*rows[:7], row_of(7, "7, it", None, False), *rows[8:], row_of(300, "~")]
    summed(noting(iter(here), TABLE, tmp_path / "noted"))
    # Of the key's columns the second one comes first.
    assert differing(tmp_path / "noted", table, TABLE) == (
        2, [("~, 300", "missing"), ("7, it, 7", "altered")]
    )  # fmt: skip
    summed(noting(iter(rows), TABLE, tmp_path / "noted"))
    assert differing(tmp_path / "noted", table, TABLE) == (0, [])


def test_changes_of_other_columns_are_an_error(spark: "SparkSession") -> None:
    found = messages(spark, [(Op.CREATE, None, row_of(1, "x"))])
    other = TABLE._replace(columns=TABLE.columns[:2])
    with pytest.raises(Exception, match=r"changes of other columns than it\.em.*--snapshot"):
        changes(found, other, 0, None).collect()


def test_rebuilt_table_is_the_database_s_while_it_is_written(
    spark: "SparkSession", nodes: Nodes, mq: "BlockingClient", shop: Shop, tmp_path: Path
) -> None:
    topic, out, random = f"r-{shop.url[:5].strip(':')}", tmp_path / "out", Random(5)
    shop.write(random, 20)
    capture_all(mq, shop, topic)
    version = rebuild(spark, mq, topic, out, url=nodes.url)
    assert current(out) == version
    made = spark.read.parquet(str(path_of(out, version.version))).orderBy("id").collect()
    assert [row["name"] for row in made] == [row["name"] for row in rows_of(shop, topic)]
    assert version.rows == len(made) > 0
    shop.write(random, 20)
    with opened(shop, topic) as source:
        found = source_digest(source, tmp_path / "noted")
        # Others go on writing.
        shop.write(random, 5)
        verified = verify(spark, mq, source, topic, out, found, url=nodes.url)
        assert verified == (found.digest, None)


def test_verify_names_rows_that_are_wrong(
    spark: "SparkSession", nodes: Nodes, mq: "BlockingClient", sqlite_item: Shop, tmp_path: Path
) -> None:
    sqlite_item.execute("INSERT INTO item (id, name) VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd')")
    capture_all(mq, sqlite_item, "wrong")
    made = rebuild(spark, mq, "wrong", tmp_path / "out", url=nodes.url)
    written_past_the_triggers(
        sqlite_item,
        "UPDATE item SET name = 'other' WHERE id = 2",
        "INSERT INTO item (id, name) VALUES (5, 'e')",
        "DELETE FROM item WHERE id = 3",
    )
    # A row that is there twice.
    files = path_of(tmp_path / "out", made.version)
    spark.read.parquet(str(files)).where("id = 4").write.mode("append").parquet(str(files))
    with opened(sqlite_item, "wrong") as source:
        found = source_digest(source, tmp_path / "noted")
        verified = verify(spark, mq, source, "wrong", tmp_path / "out", found, url=nodes.url)
    assert verified.rebuilt != found.digest
    assert (verified.rebuilt.rows, found.digest.rows) == (5, 4)
    assert verified.differences == (
        4, [("2", "altered"), ("3", "extra"), ("4", "doubled"), ("5", "missing")]
    )  # fmt: skip


def test_rebuild_that_was_killed_is_made_again(
    spark: "SparkSession",
    nodes: Nodes,
    mq: "BlockingClient",
    sqlite_item: Shop,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sqlite_item.execute("INSERT INTO item (id, name) VALUES (1, 'one')")
    capture_all(mq, sqlite_item, "again")
    first = rebuild(spark, mq, "again", tmp_path, url=nodes.url)
    sqlite_item.execute("UPDATE item SET name = 'two'")
    capture_all(mq, sqlite_item, "again")

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("raftmq.pipeline.cdc.rebuild.publish", kill)
        with pytest.raises(KeyboardInterrupt):
            rebuild(spark, mq, "again", tmp_path, url=nodes.url)
    assert current(tmp_path) == first
    second = rebuild(spark, mq, "again", tmp_path, url=nodes.url)
    assert (second.version, second.rows) == (2, 1)
    (row,) = spark.read.parquet(str(path_of(tmp_path, 2))).collect()
    assert row["name"] == "two"
    # Nothing new: the same version holds.
    assert rebuild(spark, mq, "again", tmp_path, url=nodes.url) == second
    sqlite_item.execute("DELETE FROM item")
    capture_all(mq, sqlite_item, "again")
    assert rebuild(spark, mq, "again", tmp_path, url=nodes.url, is_full=True).rows == 0
    assert sorted(each.name for each in tmp_path.glob("v=*")) == ["v=2", "v=3"]


def test_unfinished_transactions_are_left_for_the_next_version(
    mq: "BlockingClient", sqlite_item: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftmq.pipeline.cdc.change_capture.BATCH_MESSAGES", 2)
    for key in range(5):
        sqlite_item.execute("INSERT INTO item (id) VALUES (?)", key)
    with opened(sqlite_item, "half") as source:
        steps = iter(capture(mq, source, "half"))
        next(steps)
        steps.close()  # type: ignore[attr-defined]  # it is a generator
    assert len(contents(mq, "half")) == 2
    assert plan(mq, "half", tmp_path).is_empty
    capture_all(mq, sqlite_item, "half")
    assert plan(mq, "half", tmp_path).end == len(contents(mq, "half")) == 9
