"""Sets of a queue's offsets, as sorted runs: those a group has settled, or has begun with.

    [0, 100) [103, 130)   everything before 130, but 100, 101 and 102

A set grows by all runs of a batch at once, by vectors; messages settled in any order are one run
in the end.

Invariants:
- Runs are sorted, not empty, and neither overlap nor touch.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.int64]

_NONE = np.empty(0, np.int64)


class Offsets(NamedTuple):
    """A set of offsets."""

    starts: Array = _NONE
    """The first offset of each run."""
    stops: Array = _NONE
    """The offset after each run."""

    @property
    def size(self) -> int:
        """How many offsets are in it."""
        return int(np.sum(self.stops - self.starts))

    @property
    def first_gap(self) -> int:
        """The smallest offset that is not in it."""
        return int(self.stops[0]) if len(self.starts) and self.starts[0] <= 0 else 0

    def plus(self, starts: Array, stops: Array) -> "Offsets":
        """The set with these runs added, which come in any order and may overlap.

        >>> before(5).plus(np.array([7, 5]), np.array([9, 6])).runs
        [(0, 6), (7, 9)]
        """
        if not len(starts):
            return self
        starts = np.concatenate((self.starts, starts))
        stops = np.concatenate((self.stops, stops))
        order = np.argsort(starts, kind="stable")
        starts, stops = starts[order], np.maximum.accumulate(stops[order])
        is_apart = starts[1:] > stops[:-1]
        is_first = np.concatenate(([True], is_apart))
        is_last = np.concatenate((is_apart, [True]))
        return Offsets(starts[is_first], stops[is_last])

    def minus(self, other: "Offsets") -> "Offsets":
        """The set without the offsets of another one.

        >>> before(9).minus(Offsets(np.array([2, 8]), np.array([4, 99]))).runs
        [(0, 2), (4, 8)]
        """
        if not len(self.starts) or not len(other.starts):
            return self
        edges = np.unique(np.concatenate((*self, *other)))
        starts, stops = edges[:-1], edges[1:]
        is_left = self.holds(starts) & ~other.holds(starts)
        # `plus` joins neighbours that only an edge of the other set has cut.
        return Offsets().plus(starts[is_left], stops[is_left])

    def from_on(self, offset: int) -> "Offsets":
        """The offsets of the set from `offset` on."""
        stops = self.stops
        return Offsets(np.maximum(self.starts, offset)[stops > offset], stops[stops > offset])

    def holds(self, offsets: Array) -> npt.NDArray[np.bool_]:
        """A mask of these offsets: which are in the set."""
        if not len(self.starts):
            return np.zeros(len(offsets), np.bool_)
        run = np.searchsorted(self.starts, offsets, "right") - 1
        return (run >= 0) & (offsets < self.stops[run])

    @property
    def runs(self) -> list[tuple[int, int]]:
        """As pairs, for people."""
        return list(zip(self.starts.tolist(), self.stops.tolist(), strict=True))


def before(offset: int) -> Offsets:
    """All offsets before one."""
    if offset <= 0:
        return Offsets()
    return Offsets(np.array([0], np.int64), np.array([offset], np.int64))
