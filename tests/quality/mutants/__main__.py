"""Hunts all mutants, with a progress bar, and writes the table of their killers.

    python -m tests.quality.mutants [NUMBER ...]

Writes docs/chaos/mutants.md and its .json: without numbers all rows, with numbers only theirs. The
exit status is 1 if a mutant survives, or is killed by an unexpected killer.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from raftmq.checkers import ANOMALIES, INVARIANTS
from raftmq.words import counted
from tests.quality.mutants import MUTANTS, Hunt, Mutant, hunt
from tests.quality.mutants.hunts import CPU_SECONDS_MAX, SEEDS_MAX, SIM_CPU_SECONDS_MAX, BadSeed

DOCS = Path("docs/chaos")

Rows = dict[str, dict[str, int | float | str]]
"""Number → the kept result of a hunt."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Hunt, print, and write."""
    parser = argparse.ArgumentParser(prog="python -m tests.quality.mutants")
    parser.add_argument("numbers", nargs="*", type=int, help="hunt these only")
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder for the table")
    options = parser.parse_args(arguments)
    chosen = [m for m in MUTANTS if not options.numbers or m.number in options.numbers]
    hunts = _hunt_with_progress([mutant for mutant in chosen if mutant.plant is not None])
    write(hunts, options.docs, keep=bool(options.numbers))
    bad = [found for found in hunts if not found.is_as_expected]
    return 1 if bad else 0


def _hunt_with_progress(mutants: Sequence[Mutant]) -> list[Hunt]:
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description:28}"), BarColumn(), MofNCompleteColumn(),
        TimeElapsedColumn(),
    )  # fmt: skip
    hunts = []
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(mutants))
        for mutant in mutants:
            progress.update(task, description=f"{mutant.number} {mutant.name}")
            try:
                found = hunt(mutant)
            except BadSeed as error:
                # The others are hunted all the same; its row says that it survived.
                found = Hunt(mutant, -1, "", str(error), 0, 0.0)
                console.print(f"[red]{mutant.number} {mutant.name}: {error}")
            hunts.append(found)
            progress.console.print(line(found), highlight=False, soft_wrap=True)
            progress.advance(task)
    return hunts


def line(found: Hunt) -> str:
    """A hunt in one line."""
    name = f"{found.mutant.number:3} {found.mutant.name:24}"
    cost = f"{counted(found.seeds, 'seed'):>9} {found.cpu_seconds:5.1f} s"
    if not found.is_killed:
        return f"{name} {cost}  SURVIVED"
    who = found.killer if found.is_as_expected else f"{found.killer} (not expected)"
    return f"{name} {cost}  seed {found.seed}: {who}: {found.text[:80]}"


def write(hunts: Iterable[Hunt], folder: Path, *, keep: bool) -> None:
    """The page, and the same as JSON for the tests; `keep` the rows that were not hunted."""
    path = folder / "mutants.json"
    rows: Rows = json.loads(path.read_text()) if keep and path.exists() else {}
    for one in hunts:
        rows[str(one.mutant.number)] = {
            "seed": one.seed,
            "killer": one.killer,
            "seeds": one.seeds,
            "cpu_seconds": round(one.cpu_seconds, 1),
            "at_seconds": one.at_ms / 1000,
            "hints": one.mutant.hints,
        }
    rows = {number: rows[number] for number in sorted(rows, key=int)}
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, indent=1) + "\n")
    (folder / "mutants.md").write_text(page(rows))


