"""`raftmq chaos run`, `replay` and `shrink`: they play schedules, and print the results.

Only a run's findings go to stdout; its progress and its summary go to stderr.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from raftmq.chaos.workload_names import WORKLOADS
from raftmq.cli.exits import ExitCode, Failure
from raftmq.cli.options import option, with_options
from raftmq.cli.output import Meter, Note, Result, Table, note, with_output
from raftmq.cli.values import DURATION
from raftmq.words import counted

if TYPE_CHECKING:
    from raftmq.chaos.campaign import Plan, Totals
    from raftmq.chaos.campaign import Result as RunResult
    from raftmq.chaos.faults import Schedule
    from raftmq.chaos.outcome import Outcome

F = TypeVar("F", bound=Callable[..., Any])

WORLDS = ("sim", "core", "real")
NETWORKS = ("proxy", "namespaces")

SEEDS_DRAWN = 10
"""Number of seeds that run if none is named."""

TRIALS_MAX = 150
"""Runs of one shrinking by default."""


@dataclass(frozen=True, slots=True)
class _Play:
    """The options that all commands of this module share: the runs and their world."""

    world: str = option(
        "--world", type=click.Choice(WORLDS), default="sim", show_default=True,
        help="Whole brokers, consensus cores, or real processes.",
    )  # fmt: skip
    workload: str = option(
        "--workload", type=click.Choice(WORKLOADS), default="log", show_default=True,
        help="The work of clients; the core world has none.",
    )  # fmt: skip
    mutant: str | None = option(
        "--mutant",
        help="Plant a bug: number or name of `raftmq chaos list mutants` (in a clone of raftmq).",
    )
    liveness: bool = option(
        "--liveness",
        is_flag=True,
        help="At the heal only a quorum comes back, and progress is due.",
    )
    nodes: int = option(
        "--nodes", type=click.IntRange(0, 9), default=0,
        help="Founding nodes.  [default: 3, in the core world as the seed says]",
    )  # fmt: skip
    network: str | None = option(
        "--network", type=click.Choice(NETWORKS),
        help="Between real processes: a proxy that knows frames, or network namespaces, "
        "where TCP loses packets (Linux, root).  [default: proxy]",
    )  # fmt: skip
    secure: bool = option(
        "--secure", is_flag=True,
        help="Nodes know their users and each other: by TLS, or in the sim world by the network.",
    )  # fmt: skip
    artifacts: Path | None = option(
        "--artifacts", type=click.Path(path_type=Path),
        help="Keep runs that are not good in folders below it, and a single run always.",
    )  # fmt: skip

    def plan(self, faults: tuple[str, ...] = (), **more: Any) -> "Plan":
        """The plan of these options."""
        from raftmq.chaos.campaign import Plan
        from raftmq.chaos.faults import World

        return Plan(
            World(self.world), faults, self.workload, mutant=self.mutant or "",
            is_liveness=self.liveness, nodes=self.nodes, network=self.network or "",
            is_secure=self.secure, **more,
        )  # fmt: skip


@click.command()
@with_options(_Play)
@click.option("--seed", type=int, help="Run this one.")
@click.option("--seeds", help="Run these: 1..100, 1.. (until --budget ends), or 1,5,9.")
@click.option("--time", "seconds", type=DURATION, default="60s", show_default=True,
              help="Length of each run, in its own time.")  # fmt: skip
@click.option("--budget", type=DURATION, help="Begin no further seed after this much real time.")
@click.option(
    "--faults", help="Only these, with commas; `raftmq chaos list faults` has names and families."
)
@click.option("--jobs", type=click.IntRange(1), help="Worker processes.  [default: processors]")
@click.option("--shrink", "is_shrunk", is_flag=True, help="Shrink what fails first.")
@click.option("--coverage", is_flag=True, help="Print the situations that faults struck in.")
@with_output
def run(
    options: _Play, seed: int | None, seeds: str | None, seconds: float, budget: float | None,
    faults: str | None, jobs: int | None, is_shrunk: bool, coverage: bool,
) -> Result:  # fmt: skip
    """Play seeds: each draws faults and when they strike, and every checker judges the run.

    A seed and the same options give the same run again. The exit code is 5 if a promise was
    broken, 1 if none was but a run exercised nothing or cannot be decided.

    \b
    raftmq chaos run --seeds 1..100 --artifacts found/
    raftmq chaos run --world core --seeds 1.. --budget 10m --faults partition,kill
    raftmq chaos run --seed 7 --shrink
    """
    chosen, total = _seeds(seed, seeds, is_endless_allowed=budget is not None)
    names = tuple(name.strip() for name in faults.split(",") if name.strip()) if faults else ()
    plan, artifacts = options.plan(names, seconds=seconds), options.artifacts
    _check_can_keep(artifacts, plan)
    # Real processes need the machine for themselves.
    jobs = 1 if options.world == "real" else jobs or processors()
    with explained():
        totals = _play(plan, chosen, total, jobs, budget, artifacts, is_single=seed is not None)
        shrunk = _shrink_first(plan, totals, artifacts) if is_shrunk else None
    if artifacts is not None:
        _keep_summary(artifacts, plan, totals)
    return Result(
        _totals_json(plan, totals, shrunk),
        _totals_shown(totals, shrunk, has_coverage=coverage),
        code=_exit_code(totals),
    )


def _play(
    plan: "Plan", seeds: Iterable[int], total: int | None, jobs: int, budget: float | None,
    artifacts: Path | None, *, is_single: bool,
) -> "Totals":  # fmt: skip
    from raftmq.chaos.campaign import Totals, campaign

    totals = Totals()
    # A run whose seed is named is kept even if it is good, so that its page can be looked at.
    results = campaign(
        plan, seeds, jobs=jobs, seconds_max=budget, artifacts=artifacts, keeps_good=is_single
    )
    with closing(results), Meter(plan.world.value, total=total, unit="seeds") as meter:
        try:
            for result in results:
                totals.add(result)
                meter.advance(1, _progress(plan, totals))
                if result.outcome.is_good and result.folder is not None:
                    note(f"kept in {result.folder}")
        except KeyboardInterrupt:
            totals.is_interrupted = True
            note("interrupted: what was run until now is judged")
    return totals


def _progress(plan: "Plan", totals: "Totals") -> str:
    """The words before the bar."""
    words = f"{plan.world.value}: {counted(totals.faults.total(), 'fault')}"
    if plan.world.value != "real":
        words += f", {totals.hours_per_cpu_minute:.2f} simulated h/CPU-min"
    return words + (f", {len(totals.bad)} bad" if totals.bad else "")


def _exit_code(totals: "Totals") -> int:
    if totals.is_violated:
        return ExitCode.VIOLATION
    if totals.is_interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.FAILED if totals.bad or not totals.seeds else ExitCode.OK


def _totals_shown(
    totals: "Totals", shrunk: "Outcome | None", *, has_coverage: bool
) -> Iterator[Table | str]:
    """The tables and lines for people."""
    if totals.bad:
        rows = [_row(result) for result in totals.bad]
        yield Table([">SEED", "VERDICT", ">AT", "BROKEN", "KEPT IN"], rows)
        first = totals.bad[0].outcome
        for violation in first.violations[:3]:
            yield f"seed {first.schedule.seed}: {violation.name}: {violation.text}"
        yield f"replay: {first.replay_line()}"
    if shrunk is not None:
        yield from _schedule_lines(shrunk)
    if has_coverage:
        situations = [(*situation, times) for situation, times in sorted(totals.coverage.items())]
        yield Table(["ROLE", "TERM", "PROGRESS", "FAULT", ">TIMES"], situations)
    verdicts = ", ".join(f"{times:,} {name}" for name, times in sorted(totals.verdicts.items()))
    yield Note(
        f"{counted(totals.seeds, 'seed')}: {verdicts or 'none'}; "
        f"{totals.simulated_seconds / 3600:.2f} h in their worlds, "
        f"{totals.cpu_seconds / 60:.2f} CPU-min; "
        f"{counted(totals.faults.total(), 'fault')} of {counted(len(totals.faults), 'kind')} in "
        f"{counted(len(totals.coverage), 'situation')}; "
        f"{counted(totals.compared.total(), 'comparison')} by "
        f"{counted(len(totals.compared), 'check')}"
    )
    longest = [
        f"{name.rpartition(', ')[0]} {count / 1000:.2f} s"
        for name, count in sorted(totals.counts.items())
        if name.startswith("longest ") and name.endswith(", ms")
    ]
    if longest:
        yield Note("; ".join(longest))
    if totals.never_struck:
        yield Note(f"without effect in all runs: {', '.join(totals.never_struck)}")
    if totals.vacuous_checks:
        yield Note(f"compared nothing in all runs: {', '.join(totals.vacuous_checks)}")


def _row(result: "RunResult") -> tuple[object, ...]:
    outcome = result.outcome
    names = dict.fromkeys(violation.name for violation in outcome.violations)
    first = f"{outcome.violations[0].at_ms / 1000:.3f}s" if outcome.violations else ""
    broken = ", ".join(names) or (f"vacuous: {outcome.vacuous}" if outcome.vacuous else "")
    return result.seed, outcome.verdict.value, first, broken, result.folder or ""


def _totals_json(plan: "Plan", totals: "Totals", shrunk: "Outcome | None") -> dict[str, Any]:
    return {
        "world": plan.world.value,
        "workload": plan.workload,
        "mutant": plan.mutant,
        "run_seconds": plan.seconds,
        "seeds": totals.seeds,
        "verdicts": dict(sorted(totals.verdicts.items())),
        "simulated_seconds": totals.simulated_seconds,
        "cpu_seconds": totals.cpu_seconds,
        "faults": dict(sorted(totals.faults.items())),
        "without_effect": totals.never_struck,
        "compared": dict(sorted(totals.compared.items())),
        "counts": dict(sorted(totals.counts.items())),
        "coverage": [[*key, times] for key, times in sorted(totals.coverage.items())],
        "bad": [
            {"seed": result.seed, "folder": str(result.folder or ""), **_json(result.outcome)}
            for result in totals.bad
        ],
        "shrunk": None if shrunk is None else _json(shrunk),
    }


def _json(outcome: "Outcome") -> dict[str, Any]:
    import json

    return {
        "verdict": outcome.verdict.value,
        "vacuous": outcome.vacuous,
        "violations": [violation._asdict() for violation in outcome.violations],
        "trace_hash": outcome.trace_hash,
        "counts": dict(outcome.counts),
        "schedule": json.loads(outcome.schedule.to_json()),
        "replay": outcome.replay_line(),
    }


def _keep_summary(artifacts: Path, plan: "Plan", totals: "Totals") -> None:
    import json

    artifacts.mkdir(parents=True, exist_ok=True)
    text = json.dumps(_totals_json(plan, totals, None), indent=2)
    (artifacts / "campaign.json").write_text(text + "\n")


# -- replay and shrink ---------------------------------------------------------------------------


@click.command()
@click.argument("schedule")
@with_options(_Play)
@click.option("--times", type=click.IntRange(1), default=1, show_default=True,
              help="Number of plays; simulated worlds must do the same each time.")  # fmt: skip
@with_output
def replay(options: _Play, schedule: str, times: int) -> Result:
    """Play one schedule again.

    SCHEDULE is the JSON that a failure prints, a file that holds it, or the folder of a kept run,
    which is played as it was: its world, workload and mutant need not be named.
    The exit code is 5 if a promise was broken.

    \b
    raftmq chaos replay found/sim-log-seed-7
    """
    plan, read = _to_play(schedule, options)
    _check_can_keep(options.artifacts, plan)
    with explained():
        outcomes = [plan.play(read) for _ in range(times)]
        outcome = outcomes[0]
        folder = _kept(outcome, options.artifacts, plan)
    hashes = {one.trace_hash for one in outcomes}
    fix = "a simulated world must not look at real time, addresses or unsorted sets"
    apart = Failure(f"{times} plays of one schedule went {len(hashes)} ways", fix=fix)
    code = ExitCode.OK if outcome.is_good else ExitCode.FAILED
    return Result(
        {**_json(outcome), "trace_hashes": sorted(hashes), "folder": folder},
        [str(outcome), f"trace {outcome.trace_hash or '(none)'}", *_kept_lines(folder)],
        code=ExitCode.VIOLATION if outcome.violations else code,
        failure=apart if len(hashes) > 1 and options.world != "real" else None,
    )


@click.command()
@click.argument("schedule")
@with_options(_Play)
@click.option("--trials", type=click.IntRange(1), default=TRIALS_MAX, show_default=True,
              help="Runs, at most.")  # fmt: skip
@with_output
def shrink(options: _Play, schedule: str, trials: int) -> Result:
    """Leave out the faults that do not matter to a failure, and make the others milder.

    SCHEDULE is the JSON that a failure prints, a file that holds it, or the folder of a kept run,
    which is played as it was. The exit code is 5 if a promise was broken, 1 if the run exercised
    nothing.

    \b
    raftmq chaos shrink found/sim-log-seed-7 --artifacts smaller/
    """
    plan, read = _to_play(schedule, options)
    _check_can_keep(options.artifacts, plan)
    with explained():
        outcome = plan.play(read)
        if outcome.is_good:
            fix = "shrink what `raftmq chaos run` reports, with the options that it prints"
            raise Failure("this schedule breaks nothing", fix=fix)
        smallest = _shrunk(plan, outcome, trials)
        folder = _kept(smallest, options.artifacts, plan)
    return Result(
        {**_json(smallest), "folder": folder},
        [*_schedule_lines(smallest), *_kept_lines(folder)],
        code=ExitCode.VIOLATION if smallest.violations else ExitCode.FAILED,
    )


def _kept_lines(folder: str) -> list[str]:
    return [f"kept in {folder}"] if folder else []


def _check_can_keep(artifacts: Path | None, plan: "Plan") -> None:
    """Refuse before the run if its history could not be written: the verdict would be lost, too.

    Raises:
        Failure: a package is missing.
    """
    from importlib.util import find_spec

    if artifacts is not None and plan.world.value != "core" and find_spec("pyarrow") is None:
        raise Failure(
            "pyarrow is not installed: --artifacts keeps histories with it", fix=EXTRA_FIX
        )


def _kept(outcome: "Outcome", artifacts: Path | None, plan: "Plan") -> str:
    from raftmq.chaos.campaign import keep

    return "" if artifacts is None else str(keep(outcome, artifacts, plan))


def _shrink_first(plan: "Plan", totals: "Totals", artifacts: Path | None) -> "Outcome | None":
    """The first run that broke something, shrunk."""
    broken = [result.outcome for result in totals.bad if result.outcome.violations]
    if not broken:
        return None
    smallest = _shrunk(plan, broken[0], TRIALS_MAX)
    if artifacts is not None and smallest is not broken[0]:
        _kept(smallest, artifacts / "shrunk", plan)
    return smallest


def _shrunk(plan: "Plan", outcome: "Outcome", trials: int) -> "Outcome":
    from raftmq.chaos.campaign import shrunk

    before = len(outcome.schedule.events)
    with Meter(f"shrinking {counted(before, 'fault')}", total=trials, unit="runs") as meter:
        return shrunk(plan, outcome, trials_max=trials, on_trial=lambda: meter.advance(1))


def _schedule_lines(outcome: "Outcome") -> Iterator[str]:
    """The schedule that is left after shrinking."""
    events = outcome.schedule.events
    yield f"shrunk to {counted(len(events), 'fault')}:"
    yield from (f"  {event}" for event in events)
    yield from (f"{violation.name}: {violation.text}" for violation in outcome.violations[:3])
    yield f"replay: {outcome.replay_line()}"


# -- reading arguments ---------------------------------------------------------------------------


def _seeds(
    seed: int | None, seeds: str | None, *, is_endless_allowed: bool
) -> tuple[Iterable[int], int | None]:
    """The seeds to run, and their number; None: they have no end."""
    if seed is not None and seeds is not None:
        raise click.UsageError("--seed and --seeds exclude each other")
    if seed is not None:
        return [seed], 1
    if seeds is None:
        first = int.from_bytes(os.urandom(4))
        note(f"seeds {first}..{first + SEEDS_DRAWN - 1}, drawn; --seeds names others")
        return range(first, first + SEEDS_DRAWN), SEEDS_DRAWN
    from raftmq.chaos.seeds import parse

    try:
        chosen, total = parse(seeds)
    except ValueError as error:
        raise click.UsageError(f"--seeds {error}") from None
    if total is None and not is_endless_allowed:
        raise click.UsageError(f"--seeds {seeds} has no end: give --budget too")
    return chosen, total


EXTRA_FIX = "pip install 'raftmq[chaos]'; from a checkout pip install '.[chaos]'"

SCHEDULE_FIX = (
    "give the JSON of a replay line in quotes, or the folder of a run that "
    "`raftmq chaos run --artifacts DIR` kept"
)


def _to_play(text: str, options: _Play) -> "tuple[Plan, Schedule]":
    """The plan and schedule to play; a kept run's options hold unless they are given."""
    from raftmq.chaos.faults import Schedule

    place = text[:60]
    try:
        if not text.lstrip().startswith("{"):
            text, kept = _kept_run(Path(text))
            given = click.get_current_context().get_parameter_source
            names = [each.name for each in fields(_Play) if each.name != "artifacts"]
            options = replace(options, **{
                name: kept[name]
                for name in names
                if name in kept and given(name) is ParameterSource.DEFAULT
            })  # fmt: skip
        schedule = Schedule.from_json(text)
    except (ValueError, OSError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise Failure(f"{place}: {why}", fix=SCHEDULE_FIX, code=ExitCode.USAGE) from None
    return options.plan(), schedule


def _kept_run(path: Path) -> tuple[str, dict[str, Any]]:
    """A stored schedule's JSON, and the options that it was played with, as far as stored.

    Raises:
        ValueError: the file or folder holds no run.
        OSError: the file cannot be read.
    """
    import json
    import shlex

    if path.is_dir():
        folder, path = path, path / "outcome.json"
        if not path.exists():
            runs = sorted(found.parent for found in folder.glob("*/outcome.json"))
            holds = f"holds {counted(len(runs), 'run')}: name one, as {runs[0]}" if runs else ""
            raise ValueError(
                f"this folder {holds or 'is not that of a run: it has no outcome.json'}"
            )
    text = path.read_text(encoding="utf-8")
    if text.startswith("raftmq chaos replay "):
        *words, text = shlex.split(text)[3:]
    else:
        read = json.loads(text)
        if not isinstance(read, dict) or "world" not in read:
            return text, {}
        words = ["--world", read["world"], *read.get("replay_options", [])]
        text = json.dumps(read.get("schedule"))
    # The last word stands for the schedule.
    return text, replay.make_context("replay", [*words, "-"]).params


@contextmanager
def explained() -> Iterator[None]:
    """Turn errors of plans that cannot be played into failures with a remedy."""
    from raftmq.chaos.campaign import CannotPlay

    try:
        yield
    except CannotPlay as problem:
        fix = "`raftmq chaos list faults` and `list mutants` show what there is"
        raise Failure(str(problem), fix=problem.fix or fix, code=ExitCode.USAGE) from None
    except ModuleNotFoundError as problem:
        if (problem.name or "").startswith("raftmq"):
            raise
        raise Failure(f"{problem.name} is not installed", fix=EXTRA_FIX) from None


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
