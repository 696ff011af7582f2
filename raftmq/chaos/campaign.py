"""Many seeds of one plan, in worker processes: what the command line and the pytest plugin run.

A *plan* says which world, which faults, which workload, how long. A seed makes a plan a schedule,
a world plays the schedule, and the outcome comes back. A run that is not good leaves a folder with
everything that explains it, if a place for it is given.

Invariants:
- Plan and seed decide a schedule; nothing else does.
- Workers share nothing: a run's outcome does not depend on how many there are.
"""

import gc
import os
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from itertools import islice
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING
from unittest import mock

from raftmq.chaos.faults import (
    FAMILIES,
    FAULTS,
    Fault,
    Schedule,
    World,
    draw,
    draw_mixed,
    expanded,
    is_patient,
    nearest,
    of_world,
    shrink,
    with_access,
    with_strike,
    with_visits,
)
from raftmq.chaos.outcome import Coverage, Outcome, Violation
from raftmq.chaos.workload_names import WORKLOADS
from raftmq.checkers import Verdict

if TYPE_CHECKING:
    from raftmq.chaos.mutant import Mutant

NODES = 3
"""Founding nodes of a cluster whose plan names no number."""


EXTREMES = ("most ", "longest ")
"""Prefixes of the names of counts that are a maximum of one run; `Totals` takes their maximum."""


class CannotPlay(Exception):
    """A plan that no world can play; the message says why and what would be right."""

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(message)
        self.fix = fix
        """The remedy, where it is not to name another fault or mutant; may be empty."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings that all seeds of a campaign share."""

    world: World = World.SIM
    faults: tuple[str, ...] = ()
    """Names of the catalogue, or of its families; empty: all that this world can make."""
    workload: str = WORKLOADS[0]
    seconds: float = 60.0
    """Length of each run, in the run's own time: simulated, or real in the real world."""
    mutant: str = ""
    """A bug to plant, by its number or name in the checkout's list; empty: none."""
    is_liveness: bool = False
    """At the heal only a quorum comes back, and progress is due."""
    nodes: int = 0
    """Founding nodes, 1 to 9; 0: three, and in the core world as many as each seed says."""
    network: str = ""
    """Between real processes: `proxy` or `namespaces`; empty: the first."""
    is_secure: bool = False
    """Nodes know each other and their users: real processes by TLS, simulated ones by the network.
    """
    is_visited: bool = False
    """Brokers are visited (`with_visits`) although `faults` names other kinds; without `faults`
    they always are, unless a mutant is planted."""

    def kinds(self) -> list[Fault]:
        """The faults to draw from.

        Raises:
            CannotPlay: a named fault is unknown, or cannot be made in this world.
        """
        names = self.faults
        if not names and self.mutant:
            # Some bugs show under certain faults only.
            mutant = _mutant(self.mutant)
            names = mutant.kinds if mutant is not None else ()
        if not names:
            return of_world(self.world)
        every = of_world(self.world, has_users=self.is_secure, has_added=True)
        can = {fault.name for fault in every}
        return [_fault(name, self.world, has_users=self.is_secure) for name in expanded(names, can)]

    def schedule(self, seed: int) -> Schedule:
        """The faults of this seed's run, and when each one strikes.

        Raises:
            CannotPlay: see `kinds`.
        """
        # A hunt needs the kinds that expose its mutant; a plan that names kinds gets no others.
        is_free = not self.faults and not self.mutant
        can = of_world(self.world)
        if self.world is World.CORE:
            # In the core world a seed also decides the number of nodes.
            from raftmq.chaos.core import draw_schedule, draw_settings

            nodes = self.nodes or draw_settings(seed).nodes
            schedule = draw_schedule(seed, seconds=self.seconds, kinds=self.kinds(), nodes=nodes)
            return with_strike(schedule, can, nodes=nodes) if is_free else schedule
        # A run on real processes is slow to judge: all schedules of the real world are dense.
        how = draw_mixed if self.world is World.SIM else draw
        nodes = self.nodes or NODES
        schedule = how(seed, self.kinds(), nodes=nodes, seconds=self.seconds)
        if is_free:
            schedule = with_strike(schedule, can, nodes=nodes)
        # A patient schedule judges service in windows, and no window spans the time of a visit.
        is_judged = self.world is World.SIM and is_patient(seed)
        if is_judged or not (is_free or self.is_visited):
            return schedule
        schedule = with_visits(schedule, of_world(self.world, has_added=True), nodes=nodes)
        if not self.is_secure:
            return schedule
        return with_access(schedule, of_world(self.world, has_users=True), nodes=nodes)

    def play(self, schedule: Schedule) -> Outcome:
        """One run. In a simulated world the same plan and schedule give the same outcome.

        Raises:
            CannotPlay: this world has no such workload, or the mutant is unknown or cannot be
                planted in this world.
        """
        mutant = _mutant(self.mutant)
        run = _runner(self, mutant)
        with _planted(mutant, self.world):
            outcome = run(schedule)
        if outcome.is_good and outcome.schedule.events and not outcome.struck:
            why = "no fault of the schedule had an effect"
            outcome = replace(outcome, verdict=Verdict.UNKNOWN, vacuous=why)
        return replace(outcome, replay_options=self.replay_options)

    @property
    def replay_options(self) -> tuple[str, ...]:
        """The options of `raftmq chaos replay` that stand for this plan, without the world."""
        has_clients = self.world is not World.CORE
        options = ["--workload", self.workload] if has_clients else []
        options += ["--liveness"] if has_clients and self.is_liveness else []
        options += ["--mutant", self.mutant] if self.mutant else []
        options += ["--nodes", str(self.nodes)] if self.nodes else []
        options += ["--network", self.network] if self.network else []
        options += ["--secure"] if self.is_secure else []
        return tuple(options)


