"""A soak: hours of runs of every kind, and the book of all soaks.

A seed decides a whole run: world, workload, number of nodes, length, and faults. A soak begins with
the seed after the last one in the book, so that no run is played twice.

| part of a run | drawn from |
|---|---|
| world and workload | `SHARES`, with which all worlds get about the same processor time |
| founding nodes | 1 to 9, mostly three and five; 5 at most in the real world |
| length | 6 to 120 seconds, with `pop` and `flows` up to 40, each doubling as often as the next |
| liveness mode | one run in eight |

The book is a JSON file; the page beside the file shows the book to people. A running soak writes
its row again and again, so that a killed soak leaves a row of the runs it has played.

Invariants:
- Seed and worlds decide a run; the time of the soak decides only the number of seeds.
- A row counts runs that were played: processor time is measured around each run, not estimated.
"""

import math
import re
import subprocess
from collections.abc import Collection, Generator, Iterable
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from random import Random
from typing import Self

import msgspec

from raftmq.chaos.campaign import Plan, Result, play_all
from raftmq.chaos.faults import World
from raftmq.tls.local_cluster import can_certify

FIRST_SEED = 1_000_000
"""First seed of the first soak: beyond the seeds that tests and campaigns name."""

SHARES: dict[World, dict[str, int]] = {
    World.CORE: {"log": 100},
    World.SIM: {
        "log": 6,
        "queue": 3,
        "register": 4,
        "pop": 3,
        "members": 4,
        "flows": 3,
        "admin": 3,
    },
    World.REAL: {"log": 1, "queue": 1, "register": 1, "pop": 1},
}
"""Relative frequency of each world and workload. The core world has no clients and short runs."""
NODES_SHARES = (5, 5, 30, 10, 25, 5, 10, 4, 6)
"""Relative frequency of clusters with one node, two nodes, and so on."""
SECONDS = (6, 120)
"""Shortest and longest run in a simulated world, in simulated seconds."""
POPPING = ("pop", "flows")
"""Workloads whose consumers pop: a run costs as much as four runs of another workload."""
POP_SECONDS_MAX = 40
"""The longest run of a workload in `POPPING`."""
REAL_SECONDS = (30, 90)
"""Shortest and longest run on real processes, which take several seconds to start."""
REAL_NODES_MAX = 5
"""Most nodes on real processes: a small machine does not start more processes in time."""
LIVENESS_SHARE = 1 / 8
"""Share of the runs in which only a quorum comes back at the heal."""
SECURE_SHARE = 1 / 4
"""Share of the runs with connections in which nodes know their users."""

TEXT_MAX = 300
"""Characters of a violation that the book keeps; the kept run has the whole text."""


def plan_of(seed: int, worlds: Collection[World]) -> Plan:
    """The plan of a seed, in a soak over these worlds."""
    random = Random(f"soak {seed}")
    kinds = {
        (world, workload): share
        for world in World
        if world in worlds
        for workload, share in SHARES[world].items()
    }
    ((world, workload),) = random.choices(list(kinds), list(kinds.values()))
    (nodes,) = random.choices(range(1, len(NODES_SHARES) + 1), NODES_SHARES)
    if world is World.REAL:
        nodes = min(nodes, REAL_NODES_MAX)
    shortest, longest = REAL_SECONDS if world is World.REAL else SECONDS
    if workload in POPPING:
        longest = min(longest, POP_SECONDS_MAX)
    seconds = round(math.exp(random.uniform(math.log(shortest), math.log(longest))))
    is_liveness = world is not World.CORE and random.random() < LIVENESS_SHARE
    # The draw is made in any case: a seed's plan is the same on each machine, as far as it can be.
    is_secure = random.random() < SECURE_SHARE and (
        world is World.SIM or (world is World.REAL and can_certify())
    )
    return Plan(
        world,
        workload=workload,
        seconds=float(seconds),
        is_liveness=is_liveness,
        nodes=nodes,
        is_secure=is_secure,
    )


def soak(
    first_seed: int,
    worlds: Collection[World],
    *,
    seconds_max: float,
    jobs: int = 1,
    artifacts: Path | None = None,
) -> Generator[Result, None, None]:
    """Play seeds from `first_seed` on, and yield their results as they come, in no certain order.

    Args:
        first_seed: see `Book.next_seed`.
        worlds: at least one.
        seconds_max: real seconds after which no further run is begun.
        jobs: number of worker processes; 1: this process plays all seeds.
        artifacts: where runs that are not good are kept; None: nowhere.
    """
    tasks = ((plan_of(seed, worlds), seed) for seed in count(first_seed))
    yield from play_all(tasks, jobs=jobs, seconds_max=seconds_max, artifacts=artifacts)


