"""Clients' calls and their answers: the one input of every checker.

A history is a table of *rows* in the order in which they happened. An operation begins with an
`invoke` and ends with `ok` (it happened), `fail` (it did not and never will) or `unknown` (it may
have happened, or may still); an operation without an end counts as unknown. A call with several
messages has a row for each, in order, all with the same operation number. The order of rows is the
only clock a verdict rests on: if `ok` of one operation stands before `invoke` of another, the first
was over before the second began.

| column | type | meaning |
|---|---|---|
| operation | int64 | number of the operation, from 0 |
| process | int64 | the caller: a producer, a consumer, a client thread |
| type | `RowType` | invoke, ok, fail, unknown |
| function | text | the function called, see below |
| key | text or none | queue, ordering key or register that the value was sent to or read from |
| value | JSON or none | message body or register value; each written value is unique |
| offset | int64 or none | the place that the system gave or showed |
| time | int64 | nanoseconds of the recorder's clock, for reports and lags |

Functions that checkers know: `send`, `poll`, `ack`, `assign` (queues: `assign` says that the
process starts to read from another place), `read`, `write`, `cas` (registers), `get`, `put`,
`append` (text), `enqueue`, `dequeue`, `acquire`, `release`.

    >>> recorder = Recorder()
    >>> send = recorder.invoke(0, "send", key="q", value=recorder.unique_value())
    >>> recorder.ok(send, offset=0)
    >>> poll = recorder.invoke(1, "poll", key="q")
    >>> recorder.ok_many(poll, [("q", 0, 0)])
    >>> len(recorder.history())
    4

In memory and in files each text or value is stored once and named by its place (`keys`, `values`);
-1 stands for none. As Parquet the columns `function`, `key` and `value` are dictionary-encoded
text, values as JSON, so that pandas or Spark can read them directly.

Invariants:
- `operation` numbers are dense; every operation has at least one invoke row, before all others.
- A `History` never changes once made.

Sources: Jepsen's histories and their ok / fail / info; Arrow's dictionary encoding.
"""

import itertools
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa

Integers: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]
Value: TypeAlias = Hashable
"""None, a bool, number or text, or a tuple of those: the JSON values that can be hashed."""

NONE = -1
"""The code of a missing key, value or offset."""


class RowType(IntEnum):
    """The meaning of a row for its operation."""

    INVOKE = 0
    """The operation begins."""
    OK = 1
    """The operation happened, before this row."""
    FAIL = 2
    """The operation did not happen and never will."""
    UNKNOWN = 3
    """The operation may have happened, or may happen at any later time."""


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """A table of rows; see the module's heading for the columns."""

    operation: Integers
    process: Integers
    type: Integers
    function: Integers
    key: Integers
    value: Integers
    offset: Integers
    time: Integers
    functions: Sequence[str]
    keys: Sequence[str]
    values: Sequence[Value]

    def __len__(self) -> int:
        return len(self.operation)

    @property
    def operation_count(self) -> int:
        """Operations in all, ended or not."""
        return int(self.operation.max()) + 1 if len(self) else 0

    def outcomes(self) -> Integers:
        """By operation: the `RowType` of its end; UNKNOWN if it has none."""
        outcomes = np.full(self.operation_count, RowType.UNKNOWN, np.int64)
        is_end = self.type != RowType.INVOKE
        outcomes[self.operation[is_end]] = self.type[is_end]
        return outcomes

    def is_function(self, *names: str) -> Flags:
        """By row: whether its function is one of `names`."""
        codes = [code for code, name in enumerate(self.functions) if name in names]
        return np.isin(self.function, codes)

    def select(self, rows: Flags | Integers) -> "History":
        """A history of the given rows, in order, with dense operation numbers."""
        operation = np.unique(self.operation[rows], return_inverse=True)[1]
        return History(
            operation.astype(np.int64),
            self.process[rows],
            self.type[rows],
            self.function[rows],
            self.key[rows],
            self.value[rows],
            self.offset[rows],
            self.time[rows],
            self.functions,
            self.keys,
            self.values,
        )

    def describe(self, row: int) -> str:
        """One row as text, in the style of a Jepsen log."""
        key, value, offset = (int(column[row]) for column in (self.key, self.value, self.offset))
        parts = [f"{row:>7}", f"process {self.process[row]}", RowType(self.type[row]).name.lower()]
        parts.append(self.functions[int(self.function[row])])
        parts += [] if key == NONE else [f"key={self.keys[key]}"]
        parts += [] if value == NONE else [f"value={self.values[value]!r}"]
        parts += [] if offset == NONE else [f"offset={offset}"]
        return " ".join(parts)


