"""One scenario of growth, in a process of its own.

    python -m bench.growth backlog [--scale 1.0] [--seconds 2] [--rounds 6]

It prints JSON lines: `{"phase": ...}` while it works, and last `{"rows": [...], "figures": [...]}`.
Tables for people go to stderr with `--table`. SIGTERM and Ctrl-C stop the servers and remove their
folders before it ends.
"""

import argparse
import json
import os
import signal
import sys
from types import FrameType

from bench.results import is_met

from .nodes import close_all
from .outcome import Outcome
from .scenarios import RUNS


def main(arguments: list[str]) -> None:
    """Run the scenario that the arguments name."""
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("scenario", choices=RUNS)
    parser.add_argument("--scale", type=float, default=1.0, help="of the amounts, for a trial")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each window")
    parser.add_argument("--rounds", type=int, default=6, help="windows of each side")
    parser.add_argument("--table", action="store_true", help="show figures on stderr too")
    chosen = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    _say({"phase": "starting"})
    outcome = RUNS[chosen.scenario](
        chosen.scale, chosen.seconds, chosen.rounds, lambda text: _say({"phase": text})
    )
    if chosen.table:
        _show(outcome)
    _say({"rows": outcome.rows, "figures": outcome.figures})


def _show(outcome: Outcome) -> None:
    for row in outcome.rows:
        rate = f"{row['messages_per_s']:12,.0f}/s"
        latency = f"p50 {row['p50_ms']}, p99 {row['p99_ms']} ms"
        print(f"{rate} {row['scenario']}: {row['system']}; {latency}", file=sys.stderr)
    for figure in outcome.figures:
        verdict = {None: "", True: ": met", False: ": MISSED"}[is_met(figure)]
        wanted = "" if figure["wanted"] is None else f", wanted {figure['wanted']:g}"
        value = f"{figure['value']:12,.3f} {figure['unit']:4}"
        print(f"{value} {figure['name']}{wanted}{verdict}", file=sys.stderr)


def _say(line: dict[str, object]) -> None:
    print(json.dumps(line), flush=True)


def _stop(number: int, _: FrameType | None) -> None:
    # A second signal must not interrupt the clean-up.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Not by an exception, which would have to pass through an event loop and its threads.
    close_all()
    os._exit(128 + number)


if __name__ == "__main__":
    main(sys.argv[1:])