def _fault(name: str, world: World, *, has_users: bool) -> Fault:
    if name in FAMILIES:
        message = f"no fault of the family {name} can be made in the {world.value} world"
        needs_users = any(world in FAULTS[kind].worlds for kind in FAMILIES[name])
        raise CannotPlay(
            f"{message} without users" if needs_users else message,
            fix="add --secure" if needs_users else "",
        )
    if name not in FAULTS:
        raise CannotPlay(f"there is no fault {name!r}{nearest(name)}")
    fault = FAULTS[name]
    if world not in fault.worlds:
        where = ", ".join(sorted(one.value for one in fault.worlds))
        raise CannotPlay(
            f"{name} cannot be made in the {world.value} world; worlds that can: {where}"
        )
    if fault.needs_users and not has_users:
        raise CannotPlay(
            f"{name} needs nodes that know each other and their users", fix="add --secure"
        )
    return fault


def _mutant(named: str) -> "Mutant | None":
    """The mutant of this name or number; None if `named` is empty.

    Raises:
        CannotPlay: the mutant is unknown, or cannot be planted.
    """
    if not named:
        return None
    from raftmq.chaos.mutant import known_mutants

    known = known_mutants()
    if not known:
        raise CannotPlay(
            "the mutants are part of the source code, and not installed with the package",
            fix="run this in a clone of raftmq, after `make setup`",
        )
    for mutant in known:
        if named in (mutant.name, str(mutant.number)):
            if mutant.plant is None:
                raise CannotPlay(f"mutant {named} cannot be planted: {mutant.reason}")
            return mutant
    raise CannotPlay(f"there is no mutant {named!r}")


_WORLD_MODULES = {
    World.CORE: "raftmq.chaos.core.world",
    World.SIM: "raftmq.chaos.sim.run",
    World.REAL: "raftmq.chaos.real.play",
}
"""The module with each world's `run`; a module is imported when its world is played."""


def _planted(mutant: "Mutant | None", world: World) -> AbstractContextManager[object]:
    if mutant is None:
        return nullcontext()
    if world is World.REAL:
        if not mutant.workload or mutant.is_of_the_simulator:
            raise CannotPlay(
                f"mutant {mutant.name} is not one of whole brokers, and cannot be planted in real "
                "processes; worlds that can: core, sim"
            )
        from raftmq.chaos.real.fault_injection import MUTANT_VARIABLE

        # Each node is a process of its own, which inherits the environment.
        return mock.patch.dict(os.environ, {MUTANT_VARIABLE: mutant.name})
    from raftmq.chaos.mutant import planted

    return planted(mutant)


