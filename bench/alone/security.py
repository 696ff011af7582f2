"""The cost of TLS, and of users with rules: `python -m bench.alone.security`.

    python -m bench.alone.security [--rounds 5] [--seconds 3] [--json FILE]

Clusters of three nodes, plain, under TLS, and with users besides, in turn, each cell on a new
cluster; the order changes from round to round. The figures are medians over the rounds: the rate of
messages, or the p50 of an awaited send, and their ratios: TLS to plain, users to TLS. The client is
under TLS as well, and links between nodes too; with users it is one that rules allow what it does.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.figures import write_json
from bench.machine import run_facts
from bench.raftmq_system import RaftmqSystem, Security
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
    users: float
    """The median figure with users, under TLS."""

    @property
    def ratios(self) -> tuple[float, float]:
        """TLS to plain, and users to TLS."""
        return self.tls / self.plain, self.users / self.tls


def measure(work: str, seconds: float, security: Security) -> float:
    """The figure of one cell, on a new cluster: milliseconds of an awaited send, else messages a
    second."""
    scenario = SCENARIOS[work]
    with RaftmqSystem(security) as system:
        sample = next(scenario.run(system, seconds))
    return (sample.p50_ms or 0.0) if scenario.operation == "single" else sample.messages_per_s


def rows(works: Sequence[str], rounds: int, seconds: float) -> list[Row]:
    """Measure all works, in each kind of cluster in turn."""
    measure(works[0], WARM_SECONDS, Security.PLAIN)
    figures: dict[tuple[str, Security], list[float]] = {}
    for number in range(rounds):
        for work in works:
            for security in list(Security)[:: 1 if number % 2 == 0 else -1]:
                figure = measure(work, seconds, security)
                figures.setdefault((work, security), []).append(figure)
                print(
                    f"round {number + 1}, {work}, {security.value}: {figure:,.2f}", file=sys.stderr
                )
    return [
        Row(
            SCENARIOS[work].title,
            *(statistics.median(figures[work, security]) for security in Security),
        )
        for work in works
    ]


def document(found: Sequence[Row], rounds: int, seconds: float) -> dict[str, Any]:
    """The result for programs."""
    return {
        "rounds": rounds,
        "seconds": seconds,
        "rows": [
            {**row._asdict(), "ratios": [round(ratio, 3) for ratio in row.ratios]} for row in found
        ],
    }


def main(arguments: list[str]) -> int:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.alone.security")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--json", type=Path, help="write the rows here too")
    options = parser.parse_args(arguments)
    facts = run_facts()
    found = rows(WORKS, options.rounds, options.seconds)
    table = Table("work", box=None, pad_edge=False)
    for heading in ("plain", "TLS", "ratio", "with users", "ratio"):
        table.add_column(heading, justify="right")
    for row in found:
        tls, users = row.ratios
        figures = (row.plain, row.tls, tls, row.users, users)
        table.add_row(row.name, *(f"{figure:,.2f}" for figure in figures))
    Console(width=100).print(table)
    if options.json:
        write_json(options.json, facts, **document(found, options.rounds, options.seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