# -- the book ------------------------------------------------------------------------------------


class Part(msgspec.Struct):
    """The runs of one kind in a soak."""

    runs: int = 0
    undecided: int = 0
    """Runs without a violation that could not have shown one, or were not judged to the end."""
    simulated_seconds: float = 0.0
    cpu_seconds: float = 0.0
    faults: int = 0
    """Faults that had an effect."""

    def add(self, other: "Part") -> None:
        """Add the counts of another part."""
        self.runs += other.runs
        self.undecided += other.undecided
        self.simulated_seconds += other.simulated_seconds
        self.cpu_seconds += other.cpu_seconds
        self.faults += other.faults


class Found(msgspec.Struct):
    """Runs of a soak that broke the same promises."""

    kind: str
    """World and workload, such as `sim pop`."""
    what: list[str]
    """Names of the promises."""
    text: str
    """The first violation of the first of these runs."""
    seed: int
    """Seed of the first run."""
    replay: str
    """A shell command that plays the first run again, at the commit of the soak."""
    runs: int = 1
    cause: str = ""
    """The cause, written by hand; empty: not known yet."""


class Soak(msgspec.Struct):
    """A row of the book."""

    date: str
    """Day of the last run, in UTC."""
    commit: str
    """Commit of the code that was played; a plus follows if files differ from the commit."""
    first_seed: int
    last_seed: int
    """Highest seed that was played; less than `first_seed`: no seed was played."""
    parts: dict[str, Part] = {}
    """By kind, such as `sim pop`."""
    found: list[Found] = []

    def add(self, result: Result) -> None:
        """Count a run."""
        outcome, kind = result.outcome, kind_of(result.plan)
        self.date = today()
        self.last_seed = max(self.last_seed, result.seed)
        is_undecided = not outcome.is_good and not outcome.violations
        part = Part(
            1,
            int(is_undecided),
            outcome.simulated_seconds,
            result.cpu_seconds,
            sum(outcome.struck.values()),
        )
        self.parts = dict(sorted({kind: Part(), **self.parts}.items()))
        self.parts[kind].add(part)
        if outcome.violations:
            self._note(kind, result)

    def _note(self, kind: str, result: Result) -> None:
        what = sorted({violation.name for violation in result.outcome.violations})
        for found in self.found:
            if (found.kind, found.what) == (kind, what):
                found.runs += 1
                return
        text = without_folders(" ".join(result.outcome.violations[0].text.split()))
        # The end of a stack trace names the error.
        text = f"... {text[-TEXT_MAX:]}" if what == ["error"] else text[:TEXT_MAX]
        line = result.outcome.replay_line()
        self.found.append(Found(kind, what, text, result.seed, line))

    @property
    def total(self) -> Part:
        """All kinds together."""
        return summed(self.parts.values())


class Book(msgspec.Struct):
    """All soaks, oldest first."""

    soaks: list[Soak] = []

    @property
    def next_seed(self) -> int:
        """The first seed that no soak has played."""
        return max((soak.last_seed + 1 for soak in self.soaks), default=FIRST_SEED)

    def begin(self) -> Soak:
        """A row for a soak that begins now; the caller adds the row after the first run."""
        seed = self.next_seed
        return Soak(today(), commit(), seed, seed - 1)

    @classmethod
    def read(cls, path: Path) -> Self:
        """The book in a file; an empty one if there is no file.

        Raises:
            msgspec.MsgspecError: the file holds something else.
        """
        return msgspec.json.decode(path.read_bytes(), type=cls) if path.exists() else cls()

    def write(self, path: Path) -> None:
        """Write the book to a file, and its page beside the file. Each file is replaced as a whole:
        if the process ends meanwhile, the file is the old or the new one."""
        path.parent.mkdir(parents=True, exist_ok=True)
        encoded = msgspec.json.encode(_rounded(msgspec.to_builtins(self)))
        _replace(path, msgspec.json.format(encoded, indent=1) + b"\n")
        _replace(path.with_suffix(".md"), page(Book.read(path)).encode())


def _replace(path: Path, content: bytes) -> None:
    new = path.with_name(path.name + ".new")
    new.write_bytes(content)
    new.replace(path)


def _rounded(value: object) -> object:
    """The value with all floats rounded to one decimal."""
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return round(value, 1) if isinstance(value, float) else value


