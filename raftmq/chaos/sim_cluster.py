"""The `sim_cluster` of a test: whole brokers, and your clients, in a simulated world.

    async def pay(mq): ...                       # `mq` is a real client, connected
    async def book(mq): ...

    sim_cluster.prepare(create_topics)
    sim_cluster.process("payer", pay)
    sim_cluster.process("bookkeeper", book)
    sim_cluster.run()

Each process runs on a machine of its own until its function returns. A process that is killed by a
fault, or whose function ends with `Unavailable` or `OutcomeUnknown`, is started again from the
beginning, as a service manager would do. Time is simulated and passes only while tasks wait, so
that a minute takes a second or two. The same seed repeats a run, down to the last byte, if the
functions take time, randomness and input from the world alone: `trio.sleep`, `trio.current_time`,
`sim_cluster.random`.

| phase | until |
|---|---|
| faults | three quarters of the time |
| calm | every process has returned; if that takes too long, the test fails |

Invariants:
- A bug in a broker (an assert, an exception) fails the test, and so does a broken invariant of Raft
  or of a disk.

Left out: faults that leave a disk damaged or change the members; `raftmq chaos run --world sim`
has these faults, and an operator who replaces damaged nodes.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING

from raftmq.chaos.faults import FAULTS, Fault, Schedule, World, draw, expanded, nearest, of_world
from raftmq.chaos.nemesis import CannotBreak
from raftmq.chaos.outcome import Coverage, Happening, Violation

if TYPE_CHECKING:
    from raftmq.chaos.sim.checks.watch import Watch
    from raftmq.chaos.sim.run_state import RunState
    from raftmq.client import Client

Job = Callable[["Client"], Awaitable[None]]
Clock = Callable[[], int]

RETURN_SECONDS_MAX = 180.0
"""Simulated seconds from the heal within which every process must return."""

DAMAGING = frozenset(f"D{number}" for number in range(11, 20))
"""Codes of faults after which a node may have to be replaced."""


def kinds() -> list[Fault]:
    """The faults that a `SimCluster` can make."""
    return [
        fault
        for fault in of_world(World.SIM)
        if fault.code not in DAMAGING and not fault.code.startswith("M")
    ]


class SimCluster:
    """The value of the fixture `sim_cluster`."""

    def __init__(
        self, *, seed: int, wanted: Sequence[str] = (), seconds: float = 10.0, nodes: int = 3
    ) -> None:
        """`wanted` names faults, empty for all that can be made."""
        self.seed = seed
        self.seconds = seconds
        self.random = Random(f"test {seed}")
        """For choices of the test itself."""
        self.is_healed = False
        """True after the heal: every process should return soon."""
        self.played: Schedule | None = None
        """The schedule; None until `run`."""
        self.timeline: Sequence[Happening] = ()
        """The events of the run; empty until the run is over."""
        self.violations: list[Violation] = []
        """The promises that the brokers broke."""
        self.trace_hash = ""
        """A hash over all events; equal runs have equal hashes."""
        self.coverage: Mapping[Coverage, int] = {}
        """Number of strikes in each situation."""
        self.counts: Counter[str] = Counter()
        """Faults by name, crashes, restarts."""
        self.on_clock: list[Callable[[Clock], None]] = []
        """Called with the world's clock: nanoseconds from the start of the faults."""
        self._wanted = tuple(wanted)
        self._nodes = nodes
        self._prepare: list[Job] = []
        self._jobs: dict[str, Job] = {}
        self._running: set[str] = set()

    @property
    def schedule(self) -> Schedule:
        """Which faults strike when.

        Raises:
            CannotBreak: a wanted fault cannot be made by a `SimCluster`.
        """
        known = {fault.name for fault in kinds()}
        wanted = expanded(self._wanted, known)
        wrong = [name for name in wanted if name not in known]
        if wrong:
            said = ", ".join(f"{name}{nearest(name)}" for name in wrong)
            raise CannotBreak(f"cannot make {said}\nknown: {', '.join(sorted(known))}")
        chosen = [FAULTS[name] for name in wanted] or kinds()
        return draw(self.seed, chosen, nodes=self._nodes, seconds=self.seconds)

    def prepare(self, job: Job) -> None:
        """Run `job` before any fault, to create topics for example."""
        self._prepare.append(job)

    def process(self, name: str, job: Job) -> None:
        """Add a process with its own client; faults can hang processes named `consumer...`."""
        assert name not in self._jobs, f"there is a process {name} already"
        self._jobs[name] = job

    def run(self) -> None:
        """Play the whole run, in simulated time. A test runs its cluster once.

        Raises:
            AssertionError: a process did not return in time, ended with an error that it should
                have handled, or a broker broke a promise.
            Exception: whatever else a process raised.
        """
        from raftmq.chaos.world.agenda import Agenda
        from raftmq.chaos.world.agenda import run as run_world

        assert self.played is None, "a cluster runs once"
        self.played = self.schedule
        agenda = Agenda()
        try:
            run_world(self._main, agenda, seed=self.seed, agenda=agenda)
        except BaseExceptionGroup as group:
            raise _only(group) from None
        finally:
            self.trace_hash = agenda.trace_hash
        assert not self.violations, "\n".join(f"{one.name}: {one.text}" for one in self.violations)

    async def _main(self, agenda: "object") -> None:
        import trio

        from raftmq.chaos.sim.checks.availability import Availability
        from raftmq.chaos.sim.checks.watch import Watch
        from raftmq.chaos.sim.clients import Clients
        from raftmq.chaos.sim.cluster import Cluster
        from raftmq.chaos.sim.drain import level
        from raftmq.chaos.sim.faults.nemesis import Nemesis
        from raftmq.chaos.sim.faults.taps import Taps
        from raftmq.chaos.sim.run_state import RunState

        assert self.played is not None
        async with trio.open_nursery() as nursery:
            cluster = Cluster(nursery, size=self._nodes, seed=self.seed)
            taps = Taps(cluster.network, {event.fault for event in self.played.events})
            await cluster.found()
            watch = Watch(cluster)
            clients = Clients(cluster, nursery, seed=self.seed)
            state = RunState(cluster, watch, clients, nursery, taps=taps, seed=self.seed)
            for job in self._prepare:
                await clients.once(_alone(job))
            watch.begin()
            state.begin()
            began = cluster.agenda.now
            for told in self.on_clock:
                told(lambda: int((cluster.agenda.now - began) * 1e9))
            for name, job in self._jobs.items():
                self._running.add(name)
                clients.start(name, self._until_done(name, job))
            nemesis = Nemesis(state, self.played, Availability(state))
            nemesis.begin()
            await trio.sleep(self.played.heal_ms / 1000)
            nemesis.heal()
            self.is_healed = True
            await self._wait_returned()
            await level(state)
            watch.end()
            state.end()
            assert not clients.failures, "; ".join(clients.failures)
            nursery.cancel_scope.cancel()
        self._look_back(state, watch)

    def _until_done(self, name: str, job: Job) -> Callable[["Client", object], Awaitable[None]]:
        async def run(mq: "Client", _: object) -> None:
            await job(mq)
            self._running.discard(name)

        return run

    async def _wait_returned(self) -> None:
        import trio

        with trio.move_on_after(RETURN_SECONDS_MAX):
            # In simulated time, polling costs little.
            while self._running:  # noqa: ASYNC110
                await trio.sleep(0.05)
        late = ", ".join(sorted(self._running))
        if late:
            text = f"{late} did not return within {RETURN_SECONDS_MAX:g} s of the heal"
            self.violations.append(Violation("V5", int(self.seconds * 1000), text))

    def _look_back(self, state: "RunState", watch: "Watch") -> None:
        """Take time line, counts and violations from the run that is over."""
        from raftmq.chaos.sim.checks.evidence import gather, judge_servers
        from raftmq.checkers import Verdict

        self.timeline = tuple(watch.timeline)
        self.coverage, self.counts = dict(watch.coverage), state.counts
        self.violations += state.violations
        for group, report in judge_servers(gather(state, watch)):
            if report.verdict is Verdict.INVALID:
                self.violations += [
                    Violation(anomaly.name, watch.now_ms, f"group {group}: {anomaly.fact}")
                    for anomaly in report.anomalies
                ]


def _alone(job: Job) -> Callable[["Client", object], Awaitable[None]]:
    async def run(mq: "Client", _: object) -> None:
        await job(mq)

    return run


def _only(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The exception inside nested groups of one exception each; else the innermost group."""
    inner: BaseException = group
    while isinstance(inner, BaseExceptionGroup) and len(inner.exceptions) == 1:
        inner = inner.exceptions[0]
    return inner