def _play_core(mutant: "Mutant | None", nodes: int, schedule: Schedule) -> Outcome:
    if mutant is not None and mutant.is_popping:
        from raftmq.chaos.ledger import play

        return play(schedule.seed)
    from raftmq.chaos.core import draw_settings, run

    settings = draw_settings(schedule.seed)
    settings = replace(settings, nodes=nodes or settings.nodes)
    settings = settings if mutant is None else mutant.settings(settings)
    _require_nodes(schedule, settings.nodes)
    return run(schedule, settings)


def _require_nodes(schedule: Schedule, nodes: int) -> None:
    """Refuse a schedule for a larger cluster of the core world.

    Raises:
        CannotPlay: an event names a node that the cluster does not have.
    """
    from raftmq.chaos.core.cluster import SPARES

    for event in schedule.events:
        unknown = [node for node in event.nodes if node > nodes + SPARES]
        if unknown:
            raise CannotPlay(
                f"{event}: there is no node {unknown[0]}; the cluster of this run has nodes 1 to "
                f"{nodes} and the spares {nodes + 1} to {nodes + SPARES}",
                fix="name one of these, or say with --nodes how large the cluster is",
            )


_NETWORK_FIX = "leave out --network, or give --world real"


def _refuse_ignored(plan: Plan) -> None:
    """Refuse options that the core world would ignore. Raises `CannotPlay`."""
    if plan.workload != WORKLOADS[0]:
        raise CannotPlay(
            f"the core world has no clients, and so no workload {plan.workload!r}",
            fix="leave out --workload, or name another --world",
        )
    if plan.is_liveness:
        raise CannotPlay(
            "a seed of the core world decides by itself whether it looks at liveness",
            fix="leave out --liveness",
        )
    if plan.is_secure:
        raise CannotPlay(
            "the core world has no connections, and so no users",
            fix="leave out --secure, or name another --world",
        )
    _refuse_network(plan)


def _refuse_network(plan: Plan) -> None:
    """Refuse a network, where there are no real processes. Raises `CannotPlay`."""
    if plan.network:
        raise CannotPlay("only real processes have a network to choose", fix=_NETWORK_FIX)


def _runner(plan: Plan, mutant: "Mutant | None") -> Callable[[Schedule], Outcome]:
    """A function that plays a schedule as the plan says.

    Raises:
        CannotPlay: this world does not have the workload, the network, or an option of the plan.
    """
    module = import_module(_WORLD_MODULES[plan.world])
    if plan.world is World.CORE:
        _refuse_ignored(plan)
        return partial(_play_core, mutant, plan.nodes)
    if plan.workload not in module.WORKLOADS:
        raise CannotPlay(
            f"there is no workload {plan.workload!r} in the {plan.world.value} world, "
            f"only {', '.join(module.WORKLOADS)}",
            fix="name one of them with --workload, or another --world",
        )
    run = partial(
        module.run,
        workload=plan.workload,
        is_liveness=plan.is_liveness,
        is_secure=plan.is_secure,
        nodes=plan.nodes or NODES,
    )
    if plan.world is not World.REAL:
        _refuse_network(plan)
        return run
    if plan.network == "namespaces" and (why := module.why_no_namespaces()):
        raise CannotPlay(why)
    return partial(run, network=plan.network or "proxy")


def fails_alike(one: Outcome, other: Outcome) -> bool:
    """Did both break a promise of the same name, or were both vacuous?"""
    names = {violation.name for violation in one.violations}
    if names:
        return bool(names & {violation.name for violation in other.violations})
    return one.is_vacuous and other.is_vacuous


