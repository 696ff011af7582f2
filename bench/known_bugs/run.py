"""One run of pysyncobj under a schedule of faults: break, heal, drain, judge.

    >>> [fault.name for fault in kinds()][:3]
    ['isolate-node', 'split-majority', 'split-minority-third']

Runs make only faults that a user of pysyncobj may meet: its connections are TCP, so that nothing is
lost, doubled or out of order while a connection is open.

Invariants:
- Version, seed and length decide a run, in every process with the same PYTHONHASHSEED.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, cast

from bench.known_bugs.cluster import Cluster
from bench.known_bugs.member import Edition
from raftmq.chaos.core.arena import CoreArena
from raftmq.chaos.core.faults import nemesis
from raftmq.chaos.faults import FAULTS, Event, Fault, Schedule, draw
from raftmq.chaos.faults.arena import RunningFault, Skipped, aimed
from raftmq.checkers import Verdict, check_evidence
from raftmq.checkers.servers.evidence import Evidence

if TYPE_CHECKING:
    from raftmq.chaos.core.cluster import Cluster as CoreCluster

SECONDS = 60.0
PROPOSALS_PER_SECOND = 5.0
DRAIN_SECONDS_MAX = 60.0
LOOK_US = 250_000

NOT_OVER_TCP = frozenset(
    {"reorder", "duplicate", "loss", "burst-loss", "stale-replay", "drop-kind"}
)
"""Faults that TCP hides: a stream neither loses, doubles nor reorders bytes."""

NOT_HERE = frozenset({"crash-point"})
"""Faults that need raftmq's own code: its failpoints."""

HANDLERS = {
    name: handler
    for name, handler in nemesis.HANDLERS.items()
    if FAULTS[name].code[0] in "NP" and name not in NOT_OVER_TCP | NOT_HERE
}
"""Handlers of the core simulator, by name of the fault."""


def kinds() -> list[Fault]:
    """The faults of a run."""
    return [fault for fault in FAULTS.values() if fault.name in HANDLERS]


def schedule_of(seed: int, seconds: float = SECONDS) -> Schedule:
    """The schedule of a seed: for 3 nodes, or for 5 in a quarter of the seeds."""
    nodes = 5 if Random(f"size {seed}").random() < 0.25 else 3
    return draw(seed, kinds(), nodes=nodes, seconds=seconds)


@dataclass(frozen=True, slots=True)
class Played:
    """The result of one run."""

    seed: int
    broken: Mapping[str, str]
    """Broken invariant → the fact that shows it."""
    errors: Mapping[str, int]
    """Exception that pysyncobj raised → the seed."""
    evidence: Evidence
    trace_hash: str
    counts: Mapping[str, int]
    is_vacuous: bool


def play(edition: Edition, seed: int, seconds: float = SECONDS) -> Played:
    """Play one seed."""
    with TemporaryDirectory(prefix="known-bugs-", dir=_memory()) as folder:
        return Run(edition, seed, seconds, Path(folder)).play()


def _memory() -> str | None:
    # Journals in memory cost no disk writes.
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


class Run:
    """One run: the cluster, its clients, and the faults that last."""

    def __init__(self, edition: Edition, seed: int, seconds: float, folder: Path) -> None:
        self._schedule = schedule_of(seed, seconds)
        nodes = 5 if Random(f"size {seed}").random() < 0.25 else 3
        self._cluster = Cluster(seed, nodes, edition, folder)
        self._running: dict[CoreArena, RunningFault] = {}
        self._is_healed = self._is_over = False
        self._random = Random(f"clients {seed}")
        self._proposed = 0

    def play(self) -> Played:
        """Play the schedule, heal, drain, and judge."""
        cluster, schedule = self._cluster, self._schedule
        for event in schedule.events:
            cluster.loop.at(event.at_ms * 1000, self._strike, event)
        cluster.begin()
        self._propose()
        cluster.loop.run_until(schedule.heal_ms * 1000)
        self._heal()
        cluster.loop.run_until(int(schedule.seconds * 1e6))
        self._is_over = True
        broken = self._drain()
        evidence = cluster.watch.evidence()
        for report in (*check_evidence(evidence), *check_evidence(cluster.watch.machines())):
            if report.verdict is Verdict.INVALID:
                anomaly = report.anomalies[0]
                broken[anomaly.name] = anomaly.fact
        for member in cluster.at_place.values():
            member.end(power=False)
        return Played(
            schedule.seed, broken, cluster.errors, evidence, cluster.trace.hexdigest(),
            dict(cluster.counts), not (cluster.counts["elections"] and cluster.counts["acked"]),
        )  # fmt: skip

    # Clients

    def _propose(self) -> None:
        cluster = self._cluster
        if self._is_over:
            return
        delay = int(self._random.expovariate(PROPOSALS_PER_SECOND) * 1e6) + 1
        cluster.loop.after(delay, self._propose)
        up = [member for member in cluster.at_place.values() if member.is_up]
        leader = cluster.leader()
        if leader is not None and self._random.random() < 0.7:
            up = [leader.node]
        if up:
            self._proposed += 1
            self._random.choice(up).propose(self._proposed)

    # Faults

    def _strike(self, event: Event) -> None:
        cluster = self._cluster
        if self._is_healed:
            return
        end_ms = event.at_ms + event.lasts_ms if event.lasts_ms else self._schedule.heal_ms
        random = Random(f"fault {cluster.seed} {event.at_ms} {event.fault}")
        end_us = min(end_ms, self._schedule.heal_ms) * 1000
        # Our cluster has every attribute that the handlers use, see `cluster`.
        arena = CoreArena(cast("CoreCluster", cluster), event, random, end_us)
        try:
            steps = HANDLERS[event.fault](arena, aimed(event, event.nodes, arena.leader()))
            self._running[arena] = running = arena.play(steps)
            running.go_on()
        except Skipped:
            self._running.pop(arena, None)
            return
        cluster.counts[event.fault] += 1
        if event.lasts_ms:
            cluster.loop.at(max(end_us, cluster.loop.now_us), self._undo, arena)

    def _undo(self, arena: CoreArena) -> None:
        running = self._running.pop(arena, None)
        if running is not None:
            running.end()

    def _heal(self) -> None:
        self._is_healed = True
        for arena in list(self._running):
            self._undo(arena)
        self._cluster.network.heal()
        for member in self._cluster.at_place.values():
            member.resume()
            member.start()

    def _drain(self) -> dict[str, str]:
        cluster = self._cluster
        end_us = cluster.loop.now_us + int(DRAIN_SECONDS_MAX * 1e6)
        while not cluster.is_agreed():
            if cluster.loop.now_us > end_us:
                # `Watch.evidence` reads the logs of running processes only.
                for member in cluster.at_place.values():
                    member.start()
                return {"V3": f"no agreement {DRAIN_SECONDS_MAX:.0f} s after the last work"}
            cluster.loop.run_until(cluster.loop.now_us + LOOK_US)
        return {}
