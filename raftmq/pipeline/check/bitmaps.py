"""Sets of numbers as bitmaps, made by many tasks and merged by Spark.

The question whether an acknowledged message was ever delivered is about two sets. A join moves
every row to its counterpart; bitmaps move one bit a message: 12 MB for 10^8.

A task adds numbers to its `Bits`, and passes them on in *buckets* of `BUCKET` numbers, which
Spark's `bitmap_or_agg` merges. Each bucket has the count of numbers that were added to it: if the
count is above the bucket's bits in the end, a number was added twice.

| column | type | meaning |
|---|---|---|
| name | string | of the set, or of a counter |
| bucket | bigint | number // `BUCKET`; -1 for a counter |
| bits | binary | `BUCKET` / 8 bytes, the lowest bit first; null for a counter |
| count | bigint | numbers added, or what was counted |

Invariants:
- Memory is one bit for each number up to the highest: callers bound that (`DENSE`).

Sources: Spark's `bitmap_construct_agg`, whose buckets these are.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raftmq.checkers.history import Flags, Integers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Bytes = NDArray[np.uint8]

BUCKET = 4096 * 8
"""Numbers in a bucket: what Spark's bitmaps hold."""
DENSE = 8
"""The highest number may be this many times the rows of a history: a byte a row at worst."""
SCHEMA = "name string, bucket bigint, bits binary, count bigint"
_ARROW = pa.schema(
    [
        ("name", pa.string()),
        ("bucket", pa.int64()),
        ("bits", pa.binary()),
        ("count", pa.int64()),
    ]
)


