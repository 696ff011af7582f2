"""Rebuilds a table from a topic's changes, on Spark.

    last version ──without the keys that changed──┐
                                                  ├──> next version
    changes since then ──last one of each key─────┘

The order of offsets is the order of commits, so the last change of a key is the one of the highest
offset. Only whole transactions are taken, so a version is a state that the database was in. A `t`
(the table is empty) voids all changes before it, and the last version, too.

Restarts: a version records up to which offset it goes, and counts once `CURRENT` names it
(`versions`). A kill before that leaves the last version, and the next run makes the new one again.

New messages are read twice: for the last `t`, which is found by tag, and for the changes.

Left out: tables larger than the disk's half: a version is written whole.
"""

import json
from collections.abc import Iterable
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from raftmq.pipeline import durable
from raftmq.pipeline.errors import PipelineError

from .change import Column, Op, Table, columns_of
from .digest import quoted
from .tail import Tail, tail_at, whole_end
from .versions import Version, current, path_of, publish

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, SparkSession

    from raftmq.blocking import BlockingClient

_BODY = (
    "op string, source string, table string, schema string, position bigint, "
    "pk map<string,string>, after map<string,string>"
)
_EMPTIED = f"{_BODY}, columns array<array<string>>"


class Plan(NamedTuple):
    """The messages that a rebuild reads, and the version that it makes."""

    topic_id: int
    """The topic's number."""
    base: Version | None
    """The version that the rebuild goes on from; None: it begins with the topic."""
    start: int
    """The first offset to read."""
    end: int
    """The offset after the last one."""
    version: int
    """The number of the version that is made."""

    @property
    def is_empty(self) -> bool:
        """Whether there is no new message."""
        return self.start == self.end


class Folded(NamedTuple):
    """A table as Spark sees it."""

    table: Table
    """The table's name and columns."""
    rows: "DataFrame"
    """Rows of the table, columns as in `versions`."""


def plan(mq: "BlockingClient", topic: str, folder: Path, *, is_full: bool = False) -> Plan:
    """The work of the next rebuild. Changes nothing.

    Raises:
        PipelineError: changes are missing, or the folder has the table of another topic.
    """
    described = mq.admin.describe_topic(topic)
    if len(described.queues) != 1:
        raise PipelineError(
            f"the topic {topic} has {len(described.queues)} queues, and those of `cdc capture` "
            "have one",
            "give a topic that it writes",
        )
    kept = current(folder)
    base = None if is_full else kept
    if base is not None and (base.topic, base.topic_id) != (topic, described.id):
        raise PipelineError(
            f"{folder} was made from the topic {base.topic}, number {base.topic_id}, and {topic} "
            f"has number {described.id}",
            "give another folder with --out, or --full to begin again",
        )
    earliest = described.queues[0].earliest
    start = earliest if base is None else base.end
    if start < earliest:
        raise PipelineError(
            f"retention has dropped the messages {start} to {earliest} of {topic} unread",
            "`raftmq pipeline cdc capture … --snapshot`, then rebuild with --full",
        )
    end = whole_end(mq, topic, start)
    return Plan(described.id, base, start, end, 1 if kept is None else kept.version + 1)


def rebuild(
    spark: "SparkSession",
    mq: "BlockingClient",
    topic: str,
    folder: Path,
    *,
    url: str | None = None,
    is_full: bool = False,
) -> Version:
    """Make the table's next version, durable on return; without new changes return the last one.

    Args:
        spark: the session that makes it.
        mq: the cluster.
        topic: the topic that `capture` wrote.
        folder: the folder of the versions; made if it does not exist.
        url: where Spark reads the cluster; None: `RAFTMQ_URL`, as it was when Spark started.
        is_full: from the topic's beginning, and not from the last version.

    Raises:
        PipelineError: as `plan`; another rebuild into the folder is running.
    """
    durable.make_folders(folder)
    with durable.locked(folder / "LOCK", busy=f"another rebuild into {folder} is running"):
        planned = plan(mq, topic, folder, is_full=is_full)
        if planned.is_empty:
            if planned.base is None:
                raise _no_snapshot(topic)
            return planned.base
        folded = fold(read(spark, topic, planned, url), topic, planned, folder)
        path = path_of(folder, planned.version)
        folded.rows.write.mode("overwrite").parquet(str(path))
        last = tail_at(mq, topic, planned.end - 1)
        version = _version(
            topic, planned, folded.table, last, spark.read.parquet(str(path)).count()
        )
        publish(folder, version)
        return version


def fold(
    messages: "DataFrame", topic: str, planned: Plan, folder: Path, *, until: int | None = None
) -> Folded:
    """The table up to the plan's end, or up to the changes of the position `until`.

    Args:
        messages: the messages that `read` gives for the plan.
        topic: its name.
        planned: the plan.
        folder: the folder of the versions.
        until: the highest position that counts; None: all.
    """
    emptied = last_emptied(messages, until)
    base = planned.base
    if emptied is not None:
        at, table = emptied
        return Folded(table, merged(None, changes(messages, table, at + 1, until), table))
    if base is None:
        raise _no_snapshot(topic)
    before = messages.sparkSession.read.parquet(str(path_of(folder, base.version)))
    return Folded(base.of, merged(before, changes(messages, base.of, 0, until), base.of))


