"""Processor time of an idle cluster, by partition groups: `python -m bench.alone.idle`.

    python -m bench.alone.idle [--groups 16,100,400] [--tick-ms 100,500] [--seconds 30]

Three nodes for each number of groups and each length of a tick, each cluster alone and without
clients. The nodes do the work of consensus at rest: ticks, and heartbeats with their answers.
"""

import argparse
import sys
import time

from rich.console import Console
from rich.table import Table

from bench.counting.usage import cpu_seconds
from bench.growth.nodes import Nodes
from bench.growth.probe import ask_table

FOUNDED_SECONDS_MAX = 300.0
SETTLE_SECONDS = 10.0
"""After this the leaderships are spread."""


def measure(groups: int, tick_ms: int, seconds: float) -> list[float]:
    """The share of a processor that each node uses, in percent."""
    with Nodes("idle", groups=groups, settings=f"[raft]\ntick_ms = {tick_ms}\n") as nodes:
        nodes.start()
        for number in nodes.numbers:
            nodes.wait_answering(number)
        _wait_led(nodes, groups)
        time.sleep(SETTLE_SECONDS)
        pids = [nodes.pid(number) for number in nodes.numbers]
        before, begun = [cpu_seconds(pid) for pid in pids], time.perf_counter()
        time.sleep(seconds)
        passed = time.perf_counter() - begun
        nodes.check()
        return [
            100 * (cpu_seconds(pid) - used) / passed for pid, used in zip(pids, before, strict=True)
        ]


def _wait_led(nodes: Nodes, groups: int) -> None:
    """Wait until each data group has a leader that the first node knows."""
    deadline = time.perf_counter() + FOUNDED_SECONDS_MAX
    while True:
        view = ask_table(nodes.port(1))
        # The catalog's own group is one more.
        if view is not None and sum(bool(group.leader) for group in view.groups) > groups:
            return
        if time.perf_counter() > deadline:
            raise RuntimeError(f"not all of {groups} groups have a leader")
        time.sleep(0.5)


def main(arguments: list[str]) -> int:
    """Measure each number of groups and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.alone.idle")
    parser.add_argument("--groups", default="16,100,400", help="numbers of data groups")
    parser.add_argument("--tick-ms", default="100", help="lengths of a tick in milliseconds")
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args(arguments)
    columns = ("data groups", "tick, ms", *(f"node {n}, %" for n in (1, 2, 3)))
    shown = Table(*columns, box=None, pad_edge=False)
    for groups in map(int, options.groups.split(",")):
        for tick_ms in map(int, options.tick_ms.split(",")):
            shares = measure(groups, tick_ms, options.seconds)
            shown.add_row(f"{groups:,}", f"{tick_ms:,}", *(f"{share:.1f}" for share in shares))
    Console().print(shown)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
