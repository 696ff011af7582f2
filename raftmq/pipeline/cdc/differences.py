"""The rows in which a table and its rebuilt one differ, if their digests do.

    DIR/.verify/rows.parquet     key and digest of each row in the database, while `verify` runs
    DIR/.verify/LOCK             held by the process that writes and reads them

The database is read once, at one place; so the digest of each row is noted then, and used only if
the whole differs. A key is the text of its values, as a row's in `digest`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from raftmq.pipeline import durable

from .change import Row, Table
from .digest import row_digest, row_digest_in_spark, row_text, row_text_in_spark, values_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EXAMPLES = 10
"""Rows that are named."""
_ROWS = 65_536
"""Rows that are noted at once."""
_SCHEMA = pa.schema([("key", pa.string()), ("digest", pa.string())])


class Difference(NamedTuple):
    """A row that is not the same on both sides."""

    key: str
    """The primary key of the row; of several columns, their values with commas between."""
    found: str
    """`altered`, `missing` (only the database has it), `extra` (only the rebuilt table has it), or
    `doubled`."""


class Differences(NamedTuple):
    """The differences of the two sides."""

    rows: int
    """How many keys differ."""
    first: list[Difference]
    """The first `EXAMPLES` of them, in the order of the text of their keys."""


@contextmanager
def notes(folder: Path) -> Iterator[Path]:
    """A file to note rows in, which is removed at the end.

    Raises:
        PipelineError: another `verify` notes rows there.
    """
    place = folder / ".verify"
    place.mkdir(exist_ok=True)
    with durable.locked(place / "LOCK", busy=f"another verify of {folder} is running"):
        path = place / "rows.parquet"
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)


def noting(rows: Iterator[Row], table: Table, path: Path) -> Iterator[str]:
    """The digest of each row, which goes into the file with the row's key."""
    names = table.key
    with pq.ParquetWriter(path, _SCHEMA, compression="zstd") as file:
        while several := list(islice(rows, _ROWS)):
            keys = [row_text([row[name] for name in names]) for row in several]
            digests = [row_digest(row.values()) for row in several]
            file.write_batch(pa.record_batch([keys, digests], schema=_SCHEMA))
            yield from digests


def differing(noted: Path, rebuilt: "DataFrame", table: Table) -> Differences:
    """The rows that were noted, and are not the same in the rebuilt table.

    Args:
        noted: what `noting` wrote.
        rebuilt: the rebuilt table, columns as in `versions`.
        table: its columns.
    """
    from pyspark.sql import functions as f

    columns = {column.name: column for column in table.columns}
    there = rebuilt.select(
        row_text_in_spark(columns[name] for name in table.key).alias("key"),
        row_digest_in_spark(table.columns).alias("digest"),
    )
    here = rebuilt.sparkSession.read.parquet(str(noted))
    joined = _by_key(here, "here").join(_by_key(there, "there"), "key", "full_outer")
    found = (
        f.when(f.col("there").isNull(), "missing")
        .when(f.col("here").isNull(), "extra")
        .when(f.size("there") > 1, "doubled")
        .otherwise("altered")
    )
    apart = joined.where(~f.col("here").eqNullSafe(f.col("there")))
    apart = apart.select("key", found.alias("found")).persist()
    try:
        first = apart.orderBy("key").limit(EXAMPLES).collect()
        shown = [Difference(", ".join(values_of(row["key"])), row["found"]) for row in first]
        return Differences(apart.count(), shown)
    finally:
        # The next run's file has the same name: Spark would take these rows for the next ones.
        apart.unpersist()


def _by_key(rows: "DataFrame", side: str) -> "DataFrame":
    from pyspark.sql import functions as f

    return rows.groupBy("key").agg(f.array_sort(f.collect_list("digest")).alias(side))
