"""Figures of a benchmark: measured values, their targets, and the comparison of two ways.

    compared("read", ours, theirs, rounds=3, words=("arrow", "tuples"), unit="rows/s", wanted=6.0)

Invariants:
- Two ways take turns, so that other load on the machine disturbs both alike.
"""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

Way = Callable[[], float]
"""Does the work once; returns its rate, or the seconds that it took."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the result."""

    name: str
    """Name of the measured quantity."""
    value: float
    """The measured value."""
    unit: str = ""
    """Unit of the value; empty: a ratio, or a plain number."""
    wanted: float | None = None
    """The target; None: the figure is only reported."""
    is_limit: bool = False
    """True: `wanted` is an upper bound; False: a lower bound."""

    @property
    def is_met(self) -> bool:
        """Does the value meet the target? True without a target."""
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
    """Measure both ways in turn, after one uncounted call of each.

    Args:
        name: name of the scenario.
        ours: one way.
        theirs: the other way.
        rounds: number of measurements of each way.
        words: names of the two ways.
        unit: unit of the ways' results.
        wanted: target for the median of ours / theirs of each round; None: no target.
        is_limit: the target is an upper bound, as for ways that return seconds.
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
    """The figures as a table for people."""
    shown = Table("", "measured", "wanted", box=None)
    for each in figures:
        sign = "≤" if each.is_limit else "≥"
        wanted = "" if each.wanted is None else f"{sign} {each.wanted:,g}"
        value = f"{each.value:,.0f}" if each.value >= 1000 else f"{each.value:.2f}"
        style = "" if each.is_met else "bold red"
        shown.add_row(each.name, f"{value} {each.unit}", wanted, style=style)
    return shown


def write(path: Path, facts: Mapping[str, Any], figures: Sequence[Figure]) -> None:
    """Write figures for programs, as `write_json`."""
    write_json(path, facts, figures=[asdict(each) for each in figures])


def write_json(path: Path, facts: Mapping[str, Any], **found: object) -> None:
    """Write a result for programs: an object with the facts of the run (`bench.machine.run_facts`,
    taken before it) and what was found."""
    path.write_text(json.dumps({**facts, **found}, indent=2) + "\n")
