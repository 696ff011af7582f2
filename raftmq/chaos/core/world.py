"""One run of the core simulator: a schedule is played, everything heals, the outcome is checked.

    start -- faults and clients -- heal -- recovery -- clients end -- drain -- last checks
    0 s                            75 %    V1: a leader soon          V3: all agree
    V6: never a storm of messages

With `is_liveness` only a random quorum comes back at the heal, and progress is due all the same.

    >>> from raftmq.chaos.core import run, draw_schedule
    >>> outcome = run(draw_schedule(4, seconds=10))
    >>> outcome.verdict.value, outcome.trace_hash == run(outcome.schedule).trace_hash
    ('valid', True)

Invariants:
- The same schedule and settings give the same outcome, in any process.
- A run that elected no leader, acknowledged next to nothing, or left a promise of `DUE` uncompared
  is vacuous.

Sources: TigerBeetle's VOPR for the liveness mode; Jepsen for heal, drain, check.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random

from raftmq.chaos.core.checks import last_checks
from raftmq.chaos.core.checks.broken import Broken
from raftmq.chaos.core.cluster import Cluster
from raftmq.chaos.core.faults import atlas
from raftmq.chaos.core.faults.nemesis import Nemesis
from raftmq.chaos.core.faults.themes import draw_themed
from raftmq.chaos.core.node import Node
from raftmq.chaos.core.replica.writing import PASS_SPREAD_US, PASS_US
from raftmq.chaos.core.settings import Settings, draw_settings
from raftmq.chaos.faults import Fault, Schedule, World, draw, of_world
from raftmq.chaos.outcome import Outcome, Violation
from raftmq.chaos.tally import noted
from raftmq.checkers.servers.invariants import INVARIANTS
from raftmq.checkers.verdict import Verdict
from raftmq.words import counted

SECONDS = 60.0
"""Length of a run unless said otherwise."""

LEADER_TIMEOUTS = 10
"""After the heal a node must lead within this many of the longest election timeouts."""

SLOW_LEADER_TIMEOUTS = 20
"""The same where each write takes about as long as the shortest election timeout; the leader has
committed nothing yet."""

DRAIN_SECONDS_MAX = 60.0
"""After the clients have ended all nodes must agree within this time."""

DUE = ("R1", "R3", "R5", "R12", "R13", "R14", "L7", "L8")
"""Promises that every run has to compare; the others need a fault of some kind, and only a campaign
must compare them."""

LOOK_US = 250_000
"""Simulated time between two looks whether a phase is over."""

EVENTS_MAX = 20_000
"""More events than this between two looks are a storm: usually there are a hundred."""


def draw_schedule(
    seed: int, *, seconds: float = SECONDS, kinds: Sequence[Fault] | None = None, nodes: int = 0
) -> Schedule:
    """The schedule of a seed, for the cluster of that seed, or for a cluster of `nodes` if given.

    `kinds`: None for every kind that this world makes; only then the theme of the seed applies.
    """
    every = of_world(World.CORE)
    chosen = every if kinds is None else kinds
    # Kinds that were named are all drawn from: a theme would leave some of them out.
    how = draw_themed if chosen == every else draw
    return how(seed, chosen, nodes=nodes or draw_settings(seed).nodes, seconds=seconds)


def run(schedule: Schedule, settings: Settings | None = None) -> Outcome:
    """Play a schedule; the settings are those of its seed unless given."""
    return noted(Run(schedule, settings or draw_settings(schedule.seed)).play())


class Run:
    """One run. It is state."""

    def __init__(self, schedule: Schedule, settings: Settings) -> None:
        self.schedule = schedule
        self.cluster = Cluster(schedule.seed, settings)
        self.nemesis = Nemesis(self.cluster, schedule)
        self._chosen: set[int] = set()
        """In liveness mode: ids of the nodes that run after the heal; empty: all run."""

    def play(self) -> Outcome:
        """Play the whole run."""
        violations: tuple[Violation, ...] = ()
        try:
            self._play()
        except Broken as broken:
            violations = (self._violation(broken.name, broken.text),)
        except AssertionError as error:
            violations = (self._violation("assert", str(error)),)
        # The one supervisor of the simulated processes: whatever else they raise is a finding.
        except Exception as error:
            violations = (self._violation("error", f"{type(error).__name__}: {error}"),)
        return self._outcome(violations)

    def _violation(self, name: str, text: str) -> Violation:
        return Violation(name, self.cluster.loop.now_ms, text)

    def _play(self) -> None:
        cluster, schedule = self.cluster, self.schedule
        cluster.begin()
        while cluster.loop.now_us < schedule.heal_ms * 1000:
            self._pass()
        self._heal()
        self._wait_for_leader()
        end_us = int(schedule.seconds * 1e6)
        while cluster.loop.now_us < end_us:
            self._step()
        cluster.clients.is_active = False
        self._drain()
        last_checks.check(cluster, self._due())

    def _pass(self) -> None:
        """Let a quarter of a second pass."""
        loop = self.cluster.loop
        before = loop.count
        loop.run_until(loop.now_us + LOOK_US)
        if loop.count - before > EVENTS_MAX:
            raise Broken("V6", f"{loop.count - before} events in {LOOK_US // 1000} ms: a storm")

    def _step(self) -> None:
        self._pass()
        if not self._chosen:
            self.cluster.operator.replace_broken()

    def _heal(self) -> None:
        cluster = self.cluster
        self.nemesis.heal()
        if cluster.settings.is_liveness:
            self._choose()
        for node in cluster.nodes.values():
            if cluster.settings.elects_slowly:
                node.end(power=False)
                node.disk_factor = self._slow_factor()
            if self._chosen and node.id not in self._chosen:
                node.end(power=False)
                node.is_held_down = True
            else:
                node.start()

    def _choose(self) -> None:
        """Choose a random quorum to come back; none if damage or a change under way forbids it."""
        if atlas.is_change_pending(self.cluster):
            return
        random = Random(f"liveness {self.schedule.seed}")
        intact = [n for n in self.cluster.members() if not n.is_damaged and not n.refusal]
        random.shuffle(intact)
        for count in range(1, len(intact) + 1):
            chosen = {node.id for node in intact[:count]}
            if atlas.quorums_agree(self.cluster, chosen):
                self._chosen = chosen
                # A membership change could ask for votes of nodes that stay down.
                self.cluster.operator.is_active = False
                self.cluster.environment.tell(0, f"only {sorted(chosen)} come back")
                return

    def _due(self) -> list[Node]:
        """The nodes that must agree in the end."""
        members = self.cluster.members()
        return [node for node in members if not self._chosen or node.id in self._chosen]

    def _slow_factor(self) -> float:
        settings = self.cluster.settings
        return settings.election_ticks * settings.tick_us / (PASS_US + PASS_SPREAD_US / 2)

    def _wait_for_leader(self) -> None:
        cluster, settings = self.cluster, self.cluster.settings
        timeout_us = 2 * settings.election_ticks * settings.tick_us
        if settings.elects_slowly:
            self._wait(lambda: cluster.leader() is not None, SLOW_LEADER_TIMEOUTS, timeout_us)
            for node in cluster.nodes.values():
                node.disk_factor = 1.0
        self._wait(self._is_led, LEADER_TIMEOUTS, timeout_us)

    def _wait(self, is_led: Callable[[], bool], timeouts: int, timeout_us: int) -> None:
        end_us = self.cluster.loop.now_us + timeouts * timeout_us
        while not is_led():
            if self.cluster.loop.now_us > end_us:
                raise Broken("V1", f"no node leads {timeouts} election timeouts after")
            self._step()

    def _is_led(self) -> bool:
        # A record of its own term that is committed shows that a leader reaches a quorum.
        leader = self.cluster.leader()
        return leader is not None and leader.core.log.committed >= leader.core.term_first_index

    def _drain(self) -> None:
        loop = self.cluster.loop
        end_us = loop.now_us + int(DRAIN_SECONDS_MAX * 1e6)
        while not self._is_agreed():
            if loop.now_us > end_us:
                raise Broken("V3", f"no agreement {DRAIN_SECONDS_MAX:.0f} s after the last work")
            self._step()

    def _is_agreed(self) -> bool:
        leader = self.cluster.leader()
        if leader is None or not self._is_led() or leader.conf_state.voters_outgoing:
            return False
        last = leader.core.log.last_index
        if leader.core.log.committed != last:
            return False
        return all(
            node.replica is not None
            and not node.is_damaged
            and node.replica.machine.applied == last
            for node in self._due()
        )

    def _outcome(self, violations: tuple[Violation, ...]) -> Outcome:
        cluster = self.cluster
        self.nemesis.conclude()
        counts = cluster.counts
        counts.update(self.nemesis.struck)
        counts["committed"] = cluster.safety.top
        compared = cluster.safety.compared
        counts["reads"] = compared["R20"]
        counts["events"] = cluster.loop.count
        counts["messages lost"] = cluster.network.lost
        seconds = cluster.loop.now_us / 1e6
        vacuous = "" if violations else _vacuous(counts, compared, seconds)
        verdict = Verdict.VALID if not vacuous else Verdict.UNKNOWN
        return Outcome(
            world=World.CORE,
            schedule=self.schedule,
            verdict=Verdict.INVALID if violations else verdict,
            violations=violations,
            trace_hash=cluster.environment.trace.hexdigest(),
            counts=dict(sorted(counts.items())),
            coverage=dict(sorted(self.nemesis.coverage.items())),
            simulated_seconds=seconds,
            vacuous=vacuous,
            timeline=tuple(cluster.environment.timeline),
            compared={f"{n} {INVARIANTS[n].name}": count for n, count in sorted(compared.items())},
            struck=dict(sorted(self.nemesis.struck.items())),
        )


def _vacuous(counts: Mapping[str, int], compared: Mapping[str, int], seconds: float) -> str:
    if not counts["elections"]:
        return "no node was elected"
    if (acked := counts["acked"]) < seconds / 10:
        return f"only {counted(acked, 'record')} acknowledged in {seconds:.0f} s"
    never = [name for name in DUE if not compared[name]]
    return f"nothing was compared by: {', '.join(never)}" if never else ""
