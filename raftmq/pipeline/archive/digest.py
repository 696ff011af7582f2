"""A digest of rows: equal for equal sets of rows, however they are cut and sorted.

    digest(rows) = sum of hash(row) over the rows, modulo 2^64

So the digest of a file is the sum of its parts' digests: after a compaction the digest of the new
file is compared with those of the old files, without reading both together. `hash(row)` mixes the
hashes of the row's columns:

| column | its hash |
|---|---|
| a number, a time | its 64 bits, mixed |
| text, bytes | a polynomial of its bytes modulo 2^64, with its length, mixed |
| properties | the sum over its entries of a mix of name's and value's hash |
| null | a number of its own |

A polynomial of all values of a column takes a few passes of numpy over their bytes: each byte times
a power of `_BASE`, added up from the left; the polynomial of a value is the difference of two sums,
times the power that moves it to the front. No Python object a row.

Left out: protection against forged rows. The digest finds damage, not malice.

Sources: Wegman and Carter 1981 for hashes that add up to one of a set; the mixer of SplitMix64
(Steele, Lea and Flood 2014).
"""

import numpy as np
import pyarrow as pa

_BASE = 0x9E3779B97F4A7C15 | 1
"""Odd, so that it has an inverse modulo 2^64."""
_CHUNK_BYTES = 128 * 1024
"""Bytes of values that are worked on at once: eight times as much stays in a processor's cache."""
_NULL = np.uint64(0xA0761D6478BD642F)
_LENGTH = np.uint64(0xE7037ED1A0B428DB)
_NAME = np.uint64(0x8EBC6AF09CA9D4E5)

U64 = np.ndarray[tuple[int], np.dtype[np.uint64]]
Ints = np.ndarray[tuple[int], np.dtype[np.int64]]


def digest(rows: pa.RecordBatch) -> int:
    """The digest of these rows, 0 to 2^64 - 1; of none it is 0.

    >>> rows = pa.record_batch({"queue": [0, 0, 1], "body": [b"a", b"b", None]})
    >>> digest(rows) == add(digest(rows.slice(2)), digest(rows.slice(0, 2)))
    True
    """
    mixed = np.zeros(rows.num_rows, np.uint64)
    for number, column in enumerate(rows.columns):
        seed = np.uint64((number + 1) * _BASE % 2**64)
        mixed += _mix(_hash(column) ^ seed)
    return int(_mix(mixed).sum(dtype=np.uint64))


def add(*digests: int) -> int:
    """The digest of all rows together."""
    return sum(digests) % 2**64


def _hash(column: pa.Array) -> U64:
    """The hash of each value."""
    if pa.types.is_map(column.type):
        values = _of_properties(column)
    elif pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        values = _of_bytes(column)
    else:
        numbers = column.cast(pa.int64()).fill_null(0)
        values = _mix(np.asarray(numbers).astype(np.int64, copy=False).view(np.uint64))
    if column.null_count:
        values = np.where(np.asarray(column.is_null()), _NULL, values)
    return values


def _of_properties(column: pa.MapArray) -> U64:
    starts = np.asarray(column.offsets)
    first, last = int(starts[0]), int(starts[-1])
    names = _hash(column.keys.slice(first, last - first))
    values = _hash(column.items.slice(first, last - first))
    entries = _mix(names * _NAME + values)
    # An empty name with an empty value has the hash 0, and would not count.
    sums = _sums(np.where(entries == 0, _NAME, entries))
    return _differences(sums, starts - first)


def _of_bytes(column: pa.Array) -> U64:
    starts, data = _layout(column)
    hashes = np.empty(len(column), np.uint64)
    row = 0
    while row < len(column):
        # As many values as fit, and one at least.
        end = int(np.searchsorted(starts, starts[row] + _CHUNK_BYTES, side="right")) - 1
        end = min(max(end, row + 1), len(column))
        hashes[row:end] = _polynomials(starts[row : end + 1], data)
        row = end
    return hashes


def _polynomials(starts: np.ndarray, data: np.ndarray) -> U64:
    """The hashes of the values between neighbours in `starts`."""
    at = starts - starts[0]
    powers, inverses = _powers(int(at[-1]) + 1)
    sums = _sums(data[starts[0] : starts[-1]] * powers[: at[-1]])
    polynomials = _differences(sums, at) * inverses[at[:-1]]
    return _mix(polynomials + np.diff(at).astype(np.uint64) * _LENGTH)


def _layout(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """The start of each value and the end of the last one, and the bytes."""
    _, offsets, data = column.buffers()
    starts = np.frombuffer(offsets, np.int32, len(column) + 1, column.offset * 4)
    return starts.astype(np.int64), np.frombuffer(data or b"", np.uint8)


def _sums(values: U64) -> U64:
    """The sum of the values before each place, and of all at the end."""
    sums = np.zeros(len(values) + 1, np.uint64)
    np.cumsum(values, out=sums[1:])
    return sums


def _differences(sums: U64, at: Ints) -> U64:
    """The sum of the values between each place and the next."""
    found: U64 = np.diff(sums[at])
    return found


def _mix(values: U64) -> U64:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


_tables: list[U64] = []


def _powers(count: int) -> tuple[U64, U64]:
    """The first powers of `_BASE` and of its inverse; kept for the usual size of a chunk."""
    if count > _CHUNK_BYTES + 1:
        return _table(_BASE, count), _table(pow(_BASE, -1, 2**64), count)
    if not _tables:
        size = _CHUNK_BYTES + 1
        _tables.extend((_table(_BASE, size), _table(pow(_BASE, -1, 2**64), size)))
    return _tables[0], _tables[1]


def _table(base: int, count: int) -> U64:
    table = np.full(count, base, np.uint64)
    table[0] = 1
    return np.cumprod(table)
