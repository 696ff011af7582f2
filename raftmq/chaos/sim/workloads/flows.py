"""Clients of other features: claims, hand-offs, broadcast groups, resets, topics that change.

| topic | clients | see |
|---|---|---|
| `t` | producers, as in the log workload | `log` |
| `t`, `out` | consumers that hand off | `raftmq.chaos.workloads.hand_offs` |
| `t` | claimants | `raftmq.chaos.workloads.claims` |
| `t` | a group that is moved, its clone, a broadcast group | `raftmq.chaos.workloads.resets` |
| `g`, `x` | clients of topics that get more queues, or come and go | `workloads.topics` |
| `g` | calls of one producer, or of one transaction, at once | `workloads.overlaps` |

Each part has functions of its own in the history, and a checker of its own; the consumer groups
that pop are also judged by the committed log.
"""

from collections.abc import Awaitable, Callable
from random import Random

import numpy as np
import trio

from raftmq.chaos.sim.clients import Clients, Job, Session
from raftmq.chaos.workloads import hand_offs
from raftmq.chaos.workloads.audit import find_left
from raftmq.chaos.workloads.claims import Claims
from raftmq.chaos.workloads.hand_offs import HandOffs
from raftmq.chaos.workloads.overlaps import Overlaps
from raftmq.chaos.workloads.popping import Popping, judge_pop
from raftmq.chaos.workloads.resets import INSTANCES, POPPED, Resets
from raftmq.chaos.workloads.topics import GROWING, Growing, Passing
from raftmq.chaos.workloads.withholding import judge_withheld
from raftmq.checkers import (
    Report,
    check_claims,
    check_hand_off,
    check_instances,
    check_resets,
    check_topic_lives,
)
from raftmq.checkers.history import NONE, Flags, History, Recorder
from raftmq.client import Client

from .log import QUEUES, TOPIC, LogWorkload, body_of, value_of

PRODUCERS = 2
CLAIMANTS = 3
HANDERS = 2
LOST_ANSWERS = 0.2
"""Share of the answers to claimants."""
GROWN = "a"
"""The group that pops from the topic which gets more queues."""
LOOK_SECONDS = 0.5


