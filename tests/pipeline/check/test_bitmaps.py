"""Bitmaps are the sets that they stand for, however they are made and cut."""

import pickle

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from raftmq.pipeline.check.bitmaps import BUCKET, Bitmap, Bits, _assembled

near = st.lists(st.integers(0, 3 * BUCKET), max_size=60)
far = st.lists(st.integers(0, 10**7), max_size=20)
numbers = near | far


def made(*parts: list[int]) -> Bitmap:
    """The bitmap of all parts, each added at once."""
    bits = Bits()
    for part in parts:
        bits.add(np.array(part, np.int64))
    batch = bits.batch("a")
    if not len(batch):
        return Bitmap()
    return _assembled(batch["bucket"].to_numpy(), batch["bits"], batch["count"].to_numpy())


@given(numbers, numbers)
def test_bitmap_holds_what_was_added(one: list[int], other: list[int]) -> None:
    bitmap = made(one, other)
    assert len(bitmap) == len({*one, *other})
    assert bitmap.added == len(one) + len(other)
    assert bitmap.first(10**6) == sorted({*one, *other})
    assert bitmap.first(3) == sorted({*one, *other})[:3]
    assert bitmap.repeated().sum() == len(one) + len(other) - len({*one, *other})


@given(numbers, numbers)
def test_operations_are_those_of_sets(one: list[int], other: list[int]) -> None:
    left, right = made(one), made(other)
    assert (left | right).first(10**6) == sorted({*one} | {*other})
    assert (left & right).first(10**6) == sorted({*one} & {*other})
    assert (left - right).first(10**6) == sorted({*one} - {*other})
    asked = np.array([*one, *other, -1, 10**9], np.int64)
    found = pickle.loads(pickle.dumps(left)).has(asked)
    assert list(found) == [number in one for number in asked.tolist()]


def test_repeats_are_found_in_their_bucket() -> None:
    bitmap = made([1, 2, BUCKET + 5], [BUCKET + 5, BUCKET + 5])
    assert bitmap.repeated().tolist() == [0, 2]
    assert bitmap.buckets(np.array([1])).first(9) == [BUCKET + 5]


def test_buckets_have_the_size_of_sparks_bitmaps() -> None:
    bits = Bits()
    bits.add(np.array([0, BUCKET - 1]))
    (row,) = pa.Table.from_batches([bits.batch("a")]).to_pylist()
    assert (len(row["bits"]), row["bits"][0], row["bits"][-1]) == (BUCKET // 8, 1, 128)
