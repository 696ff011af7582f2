"""A recorded history as Spark's workers read it: row groups of Parquet, as columns of numbers.

The columns are those of `raftmq.checkers.history`. A history is one file, or a folder: then the
Parquet files in it and below are its parts, in the order of their names. The order of rows is the
only clock that a verdict rests on, so each row gets its number, counted through all parts.

Workers read the files themselves, a row group at a time, and pass on the output of a *kernel* over
the columns: bitmaps, or the few rows that matter. No row becomes a Python object.

Invariants:
- A worker holds one batch of `BATCH_ROWS` rows, however large the history is.

Left out: a check that an operation's invoke comes before its end; `survey` checks that it has an
invoke.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from raftmq.checkers import traffic
from raftmq.checkers.history import NONE, Integers, RowType
from raftmq.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Codes = NDArray[np.int8]

COLUMNS = ("operation", "process", "type", "function", "key", "value", "offset", "time")
MORE = ("process", "offset", "key", "value")
"""Columns that only some scans of a history need."""
TYPES = tuple(one.name.lower() for one in RowType)
INVOKE, OK, FAIL, UNKNOWN = map(int, RowType)
FUNCTIONS = (traffic.SEND, traffic.POLL, traffic.ACK, traffic.ASSIGN)
SEND, POLL, ACK, ASSIGN = range(4)
OTHER = 4
"""The code of a function that is not judged here."""

BATCH_ROWS = 1 << 18
"""Rows that a worker reads at once: some tens of megabytes."""
TASKS_A_CORE = 4
"""Tasks a core: with several, the last ones end at about the same time."""

_NO_NUMBERS = pa.array([], pa.int64())
_NO_TEXTS = pa.array([], pa.string())
_FORMAT = "a history has the columns of raftmq.checkers.write_parquet: " + ", ".join(COLUMNS)


class Part(NamedTuple):
    """A row group."""

    path: str
    group: int
    """The number of the row group in the file."""
    first_row: int
    """The number of its first row in the history, counted through all files."""
    rows: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """A history on disk."""

    name: str
    """The path as it was given."""
    parts: tuple[Part, ...]
    bytes: int
    """Size of all files."""

    @property
    def rows(self) -> int:
        """Rows of all parts."""
        return sum(part.rows for part in self.parts)

    @property
    def files(self) -> int:
        """Number of files."""
        return len({part.path for part in self.parts})


class Rows(NamedTuple):
    """Some rows that follow each other, by columns; a column that was not asked for is empty."""

    part: int
    """Number of the first row of their row group."""
    row: Integers
    operation: Integers
    type: Codes
    """An index into `TYPES`."""
    function: Codes
    """An index into `FUNCTIONS`, or `OTHER`."""
    others: frozenset[str]
    """Names of functions that are not judged here."""
    process: Integers
    offset: Integers
    """`NONE` where there is none."""
    key: pa.Array
    value: pa.Array
    """As JSON."""


Kernel = Callable[[Iterator[Rows]], Iterator[pa.RecordBatch]]


def find(path: str | Path) -> Recorded:
    """The row groups of a history; only the ends of its files are read.

    Raises:
        PipelineError: there is no Parquet file, or one that is no history.
    """
    path = Path(path)
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    if not files:
        raise PipelineError(
            f"there is no history in {path}", "give a Parquet file, or their folder"
        )
    parts: list[Part] = []
    row = 0
    for file in files:
        for group, rows in enumerate(_group_rows(file)):
            parts.append(Part(str(file), group, row, rows))
            row += rows
    return Recorded(str(path), tuple(parts), sum(file.stat().st_size for file in files))


def _group_rows(file: Path) -> list[int]:
    try:
        metadata = pq.read_metadata(file)
    except (pa.ArrowException, OSError) as error:
        raise PipelineError(f"{file} is not a Parquet file ({error})", _FORMAT) from error
    missing = sorted(set(COLUMNS) - set(metadata.schema.to_arrow_schema().names))
    if missing:
        raise PipelineError(f"{file} has no column {', '.join(missing)}", _FORMAT)
    return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


def scan(
    spark: "SparkSession", recorded: Recorded, kernel: Kernel, schema: str, *more: str
) -> "DataFrame":
    """The output of a kernel, which is called once a task, on some row groups in order.

    Args:
        spark: the session that runs it.
        recorded: the history.
        kernel: from batches of rows to record batches of `schema`.
        schema: Spark's schema of the kernel's output.
        more: the columns of `MORE` that it needs.
    """
    parts = recorded.parts
    tasks = max(1, min(len(parts), spark.sparkContext.defaultParallelism * TASKS_A_CORE))

    def run(places: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        chosen = [parts[place] for batch in places for place in batch.column(0).to_pylist()]
        return kernel(read(chosen, *more))

    return spark.range(0, len(parts), 1, tasks).mapInArrow(run, schema)


def read(parts: Iterable[Part], *more: str) -> Iterator[Rows]:
    """The rows of some row groups, in order, with these columns beside operation and type.

    Raises:
        PipelineError: a row without a type, function, operation or process, or of an unknown type.
    """
    wanted = ["operation", "type", "function", *more]
    for part in parts:
        with pq.ParquetFile(part.path, read_dictionary=["type", "function", "key"]) as file:
            row = part.first_row
            for batch in file.iter_batches(BATCH_ROWS, [part.group], wanted, use_threads=False):
                yield _rows(part, row, batch)
                row += len(batch)


def _rows(part: Part, row: int, batch: pa.RecordBatch) -> Rows:
    columns = {name: batch.column(name) for name in batch.schema.names}
    for name in columns.keys() - {"offset", "key", "value"}:
        if columns[name].null_count:
            raise PipelineError(f"{part.path}: a row has no {name}", _FORMAT)
    types, unknown = _coded(columns["type"], TYPES)
    if unknown:
        raise PipelineError(
            f"{part.path}: a row is of type {min(unknown)}", f"use {', '.join(TYPES)}"
        )
    functions, others = _coded(columns["function"], FUNCTIONS)
    return Rows(
        part.first_row,
        np.arange(row, row + len(batch), dtype=np.int64),
        _numbers(columns["operation"]),
        types,
        functions,
        others,
        _numbers(columns.get("process", _NO_NUMBERS)),
        _numbers(pc.fill_null(columns.get("offset", _NO_NUMBERS), NONE)),
        columns.get("key", _NO_TEXTS),
        columns.get("value", _NO_TEXTS),
    )


def _numbers(column: pa.Array) -> Integers:
    numbers: Integers = column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return numbers


def _coded(column: pa.Array, names: Sequence[str]) -> tuple[Codes, frozenset[str]]:
    """Texts as indexes into `names`, or one past the end; and the texts that are not there."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    texts = column.dictionary.to_pylist()
    places = {name: place for place, name in enumerate(names)}
    codes = np.array([places.get(text.lower(), len(names)) for text in texts], np.int8)
    indices = column.indices.to_numpy(zero_copy_only=False)
    used = np.unique(indices) if (codes == len(names)).any() else ()
    return codes[indices], frozenset(texts[one] for one in used if codes[one] == len(names))


def plain(column: pa.Array) -> pa.Array:
    """A text column without a dictionary."""
    return column.cast(pa.string()) if column.type != pa.string() else column
