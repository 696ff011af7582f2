"""Client processes in the simulated world: each on its own machine, killed and started at will.

A *client* is a name and a job; each of its processes opens a connection of its own, with the real
client library. A process that is killed stops in the middle of its job, and another process takes
over after a while.

Invariants:
- Any exception of a client's process but the errors that a user may expect is a bug, and noted.
"""

import traceback
from collections.abc import Awaitable, Callable
from itertools import count
from random import Random
from typing import NamedTuple

import trio

from raftmq.chaos.sim.cluster import CLUSTER, PORT, Cluster
from raftmq.chaos.sim.faults.lost_answers import plant_lost_answers
from raftmq.chaos.world.disk import MemoryFiles
from raftmq.chaos.world.process import Machine, Process, WallClock
from raftmq.chaos.world.simulated import SimulatedClientWorld
from raftmq.client import Client, connect
from raftmq.errors import OutcomeUnknown, Reason, Rejected, Unavailable
from raftmq.tls.local_cluster import ADMIN
from raftmq.tls.names import USER, CertificateName

APPLICATION = "application"
"""The user of all clients but the administrator's."""
COLLEAGUE = "colleague"
"""In runs with faults of access: the user of every second consumer of a group. Faults that take a
right away take it from `APPLICATION` alone."""
GUEST = "guest"
"""In runs with faults of access: a user that is known by tokens; see `checks.guests`."""
BARRED_SECONDS = 12.0
"""For this long after rights were given back, a client may still be about to raise a denial."""
QUOTA_EVERY = 3
"""Where nodes know their users, one run in this many has a quota."""
QUOTA = {"write_messages": 20, "read_messages": 60, "requests": 60, "connections": 60}
"""The quota of `APPLICATION`: so low that each amount delays requests in some run."""
CALL_SECONDS = 8.0
"""Every call of a client ends within this time."""


class InFlightMax(NamedTuple):
    """The quotas of messages in flight of a run."""

    topic: int
    """Of each topic."""
    user: int
    """Of `APPLICATION`."""


IN_FLIGHT = (InFlightMax(topic=30, user=40), InFlightMax(topic=30, user=20))
"""Taken in turn by the runs with quotas: a user has more than a topic, or less."""


class Session(NamedTuple):
    """One process of a client."""

    number: int
    """Number of the process in the history, never used again."""
    random: Random
    """Draws all choices of the process."""


Job = Callable[[Client, Session], Awaitable[None]]
"""The work of a client's process with its connection."""

Change = Callable[[Client], Awaitable[object]]
"""A change that an administrator makes."""


