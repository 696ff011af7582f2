"""`raftmq pipeline cdc rebuild` and `verify` as a user runs them: captured, rebuilt, compared."""

from pathlib import Path

import pyarrow.dataset as ds
import pytest

from tests.cli.command_line import CommandLine
from tests.pipeline.cdc.shops import Shop, written_past_the_triggers

pytestmark = pytest.mark.process


def test_rebuilt_table_is_verified_and_a_row_changed_unseen_is_told(
    on_spark: CommandLine, sqlite_item: Shop, tmp_path: Path
) -> None:
    table = (sqlite_item.url, "--table", "item", "--topic", "told")
    rebuild = ("pipeline", "cdc", "rebuild", "told", "--out", str(tmp_path / "out"))
    verify = ("pipeline", "cdc", "verify", *table, "--out", str(tmp_path / "out"))
    sqlite_item.execute("INSERT INTO item (id, name) VALUES (1, 'one'), (2, 'two')")
    on_spark.ok("pipeline", "cdc", "prepare", *table)
    on_spark.ok("pipeline", "cdc", "capture", *table, "--once")

    made = on_spark.ok(*rebuild, "-o", "json").json
    assert (made["version"], made["rows"]) == (1, 2)
    assert "the last version holds" in on_spark.ok(*rebuild).stderr
    rows = ds.dataset(made["folder"], format="parquet").to_table().sort_by("id").to_pylist()
    assert [(row["id"], row["name"]) for row in rows] == [(1, "one"), (2, "two")]

    # `verify` captures the changes that are not captured yet.
    sqlite_item.execute("DELETE FROM item WHERE id = 1")
    heading, line = on_spark.ok(*verify).stdout.splitlines()
    place, database, rebuilt, is_equal = line.split()
    assert heading.split() == ["PLACE", "DATABASE", "REBUILT", "EQUAL"]
    assert database == rebuilt
    assert (database.split(":")[0], is_equal) == ("1", "True")

    written_past_the_triggers(sqlite_item, "UPDATE item SET name = 'three' WHERE id = 2")
    ended = on_spark(*verify, "-o", "json")
    assert ended.code == 5
    assert (ended.json["equal"], ended.json["place"]) == (False, place)
    assert ended.json["differing"] == 1
    assert ended.json["first"] == [{"key": "2", "found": "altered"}]
    assert f"error: 1 row of item and of the table in {tmp_path / 'out'} differ" in ended.stderr
    assert [path.name for path in (tmp_path / "out" / ".verify").iterdir()] == ["LOCK"]
    # The remedy that it names is one.
    assert "--snapshot" in ended.stderr
    on_spark.ok("pipeline", "cdc", "capture", *table, "--once", "--snapshot")
    made = on_spark.ok(*rebuild, "-o", "json").json
    assert (made["version"], made["rows"]) == (2, 1)
    assert on_spark.ok(*verify, "-o", "json").json["equal"] is True