def read(spark: "SparkSession", topic: str, planned: Plan, url: str | None) -> "DataFrame":
    """Messages of the topic's one queue: offset, key, tag and body, in no order."""
    reader = spark.read.format("raftmq").option("subscribe", topic)
    if url is not None:
        reader = reader.option("url", url)
    reader = reader.option("startingOffsets", json.dumps({topic: {"0": planned.start}}))
    reader = reader.option("endingOffsets", json.dumps({topic: {"0": planned.end}}))
    reader = reader.option("minPartitions", str(spark.sparkContext.defaultParallelism))
    return reader.option("columns", "offset,key,tag,body").load()


def last_emptied(messages: "DataFrame", until: int | None) -> tuple[int, Table] | None:
    """The last `t`: its offset, and the table that it describes; None: there is none.

    Args:
        messages: rows with `offset`, `tag` and `body`.
        until: the highest position that counts; None: all.
    """
    from pyspark.sql import functions as f

    found = messages.where(f.col("tag") == Op.EMPTY).select("offset", _parsed(_EMPTIED))
    if until is not None:
        found = found.where(f.col("change.position") <= until)
    last = found.agg(f.max_by("change", "offset").alias("change"), f.max("offset").alias("at"))
    row = last.first()
    if row is None or row["at"] is None:
        return None
    change = row["change"]
    # Spark's array has one type of elements: the place in the key has become text.
    columns = columns_of([*words, int(key)] for *words, key in change["columns"])
    return row["at"], Table(change["source"], change["table"], columns)


def changes(messages: "DataFrame", table: Table, start: int, until: int | None) -> "DataFrame":
    """The last change of each key from an offset on: `op`, `pk` and `after`.

    A change of other columns than the table's fails the job: a `t` is missing before it.
    """
    from pyspark.sql import functions as f

    wanted = messages.where((f.col("offset") >= start) & f.col("key").isNotNull())
    parsed = wanted.select("key", "offset", _parsed(_BODY))
    if until is not None:
        parsed = parsed.where(f.col("change.position") <= until)
    fits = f.col("change.schema") == table.schema
    error = PipelineError(
        f"the topic has changes of other columns than {table.name} had when it was read whole",
        "`raftmq pipeline cdc capture … --snapshot`, then rebuild again",
    )
    text = f"{type(error).__name__}: {error}"
    checked = f.when(fits, f.col("change")).otherwise(f.raise_error(f.lit(text)))
    last = parsed.groupBy("key").agg(f.max_by(checked, "offset").alias("change"))
    return last.select("change.op", "change.pk", "change.after")


def merged(before: "DataFrame | None", changes: "DataFrame", table: Table) -> "DataFrame":
    """The table after the changes: the rows that are left, and the new ones.

    Args:
        before: the table; None: it was empty.
        changes: the last one of each key: `op`, `pk`, `after`.
        table: the columns.
    """
    from pyspark.sql import functions as f

    new = changes.where(f.col("op") != Op.DELETE).select(*_cells("after", table.columns))
    if before is None:
        return new
    keys = [column for column in table.columns if column.key]
    changed = changes.select(*_cells("pk", keys))
    equals = (before[quoted(key.name)] == changed[quoted(key.name)] for key in keys)
    left = before.join(changed, reduce(lambda one, other: one & other, equals), "left_anti")
    return left.unionByName(new)


def _parsed(schema: str) -> "SparkColumn":
    from pyspark.sql import functions as f

    return f.from_json(f.col("body").cast("string"), schema).alias("change")


def _cells(row: str, columns: Iterable[Column]) -> "list[SparkColumn]":
    return [_cell(row, column).alias(column.name) for column in columns]


def _cell(row: str, column: Column) -> "SparkColumn":
    from pyspark.sql import functions as f

    text = f.element_at(f.col(row), f.lit(column.name))
    match column.kind:
        case "int":
            return text.cast("bigint")
        case "bool":
            return text.cast("boolean")
        case "bytes":
            return f.unbase64(text)
    return text


def _version(topic: str, planned: Plan, table: Table, last: Tail, rows: int) -> Version:
    return Version(
        planned.version,
        topic,
        planned.topic_id,
        planned.end,
        table.source,
        table.name,
        table.schema,
        table.columns,
        last.position,
        last.lsn,
        rows,
    )


def _no_snapshot(topic: str) -> PipelineError:
    return PipelineError(
        f"the topic {topic} has no whole snapshot to begin with",
        "`raftmq pipeline cdc capture … --snapshot` makes one",
    )
