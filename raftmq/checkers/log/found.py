"""The log that answers show, and a collector of the anomalies found in it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from raftmq.checkers.history import NONE, Integers, RowType
from raftmq.checkers.traffic import Traffic
from raftmq.checkers.verdict import EXAMPLES_MAX, Anomaly


class Pairs(NamedTuple):
    """Pairs of sends, of deliveries or of placements that break one rule, as places in these."""

    name: str
    """The anomaly that each pair shows."""
    before: Integers
    after: Integers


@dataclass(slots=True)
class Found:
    """Anomalies of one kind of check, with the number of each name."""

    anomalies: list[Anomaly] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, count: int, examples: Iterable[Anomaly]) -> None:
        """Add `count` anomalies of one name, some of them as examples."""
        self.counts[name] = count
        self.anomalies += examples

    def add_pairs(
        self, found: Iterable[Pairs], describe: Callable[[str, int, int], Anomaly]
    ) -> None:
        """Add an anomaly for each pair, the first few of each name as examples."""
        for name, before, after in found:
            both = zip(before[:EXAMPLES_MAX], after[:EXAMPLES_MAX], strict=True)
            examples = (describe(name, int(one), int(other)) for one, other in both)
            self.add(name, len(before), examples)


@dataclass(frozen=True, slots=True, eq=False)
class Placements:
    """Each value at each place where it was seen, once, sorted by key, offset and value."""

    found: Traffic
    key: Integers
    offset: Integers
    value: Integers
    rank: Integers
    """How many other offsets of the same key hold a message below this one."""
    row: Integers
    """The row of an answer that shows the placement."""

    @staticmethod
    def of(found: Traffic) -> "Placements":
        """The placements that acknowledged sends with an offset, and deliveries show."""
        sends, deliveries = found.sends, found.deliveries
        is_known = (sends.outcome == RowType.OK) & (sends.offset != NONE)
        is_read = deliveries.offset != NONE
        key = np.concatenate((sends.key[is_known], deliveries.key[is_read]))
        offset = np.concatenate((sends.offset[is_known], deliveries.offset[is_read]))
        value = np.concatenate((sends.value[is_known], deliveries.value[is_read]))
        row = np.concatenate((sends.end[is_known], deliveries.row[is_read]))
        order = np.lexsort((value, offset, key))
        key, offset, value, row = (column[order] for column in (key, offset, value, row))
        is_new_place = np.ones(len(key), np.bool_)
        is_new_place[1:] = (key[1:] != key[:-1]) | (offset[1:] != offset[:-1])
        is_new = is_new_place.copy()
        is_new[1:] |= value[1:] != value[:-1]
        rank = np.cumsum(is_new_place, dtype=np.int64)
        return Placements(
            found, key[is_new], offset[is_new], value[is_new], rank[is_new], row[is_new]
        )

    def rank_at(self, key: Integers, offset: Integers) -> Integers:
        """The rank of each place; only differences within a key mean something."""
        places = self._search(key, offset)
        return self.rank[np.minimum(places, len(self.rank) - 1)]

    def _search(self, key: Integers, offset: Integers) -> Integers:
        """For each (key, offset): the first placement that is not before it."""
        span = int(max(self.offset.max(), offset.max(), 0)) + 2 if len(offset) else 1
        assert (len(self.found.history.keys) + 1) * span < 2**62, "offsets too large to combine"
        return np.searchsorted(self.key * span + self.offset, key * span + offset)

    def value_text(self, place: int) -> str:
        """The value at a placement, as text."""
        return self.found.value_text(int(self.value[place]))

    def place_text(self, place: int) -> str:
        """Key and offset as text."""
        return f"{self.found.key_text(int(self.key[place]))}/{self.offset[place]}"

    def anomaly(self, name: str, places: Iterable[int], fact: str) -> Anomaly:
        """An anomaly that the answers at these placements show, with the sends behind them."""
        places = list(places)
        values = tuple(int(self.value[place]) for place in places)
        operations = {int(self.found.history.operation[self.row[place]]) for place in places}
        operations |= send_operations(self.found, values)
        return Anomaly(name, fact, tuple(sorted(operations)), values)


def send_operations(found: Traffic, values: Iterable[int]) -> set[int]:
    """The operations that sent these values."""
    places = [int(found.send_of_value[value]) for value in values]
    return {int(found.sends.operation[place]) for place in places if place != NONE}
