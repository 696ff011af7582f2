"""Hunting a mutant: seed after seed until a promise breaks, and which one it was.

A mutant counts as killed if any promise breaks with it planted; the hunt also notes whether that
promise was expected. A run that elects no leader or gets next to nothing done kills, too: its
`vacuous` is a killer of its own, V1.

A seed that has killed is played without the mutant, too: a promise that breaks then as well is a
bug of raftmq or of the harness, and no kill.

Invariants:
- The schedules of a hunt depend on the mutant's kinds and the seed alone.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from time import process_time

from raftmq.chaos.core import draw_schedule, draw_settings, run
from raftmq.chaos.faults import FAULTS, Schedule, World, draw, draw_patient, of_world
from raftmq.chaos.ledger import play as play_log
from raftmq.chaos.mutant import Mutant, planted
from raftmq.chaos.outcome import Outcome, Violation

SEEDS_MAX = 200
CPU_SECONDS_MAX = 120.0
BROKER_SECONDS = 60.0
"""Length of a run of whole brokers: shorter ones have no windows that show what clients get done.
"""
SIM_CPU_SECONDS_MAX = 900.0
"""Of a hunt there: such a run costs a hundred times as much as one of the core simulator."""


class BadSeed(Exception):
    """A run breaks without the mutant, too."""


@dataclass(frozen=True, slots=True)
class Hunt:
    """The result of hunting one mutant."""

    mutant: Mutant
    seed: int
    """The seed that killed it; -1 if none did."""
    killer: str
    """Name of the promise that broke first; empty if none did."""
    text: str
    """The violation, as text."""
    seeds: int
    """Number of seeds tried."""
    cpu_seconds: float
    at_ms: int = 0
    """Time of the violation within the run, in simulated milliseconds."""

    @property
    def is_killed(self) -> bool:
        """Whether any promise broke."""
        return bool(self.killer)

    @property
    def is_as_expected(self) -> bool:
        """Whether the killer is one of the expected ones."""
        return self.killer in self.mutant.killers


def schedule_of(mutant: Mutant, seed: int) -> Schedule:
    """The schedule that this seed plays to bring the mutant out."""
    kinds = [FAULTS[name] for name in mutant.kinds] or None
    if mutant.workload:
        chosen = kinds or of_world(World.SIM)
        if mutant.seconds:
            return draw(seed, chosen, nodes=mutant.nodes, seconds=mutant.seconds)
        return draw_patient(seed, chosen, nodes=mutant.nodes, seconds=BROKER_SECONDS)
    return draw_schedule(seed, kinds=kinds)


def play(mutant: Mutant, seed: int, *, is_planted: bool = True) -> Outcome:
    """One run, with the mutant or without it."""
    planting = planted(mutant) if is_planted else nullcontext()
    if mutant.is_popping:
        with planting:
            return play_log(seed)
    if mutant.workload:
        # Whole brokers take a second to load, which hunts on cores do not need.
        brokers = import_module("raftmq.chaos.sim.run")
        with planting:
            outcome: Outcome = brokers.run(
                schedule_of(mutant, seed),
                workload=mutant.workload,
                nodes=mutant.nodes,
                is_secure=mutant.is_secure,
            )
        return outcome
    settings = mutant.settings(draw_settings(seed))
    with planting:
        return run(schedule_of(mutant, seed), settings)


def hunt(
    mutant: Mutant,
    *,
    first: int = 0,
    seeds_max: int = SEEDS_MAX,
    cpu_seconds_max: float | None = None,
) -> Hunt:
    """Play seeds until one kills the mutant, or that much time is spent (None: as is usual).

    Raises:
        BadSeed: the seed that killed breaks without the mutant, too.
    """
    if cpu_seconds_max is None:
        cpu_seconds_max = SIM_CPU_SECONDS_MAX if mutant.workload else CPU_SECONDS_MAX
    begin = process_time()
    tried = 0
    for seed in range(first, first + seeds_max):
        outcome = play(mutant, seed)
        tried += 1
        spent = process_time() - begin
        if not outcome.is_good:
            healthy = play(mutant, seed, is_planted=False)
            if not healthy.is_good:
                killer, _, text = _first_break(healthy)
                what = f"seed {seed} breaks without mutant {mutant.number}, too"
                raise BadSeed(f"{what}: {killer}: {text}")
            killer, at_ms, text = _first_break(outcome)
            return Hunt(mutant, seed, killer, text, tried, spent, at_ms)
        if spent > cpu_seconds_max:
            break
    return Hunt(mutant, -1, "", "", tried, process_time() - begin)


def _first_break(outcome: Outcome) -> Violation:
    """The first violation of a run that is not good."""
    return (*outcome.violations, Violation("V1", 0, outcome.vacuous))[0]


def hunt_all(mutants: Sequence[Mutant]) -> Iterator[Hunt]:
    """One after the other; those that cannot be planted are left out."""
    for mutant in mutants:
        if mutant.plant is not None:
            yield hunt(mutant)