def without_folders(text: str) -> str:
    """A stack trace without the folders of the machine that it comes from.

    >>> without_folders('File "/home/ada/venv/site-packages/trio/_run.py", line 2')
    'File "trio/_run.py", line 2'
    """
    text = re.sub(r'"/[^"]*/site-packages/', '"', text)
    return re.sub(r'"/[^"]*?/(?=raftmq/)', '"', text)


def kind_of(plan: Plan) -> str:
    """World and workload."""
    return plan.world.value if plan.world is World.CORE else f"{plan.world.value} {plan.workload}"


def summed(parts: Iterable[Part]) -> Part:
    """All parts together."""
    total = Part()
    for part in parts:
        total.add(part)
    return total


def today() -> str:
    """Today's date in UTC, as `2026-01-31`."""
    return datetime.now(UTC).date().isoformat()


def commit() -> str:
    """The commit that is checked out in the working folder, abbreviated.

    A plus follows if a tracked file of `raftmq` differs from it; empty outside a checkout.
    """

    def git(*words: str) -> str:
        try:
            ran = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            return ""
        return ran.stdout.strip() if ran.returncode == 0 else ""

    # A soak writes its own book; only the sources decide what is played.
    changed = git("status", "--porcelain", "--untracked-files=no", "--", "raftmq")
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


# -- the page ------------------------------------------------------------------------------------

HEAD = """\
# Soak

Hours of runs of every kind: a seed decides world, workload, size of the cluster, length and faults.
Clusters have one to nine nodes, runs last from 6 to 120 seconds of their own time.
`make soak` plays for an hour and adds a row, `make soak ARGS="--hours 6"` plays for six.
Seeds go on where the last soak ended; those from 1,000,000 on belong to soaks.
Runs that are not good are kept in `build/soak`.
[When something is broken](index.md#when-something-is-broken) says what to do with one.

*CPU-hours* are processor time spent in the runs, *simulated* is time in their worlds.
A fault counts when it had an effect.
*Undecided* runs broke nothing, and were too short or too damaged to show anything.
Written by `raftmq chaos soak` from `docs/chaos/soak.json`.
"""


def page(book: Book) -> str:
    """The book for people, as Markdown."""
    lines = [HEAD, "| date | commit | seeds | runs | undecided | broken | CPU-hours | simulated "]
    lines[-1] += "| faults |"
    lines.append("|---|---|---|---|---|---|---|---|---|")
    for row in book.soaks:
        seeds = f"{row.first_seed}..{row.last_seed}"
        broken = sum(found.runs for found in row.found)
        lines.append(f"| {row.date} | `{row.commit}` | {seeds} | {_cells(row.total, broken)} |")
    lines += ["", "## All soaks, by world and workload", ""]
    lines.append("| kind | runs | undecided | broken | CPU-hours | simulated | faults |")
    lines.append("|---|---|---|---|---|---|---|")
    for kind in sorted({kind for row in book.soaks for kind in row.parts}):
        part = summed([row.parts[kind] for row in book.soaks if kind in row.parts])
        all_found = (found for row in book.soaks for found in row.found)
        broken = sum(found.runs for found in all_found if found.kind == kind)
        lines.append(f"| {kind} | {_cells(part, broken)} |")
    return "\n".join([*lines, "", "## What broke", "", *_found(book)]) + "\n"


def _cells(part: Part, broken: int) -> str:
    cells = f"{part.runs:,} | {part.undecided:,} | {broken:,} | {part.cpu_seconds / 3600:.2f}"
    return f"{cells} | {simulated(part.simulated_seconds)} | {part.faults:,}"


def simulated(seconds: float) -> str:
    """Simulated time, in a unit that fits its length.

    >>> simulated(90), simulated(5400), simulated(63_072_000)
    ('1.5 min', '1.5 h', '2.00 years')
    """
    years = seconds / (365 * 86_400)
    if years >= 1:
        return f"{years:.2f} years"
    return f"{seconds / 3600:,.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"


def _found(book: Book) -> list[str]:
    """Lines about each `Found`, newest soak first."""
    lines = []
    for row in reversed(book.soaks):
        for found in row.found:
            what = ", ".join(f"`{name}`" for name in found.what)
            times = "a run" if found.runs == 1 else f"{found.runs} runs"
            when = f"{row.date}, commit `{row.commit}`, first with seed {found.seed}"
            lines += [
                f"{what} in {times} of {found.kind}, {when}.",
                f"Cause: {found.cause.rstrip('.') or 'not known yet'}.",
                "",
                "```sh",
                f"# {found.text}",
                found.replay,
                "```",
                "",
            ]
    return lines[:-1] or ["Nothing so far."]
