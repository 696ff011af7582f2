"""The faults that struck in the runs of a suite, in all of its processes.

Worlds note each run's faults in the folder that `RAFTMQ_CHAOS_TALLY` names, one line a run and one
file a process; without the variable nothing is written. Workers of pytest-xdist and of a campaign
inherit the variable. `summary` says for each world that played how many of its kinds struck, and
names each other kind with the reason that the runs gave:

    sim: 97 of 99 kinds of faults struck
      return-blank never struck (due 3 times)
      crash-write never struck (never due)
"""

import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from raftmq.chaos.faults import World, of_world
from raftmq.chaos.outcome import Outcome
from raftmq.words import counted

VARIABLE = "RAFTMQ_CHAOS_TALLY"
SKIPPED = "skipped: "
"""Counts of the real world begin so: `skipped: FAULT: reason`."""


def noted(outcome: Outcome) -> Outcome:
    """Return the outcome, after noting its faults if `VARIABLE` names a folder."""
    folder = os.environ.get(VARIABLE)
    if folder:
        due = Counter(event.fault for event in outcome.schedule.events)
        skipped = [
            name.removeprefix(SKIPPED) for name in outcome.counts if name.startswith(SKIPPED)
        ]
        line = json.dumps([outcome.world.value, due, dict(outcome.struck), skipped])
        with (Path(folder) / f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    return outcome


def summary(folder: Path) -> list[str]:
    """Lines for people about all runs in a folder; empty if there was no run."""
    due: dict[str, Counter[str]] = {}
    struck: dict[str, Counter[str]] = {}
    reasons: dict[tuple[str, str], str] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            world, its_due, its_struck, skipped = json.loads(line)
            due.setdefault(world, Counter()).update(its_due)
            struck.setdefault(world, Counter()).update(its_struck)
            for text in skipped:
                fault, _, why = text.partition(": ")
                reasons[world, fault] = why
    lines = []
    for world in World:
        if world.value in due:
            whys = {fault: why for (of, fault), why in reasons.items() if of == world.value}
            lines += _of_world(world, due[world.value], struck[world.value], whys)
    return lines


def _of_world(
    world: World, due: Counter[str], struck: Counter[str], reasons: Mapping[str, str]
) -> list[str]:
    kinds = [fault.name for fault in of_world(world, has_users=True, has_added=True)]
    never = [name for name in kinds if not struck[name]]
    lines = [f"{world.value}: {len(kinds) - len(never)} of {len(kinds)} kinds of faults struck"]
    for name in never:
        times = f"due {counted(due[name], 'time')}" if due[name] else "never due"
        why = "; ".join(filter(None, [times, reasons.get(name, "")]))
        lines.append(f"  {name} never struck ({why})")
    return lines