class _Interner:
    """Gives each distinct value a number."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self._codes: dict[Hashable, int] = {}

    def code(self, value: Value) -> int:
        if value is None:
            return NONE
        # 1, 1.0 and True are equal in Python, but different values of a history.
        name = (type(value), value) if isinstance(value, bool | float) else value
        code = self._codes.get(name)
        if code is None:
            code = self._codes[name] = len(self.values)
            self.values.append(value)
        return code


class Recorder:
    """Records a history while it happens; may be used from any number of threads.

    `invoke` is called just before the call to the system under test, the others just after it
    returned or raised: rows written any earlier or later would make a verdict wrong.
    """

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """`clock` returns nanoseconds; a simulated world passes its own."""
        self._clock = clock
        self._lock = threading.Lock()
        self._unique = itertools.count()
        self._rows: list[tuple[int, int, int, int, int, int, int, int]] = []
        self._functions, self._keys, self._values = _Interner(), _Interner(), _Interner()
        self._invoked: list[tuple[int, int, int, int]] = []

    def unique_value(self) -> int:
        """A number that this recorder never returned before: write each value once."""
        with self._lock:
            return next(self._unique)

    def invoke(
        self, process: int, function: str, key: str | None = None, value: Value = None
    ) -> int:
        """Record that an operation begins; the result is its number, for the calls below."""
        return self.invoke_many(process, function, [(key, value)])

    def invoke_many(
        self, process: int, function: str, messages: Iterable[tuple[str | None, Value]]
    ) -> int:
        """Record that an operation on several messages begins."""
        with self._lock:
            operation, name = len(self._invoked), self._functions.code(function)
            codes = [(self._keys.code(key), self._values.code(value)) for key, value in messages]
            # An operation without messages needs a row, too: it would have no begin.
            codes = codes or [(NONE, NONE)]
            self._invoked.append((process, name, *codes[0]))
            now = self._clock()
            for key, value in codes:
                self._rows.append((operation, process, RowType.INVOKE, name, key, value, NONE, now))
            return operation

    def ok(self, operation: int, *, value: Value = None, offset: int | None = None) -> None:
        """Record that it happened; `value` is the value read, by default the value written."""
        with self._lock:
            code = self._values.code(value)
            self._end(operation, RowType.OK, value=code, offset=NONE if offset is None else offset)

    def ok_many(
        self, operation: int, messages: Iterable[tuple[str | None, Value, int | None]]
    ) -> None:
        """Record that it happened, to these messages: (key, value, offset), in order."""
        process, name, _, _ = self._invoked[operation]
        with self._lock:
            now = self._clock()
            rows = [
                (
                    operation, process, int(RowType.OK), name, self._keys.code(key),
                    self._values.code(value), NONE if offset is None else offset, now,
                )
                for key, value, offset in messages
            ]  # fmt: skip
            self._rows += rows or [(operation, process, RowType.OK, name, NONE, NONE, NONE, now)]

    def fail(self, operation: int) -> None:
        """Record that it did not happen and never will. When in doubt, call `unknown`."""
        with self._lock:
            self._end(operation, RowType.FAIL)

    def unknown(self, operation: int) -> None:
        """Record that it may have happened, as after a timeout or a lost connection."""
        with self._lock:
            self._end(operation, RowType.UNKNOWN)

    def _end(
        self, operation: int, row_type: RowType, *, value: int = NONE, offset: int = NONE
    ) -> None:
        process, name, key, written = self._invoked[operation]
        value = written if value == NONE else value
        self._rows.append((operation, process, row_type, name, key, value, offset, self._clock()))

    def history(self) -> History:
        """The history recorded until now."""
        with self._lock:
            table = np.array(self._rows, np.int64).reshape(-1, 8)
            functions = [str(text) for text in self._functions.values]
            keys = [str(text) for text in self._keys.values]
            values = list(self._values.values)
        operation, process, row_type, function, key, value, offset, stamp = (
            np.ascontiguousarray(column) for column in table.T
        )
        return History(
            operation, process, row_type, function, key, value, offset, stamp,
            functions, keys, values,
        )  # fmt: skip


def write_parquet(history: History, path: str | Path) -> None:
    """Store a history; needs the extra `chaos` (pyarrow)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def coded(codes: Integers, texts: Sequence[str]) -> pa.Array:
        indices = pa.array(codes, pa.int32(), mask=codes == NONE)
        return pa.DictionaryArray.from_arrays(indices, pa.array(texts, pa.string()))

    types = [one.name.lower() for one in RowType]
    texts = [msgspec.json.encode(value).decode() for value in history.values]
    table = pa.table(
        {
            "operation": history.operation,
            "process": history.process,
            "type": coded(history.type, types),
            "function": coded(history.function, history.functions),
            "key": coded(history.key, history.keys),
            "value": coded(history.value, texts),
            "offset": pa.array(history.offset, mask=history.offset == NONE),
            "time": history.time,
        }
    )
    pq.write_table(table, path, compression="zstd")


