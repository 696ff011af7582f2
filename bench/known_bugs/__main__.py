"""Installs two versions of pysyncobj, plays the same seeds with both, and writes the page.

    python -m bench.known_bugs [--seeds 0..199] [--seconds 60] [--docs docs/chaos]

The versions go into folders of the temporary directory, never into the project's environment.
Writes docs/chaos/known-bugs.md and its .json; the exit status is 1 if a published bug that a run
can show was not found in the old version.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench.known_bugs.bugs import BUGS
from bench.known_bugs.page import Found, page
from bench.known_bugs.run import SECONDS
from raftmq.chaos.seeds import parse

OLD = "0.3.11"
"""The version with the published bugs."""

DOCS = Path("docs/chaos")
SITES = Path(tempfile.gettempdir()) / "raftmq-known-bugs"


def main(arguments: Sequence[str] | None = None) -> int:
    """Install, play, write."""
    parser = argparse.ArgumentParser(prog="python -m bench.known_bugs")
    parser.add_argument("--seeds", default="0..199")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="simulated, each seed")
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder for the table")
    options = parser.parse_args(arguments)
    sites = [install(f"pysyncobj=={OLD}"), install("pysyncobj")]
    found = [play(site, options.seeds, options.seconds) for site in sites]
    write(found, options.docs, seconds=options.seconds)
    old = found[0]
    missing = [bug for number, bug in enumerate(BUGS) if bug.invariant and number not in old.bugs]
    return 1 if missing else 0


def install(requirement: str) -> Path:
    """Install a version into a folder of its own; without `==` the newest version."""
    site = SITES / requirement.replace("==", "-")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--upgrade", "--no-deps", "--target", str(site), requirement]
    subprocess.run(command, check=True)
    return site


def play(site: Path, seeds: str, seconds: float) -> Found:
    """Play seeds with the version in the folder `site`, in a process of its own."""
    command = [sys.executable, "-m", "bench.known_bugs.play", "--seeds", seeds]
    command += ["--seconds", str(seconds)]
    environment = os.environ | {"PYTHONPATH": str(site), "PYTHONHASHSEED": "0"}
    found = Found(first=next(iter(parse(seeds)[0])))
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            found.add(json.loads(line))
            if found.seeds % 20 == 0:
                print(f"{found.version}: {found.seeds} seeds", file=sys.stderr, flush=True)
    if child.returncode:
        raise SystemExit(child.returncode)
    return found


def write(found: Sequence[Found], folder: Path, *, seconds: float) -> None:
    """Write the results as JSON, and the page."""
    made = {"day": f"{datetime.now(UTC):%Y-%m-%d}", "seconds": seconds}
    rows = [one.to_json() for one in found]
    text = json.dumps(made | {"versions": rows}, indent=1) + "\n"
    (folder / "known-bugs.json").write_text(text)
    (folder / "known-bugs.md").write_text(page(text))


if __name__ == "__main__":
    raise SystemExit(main())
