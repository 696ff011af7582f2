"""The cost of TLS: `python -m bench.alone.tls`.

    python -m bench.alone.tls [--rounds 5] [--seconds 3] [--json FILE]

Clusters of three nodes, plain and under TLS in turn, each cell on a new cluster; the order changes
from round to round. The figures are medians over the rounds: the rate of messages, or the p50 of an
awaited send, and their ratio. The client is under TLS as well, and links between nodes too.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.machine import describe
from bench.raftmq_system import RaftmqSystem
from bench.scenarios import SCENARIOS

WARM_SECONDS = 1.0
"""Seconds of a first cell that does not count: a disk's first touch of its blocks is slow."""


WORKS = ("produce-100B", "produce-10kB", "produce-1MiB", "single-200B")
"""Scenarios of `bench.scenarios`."""


class Row(NamedTuple):
    """One line of the result."""

    name: str
    """The work."""
    plain: float
    """The median figure without TLS."""
    tls: float
    """The median figure under TLS."""

    @property
    def ratio(self) -> float:
        """Under TLS to plain."""
        return self.tls / self.plain


def measure(work: str, seconds: float, *, is_secure: bool) -> float:
    """The figure of one cell, on a new cluster: milliseconds of an awaited send, else messages a
    second."""
    scenario = SCENARIOS[work]
    with RaftmqSystem(is_secure=is_secure) as system:
        sample = next(scenario.run(system, seconds))
    return (sample.p50_ms or 0.0) if scenario.operation == "single" else sample.messages_per_s


def rows(works: Sequence[str], rounds: int, seconds: float) -> list[Row]:
    """Measure all works, plain and under TLS in turn."""
    measure(works[0], WARM_SECONDS, is_secure=False)
    figures: dict[tuple[str, bool], list[float]] = {}
    for number in range(rounds):
        for work in works:
            for is_secure in (False, True) if number % 2 == 0 else (True, False):
                figure = measure(work, seconds, is_secure=is_secure)
                figures.setdefault((work, is_secure), []).append(figure)
                kind = "TLS" if is_secure else "plain"
                print(f"round {number + 1}, {work}, {kind}: {figure:,.2f}", file=sys.stderr)
    median = statistics.median
    return [
        Row(SCENARIOS[work].title, median(figures[work, False]), median(figures[work, True]))
        for work in works
    ]


def document(found: Sequence[Row], rounds: int, seconds: float) -> dict[str, Any]:
    """The result for programs."""
    return {
        "machine": describe(),
        "rounds": rounds,
        "seconds": seconds,
        "rows": [{**row._asdict(), "ratio": round(row.ratio, 3)} for row in found],
    }


def main(arguments: list[str]) -> int:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.alone.tls")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--json", type=Path, help="write the rows here too")
    options = parser.parse_args(arguments)
    found = rows(WORKS, options.rounds, options.seconds)
    table = Table("work", box=None, pad_edge=False)
    for heading in ("plain", "TLS", "ratio"):
        table.add_column(heading, justify="right")
    for row in found:
        table.add_row(row.name, f"{row.plain:,.2f}", f"{row.tls:,.2f}", f"{row.ratio:.2f}")
    Console(width=100).print(table)
    if options.json:
        text = json.dumps(document(found, options.rounds, options.seconds), indent=2)
        options.json.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
