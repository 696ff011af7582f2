"""One side of a reconciliation: the place of its rows, and expressions for their key and amount.

| side | rows |
|---|---|
| `topic:orders` | of the topic, up to where it ends when the side is pinned |
| `archive:PATH?topic=orders` | of an archive; all its topics without `topic` |
| `parquet:PATH` | of a Parquet file or folder |
| `csv:PATH` | of a CSV file or folder with a header; all columns are text |
| `sqlite:PATH?table=payments` | of a table of an SQLite database, as it is when it is read |

Key, amount, identity and order are SQL expressions over the row. Rows of topics and archives are
those of `raftmq.pipeline.rows`, with `body_text` beside: the body as text. The loaded columns:

| column | type | meaning |
|---|---|---|
| key | string | what rows of both sides have in common |
| amount | decimal(28,9) | what has to agree in sum; 1 if no amount is named |
| at | string or other | what rows of a key are ordered by; only if it is asked for |
| place | string | of a row of a topic or archive: `orders/3/17`; else null |

A row whose key or amount is null, or whose amount is no number, is on neither side: it is counted
as unreadable.

Invariants:
- A side that was pinned gives the same rows each time it is read.
"""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

import pyarrow as pa

from raftmq.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KINDS = ("topic", "archive", "parquet", "csv", "sqlite")
AMOUNT = "decimal(28,9)"
"""The type of amounts: further digits behind the point are rounded; more before it are
unreadable."""
_SETTINGS = {"archive": {"topic"}, "sqlite": {"table"}}
_SQLITE_ROWS = 10_000
_EXAMPLES = "topic:orders, archive:PATH, parquet:PATH, csv:PATH, sqlite:PATH?table=NAME"


