"""`raftmq pipeline cdc rebuild` and `verify` as a user runs them: captured, rebuilt, compared."""

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pytest

from tests.cli.command_line import CommandLine
from tests.pipeline.cdc.shops import Shop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.pipeline.nodes import Nodes

pytestmark = pytest.mark.process


@pytest.fixture
def raftmq(
    capsys: pytest.CaptureFixture[str],
    spark: "SparkSession",
    nodes: "Nodes",
    monkeypatch: pytest.MonkeyPatch,
) -> CommandLine:
    """Commands that find the cluster by `RAFTMQ_URL`, and the Spark of all tests running."""
    # A command stops its Spark at the end: the session of the tests goes on.
    monkeypatch.setattr(type(spark), "__exit__", lambda *_: None)
    monkeypatch.setenv("RAFTMQ_URL", nodes.url)
    return CommandLine(capsys)


def written_past_the_triggers(shop: Shop, statement: str) -> None:
    """Change the table so that no trigger sees it."""
    query = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
    triggers = shop.execute(query).fetchall()
    for name, _ in triggers:
        shop.execute(f"DROP TRIGGER {name}")
    shop.execute(statement)
    for _, sql in triggers:
        shop.execute(sql)


def test_rebuilt_table_is_verified_and_a_row_changed_unseen_is_told(
    raftmq: CommandLine, sqlite_item: Shop, tmp_path: Path
) -> None:
    table = (sqlite_item.url, "--table", "item", "--topic", "told")
    rebuild = ("pipeline", "cdc", "rebuild", "told", "--out", str(tmp_path / "out"))
    verify = ("pipeline", "cdc", "verify", *table, "--out", str(tmp_path / "out"))
    sqlite_item.execute("INSERT INTO item (id, name) VALUES (1, 'one'), (2, 'two')")
    raftmq.ok("pipeline", "cdc", "prepare", *table)
    raftmq.ok("pipeline", "cdc", "capture", *table, "--once")

    made = raftmq.ok(*rebuild, "-o", "json").json
    assert (made["version"], made["rows"]) == (1, 2)
    assert "the last version holds" in raftmq.ok(*rebuild).stderr
    rows = ds.dataset(made["folder"], format="parquet").to_table().sort_by("id").to_pylist()
    assert [(row["id"], row["name"]) for row in rows] == [(1, "one"), (2, "two")]

    # What is not captured yet is captured by `verify`.
    sqlite_item.execute("DELETE FROM item WHERE id = 1")
    heading, line = raftmq.ok(*verify).stdout.splitlines()
    place, database, rebuilt, is_equal = line.split()
    assert heading.split() == ["PLACE", "DATABASE", "REBUILT", "EQUAL"]
    assert database == rebuilt
    assert (database.split(":")[0], is_equal) == ("1", "True")

    written_past_the_triggers(sqlite_item, "UPDATE item SET name = 'three' WHERE id = 2")
    ended = raftmq(*verify, "-o", "json")
    assert ended.code == 5
    assert (ended.json["equal"], ended.json["place"]) == (False, place)
    assert f"error: item and the table in {tmp_path / 'out'} differ" in ended.stderr
    # The remedy that it names is one.
    assert "--snapshot" in ended.stderr
    raftmq.ok("pipeline", "cdc", "capture", *table, "--once", "--snapshot")
    made = raftmq.ok(*rebuild, "-o", "json").json
    assert (made["version"], made["rows"]) == (2, 1)
    assert raftmq.ok(*verify, "-o", "json").json["equal"] is True
