"""Attacks a node with wrong frames, and says what was found.

    python -m tests.quality.frames [--world sim|real] [--frames N] [--seed S] [--state STATE]

In the simulated world each round has a new cluster and a seed of its own, which a finding names:
`--seed S --frames N --state STATE` plays it again. The exit status is 1 after a finding.
"""

import argparse
import resource
import sys
import time
from collections.abc import Sequence

from raftmq.tls.local_cluster import ADMIN

from .attack import Outcome
from .real import attack_process
from .simulated import play
from .stage import FEW, STATES, STRANGER

NAMES = {STRANGER: "stranger", FEW: "few", ADMIN: "admin"}
ROUND_FRAMES = 5_000
"""Frames for one simulated cluster: an administrator's frames delete all of it some time."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Attack, print, and judge."""
    parser = argparse.ArgumentParser(prog="python -m tests.quality.frames")
    parser.add_argument("--world", choices=("sim", "real"), default="sim")
    parser.add_argument("--frames", type=int, default=100_000, help="frames of each state")
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    parser.add_argument("--state", choices=tuple(NAMES.values()), help="this state alone")
    options = parser.parse_args(arguments)
    states = [user for user in STATES if options.state in (None, NAMES[user])]
    total = Outcome()
    begun = time.monotonic()
    if options.world == "real":
        for user in states:
            _add(total, attack_process(user, options.seed, options.frames, print))
    else:
        seed = options.seed
        for left in range(options.frames, 0, -ROUND_FRAMES):
            for user in states:
                _play(total, user, seed, min(left, ROUND_FRAMES))
            seed += 1
    seconds = time.monotonic() - begun
    rate = total.frames / seconds
    print(
        f"{total.frames:,} frames in {seconds:.0f} s ({rate:,.0f}/s), {total.connections:,} "
        f"connections, {total.answers:,} answers, {total.refusals:,} of them refusals"
    )
    print("no finding" if not total.findings else "\n".join(total.findings))
    return 1 if total.findings else 0


def _play(total: Outcome, user: str, seed: int, frames: int) -> None:
    begun = time.monotonic()
    outcome, meter = play(user, seed, frames)
    outcome.findings = [f"{NAMES[user]}, seed {seed}: {text}" for text in outcome.findings]
    seconds, what = meter.worst[0]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(
        f"seed {seed} {NAMES[user]:8} {outcome.frames} frames in {time.monotonic() - begun:.1f} s, "
        f"{outcome.ended} of {outcome.connections} connections ended, "
        f"worst frame {seconds * 1000:.1f} ms ({what}), longest step "
        f"{meter.longest_step * 1000:.1f} ms, {memory} MiB",
        *outcome.findings,
        sep="\n  ",
        flush=True,
    )
    _add(total, outcome)


def _add(total: Outcome, outcome: Outcome) -> None:
    total.frames += outcome.frames
    total.answers += outcome.answers
    total.refusals += outcome.refusals
    total.connections += outcome.connections
    total.ended += outcome.ended
    total.by_mutation += outcome.by_mutation
    total.by_kind += outcome.by_kind
    total.findings += outcome.findings


if __name__ == "__main__":
    sys.exit(main())