def page(rows: Rows) -> str:
    """docs/chaos/mutants.md."""
    killed = [row for row in rows.values() if row["killer"]]
    lines = [
        "# Mutants",
        "",
        "Known ways to get Raft, its log, popping consumer groups, delayed messages and",
        "transactions wrong, each planted into the real code from outside, and hunted until a",
        "promise breaks: with the core simulator (*core*), with random logs of one machine, by",
        "the ledger that reads along (*ledger*), or with whole brokers and clients in the",
        "simulated world (*sim*).",
        "The numbers up to 66 are those of the list that this project was planned with;",
        "from 101 on they are our own.",
        "",
        f"{len(killed)} of {len(rows)} are killed; a hunt ends after {SEEDS_MAX} seeds or",
        f"{CPU_SECONDS_MAX:.0f} CPU-seconds, with whole brokers {SIM_CPU_SECONDS_MAX:.0f}.",
        f"The median needed {median(int(row['seeds']) for row in rows.values()):g} seeds.",
        *_honesty(rows),
        "Written by `make mutants` (`python -m tests.quality.mutants`); times are CPU-seconds of",
        "the machine it ran on, *at* is the simulated time at which it showed.",
        "To see one: `raftmq chaos run --world core --mutant NAME --seed SEED`; those with whole",
        "brokers have the world `sim`, and their workload in `raftmq chaos list mutants`.",
        "Bugs that others published are hunted in [the hall of known bugs](known-bugs.md).",
        "",
        "| no. | name | what is wrong | in | hints | killed by | seed | seeds tried | CPU-s | at |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for mutant in MUTANTS:
        row = rows.get(str(mutant.number))
        if row is not None:
            name = str(row["killer"])
            world = "ledger" if mutant.is_popping else "sim" if mutant.workload else "core"
            world += ", `--secure`" if mutant.is_secure else ""
            killer = f"{name} {_meaning(name)}" if name else "**none**"
            lines.append(
                f"| {mutant.number} | `{mutant.name}` | {mutant.what} | {world} "
                f"| {mutant.hints or '-'} | {killer} | {row['seed']} "
                f"| {row['seeds']} | {row['cpu_seconds']} | {row['at_seconds']} s |"
            )
    lines += ["", "## Hints", "", "| mutants | have them because |", "|---|---|"]
    lines += _reasons([m for m in MUTANTS if m.hints and str(m.number) in rows])
    lines += ["", "## Not planted", "", "| no. | name | what is wrong | why not |"]
    lines += ["|---|---|---|---|"]
    for mutant in MUTANTS:
        if mutant.reason:
            row_text = f"| {mutant.number} | `{mutant.name}` | {mutant.what} | {mutant.reason} |"
            lines.append(row_text)
    return "\n".join(lines) + "\n"


def _numbers(mutants: Iterable[Mutant]) -> str:
    """In words: ranges of numbers that follow each other."""
    parts: list[list[int]] = []
    for mutant in mutants:
        if parts and mutant.number == parts[-1][-1] + 1:
            parts[-1].append(mutant.number)
        else:
            parts.append([mutant.number])
    return ", ".join(f"{one[0]} to {one[-1]}" if one[1:] else str(one[0]) for one in parts)


def _honesty(rows: Rows) -> list[str]:
    """How many fell to random draws alone, and how many of them are bugs of the product."""
    shown = [mutant for mutant in MUTANTS if str(mutant.number) in rows]
    hinted = [mutant for mutant in shown if mutant.hints]
    own = [str(mutant.number) for mutant in shown if mutant.is_of_the_simulator]
    by_chance = len(shown) - len(hinted)
    return [
        f"{by_chance} fall to what a seed draws; {len(hinted)} are hunted with *hints*:",
        "faults chosen by hand, or settings that the bug needs, [each for a reason](#hints).",
        f"{len(own)} are planted in the simulation itself ({', '.join(own)}):",
        "they try the checks and are no",
        f"bugs of the product, so that {len(shown) - len(own)} of its mutants are listed.",
    ]


def _reasons(hinted: Sequence[Mutant]) -> list[str]:
    """Why hints are given: a row for each reason, with all mutants that have it."""
    by_reason: dict[str, list[Mutant]] = {}
    for mutant in hinted:
        by_reason.setdefault(mutant.why_hinted, []).append(mutant)
    return [f"| {_numbers(group)} | {reason} |" for reason, group in by_reason.items() if reason]


def _meaning(killer: str) -> str:
    return INVARIANTS[killer].name if killer in INVARIANTS else ANOMALIES[killer]


if __name__ == "__main__":
    raise SystemExit(main())
