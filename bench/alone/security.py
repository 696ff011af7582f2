"""The cost of TLS, and of users with rules: `python -m bench.alone.security`.

    python -m bench.alone.security [--rounds 15] [--seconds 1] [--json FILE]

Two clusters of three nodes run beside each other and take turns, each with a client of the same
security: one under TLS and a plain one, then one with users and one under TLS alone. Rules allow
the user what it does; links between nodes are under TLS as well. The figures are the rate of
messages, or the p50 of an awaited send, and the nodes' processor time a message; their ratios are
medians over the rounds.

TLS is judged by rates. Users cost too little for that: rates of the same code differ by more from
turn to turn, so the processor time decides.
"""

import argparse
import statistics
import sys
from pathlib import Path

from rich.console import Console

from bench.counting.usage import cpu_seconds
from bench.figures import Figure, compared, table, write
from bench.machine import run_facts
from bench.raftmq_system import RaftmqSystem, Security
from bench.scenarios import SCENARIOS, Scenario

WORKS = ("produce-100B", "produce-10kB", "produce-1MiB", "single-200B")
"""Scenarios of `bench.scenarios`."""
PAIRS = ((Security.TLS, Security.PLAIN), (Security.USERS, Security.TLS))
"""More and less security, compared in turn."""
TLS_SHARE_MAX = 0.25
"""Share of a rate that TLS may take."""
TLS_MS_MAX = 0.3
"""Milliseconds that TLS may add to an awaited send."""
USERS_SHARE_MAX = 0.03
"""Share that users and rules may add to the nodes' processor time."""


class Turns:
    """The turns of one cluster at one work."""

    def __init__(self, scenario: Scenario, system: RaftmqSystem, seconds: float) -> None:
        self._scenario = scenario
        self._system = system
        self._seconds = seconds
        self.cpu_us: list[float] = []
        """The nodes' processor time a message, by turn."""

    def take(self) -> float:
        """One turn: the milliseconds of an awaited send, else messages a second."""
        before = self._cpu_seconds()
        sample = next(self._scenario.run(self._system, self._seconds))
        self.cpu_us.append((self._cpu_seconds() - before) / sample.messages * 1e6)
        is_single = self._scenario.operation == "single"
        return (sample.p50_ms or 0.0) if is_single else sample.messages_per_s

    def _cpu_seconds(self) -> float:
        return sum(map(cpu_seconds, self._system.server_pids))


def compare(
    scenario: Scenario, more: Security, less: Security, rounds: int, seconds: float
) -> list[Figure]:
    """The figures of one work on two clusters in turn."""
    name, is_time = (
        f"{scenario.name}, {more.value} over {less.value}",
        scenario.operation == "single",
    )
    with RaftmqSystem(more) as one, RaftmqSystem(less) as other:
        ours, theirs = Turns(scenario, one, seconds), Turns(scenario, other, seconds)
        found = compared(
            name,
            ours.take,
            theirs.take,
            rounds=rounds,
            words=(more.value, less.value),
            unit="ms" if is_time else "messages/s",
            wanted=None if is_time or more is Security.USERS else 1 - TLS_SHARE_MAX,
        )
    # The first turn of each does not count.
    ratios = [mine / other for mine, other in zip(ours.cpu_us[1:], theirs.cpu_us[1:], strict=True)]
    wanted = 1 + USERS_SHARE_MAX if more is Security.USERS else None
    ratio = statistics.median(ratios)
    found.append(Figure(f"{name}: processor time", ratio, wanted=wanted, is_limit=True))
    if is_time and more is Security.TLS:
        added = found[0].value - found[1].value
        found.append(Figure(f"{name}: added", added, "ms", TLS_MS_MAX, is_limit=True))
    return found


def main(arguments: list[str]) -> int:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.alone.security")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn, 4 times for 100 B")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args(arguments)
    facts = run_facts()
    found: list[Figure] = []
    for more, less in PAIRS:
        for work in WORKS:
            print(f"{work}: {more.value} and {less.value}", file=sys.stderr)
            found += compare(SCENARIOS[work], more, less, options.rounds, options.seconds)
    Console(width=120).print(table(found))
    if options.json:
        write(options.json, facts, found)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
