"""Plays seeds with the pysyncobj that is on the path, one line of JSON each.

    PYTHONHASHSEED=0 PYTHONPATH=FOLDER python -m bench.known_bugs.play --seeds 0..9

A process can import one version of a package: `bench.known_bugs` starts a process for each version.
"""

import argparse
import json
import logging
import os
import sys

import pysyncobj

from bench.known_bugs.bugs import BUGS
from bench.known_bugs.member import Edition
from bench.known_bugs.run import SECONDS, Played, play
from raftmq.chaos.seeds import parse


def main() -> None:
    """Play and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.known_bugs.play")
    parser.add_argument("--seeds", default="0..9")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="simulated, each seed")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        sys.exit("pysyncobj walks over sets: set PYTHONHASHSEED=0 to have a run again")
    # pysyncobj logs each exception and each truncation; the runs count exceptions instead.
    logging.disable(logging.CRITICAL)
    edition = Edition(pysyncobj)
    for seed in parse(options.seeds)[0]:
        line = {"version": edition.version} | row(play(edition, seed, options.seconds))
        print(json.dumps(line), flush=True)


def row(played: Played) -> dict[str, object]:
    """The line of JSON about a run."""
    shown = {
        str(number): bug.shown(played.broken, played.evidence)
        for number, bug in enumerate(BUGS)
        if bug.invariant
    }
    return {
        "seed": played.seed,
        "bugs": {number: text for number, text in shown.items() if text},
        "broken": played.broken,
        "errors": list(played.errors),
        "trace_hash": played.trace_hash,
        "counts": played.counts,
        "is_vacuous": played.is_vacuous,
    }


if __name__ == "__main__":
    main()