class FlowsWorkload(LogWorkload):
    """The clients' side of a run."""

    def __init__(self, clients: Clients, recorder: Recorder) -> None:
        super().__init__(clients, recorder)
        counts = self.counts
        self._claims = Claims(recorder, topic=TOPIC, counts=counts)
        self._hand_offs = HandOffs(
            recorder, topic=TOPIC, queues=QUEUES, number_of=value_of, counts=counts
        )
        self._resets = Resets(
            recorder, topic=TOPIC, queues=QUEUES, number_of=value_of, counts=counts
        )
        self._growing = Growing(recorder, body_of=_body, counts=counts)
        self._overlaps = Overlaps(
            recorder, self._growing, body_of=_body, number_of=value_of, counts=counts
        )
        self._passing = Passing(recorder, body_of=_body, number_of=value_of, counts=counts)
        self._popping = Popping(
            recorder,
            clients,
            topic=GROWING,
            number_of=value_of,
            queue_name=lambda queue: f"{GROWING}/{queue}",
            counts=counts,
            groups=(GROWN,),
            now_ms=clients.now_ms,
        )
        self.producers_left = PRODUCERS + 5

    async def prepare(self) -> None:
        """Create the topics and the groups."""
        await super().prepare()

        async def job(mq: Client, _: Session) -> None:
            for part in (self._hand_offs, self._resets, self._growing, self._popping):
                await part.prepare(mq)

        await self._clients.once(job)

    def start(self) -> None:
        """Start all clients."""
        start = self._clients.start
        for number in range(PRODUCERS):
            start(f"producer-{number + 1}", self._produce)
        start("producer-growing", self._job(self._produce_growing))
        start("passing", self._job(self._pass_by))
        start("administrator", self._job(self._alter))
        start("mover", self._job(self._move))
        for number in range(CLAIMANTS):
            job = self._job(self._claims.contend)
            start(f"claimant-{number + 1}", job, lost_answers=LOST_ANSWERS)
        for number in range(HANDERS):
            start(f"consumer-h{number + 1}", self._job(self._hand_offs.work))
        for is_clone in (False, True):
            start(f"consumer-r{int(is_clone)}", self._popper(is_clone=is_clone))
        for instance in INSTANCES:
            start(f"consumer-{instance}", self._instance(instance))
        start("consumer-g", self._job(self._pop_growing))
        start("shopper", self._job(self._shop))
        start("leaver", self._job(self._leave))

    async def find_ends(self) -> None:
        """Let clients finish the remaining work, and start an auditor that waits for its end."""
        await super().find_ends()
        self._claims.is_draining = self._hand_offs.is_draining = True
        self._resets.is_draining = self._popping.is_draining = True
        self._clients.start("auditor", self._job(self._audit))

    @property
    def is_drained(self) -> bool:
        """True if nothing is left to do."""
        is_over = len(self._resets.drained) == len(INSTANCES) and self._resets.is_over
        is_read = self._hand_offs.is_read and self._overlaps.is_read
        return is_over and is_read and self._popping.is_drained

    def judge(self, history: History, *, clock_ms_max: int | None) -> list[Report]:
        """Judge each part; `clock_ms_max`: see `check_claims`."""
        is_drained = self.is_drained
        clone = self._resets.clone
        late_ms = None if clock_ms_max is None else clock_ms_max + self._popping.late_ms
        grown = history.select(_operations_on(history, GROWING, GROWN))
        return [
            check_claims(history, clock_ms_max=clock_ms_max),
            check_hand_off(history, topic=TOPIC, is_drained=is_drained),
            check_resets(history, clones=[clone] if clone else [], is_drained=is_drained),
            check_instances(history, is_drained=is_drained),
            check_topic_lives(history),
            *judge_withheld(history, clock_ms_max=clock_ms_max, is_drained=is_drained),
            *judge_pop(grown, groups=(GROWN,), clock_ms_max=late_ms, is_drained=is_drained),
        ]

    # Clients

    def _job(self, work: Callable[[Client, int, Random], Awaitable[None]]) -> Job:
        async def job(mq: Client, session: Session) -> None:
            await work(mq, session.number, session.random)

        return job

    def _popper(self, *, is_clone: bool) -> Job:
        async def job(mq: Client, session: Session) -> None:
            await self._resets.pop(mq, session.number, session.random, is_clone=is_clone)

        return job

    def _instance(self, instance: str) -> Job:
        async def job(mq: Client, session: Session) -> None:
            while instance not in self._resets.drained:
                number = self._clients.new_number()
                await self._resets.broadcast(mq, number, session.random, instance)

        return job

    async def _produce_growing(self, mq: Client, process: int, random: Random) -> None:
        await self._growing.produce(mq, process, random, lambda: self.is_sending)
        self.producers_left -= 1

    async def _pass_by(self, mq: Client, process: int, random: Random) -> None:
        await self._passing.live(mq, process, random, lambda: self.is_sending)
        self.producers_left -= 1

    async def _move(self, mq: Client, process: int, random: Random) -> None:
        await self._resets.move(mq, process, random, lambda: self.is_sending)
        self.producers_left -= 1

    async def _shop(self, mq: Client, process: int, random: Random) -> None:
        await self._overlaps.shop(mq, process, random, lambda: self.is_sending)
        self.producers_left -= 1

    async def _leave(self, mq: Client, process: int, random: Random) -> None:
        await self._overlaps.leave(mq, process, random, lambda: self.is_sending)
        self.producers_left -= 1

    async def _alter(self, mq: Client, _: int, random: Random) -> None:
        await self._growing.alter(mq, random, lambda: self.is_sending)

    async def _pop_growing(self, mq: Client, process: int, random: Random) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._growing.look_again, mq, lambda: not self._popping.is_drained)
            await self._popping.consume(mq, process, random, GROWN)

    async def _audit(self, mq: Client, process: int, _: Random) -> None:
        self._resets.ends = self.ends
        watched = {hand_offs.GROUP, POPPED}
        watched |= {self._resets.clone} if self._resets.clone else set()
        while True:
            left = await find_left(mq, TOPIC)
            if all(group in left and left[group].is_empty for group in watched):
                break
            await trio.sleep(LOOK_SECONDS)
        await self._hand_offs.read_all(mq, process)
        self._resets.end()
        await self._overlaps.read_all(mq, process)
        await self._popping.audit(mq, process)


def _body(number: int) -> bytes:
    return body_of(number, 0)


def _operations_on(history: History, topic: str, group: str) -> Flags:
    """By row: whether its operation is about a topic's queues, or is its group's."""
    mine = [
        key == group or key.startswith((f"{topic}/", f"{group} {topic}/")) for key in history.keys
    ]
    is_mine = np.array([*mine, False])[np.where(history.key == NONE, len(mine), history.key)]
    return np.isin(history.operation, history.operation[is_mine])
