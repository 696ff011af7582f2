"""Hunting a mutant: seed after seed until something notices, and who it was.

A mutant counts as killed if any promise breaks with it planted; all the same it is noted whether
that was one of those expected. A run that elects nobody or gets next to nothing done notices too:
its `vacuous` is a killer of its own, V1.

Invariants:
- The schedules of a hunt depend on the mutant's kinds and the seed alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import process_time

from raftmq.chaos.core import draw_schedule, draw_settings, run
from raftmq.chaos.faults import FAULTS, Schedule
from raftmq.chaos.ledger import play as play_log
from raftmq.chaos.mutants.mutant import Mutant, planted
from raftmq.chaos.outcome import Outcome

SEEDS_MAX = 200
CPU_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Hunt:
    """What came of one mutant."""

    mutant: Mutant
    seed: int
    """The one that killed it; -1 if none did."""
    killer: str
    """Whose promise broke first; empty if none did."""
    text: str
    """What was seen."""
    seeds: int
    """So many were tried."""
    cpu_seconds: float
    at_ms: int = 0
    """When in the run it showed."""

    @property
    def is_killed(self) -> bool:
        """Whether anybody noticed."""
        return bool(self.killer)

    @property
    def is_as_expected(self) -> bool:
        """Whether one of those noticed who should."""
        return self.killer in self.mutant.killers


def schedule_of(mutant: Mutant, seed: int) -> Schedule:
    """What is played with this seed to bring the mutant out."""
    kinds = [FAULTS[name] for name in mutant.kinds] or None
    return draw_schedule(seed, kinds=kinds)


def play(mutant: Mutant, seed: int) -> Outcome:
    """One run with the mutant planted."""
    if mutant.is_popping:
        with planted(mutant):
            return play_log(seed)
    settings = mutant.settings(draw_settings(seed))
    with planted(mutant):
        return run(schedule_of(mutant, seed), settings)


def hunt(
    mutant: Mutant,
    *,
    first: int = 0,
    seeds_max: int = SEEDS_MAX,
    cpu_seconds_max: float = CPU_SECONDS_MAX,
) -> Hunt:
    """Play seeds until one kills the mutant."""
    begin = process_time()
    tried = 0
    for seed in range(first, first + seeds_max):
        outcome = play(mutant, seed)
        tried += 1
        spent = process_time() - begin
        if not outcome.is_good:
            killer, at_ms, text = "V1", 0, outcome.vacuous
            if outcome.violations:
                killer, at_ms, text = outcome.violations[0]
            return Hunt(mutant, seed, killer, text, tried, spent, at_ms)
        if spent > cpu_seconds_max:
            break
    return Hunt(mutant, -1, "", "", tried, process_time() - begin)


def hunt_all(mutants: Sequence[Mutant]) -> Iterator[Hunt]:
    """One after the other; those that cannot be planted are left out."""
    for mutant in mutants:
        if mutant.plant is not None:
            yield hunt(mutant)