class NotAHistory(ValueError):
    """A file is not a history in a known format; the message says what is wrong, and where."""


def read_parquet(path: str | Path) -> History:
    """Load a history that `write_parquet` stored, or one of the same columns made elsewhere.

    Raises:
        NotAHistory: the file is not Parquet, a column is missing, or an operation has no invoke.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted = ["operation", "process", "type", "function", "key", "value", "offset", "time"]
    try:
        table = pq.read_table(path, columns=wanted).combine_chunks()
        numbers = [
            table[name].fill_null(NONE).to_numpy().astype(np.int64, copy=False)
            for name in ("operation", "process", "offset", "time")
        ]
        texts = [_coded(table[name]) for name in ("type", "function", "key", "value")]
        types = np.array([RowType[text.upper()] for text in texts[0][1]], np.int64)
        values = [_hashable(msgspec.json.decode(text)) for text in texts[3][1]]
    except (pa.ArrowException, KeyError, OSError, ValueError) as problem:
        raise NotAHistory(f"{path} is not a history as Parquet: {problem}") from problem
    if (texts[0][0] == NONE).any() or (texts[1][0] == NONE).any():
        raise NotAHistory(f"{path}: a row has no type or no function")
    operation = np.unique(numbers[0], return_inverse=True)[1].astype(np.int64)
    row_types = types[texts[0][0]] if len(operation) else operation
    _require_invokes(path, operation, row_types)
    return History(
        operation, numbers[1], row_types, texts[1][0], texts[2][0], texts[3][0],
        numbers[2], numbers[3], texts[1][1], texts[2][1], values,
    )  # fmt: skip


def _coded(column: "pa.ChunkedArray") -> tuple[Integers, list[str]]:
    """A text column as codes, and the texts that the codes stand for."""
    import pyarrow as pa

    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    # Each chunk may have its own dictionary, so that codes of two chunks differ in meaning.
    array = column.unify_dictionaries().combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], column.type)
    codes = array.indices.fill_null(NONE).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes, array.dictionary.to_pylist()


def _hashable(value: object) -> Value:
    """A decoded JSON value with tuples instead of lists."""
    if isinstance(value, list):
        return tuple(_hashable(item) for item in value)
    if isinstance(value, dict):
        raise ValueError("a value is a JSON object; only texts, numbers and lists are known")
    assert value is None or isinstance(value, bool | int | float | str), value
    return value


def _require_invokes(path: str | Path, operation: Integers, types: Integers) -> None:
    """Every operation starts with an invoke row."""
    first = np.unique(operation, return_index=True)[1]
    bad = first[types[first] != RowType.INVOKE]
    if len(bad):
        raise NotAHistory(f"{path}: the operation of row {int(bad[0])} has no invoke before it")
