"""Figures of a benchmark: what was measured, what was wanted, and two ways held against each other.

    compared("read", ours, theirs, rounds=3, words=("arrow", "tuples"), unit="rows/s", wanted=6.0)

Invariants:
- Two ways take turns, so that what else the machine does meets both alike.
"""

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

Way = Callable[[], float]
"""Does the work once; its rate, or the seconds that it took."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the result."""

    name: str
    """What it is."""
    value: float
    """How much."""
    unit: str = ""
    """Of what; empty: a ratio, or a number."""
    wanted: float | None = None
    """What it is to reach; None: it is there for comparison."""
    is_limit: bool = False
    """Lower is better: `wanted` is the most that it may be, and not the least."""

    @property
    def is_met(self) -> bool:
        """Whether it is as wanted."""
        if self.wanted is None:
            return True
        return self.value <= self.wanted if self.is_limit else self.value >= self.wanted


def compared(
    name: str,
    ours: Way,
    theirs: Way,
    *,
    rounds: int,
    words: tuple[str, str],
    unit: str,
    wanted: float | None,
    is_limit: bool = False,
) -> list[Figure]:
    """Both in turn, after one of each that does not count.

    Args:
        name: of the scenario.
        ours: one way.
        theirs: the other.
        rounds: how often each is measured.
        words: what the two ways are called.
        unit: of what they give.
        wanted: the median of ours / theirs, of neighbours; None: there for comparison.
        is_limit: the ratio may be at most so much, as where the ways give seconds.
    """
    ours(), theirs()
    pairs = [(ours(), theirs()) for _ in range(rounds)]
    ratios = [mine / other for mine, other in pairs]
    return [
        Figure(f"{name}: {word}", statistics.median(pair[place] for pair in pairs), unit)
        for place, word in enumerate(words)
    ] + [
        Figure(f"{name}: ratio", statistics.median(ratios), wanted=wanted, is_limit=is_limit),
        Figure(f"{name}: lowest ratio", min(ratios)),
        Figure(f"{name}: highest ratio", max(ratios)),
    ]


def table(figures: Sequence[Figure]) -> Table:
    """The figures for people."""
    shown = Table("", "measured", "wanted", box=None)
    for each in figures:
        sign = "≤" if each.is_limit else "≥"
        wanted = "" if each.wanted is None else f"{sign} {each.wanted:,g}"
        value = f"{each.value:,.0f}" if each.value >= 1000 else f"{each.value:.2f}"
        style = "" if each.is_met else "bold red"
        shown.add_row(each.name, f"{value} {each.unit}", wanted, style=style)
    return shown


def write(figures: Sequence[Figure], path: Path) -> None:
    """The figures for programs: a JSON list with an object each."""
    path.write_text(json.dumps([asdict(each) for each in figures], indent=2) + "\n")
