"""Spark's part of a board: messages become columns, and each micro-batch is summed up.

`columns` is part of the stream's plan, which is made once; `Summing` is run on each batch, and
gives one row for each queue, window and group of it.

| column | type | meaning |
|---|---|---|
| `topic`, `queue` | string, int | where the messages are from |
| `start` | bigint | the window's begin, µs since 1970; null: the event time is unusable |
| `g0`, ... | string | groups |
| `n` | bigint | messages |
| `s0`, ... | bigint or double | sums |
| `d0`, ... | array<int> | the different codes of values, see `hyperloglog` |
| `newest` | bigint | the newest event time, µs |
| `first`, `next` | bigint | the lowest offset; the highest, and one more |
| `created`, `stored` | bigint | when the oldest was made, and stored, µs |
"""

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from raftmq.pipeline import rows
from raftmq.pipeline.errors import PipelineError

from . import hyperloglog
from .board import Board
from .windows import Partial, Place

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_VIEW = "raftmq_live_batch"
_WHOLE = {"tinyint", "smallint", "int", "bigint"}


class Summed(NamedTuple):
    """A micro-batch, summed up."""

    partials: list[Partial]
    """By queue, window and group."""
    created: int
    """When the oldest message was made, microseconds since 1970; 0 if there was none."""
    stored: int
    """When the oldest message was stored."""


def needed(board: Board) -> tuple[str, ...]:
    """The columns of the row that a board's expressions may use, in order."""
    words = set(re.findall(r"\w+", " ".join(board.expressions)))
    always = {*rows.PLACE, "created", "timestamp"}
    if board.json:
        always.add("body")
    # Spark compares names without regard to case.
    words = {word.lower() for word in words}
    return tuple(name for name in rows.COLUMNS if name in always or name in words)


def check(spark: "SparkSession", board: Board) -> None:
    """Let Spark parse each expression before the job begins.

    Raises:
        PipelineError: names the field, the expression, and what is wrong with it.
    """
    from pyspark.errors import AnalysisException

    frame = spark.createDataFrame([], rows.DDL)
    try:
        frame = _with_json(frame, board)
    except AnalysisException as error:
        right = 'write names and types: "cents bigint, at timestamp"'
        raise _wrong("json", board.json, error, right) from None
    tried = [("event", board.event, "a timestamp"), ("where", board.where, "true or false")]
    tried += [("by", named.expression, "a value") for named in board.by]
    tried += [("sum", named.expression, "a number") for named in board.sums]
    tried += [("distinct", named.expression, "a value") for named in board.distincts]
    for name, expression, what in tried:
        if not expression:
            continue
        try:
            (kind,) = (kind for _, kind in frame.selectExpr(f"({expression})").dtypes)
        except AnalysisException as error:
            right = f"the columns are {', '.join(frame.columns)}"
            raise _wrong(name, expression, error, right) from None
        if not _fits(what, kind):
            raise PipelineError(
                f"the board's field {name}: {expression} is of type {kind}, not {what}",
                f"make it one: CAST({expression} AS {_CASTS[what]})",
            )


def columns(frame: "DataFrame", board: Board) -> "DataFrame":
    """The columns of messages that are summed up: a part of the stream's plan."""
    length = board.window_ms * 1000
    if board.json:
        frame = _with_json(frame, board)
    if board.where:
        frame = frame.where(board.where)
    at, stored = f"unix_micros({board.event})", "unix_micros(timestamp)"
    is_usable = f"coalesce({at} <= {stored} + {board.ahead_ms * 1000}L, false)"
    kinds = dict(frame.selectExpr(
        *(f"({named.expression}) AS s{place}" for place, named in enumerate(board.sums))
    ).dtypes) if board.sums else {}  # fmt: skip
    return frame.selectExpr(
        "topic", "queue", "offset",
        f"IF({is_usable}, {at} - pmod({at}, {length}L), NULL) AS start",
        *(f"IF({is_usable}, CAST(({named.expression}) AS STRING), NULL) AS g{place}"
          for place, named in enumerate(board.by)),
        *(f"CAST(({named.expression}) AS {'BIGINT' if kinds[f's{place}'] in _WHOLE else 'DOUBLE'})"
          f" AS s{place}" for place, named in enumerate(board.sums)),
        *(f"{hyperloglog.code_of(named.expression)} AS d{place}"
          for place, named in enumerate(board.distincts)),
        f"{at} AS event", "unix_micros(created) AS created", f"{stored} AS stored",
    )  # fmt: skip


