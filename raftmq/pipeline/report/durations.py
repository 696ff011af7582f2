"""Many durations as a few counts, which add up over partition groups and batches.

A duration of v milliseconds is counted in bucket v, if v is below 64; above, each doubling has 32
buckets, so a quantile is exact within 1.6 %. The longest, 2^62 ms, has bucket 1887.

Sources: HdrHistogram.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

_BITS = 5
"""2^5 buckets a doubling."""

Array = npt.NDArray[np.int64]


def counted(durations: Array, counts: Array) -> dict[int, int]:
    """Bucket → how many; `counts[n]` things took `durations[n]` ms. Below 0 is taken for 0.

    >>> counted(np.array([3, 1000, 3]), np.array([1, 1, 5]))
    {3: 6, 190: 1}
    """
    values = np.maximum(durations, 0)
    # frexp is exact below 2^53, and no duration here reaches 2^53 ms (285,000 years).
    exponents = np.frexp(values.astype(np.float64))[1].astype(np.int64)
    shifts = np.maximum(exponents - 1 - _BITS, 0)
    buckets = (shifts << _BITS) + (values >> shifts)
    found, where = np.unique(buckets, return_inverse=True)
    sums = np.bincount(where, weights=counts).astype(np.int64)
    return dict(zip(found.tolist(), sums.tolist(), strict=True))


def add(into: dict[int, int], more: Mapping[int, int]) -> None:
    """Add other counts to these."""
    for bucket, count in more.items():
        into[bucket] = into.get(bucket, 0) + count


def quantile(counts: Mapping[int, int], share: float) -> float | None:
    """The duration that this share of all does not exceed, in ms; None: there are none.

    >>> quantile({3: 6, 190: 1}, 0.5), quantile({3: 6, 190: 1}, 0.99)
    (3.0, 999.5)
    """
    wanted, passed = share * sum(counts.values()), 0
    for bucket in sorted(counts):
        passed += counts[bucket]
        if passed >= wanted:
            return _middle(bucket)
    return None


def _middle(bucket: int) -> float:
    shift = max(0, (bucket >> _BITS) - 1)
    lowest = (bucket - (shift << _BITS)) << shift
    return lowest + ((1 << shift) - 1) / 2 if shift else float(lowest)