@dataclass(frozen=True, slots=True)
class Side:
    """The place of rows, and the expressions that are compared."""

    kind: str
    """One of `KINDS`."""
    where: str
    """A topic's name, or a path."""
    key: str
    """SQL expression."""
    amount: str = "1"
    """SQL expression."""
    identity: str = ""
    """SQL expression: of rows with equal values only one counts. Empty: each counts."""
    order: str = ""
    """SQL expression; empty: the time at which the leader stored a row, if there is one."""
    part: str = ""
    """The table of a database, or the topic of an archive."""
    ends: str = ""
    """The end of a topic, as the source's `endingOffsets`. Empty: not pinned, or no topic."""
    url: str = ""
    """The cluster of a topic. Empty: `RAFTMQ_URL`."""

    @classmethod
    def parse(
        cls, text: str, *, key: str, amount: str = "1", identity: str = "", order: str = ""
    ) -> "Side":
        """Read a side as people write it: see the module's table.

        Raises:
            PipelineError: the text is none of these.

        >>> side = Side.parse("sqlite:shop.db?table=paid", key="id")
        >>> side.kind, side.where, side.part
        ('sqlite', 'shop.db', 'paid')
        """
        kind, colon, rest = text.partition(":")
        where, _, query = rest.partition("?")
        settings = dict(parse_qsl(query))
        if not colon or kind not in KINDS or not where:
            raise PipelineError(f"{text!r} names no side", f"write one of {_EXAMPLES}")
        strange = settings.keys() - _SETTINGS.get(kind, set())
        if strange or (kind == "sqlite" and "table" not in settings):
            what = f"has no setting {min(strange)}" if strange else "names no table"
            raise PipelineError(f"{text!r} {what}", f"write one of {_EXAMPLES}")
        part = settings.get("table", settings.get("topic", ""))
        return cls(kind, where, key, amount, identity, order, part)

    @property
    def name(self) -> str:
        """As people write it."""
        query = {"sqlite": "?table=", "archive": "?topic="}.get(self.kind, "")
        return f"{self.kind}:{self.where}" + (query + self.part if self.part else "")

    @property
    def has_places(self) -> bool:
        """Whether its rows are messages, with a place and a time."""
        return self.kind in ("topic", "archive")

    def pinned(self, url: str = "") -> "Side":
        """The same side, up to the present end of its topic; asks this cluster for the end.

        Raises:
            PipelineError: there is no such topic, or no such file.
            Unavailable: no node answered.
        """
        if self.kind == "topic":
            from raftmq.pipeline.source.pinning import pin

            return replace(self, ends=pin(self.where, url=url), url=url)
        if not Path(self.where).exists():
            raise PipelineError(f"{self.name}: there is no {self.where}", "correct the path")
        return self

    def load(self, spark: "SparkSession", *, is_ordered: bool = False) -> "DataFrame":
        """Its rows: `key`, `amount`, `place`, and `at` if they are to be ordered.

        Raises:
            PipelineError: an expression cannot be read or names a column that is not there, or
                rows of a table are to be ordered and no order is named.
        """
        from pyspark.errors import PySparkException
        from pyspark.sql import functions as f

        rows = self._rows(spark)
        place = "concat_ws('/', topic, queue, offset)" if self.has_places else "string(null)"
        order = self.order or ("struct(timestamp, queue, offset)" if self.has_places else "")
        if is_ordered and not order:
            raise PipelineError(
                f"the rows of {self.name} have no order", "say which: --left-order EXPRESSION"
            )
        expressions = {"key": f"string({self.key})", "amount": _amount(self.amount), "place": place}
        if is_ordered:
            expressions["at"] = order
        if self.identity:
            expressions["identity"] = f"string({self.identity})"
        try:
            found = rows.select(*(f.expr(text).alias(name) for name, text in expressions.items()))
        except PySparkException as error:
            said = str(error).partition("\n")[0]
            names = ", ".join(rows.columns)
            raise PipelineError(f"{self.name}: {said}", f"use the columns {names}") from error
        if self.identity:
            # Rows without an identity are all different.
            named = found.where("identity is not null").dropDuplicates(["identity"])
            found = named.unionByName(found.where("identity is null")).drop("identity")
        return found

    def _rows(self, spark: "SparkSession") -> "DataFrame":
        match self.kind:
            case "topic":
                reader = spark.read.format("raftmq").option("subscribe", self.where)
                if self.url:
                    reader = reader.option("url", self.url)
                found = reader.option("endingOffsets", self.ends or "latest").load()
            case "archive":
                from raftmq.pipeline import archive

                found = archive.read(spark, self.where, topics=[self.part] if self.part else None)
            case "parquet":
                return spark.read.parquet(self.where)
            case "csv":
                return spark.read.option("header", "true").csv(self.where)
            case _:
                return _of_sqlite(spark, self.where, self.part)
        return found.selectExpr("*", "cast(body as string) as body_text")


def _amount(expression: str) -> str:
    # A text that is no number is an unreadable row, and not the end of the job.
    return f"try_cast(string({expression}) as {AMOUNT})"


def _of_sqlite(spark: "SparkSession", path: str, table: str) -> "DataFrame":
    """A table's rows; a Python worker reads them, so it has to see the file."""
    try:
        columns = _sqlite_columns(path, table)
    except sqlite3.Error as error:
        raise PipelineError(f"{path}: {error}", "name an SQLite database") from error
    if not columns:
        raise PipelineError(f"{path} has no table {table}", "`sqlite3 FILE .tables` lists them")
    names = ", ".join(_quoted(name) for name in columns)
    schema = pa.schema([(name, pa.string()) for name in columns])

    def read(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        texts = ", ".join(f"cast({_quoted(name)} as text)" for name in columns)
        with _opened(path) as database:
            cursor = database.execute(f"select {texts} from {_quoted(table)}")
            while rows := cursor.fetchmany(_SQLITE_ROWS):
                arrays = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    ddl = ", ".join(f"`{name.replace('`', '``')}` string" for name in columns)
    assert names
    return spark.range(0, 1, 1, 1).mapInArrow(read, ddl)


def _sqlite_columns(path: str, table: str) -> list[str]:
    with _opened(path) as database:
        return [row[1] for row in database.execute(f"pragma table_info({_quoted(table)})")]


def _opened(path: str) -> sqlite3.Connection:
    # Read only: a missing file must not be created.
    return sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