class Summing:
    """Sums up micro-batches of one board."""

    def __init__(self, board: Board) -> None:
        self._board = board
        keys = ", ".join(
            ["topic", "queue", "start", *(f"g{place}" for place in range(len(board.by)))]
        )
        measures = [f"coalesce(sum(s{place}), 0) AS s{place}" for place in range(len(board.sums))]
        measures += [f"collect_set(d{place}) AS d{place}" for place in range(len(board.distincts))]
        self._query = (
            f"SELECT {', '.join([keys, 'count(1) AS n', *measures])}, max(event) AS newest,"
            " min(offset) AS first, max(offset) + 1 AS next,"
            f" min(created) AS created, min(stored) AS stored FROM {_VIEW} GROUP BY {keys}"
        )

    def sum(self, batch: "DataFrame", skipped: Mapping[Place, int] | None = None) -> Summed:
        """Sum up a batch of `columns`.

        Args:
            batch: what Spark gives to `foreachBatch`.
            skipped: queue → rows below this offset are left out.
        """
        for (topic, queue), following in (skipped or {}).items():
            name = topic.replace("'", "''")
            batch = batch.where(
                f"NOT (topic = '{name}' AND queue = {queue} AND offset < {following})"
            )
        # Spark parses one text faster than Python builds a plan call by call.
        batch.createOrReplaceTempView(_VIEW)
        return summed(batch.sparkSession.sql(self._query).toArrow(), self._board)


def summed(table: "pa.Table", board: Board) -> Summed:
    """The rows of a summed-up batch as `Partial`s."""

    def column(name: str) -> list[Any]:
        values: list[Any] = table.column(name).to_pylist()
        return values

    none: list[tuple[Any, ...]] = [()] * table.num_rows
    groups = [column(f"g{place}") for place in range(len(board.by))]
    sums = [column(f"s{place}") for place in range(len(board.sums))]
    codes = [_arrays(table, f"d{place}") for place in range(len(board.distincts))]
    partials = [
        Partial(*row)
        for row in zip(
            zip(column("topic"), column("queue"), strict=True),
            column("start"),
            zip(*groups, strict=True) if groups else none,
            column("n"),
            zip(*sums, strict=True) if sums else none,
            zip(*codes, strict=True) if codes else none,
            column("newest"), column("first"), column("next"),
            strict=True,
        )
    ]  # fmt: skip
    return Summed(partials, min(column("created"), default=0), min(column("stored"), default=0))


def _arrays(table: "pa.Table", name: str) -> list["np.ndarray[Any, np.dtype[np.int32]]"]:
    lists = table.column(name).combine_chunks()
    values, ends = lists.values.to_numpy(), lists.offsets.to_numpy()
    return [values[start:end] for start, end in pairwise(ends)]


def _with_json(frame: "DataFrame", board: Board) -> "DataFrame":
    from pyspark.sql.functions import from_json

    if not board.json:
        return frame
    return frame.withColumn("json", from_json(frame["body"].cast("string"), board.json))


_CASTS = {"a timestamp": "TIMESTAMP", "true or false": "BOOLEAN", "a number": "BIGINT",
          "a value": "STRING"}  # fmt: skip


def _fits(what: str, kind: str) -> bool:
    match what:
        case "a timestamp":
            return kind == "timestamp"
        case "true or false":
            return kind == "boolean"
        case "a number":
            return kind in {*_WHOLE, "float", "double"} or kind.startswith("decimal")
        case _:
            return not kind.startswith(("map", "variant"))


def _wrong(field: str, text: str, error: Exception, right: str) -> PipelineError:
    said = str(error).strip().partition("\n")[0].rstrip(".")
    return PipelineError(f"the board's field {field}: {text}: {said[:300]}", right)
