"""The speed of the core simulator; or many seeds in a row, to see that it raises no false alarm.

    python -m bench.cores.simulator                      the speed, on the fixed set-up and on seeds
    python -m bench.cores.simulator --seeds 10000 [--first 0] [--budget 600]

Speed is given in simulated hours a CPU-minute, with all invariants checked after every event:
`steady` is three nodes, heartbeats every 100 ms and ten messages a second without faults; `seeds`
are 60 simulated seconds each, with settings and faults as the seed draws them.
"""

import argparse
import sys
from collections import Counter
from dataclasses import replace
from time import process_time

from raftmq.chaos.core import STEADY, draw_schedule, run
from raftmq.chaos.faults import Schedule

STEADY_SECONDS = 300.0
PROPOSALS_PER_SECOND = 5.5
"""Proposals have 1.8 records on average: ten messages a second."""

SAMPLE = 40


def main() -> int:
    """Measure, or run seeds; the exit status is 1 if a seed is not good."""
    parser = argparse.ArgumentParser(prog="python -m bench.cores.simulator")
    parser.add_argument("--seeds", type=int, default=0, help="number of seeds to run; 0: measure")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0, help="simulated, each seed")
    parser.add_argument("--budget", type=float, default=1e9, help="CPU-seconds, at most")
    options = parser.parse_args()
    if not options.seeds:
        steady()
    last = options.first + (options.seeds or SAMPLE)
    return seeds(range(options.first, last), options.seconds, options.budget)


def steady() -> None:
    """Measure the fixed set-up, without faults."""
    settings = replace(STEADY, proposals_per_second=PROPOSALS_PER_SECOND)
    begin = process_time()
    outcome = run(Schedule(1, STEADY_SECONDS, ()), settings)
    spent = process_time() - begin
    assert outcome.is_good, str(outcome)
    counts = outcome.counts
    print(
        f"steady: {rate(outcome.simulated_seconds, spent)}, {counts['events'] / spent:,.0f} "
        f"events/s, {counts['acked'] / outcome.simulated_seconds:.1f} messages/s"
    )


def rate(simulated_seconds: float, cpu_seconds: float) -> str:
    """Simulated hours a CPU-minute."""
    return f"{simulated_seconds / 60 / cpu_seconds:.2f} simulated hours a CPU-minute"


def seeds(numbers: range, seconds: float, budget: float) -> int:
    """Run seeds; print each outcome that is not good, and a line at the end."""
    total: Counter[str] = Counter()
    begin, simulated, done, bad = process_time(), 0.0, 0, 0
    for seed in numbers:
        outcome = run(draw_schedule(seed, seconds=seconds))
        done += 1
        simulated += outcome.simulated_seconds
        total.update(outcome.counts)
        if not outcome.is_good:
            bad += 1
            print(outcome, flush=True)
        if process_time() - begin > budget:
            break
        if done % 100 == 0:
            print(f"{done} seeds, {bad} bad", file=sys.stderr, flush=True)
    spent = process_time() - begin
    print(
        f"seeds: {done} from {numbers.start} on, {bad} not good; {rate(simulated, spent)}, "
        f"{total['events'] / spent:,.0f} events/s, {done / spent:.2f} seeds/s; "
        f"{total['elections']:,} elections, {total['crashes']:,} crashes, "
        f"{total['acked']:,} acknowledged"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