def shrunk(
    plan: Plan, outcome: Outcome, *, trials_max: int, on_trial: Callable[[], None] = lambda: None
) -> Outcome:
    """The run of a smaller schedule that fails alike; `outcome` if no smaller one fails alike."""
    best = outcome

    def fails(schedule: Schedule) -> bool:
        nonlocal best
        on_trial()
        found = plan.play(schedule)
        if not fails_alike(outcome, found):
            return False
        best = found
        return True

    shrink(outcome.schedule, fails, trials_max=trials_max)
    return best


@dataclass(frozen=True, slots=True)
class Result:
    """One seed's run."""

    plan: Plan
    seed: int
    outcome: Outcome
    """The outcome without its history, which may be large."""
    cpu_seconds: float
    folder: Path | None = None
    """The folder that the run was kept in; None: the run was not kept."""


@dataclass(slots=True)
class Totals:
    """All results of a campaign, added up."""

    verdicts: Counter[str] = field(default_factory=Counter)
    """Number of runs by verdict; vacuous runs count as `vacuous`."""
    faults: Counter[str] = field(default_factory=Counter)
    """Faults that had an effect, by name."""
    scheduled: Counter[str] = field(default_factory=Counter)
    """Events of the schedules, by fault."""
    counts: Counter[str] = field(default_factory=Counter)
    """Sums over all runs; the maximum for the names that `EXTREMES` describes."""
    coverage: Counter[Coverage] = field(default_factory=Counter)
    compared: Counter[str] = field(default_factory=Counter)
    """Comparisons that could have shown a violation, by check."""
    simulated_seconds: float = 0.0
    cpu_seconds: float = 0.0
    bad: list[Result] = field(default_factory=list)
    """The runs that are not good, sorted by seed."""
    is_interrupted: bool = False
    """The user stopped the campaign before its last seed."""

    @property
    def seeds(self) -> int:
        """Number of runs that are over."""
        return sum(self.verdicts.values())

    @property
    def hours_per_cpu_minute(self) -> float:
        """Simulated hours a minute of processor time."""
        return self.simulated_seconds / 60 / max(self.cpu_seconds, 1e-9)

    def add(self, result: Result) -> None:
        """Count a result."""
        outcome = result.outcome
        self.verdicts["vacuous" if outcome.is_vacuous else outcome.verdict.value] += 1
        self.faults.update(outcome.struck)
        self.scheduled.update(event.fault for event in outcome.schedule.events)
        for name, count in outcome.counts.items():
            is_extreme = name.startswith(EXTREMES)
            self.counts[name] = (
                max(self.counts[name], count) if is_extreme else (self.counts[name] + count)
            )
        self.coverage.update(outcome.coverage)
        # Unlike `+`, `update` keeps a check that compared nothing, as `vacuous_checks` needs it.
        self.compared.update(outcome.compared)
        self.simulated_seconds += outcome.simulated_seconds
        self.cpu_seconds += result.cpu_seconds
        if not outcome.is_good:
            self.bad.append(result)
            self.bad.sort(key=lambda one: one.seed)

    @property
    def never_struck(self) -> list[str]:
        """Faults that were due and had no effect in any of the runs."""
        return sorted(set(self.scheduled) - set(self.faults))

    @property
    def vacuous_checks(self) -> list[str]:
        """Checks that compared nothing in any of the runs."""
        return sorted(name for name, count in self.compared.items() if not count)

    @property
    def is_violated(self) -> bool:
        """True if any run broke a promise."""
        return self.verdicts[Verdict.INVALID.value] > 0


def run_seed(
    plan: Plan, seed: int, artifacts: Path | None = None, keeps_good: bool = False
) -> Result:
    """Play one seed; keep below `artifacts` each run that is not good, or any with `keeps_good`."""
    before = _cpu_seconds()
    schedule = plan.schedule(seed)
    try:
        outcome = plan.play(schedule)
    except (CannotPlay, ModuleNotFoundError):
        raise
    # The one place that catches everything: a run that breaks is a finding and ends no other run.
    except Exception:
        outcome = _broken_run(plan, schedule, traceback.format_exc())
        # The objects of the broken world are finalized now, not in the middle of the next run.
        gc.collect()
    cpu_seconds = _cpu_seconds() - before
    folder = None
    if artifacts is not None and (keeps_good or not outcome.is_good):
        folder = keep(outcome, artifacts, plan)
    return Result(plan, seed, replace(outcome, history=None), cpu_seconds, folder)


