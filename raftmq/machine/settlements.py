"""The last settlement of each consumer: a repeat gets the first answer, and changes nothing.

A consumer whose answer was lost asks again, perhaps another leader. For each consumer the number
and the results of its last settlement are kept.

    call 1 -> carried out    call 1 -> the same results    call 2 -> carried out
                                                           call 1 -> refused: overtaken

Invariants:
- Consumers are forgotten after `IDLE_MS_MAX`, or if there are more than `CONSUMERS_MAX` or more
  than `RESULTS_MAX` results, the one idle longest first. Their leases stay: only a repeat of their
  last settlement is not recognized after that.

Sources: Raft thesis §6.3 (sessions).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from raftmq.errors import Reason
from raftmq.results import Changed, Refused

CONSUMERS_MAX = 65_536
"""Consumers whose last settlement is remembered."""
RESULTS_MAX = 1_000_000
"""Results of settlements that are remembered, over all consumers: 8 MB and more."""
IDLE_MS_MAX = 24 * 3600 * 1000
"""A consumer without a new settlement for this time is forgotten."""


class Settling(NamedTuple):
    """The consumer whose settlements these are."""

    number: int
    """The attachment's number."""
    consumer: int
    """The consumer that popped the messages."""
    by_handle: bool
    """True: a process that has the messages' handles settles them."""


class _Last:
    """The last settlement of a consumer, or by handle."""

    __slots__ = ("results", "sequence", "timestamp")

    def __init__(self, sequence: int, results: list[int | bytes], timestamp: int) -> None:
        self.sequence = sequence
        self.results = results
        self.timestamp = timestamp

    @property
    def weight(self) -> int:
        """The size of the results, as it counts against `RESULTS_MAX`."""
        return sum(1 if isinstance(each, int) else 1 + len(each) // 8 for each in self.results)


class Settlements:
    """The last settlements of all consumers of a data group."""

    def __init__(self) -> None:
        # The one idle longest first: a dict's order is the order of eviction.
        self._last: dict[Settling, _Last] = {}
        # The weight of all results.
        self._weight = 0

    def __len__(self) -> int:
        return len(self._last)

    def once(
        self, by: Settling, sequence: int, settle: Callable[[], list[int | bytes]], *, now: int
    ) -> Changed | Refused:
        """Carry out a settlement if its number is new to the consumer; its results."""
        last = self._last.pop(by, None)
        # A repeat is not carried out again: it gets the results of the first time.
        if last is None or sequence > last.sequence:
            self._weight -= 0 if last is None else last.weight
            last = _Last(sequence, settle(), now)
            self._weight += last.weight
        self._last[by] = last
        self._forget_old(now)
        # The results of its own first time are forgotten: only those of the last number are kept.
        if sequence < last.sequence:
            message = f"settlement {sequence} was overtaken by {last.sequence}"
            return Refused(Reason.OUT_OF_ORDER, message, last.sequence)
        return Changed(last.results)

    def close(self, numbers: set[int]) -> None:
        """Attachments were deleted: forget their consumers."""
        for by in [by for by in self._last if by.number in numbers]:
            self._forget(by)

    def _forget_old(self, now: int) -> None:
        while self._last:
            by = next(iter(self._last))
            is_idle = self._last[by].timestamp < now - IDLE_MS_MAX
            is_over = len(self._last) > CONSUMERS_MAX or self._weight > RESULTS_MAX
            if not is_idle and not is_over:
                return
            self._forget(by)

    def _forget(self, by: Settling) -> None:
        self._weight -= self._last.pop(by).weight
        assert self._weight >= 0, "more results are forgotten than were kept"
        assert self._last or not self._weight, "results of consumers that were forgotten"

    def dump(self) -> list[Any]:
        """The settlements as plain values, in order of eviction."""
        return [
            [*by[:2], last.sequence, last.results, last.timestamp, by.by_handle]
            for by, last in self._last.items()
        ]

    def load(self, rows: list[Any]) -> None:
        """The reverse of `dump`; older software knew no handles."""
        for number, consumer, sequence, results, timestamp, *by_handle in rows:
            by = Settling(number, consumer, by_handle == [True])
            last = self._last[by] = _Last(sequence, results, timestamp)
            self._weight += last.weight