class Bits:
    """A set of numbers from 0, and how many were added to each of its buckets."""

    def __init__(self) -> None:
        self._bytes: Bytes = np.zeros(0, np.uint8)
        self._counts: Integers = np.zeros(0, np.int64)

    def add(self, numbers: Integers) -> None:
        """Add numbers; a number that occurs several times counts each time."""
        if not len(numbers):
            return
        low, high = int(numbers.min()), int(numbers.max())
        self._reserve(high)
        low -= low % 8
        span = high + 1 - low
        if span <= 64 * len(numbers):
            # Close together: setting bytes and packing them is much faster than setting bits.
            marks = np.zeros(span, np.bool_)
            marks[numbers - low] = True
            packed = np.packbits(marks, bitorder="little")
            self._bytes[low // 8 : low // 8 + len(packed)] |= packed
        else:
            bit = np.left_shift(1, numbers & 7).astype(np.uint8)
            np.bitwise_or.at(self._bytes, numbers >> 3, bit)
        first = low // BUCKET
        counts = np.bincount(numbers // BUCKET - first)
        self._counts[first : first + len(counts)] += counts

    def _reserve(self, high: int) -> None:
        buckets = high // BUCKET + 1
        if buckets > len(self._counts):
            # It grows by half of its size, so that growing costs little in all.
            buckets = max(buckets, len(self._counts) * 3 // 2)
            counts, bits = np.zeros(buckets, np.int64), np.zeros(buckets * BUCKET // 8, np.uint8)
            counts[: len(self._counts)], bits[: len(self._bytes)] = self._counts, self._bytes
            self._counts, self._bytes = counts, bits

    def batch(self, name: str) -> pa.RecordBatch:
        """The buckets that hold something, as rows."""
        buckets = np.flatnonzero(self._counts)
        width = BUCKET // 8
        data = self._bytes.reshape(-1, width)[buckets]
        lengths = np.arange(len(buckets) + 1, dtype=np.int32) * width
        bits = pa.Array.from_buffers(
            pa.binary(), len(buckets), [None, pa.py_buffer(lengths), pa.py_buffer(data)]
        )
        names = pa.repeat(pa.scalar(name), len(buckets))
        return pa.record_batch(
            [names, pa.array(buckets, pa.int64()), bits, pa.array(self._counts[buckets])],
            schema=_ARROW,
        )


@dataclass(slots=True)
class Tally:
    """The findings of one task: sets, and counters."""

    sets: dict[str, Bits] = field(default_factory=dict)
    counters: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, numbers: Integers) -> None:
        """Add numbers to a set."""
        self.sets.setdefault(name, Bits()).add(numbers)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All sets and counters as rows."""
        for name, bits in self.sets.items():
            yield bits.batch(name)
        names = sorted(self.counters)
        yield pa.record_batch(
            [
                pa.array(names, pa.string()),
                pa.repeat(pa.scalar(-1, pa.int64()), len(names)),
                pa.nulls(len(names), pa.binary()),
                pa.array([self.counters[name] for name in names], pa.int64()),
            ],
            schema=_ARROW,
        )


class Bitmap:
    """A set of numbers, merged from all tasks."""

    def __init__(self, bits: Bytes | None = None, counts: Integers | None = None) -> None:
        self.bits: Bytes = np.zeros(0, np.uint8) if bits is None else bits
        self.counts: Integers = np.zeros(0, np.int64) if counts is None else counts
        """By bucket: how many numbers were added, each as often as it came."""

    def __len__(self) -> int:
        return int(np.bitwise_count(self.bits).sum(dtype=np.int64))

    @property
    def added(self) -> int:
        """How many numbers were added, each as often as it came."""
        return int(self.counts.sum())

    def __or__(self, other: "Bitmap") -> "Bitmap":
        short, long = sorted((self.bits, other.bits), key=len)
        bits = long.copy()
        bits[: len(short)] |= short
        return Bitmap(bits)

    def __and__(self, other: "Bitmap") -> "Bitmap":
        size = min(len(self.bits), len(other.bits))
        return Bitmap(self.bits[:size] & other.bits[:size])

    def __sub__(self, other: "Bitmap") -> "Bitmap":
        bits = self.bits.copy()
        size = min(len(bits), len(other.bits))
        bits[:size] &= ~other.bits[:size]
        return Bitmap(bits)

    def has(self, numbers: Integers) -> Flags:
        """By number: whether it is in the set."""
        place = numbers >> 3
        inside = (numbers >= 0) & (place < len(self.bits))
        found = np.zeros(len(numbers), np.bool_)
        bits = self.bits[place[inside]] >> (numbers[inside] & 7).astype(np.uint8)
        found[inside] = (bits & 1).astype(np.bool_)
        return found

    def has_any(self, low: int, high: int) -> bool:
        """Whether the set may have a number from `low` to `high`; true if it has one."""
        return bool(self.bits[low // 8 : high // 8 + 1].any())

    def first(self, count: int) -> list[int]:
        """The lowest numbers, at most `count`."""
        places = np.flatnonzero(self.bits)[:count]
        marks = np.unpackbits(self.bits[places], bitorder="little").reshape(-1, 8)
        rows, bits = np.nonzero(marks)
        return [int(one) for one in (places[rows] * 8 + bits)[:count]]

    def repeated(self) -> Integers:
        """By bucket: how many of the numbers added to it had been added before."""
        each = np.bitwise_count(self.bits).reshape(-1, BUCKET // 8).sum(axis=1, dtype=np.int64)
        again: Integers = self.counts - each
        return again

    def buckets(self, chosen: Integers) -> "Bitmap":
        """The part of the set that is in these buckets."""
        bits = np.zeros_like(self.bits)
        width = BUCKET // 8
        bits.reshape(-1, width)[chosen] = self.bits.reshape(-1, width)[chosen]
        return Bitmap(bits)


@dataclass(frozen=True, slots=True)
class Gathered:
    """The findings of all tasks."""

    sets: Mapping[str, Bitmap]
    counters: Mapping[str, int]

    def set(self, name: str) -> Bitmap:
        """A set; empty if no task had anything for it."""
        return self.sets.get(name) or Bitmap()

    def count(self, name: str) -> int:
        """A counter."""
        return self.counters.get(name, 0)


def gather(tallies: "DataFrame") -> Gathered:
    """Merge the tasks' rows, on the workers, and bring the result here."""
    from pyspark.sql import functions as f

    merged = tallies.groupBy("name", "bucket").agg(
        f.bitmap_or_agg("bits").alias("bits"), f.sum("count").alias("count")
    )
    table = merged.toArrow()
    is_counter = pc.less(table["bucket"], 0)
    counted = table.filter(is_counter)
    counters = dict(zip(counted["name"].to_pylist(), counted["count"].to_pylist(), strict=True))
    table = table.filter(pc.invert(is_counter))
    sets = {}
    for name in pc.unique(table["name"]).to_pylist():
        mine = table.filter(pc.equal(table["name"], name))
        bits = mine["bits"].combine_chunks()
        sets[name] = _assembled(mine["bucket"].to_numpy(), bits, mine["count"].to_numpy())
    return Gathered(sets, counters)


def _assembled(buckets: Integers, bits: pa.Array, counts: Integers) -> Bitmap:
    size = int(buckets.max()) + 1
    data, added = np.zeros((size, BUCKET // 8), np.uint8), np.zeros(size, np.int64)
    if isinstance(bits, pa.ChunkedArray):
        bits = pa.concat_arrays(bits.chunks)
    _, offsets, values = bits.buffers()
    start = np.frombuffer(offsets, np.int32)[bits.offset]
    width = BUCKET // 8
    flat = np.frombuffer(values, np.uint8)[start : start + len(buckets) * width]
    data[buckets] = flat.reshape(-1, width)
    added[buckets] = counts
    return Bitmap(data.reshape(-1), added)
