"""What one run in any world gives back: the verdict, what it rests on, and what happened.

All worlds return the same, so that the command line, the report and the pytest plugin treat them
alike. `run(schedule) -> Outcome` is the face of each world.

Invariants:
- Equal schedules in equal worlds give equal `trace_hash`es, in two runs and in two processes.
- A vacuous run is not valid.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from raftmq.chaos.faults.catalogue import World
from raftmq.chaos.faults.schedule import Schedule
from raftmq.checkers.history import History
from raftmq.checkers.verdict import Verdict


class Violation(NamedTuple):
    """One promise that was broken."""

    name: str
    """An invariant (`R5`), an anomaly (`lost-postfix`), or what the world itself noticed."""
    at_ms: int
    """When it showed, from the start of the run."""
    text: str
    """For people: what, where, and what would be right."""


class Happening(NamedTuple):
    """Something worth a mark on a time line."""

    at_ms: int
    """From the start of the run."""
    node: int
    """Whom it concerns; 0: the cluster or a client."""
    what: str
    """Such as `leader of group 1, term 4`, `pause begins`."""


class Coverage(NamedTuple):
    """A situation that a fault struck in; all words are small closed sets of their world."""

    role: str
    """Of the node that was struck: leader, follower, candidate, learner, dead, none."""
    term_relation: str
    """Its term beside the highest of all: same, behind, ahead."""
    progress: str
    """Its log beside the leader's: level, behind, probe, snapshot, unknown."""
    fault: str
    """The fault's name."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that one run tells."""

    world: World
    schedule: Schedule
    verdict: Verdict
    """Invalid if anything was violated; unknown if a checker gave up or the run was vacuous."""
    violations: tuple[Violation, ...] = ()
    trace_hash: str = ""
    """Hexadecimal, of a running hash over every event."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """How often: `elections`, `acked`, `crashes`, each fault by name, and so on."""
    coverage: Mapping[Coverage, int] = field(default_factory=dict)
    """How often a fault struck in a situation."""
    simulated_seconds: float = 0.0
    vacuous: str = ""
    """Why the run exercised nothing; empty: it exercised something."""
    history: History | None = None
    """What clients saw; None in a world without clients."""
    timeline: tuple[Happening, ...] = ()
    """In order of time."""
    replay_options: tuple[str, ...] = ()
    """What else a replay must be told: `("--workload", "queue")`."""
    compared: Mapping[str, int] = field(default_factory=dict)
    """Comparisons that could have shown a violation, by check; 0: the run did not come to that."""
    struck: Mapping[str, int] = field(default_factory=dict)
    """Faults that had an effect, by name: what was scheduled and did nothing is not in it."""

    @property
    def is_vacuous(self) -> bool:
        """True if the run could not have shown a violation."""
        return bool(self.vacuous)

    @property
    def is_good(self) -> bool:
        """True if nothing was violated and the run meant something."""
        return self.verdict is Verdict.VALID and not self.vacuous

    def replay_line(self) -> str:
        """A shell command that plays this run again."""
        text = self.schedule.to_json().replace("'", "'\\''")
        words = ["raftmq chaos replay --world", self.world.value, *self.replay_options]
        return f"{' '.join(words)} '{text}'"

    def __str__(self) -> str:
        lines = [f"{self.verdict.value}: seed {self.schedule.seed}, {self.simulated_seconds:.0f} s"]
        lines += [f"vacuous: {self.vacuous}"] if self.vacuous else []
        lines += [f"{at / 1000:.3f}s {name}: {text}" for name, at, text in self.violations]
        if not self.is_good:
            lines.append(self.replay_line())
        return "\n".join(lines)
