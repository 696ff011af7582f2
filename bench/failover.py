"""Failover: the longest silence of one client after the leader of its queue is killed.

    python -m bench.failover [--systems raftmq,nats] [--rounds 9] [--out docs]

A client sends one message after the other to one queue, awaits each, and sends what failed again.
`STEADY_SECONDS` after its first acknowledgement, the server that leads this queue gets SIGKILL. The
*gap* is the longest time between two acknowledgements from the kill on. It holds all that a user
waits for: the election, the time in which clients find the new leader, and each client's own pauses
between attempts.

Every round has a fresh cluster; rounds go through the systems in turn. The table shows the median,
the shortest and the longest gap; timeouts of elections are the defaults of each system. With
`--out`, the gaps go into the folder of `bench.run`'s results, and onto its page. Exit status: 0
done, 1 a round failed, 2 usage.
"""

import argparse
import json
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, cast

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench import machine, page
from bench.report import GAP_COLUMNS, gap_cells, shortest_first
from bench.results import Gap, Gaps
from bench.scenarios import SYSTEMS, why_unavailable
from bench.system import System

NAMES = ("raftmq", "kafka", "rocketmq", "nats", "rabbitmq")
STEADY_SECONDS = 3.0
SILENCE_SECONDS_MAX = 90.0
"""A longer gap is a failure."""


class FailsOver(System, Protocol):
    """A system whose leader can be killed."""

    def leader_pid(self) -> int:
        """Process id of the server that leads the queue of `send_steadily`."""

    def send_steadily(self, on_ack: Callable[[], None], is_over: Callable[[], bool]) -> None:
        """Send to one queue, one awaited message after the other, repeating what fails."""


class Silence:
    """The gaps between acknowledgements, from the moment of the kill on."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._killed_at: float | None = None
        self._last_ack = clock()
        self.longest = 0.0
        """The longest gap so far, in seconds."""

    def on_kill(self) -> None:
        """The leader is killed now."""
        self._killed_at = self._clock()

    def on_ack(self) -> None:
        """A message is acknowledged now."""
        now = self._clock()
        if self._killed_at is not None:
            self.longest = max(self.longest, now - self._last_ack)
        self._last_ack = now

    def is_over(self) -> bool:
        """Has the client sent steadily for `STEADY_SECONDS` after the longest gap?

        Raises:
            RuntimeError: there was no acknowledgement for `SILENCE_SECONDS_MAX`.
        """
        now = self._clock()
        silence = now - self._last_ack
        if silence > SILENCE_SECONDS_MAX:
            raise RuntimeError(f"no acknowledgement for {SILENCE_SECONDS_MAX:g} s")
        if self._killed_at is None or self.longest == 0.0:
            return False
        # An answer that was under way at the kill may come after it: the silence that lasts counts.
        return now - self._killed_at > max(self.longest, silence) + STEADY_SECONDS


def gap_ms(system: FailsOver) -> float:
    """The gap of one round, on a cluster of its own."""
    silence = Silence()
    with system:
        leader = system.leader_pid()

        def kill() -> None:
            os.kill(leader, signal.SIGKILL)
            silence.on_kill()

        killer = threading.Timer(STEADY_SECONDS, kill)

        def on_ack() -> None:
            silence.on_ack()
            if killer.ident is None:
                killer.start()

        try:
            system.send_steadily(on_ack, silence.is_over)
        finally:
            killer.cancel()
    return silence.longest * 1000.0


def table(gaps: Sequence[Gap]) -> Table:
    """The failovers for people, the shortest median first."""
    shown = Table("system", title="Longest gap after SIGKILL of the leader", title_justify="left")
    for heading in GAP_COLUMNS:
        shown.add_column(heading, justify="right")
    shown.add_column("version")
    for gap in shortest_first(gaps):
        shown.add_row(*gap_cells(gap), gap["version"])
    return shown


def main(arguments: list[str]) -> int:
    """Measure, print the table, write the JSON; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.failover", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--systems", default=",".join(NAMES), help=", ".join(NAMES))
    parser.add_argument("--rounds", type=int, choices=range(1, 100), default=9, metavar="N")
    parser.add_argument("--out", type=Path, help="folder of the results of bench.run")
    options = parser.parse_args(arguments)
    names = options.systems.split(",")
    if unknown := set(names) - set(NAMES):
        parser.error(f"unknown {sorted(unknown)}; there are {', '.join(NAMES)}")
    if options.out and not (options.out / page.RESULT).exists():
        parser.error(f"{options.out} has no {page.RESULT}: run bench.run first, or leave out --out")
    errors = Console(stderr=True)
    for name in names:
        if (reason := why_unavailable(name)) is not None:
            errors.print(f"[yellow]skipped[/] {name}: {escape(reason)}")
    found: dict[str, Gap] = {}
    has_failed = False
    for number in range(options.rounds):
        for name in (name for name in names if why_unavailable(name) is None):
            # A cast: mypy cannot see which systems have the two methods.
            system = cast("FailsOver", SYSTEMS[name].make())
            gap = found.setdefault(
                name,
                Gap(
                    system=name,
                    version=system.version,
                    settings=system.settings,
                    gaps_ms=[],
                    failed=0,
                ),
            )
            try:
                with errors.status(f"round {number + 1} of {options.rounds} · {name}"):
                    gap["gaps_ms"].append(round(gap_ms(system), 1))
            except (RuntimeError, OSError) as failure:
                has_failed = True
                gap["failed"] += 1
                errors.print(f"[red]failed[/] {name}: {escape(str(failure))}")
    rows = [gap for gap in found.values() if gap["gaps_ms"]]
    Console(width=120).print(table(rows))
    if options.out and rows:
        command = shlex.join(["python", "-m", "bench.failover", *arguments])
        gaps = Gaps(date=machine.now(), command=command, commit=machine.commit(), rows=rows)
        text = json.dumps(gaps, indent=1)
        (options.out / page.GAPS).write_text(text + "\n")
        page.write(options.out)
    return 1 if has_failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
