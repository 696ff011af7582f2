"""Faults that struck: a fault counts when its effect was seen, not when it was due.

The parts of a simulated world count each effect of faults on them: messages that were held, calls
that were refused, processes that ended. A fault has struck if the count of its effect rose between
its begin and its end; a fault that happens once ends with the heal. A fault that found nothing to
strike, or which does nothing, counts as `without effect`.

Left out: which fault caused an effect, if two faults of the same effect overlap.
"""

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import NamedTuple

from raftmq.chaos.outcome import Coverage


class _Begun(NamedTuple):
    fault: str
    before: int
    """Count of the fault's effect when the fault began."""
    situations: list[Coverage]


class Strikes:
    """The faults of one run."""

    def __init__(
        self,
        effect_of: Mapping[str, str],
        seen: Mapping[str, int],
        *,
        struck: Counter[str],
        coverage: Counter[Coverage],
        counts: Counter[str],
    ) -> None:
        """Begin without a fault.

        Args:
            effect_of: the effect of each fault.
            seen: the world's counts of effects; 0 where an effect is missing.
            struck: `end` adds 1 under the name of a fault that struck.
            coverage: `end` adds the situations in which the fault struck.
            counts: `end` adds 1 under `without effect: FAULT` for a fault that did not strike.
        """
        self._effect_of = effect_of
        self._seen = seen
        self._struck = struck
        self._coverage = coverage
        self._counts = counts
        self._begun: dict[Hashable, _Begun] = {}

    def begin(self, key: Hashable, fault: str, situations: list[Coverage]) -> None:
        """Note the count of a fault's effect: the fault is about to be made.

        Args:
            key: identifies this fault until its end.
            fault: the fault's name.
            situations: situations of the nodes that the fault aims at, before the fault strikes.
        """
        self._begun[key] = _Begun(fault, self._count(fault), situations)

    def drop(self, key: Hashable) -> None:
        """The fault was not made: count it neither as struck nor as without effect."""
        del self._begun[key]

    def end(self, key: Hashable) -> None:
        """A fault is over: count it."""
        begun = self._begun.pop(key)
        if self._count(begun.fault) > begun.before:
            self._struck[begun.fault] += 1
            self._coverage.update(begun.situations)
        else:
            self._counts[f"without effect: {begun.fault}"] += 1

    def end_all(self) -> None:
        """Count all faults that have not ended: those that happen once, and those cut short."""
        for key in list(self._begun):
            self.end(key)

    def _count(self, fault: str) -> int:
        return self._seen.get(self._effect_of[fault], 0)