def _cpu_seconds() -> float:
    """Processor time of this process, and of its children that have ended."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def _broken_run(plan: Plan, schedule: Schedule, trace: str) -> Outcome:
    """The outcome of a run that raised an error: a bug of its world, which a replay raises too."""
    violation = Violation("error", 0, f"the run broke: {trace}")
    return Outcome(
        plan.world, schedule, Verdict.INVALID, (violation,), replay_options=plan.replay_options
    )


def keep(outcome: Outcome, artifacts: Path, plan: Plan) -> Path:
    """Store a run with its report; returns the run's folder."""
    from raftmq.chaos.report import write_outcome

    workload = "" if plan.world is World.CORE else plan.workload
    size = f"nodes-{plan.nodes}" if plan.nodes else ""
    parts = [plan.world.value, workload, plan.mutant, size, f"seed-{outcome.schedule.seed}"]
    name = "-".join(filter(None, parts))
    write_outcome(outcome, artifacts / name)
    return artifacts / name


def campaign(
    plan: Plan,
    seeds: Iterable[int],
    *,
    jobs: int = 1,
    seconds_max: float | None = None,
    artifacts: Path | None = None,
    keeps_good: bool = False,
) -> Generator[Result, None, None]:
    """Run seeds and yield their results as they come, in no certain order. Closing ends the seeds
    under way.

    Args:
        plan: the settings that all seeds share.
        seeds: the seeds to play; may be endless if `seconds_max` is given.
        jobs: number of worker processes; 1: this process plays all seeds.
        seconds_max: real seconds after which no further seed is begun; None: no limit.
        artifacts: where runs that are not good are kept; None: nowhere.
        keeps_good: keep good runs there, too.

    Raises:
        CannotPlay: see `Plan.kinds` and `Plan.play`.
    """
    plan.kinds()
    tasks = ((plan, seed) for seed in seeds)
    yield from play_all(
        tasks, jobs=jobs, seconds_max=seconds_max, artifacts=artifacts, keeps_good=keeps_good
    )


def play_all(
    tasks: Iterable[tuple[Plan, int]],
    *,
    jobs: int,
    seconds_max: float | None,
    artifacts: Path | None,
    keeps_good: bool = False,
) -> Generator[Result, None, None]:
    """Run seeds, each with its own plan; otherwise as `campaign`."""
    deadline = None if seconds_max is None else time.monotonic() + seconds_max
    todo = _until(tasks, deadline)
    if jobs == 1:
        for plan, seed in todo:
            yield run_seed(plan, seed, artifacts, keeps_good)
        return
    # Children of the caller are no workers of ours, and must not be terminated below.
    others = set(active_children())
    # A forked worker would inherit this process's threads and event loops in the middle of work.
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_begin_worker)
    with pool:

        def submit(count: int) -> set[Future[Result]]:
            chosen = islice(todo, count)
            return {pool.submit(run_seed, *task, artifacts, keeps_good) for task in chosen}

        # Two seeds a worker: a worker finds its next seed while this process takes a result.
        running = submit(jobs * 2)
        try:
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
                running |= submit(len(done))
        finally:
            for future in running:
                future.cancel()
            # A seed under way may take minutes, and its result is not wanted.
            for worker in set(active_children()) - others if running else ():
                worker.terminate()


def _begin_worker() -> None:
    """Ignore Ctrl-C in a worker, as a terminal sends it to all processes and the first acts; end
    with the first process, even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    first = parent_process()
    assert first is not None
    first.join()
    os._exit(1)


def _until(tasks: Iterable[tuple[Plan, int]], deadline: float | None) -> Iterator[tuple[Plan, int]]:
    for task in tasks:
        if deadline is not None and time.monotonic() >= deadline:
            return
        yield task