class Clients:
    """All clients of a run."""

    def __init__(self, cluster: Cluster, nursery: trio.Nursery, *, seed: int) -> None:
        self._cluster = cluster
        self._nursery = nursery
        self.seed = seed
        """The seed of the run."""
        self._processes: dict[str, Process] = {}
        self._scopes: dict[str, trio.CancelScope] = {}
        self._machines: dict[str, Machine] = {}
        self._lost_answers: dict[str, float] = {}
        self._numbers = count()
        self._slowness = 0.0
        self._repeats = self._late_acks = 0
        self.failures: list[str] = []
        """Errors that no user should see."""
        self.asked_to_leave: set[int] = set()
        """Nodes whose removal or replacement was ever asked for."""
        self.must_stay: set[int] = set()
        """Members that must not be asked to leave, because requests under way name them."""
        self.is_healed = False
        """True from the heal on: what is lost for good is replaced soon."""
        self.has_others = False
        """True: the cluster has the users `COLLEAGUE` and `GUEST`, too."""
        self.barred = 0
        """Faults that have taken rights away, or are about to, and have not given them back."""
        self.in_flight_max: InFlightMax | None = None
        """The quotas of messages in flight; None: there are none."""
        self._barred_until = 0.0

    @property
    def slowness(self) -> float:
        """Extra seconds that a consumer needs for each batch."""
        self._felt("consumers slowed", self._slowness > 0)
        return self._slowness

    @slowness.setter
    def slowness(self, seconds: float) -> None:
        self._slowness = seconds

    @property
    def repeats(self) -> int:
        """Number of next commits that are made twice; each one counts this down."""
        return self._repeats

    @repeats.setter
    def repeats(self, count: int) -> None:
        self._felt("acks repeated", count < self._repeats)
        self._repeats = count

    @property
    def late_acks(self) -> int:
        """Number of next commits that are followed by one of an older position, likewise."""
        return self._late_acks

    @late_acks.setter
    def late_acks(self, count: int) -> None:
        self._felt("acks of what was over", count < self._late_acks)
        self._late_acks = count

    def _felt(self, effect: str, is_felt: bool) -> None:  # two words of one fact
        self._cluster.agenda.effects[effect] += is_felt

    def now_ms(self) -> int:
        """The time of the clients' wall clocks, which are right."""
        return WallClock(self._cluster.agenda).now_ms()

    def filters_heard(self) -> tuple[int, int]:
        """As `Cluster.filters_heard`."""
        return self._cluster.filters_heard()

    def hosts(self) -> list[str]:
        """The names of all clients' machines."""
        return list(self._machines)

    def names(self) -> list[str]:
        """The clients that run now."""
        return list(self._processes)

    def new_number(self) -> int:
        """A process's number in the history, never used again."""
        return next(self._numbers)

    def process(self, name: str) -> Process:
        """A client's process."""
        return self._processes[name]

    def start(self, name: str, job: Job, *, lost_answers: float = 0.0) -> None:
        """Start a client; it runs until its job returns. A share of the answers to its calls is
        lost or late: see `lost_answers`."""
        self._lost_answers[name] = lost_answers
        self._machines[name] = Machine(name, self._cluster.agenda, MemoryFiles())
        self._nursery.start_soon(self._live, name, job)

    def kill(self, name: str) -> None:
        """End a client's process in the middle of what it does; another one is started."""
        process = self._processes.pop(name)
        self._cluster.agenda.effects["clients ended"] += 1
        process.die()
        self._cluster.network.process_ended(process)
        self._scopes[name].cancel()

    async def _live(self, name: str, job: Job) -> None:
        """Run one process after another, until the job is done."""
        is_done = False
        while not is_done:
            is_done = await self._run(name, job)
            await trio.sleep(0.3)

    async def _run(self, name: str, job: Job) -> bool:
        """Run one process; True if the job is done."""
        number = next(self._numbers)
        seed = self.seed * 7919 + number
        process = Process(self._machines[name], self._cluster.agenda, seed=seed)
        process.names = frozenset((CertificateName(CLUSTER, USER, self._user_of(name)),))
        self._processes[name] = process
        is_done = False
        with trio.CancelScope() as scope:
            self._scopes[name] = scope
            is_done = await self.call(process, job, self._session(number))
        if not process.is_dead:
            self._processes.pop(name, None)
            process.die()
            self._cluster.network.process_ended(process)
        return is_done

    def _session(self, number: int) -> Session:
        return Session(number, Random(f"client {self.seed} {number}"))

    async def call(self, process: Process, job: Job, session: Session) -> bool:
        """Connect and do a job as a process; False if it could not be done."""
        is_done = False

        async def main() -> None:
            nonlocal is_done
            world = SimulatedClientWorld(self._cluster.network, process)
            try:
                async with connect(
                    self.url(),
                    timeout=CALL_SECONDS,
                    # A node of another cluster may answer at an address of a node that is down.
                    cluster=CLUSTER,
                    wait_refused=None,
                    world=world,
                ) as mq:
                    self._lose_answers(mq, process.machine.name, session)
                    await job(mq, session)
                is_done = True
            except Exception as error:
                # After an error that a user would try again, the client's next process tries again.
                if not process.is_dead and not all(map(self._is_usual, _leaves(error))):
                    self.failures.append("".join(traceback.format_exception(error)))
                    is_done = True

        async with trio.open_nursery() as nursery:
            nursery.start_soon(process.run, main)
        return is_done

    def _lose_answers(self, mq: Client, host: str, session: Session) -> None:
        share = self._lost_answers.get(host, 0.0)
        if share:
            # A generator of its own: what a client chooses does not depend on it.
            random = Random(f"lost answers {self.seed} {session.number}")
            plant_lost_answers(mq, self._cluster, host=host, share=share, random=random)

    async def once(self, job: Job) -> bool:
        """Do a job as a process of its own, once, on the administrator's machine. False: as
        `call`."""
        number = next(self._numbers)
        machine = Machine("admin", self._cluster.agenda, MemoryFiles())
        process = Process(machine, self._cluster.agenda, seed=self.seed * 7919 + number)
        process.names = frozenset((CertificateName(CLUSTER, USER, ADMIN),))
        try:
            return await self.call(process, job, self._session(number))
        finally:
            process.die()
            self._cluster.network.process_ended(process)

    async def surely(self, change: Change) -> None:
        """Make a change as the administrator, with any number of attempts: a repeat changes
        nothing."""

        async def job(mq: Client, _: Session) -> None:
            await change(mq)

        is_made = await self.once(job)
        while not is_made:
            await trio.sleep(0.3)
            is_made = await self.once(job)

    async def admit(self) -> None:
        """Give the clients their rights, and in some runs a quota."""
        await self.allow()
        await self.give_quotas()

    async def allow(self) -> None:
        """Give the clients the rights that they need, where the cluster knows its users."""
        if self._cluster.network.is_under_tls:
            await self.surely(self.give_rights)

    async def give_rights(self, mq: Client) -> None:
        """Give each user its rights."""
        for user in (APPLICATION, COLLEAGUE) if self.has_others else (APPLICATION,):
            for resource, name in (("topic", "*"), ("group", "*"), ("cluster", "")):
                await mq.access.allow(user, "any", resource, name)
        if self.has_others:
            await mq.access.put_user(GUEST)
            await mq.access.allow(GUEST, "describe", "topic", "*")

    async def barring(self, take: Change, give_back: Change, over: trio.Event) -> None:
        """Take rights away until `over` is set, and give them back, whatever comes."""
        self.barred += 1
        await self.surely(take)
        self._cluster.agenda.effects["rights taken away"] += 1
        await over.wait()
        await self.surely(give_back)
        self.barred -= 1
        self._barred_until = self._cluster.agenda.now + BARRED_SECONDS

    @property
    def administrator(self) -> str:
        """The user of the workload's administrators."""
        # Lists leave out what a user may not see: they would be wrong in the history.
        return ADMIN if self.has_others else APPLICATION

    def _user_of(self, name: str) -> str:
        if not self.has_others:
            return APPLICATION
        if name.startswith(("administrator", "auditor")):
            return self.administrator
        is_second = name.startswith("consumer") and name[-1] in "2468"
        return COLLEAGUE if is_second else APPLICATION

    def _is_usual(self, error: Exception) -> bool:
        """Is it an error that a user may expect?"""
        if not isinstance(error, Rejected):
            return isinstance(error, Unavailable | OutcomeUnknown)
        if error.reason in (Reason.DENIED, Reason.UNAUTHENTICATED):
            return self.barred > 0 or self._cluster.agenda.now < self._barred_until
        # For a while each address may be that of a node of another cluster.
        return error.reason is Reason.WRONG_CLUSTER

    async def give_quotas(self) -> None:
        """Give the clients quotas, in some runs in which the cluster knows its users."""
        if self._cluster.network.is_under_tls and self.seed % QUOTA_EVERY == 1:
            most = IN_FLIGHT[self.seed // QUOTA_EVERY % len(IN_FLIGHT)]
            quota = {**QUOTA, "in_flight": most.user}
            await self.surely(lambda mq: mq.access.put_quota("user", APPLICATION, **quota))
            await self.surely(lambda mq: mq.access.put_quota("topic", "*", in_flight=most.topic))
            self.in_flight_max = most

    def url(self) -> str:
        """The cluster's address: all nodes that ever had a machine."""
        nodes = [f"node{number}:{PORT}" for number in sorted(self._cluster.machines)]
        return "raftmq://" + ",".join(nodes)


def _leaves(error: Exception) -> list[Exception]:
    if isinstance(error, ExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]
