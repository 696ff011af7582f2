"""Intruders: processes without rights that send requests to nodes drawn at random.

One of them is a user without any right, the other has no user at all. Each request that is not
refused, and each list that shows them anything, is an *intrusion*, whatever faults the cluster has
meanwhile: a node that restarts, or has an old catalog, must not let them in either.

The requests name queues, groups and attachments that exist: a gate that stands open is not saved by
a handler that finds nothing. The user without rights also fetches, on and on, from queues of topics
that do not exist *yet*: no rule speaks of them when the request comes.

Left out: heartbeats, delays, transactions, logins, and the commands of consumer groups and tokens.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from random import Random

import msgspec
import trio

from raftmq.batch import encode
from raftmq.chaos.outcome import Violation
from raftmq.chaos.sim.cluster import CLUSTER
from raftmq.chaos.sim.raw_client import RawClient, raw_client
from raftmq.chaos.sim.run_state import RunState
from raftmq.chaos.world.disk import MemoryFiles
from raftmq.chaos.world.process import Machine, Process
from raftmq.errors import ProtocolError
from raftmq.machine.catalog.catalog import Catalog
from raftmq.machine.queue_numbers import QUEUE_BITS
from raftmq.tls.names import USER, CertificateName
from raftmq.wire import access, popping, traces
from raftmq.wire.assignment import (
    CommitOffsets,
    Committed,
    CommittedOffsets,
    FindMembers,
    FoundMembers,
    QueueOffset,
)
from raftmq.wire.codec import unpack
from raftmq.wire.consumer_groups import FindConsumerGroups, FoundConsumerGroups
from raftmq.wire.fetches import Fetch, Fetched, FetchFrom
from raftmq.wire.frame import Frame
from raftmq.wire.messages import (
    REPLY,
    Admin,
    ChangeNode,
    ClusterView,
    ErrorReply,
    FindKey,
    FindOffset,
    FindOffsets,
    FrameKind,
    Metadata,
    Probe,
    RepairRange,
    Status,
    Transfer,
)
from raftmq.wire.producing import ClaimSessions

INTRUDER = "intruder"
"""The user without rights."""
REFUSED = "intruders refused"
PAUSE_SECONDS = 0.1
"""Between two requests, on average."""
ANSWER_SECONDS_MAX = 3.0
"""An intruder does not wait longer for an answer."""
AMBUSHED = "fetches of topics to come refused"
TOPICS_AHEAD = 3
"""Topics that are to come, by their numbers, of which an intruder fetches."""
LOOK_SECONDS = 0.1
"""Between two fetches of such a session: one that is answered at once must not be all that runs."""
AMBUSH_SECONDS = 5.0
"""For how long a session waits for these topics."""

_Attempt = tuple[FrameKind, msgspec.Struct | None, bytes]


class Intruders:
    """Both intruders of one run."""

    def __init__(self, state: RunState, seed: int) -> None:
        self._state = state
        self._random = Random(f"intruders {seed}")
        self.violations: list[Violation] = []
        """Intrusions."""
        self.compared: Counter[str] = Counter()
        """By check: answers that were judged."""

    def begin(self) -> None:
        """Try from now on, where nodes know their users."""
        if not self._state.cluster.network.is_under_tls:
            return
        self.compared[REFUSED] = self.compared[AMBUSHED] = 0
        for user in (INTRUDER, ""):
            self._state.spawn(self._try_all, user)
        self._state.spawn(self._wait_for_topics)

    def _process(self, name: str, user: str) -> Process:
        machine = Machine(name, self._state.agenda, MemoryFiles())
        process = Process(machine, self._state.agenda, seed=self._random.getrandbits(32))
        if user:
            process.names = frozenset((CertificateName(CLUSTER, USER, user),))
        return process

    async def _try_all(self, user: str) -> None:
        state = self._state
        process = self._process(f"intruder-{user or 'nobody'}", user)
        for number in count():
            await trio.sleep(self._random.expovariate(1 / PAUSE_SECONDS))
            node = self._random.choice(state.members())
            catalog = state.cluster.nodes[node].catalog if node in state.cluster.nodes else None
            attempts = list(_attempts(catalog)) if catalog is not None else []
            if not attempts:
                continue
            attempt = attempts[number % len(attempts)]
            with (
                suppress(OSError, trio.BrokenResourceError, ProtocolError),
                trio.move_on_after(ANSWER_SECONDS_MAX),
            ):
                answer = await self._ask(process, state.host(node), attempt)
                self._judge(user or "nobody", node, attempt[0], answer, REFUSED)

    async def _ask(self, process: Process, host: str, attempt: _Attempt) -> Frame | None:
        kind, message, body = attempt
        async with raw_client(self._state.cluster.network, process, host, "intruder") as client:
            await client.send(kind, 1, message, body)
            return await _answer(client, 1)

    async def _wait_for_topics(self) -> None:
        """Fetch from queues of topics to come, in sessions that go on while the topics come."""
        state = self._state
        process = self._process("intruder-in-wait", INTRUDER)
        while True:
            await trio.sleep(self._random.expovariate(1 / PAUSE_SECONDS))
            node = self._random.choice(state.members())
            if node not in state.cluster.nodes:
                continue
            following = state.cluster.nodes[node].catalog.topic_last + 1
            topics = range(following, following + TOPICS_AHEAD)
            with (
                suppress(OSError, trio.BrokenResourceError, ProtocolError),
                trio.move_on_after(AMBUSH_SECONDS),
            ):
                await self._wait_at(process, node, [topic << QUEUE_BITS for topic in topics])

    async def _wait_at(self, process: Process, node: int, queues: list[int]) -> None:
        host, session, asked = self._state.host(node), 0, [FetchFrom(each, 0) for each in queues]
        async with raw_client(self._state.cluster.network, process, host, "intruder") as client:
            for epoch in count():
                fetch = Fetch(asked if not epoch else [], 1000, 1000, session=session, epoch=epoch)
                await client.send(FrameKind.FETCH, epoch + 1, fetch)
                answer = await _answer(client, epoch + 1)
                self._judge(INTRUDER, node, FrameKind.FETCH, answer, AMBUSHED)
                if answer is None or answer.kind == FrameKind.ERROR:
                    return
                session = unpack(Fetched, answer.header).session
                await trio.sleep(LOOK_SECONDS)

    def _judge(
        self, user: str, node: int, kind: FrameKind, answer: Frame | None, check: str
    ) -> None:
        if answer is None:
            return
        self.compared[check] += 1
        if answer.kind == FrameKind.ERROR:
            unpack(ErrorReply, answer.header)
            return
        if answer.kind == kind | REPLY and _shows_nothing(kind, answer):
            return
        text = f"node {node} answered the {kind.name} of {user}, who may do nothing ({check})"
        self.violations.append(Violation("intrusion", self._state.watch.now_ms, text))


async def _answer(client: RawClient, correlation: int) -> Frame | None:
    """The answer to a request; None: the node has closed the connection."""
    while (frames := await client.receive()) is not None:
        for frame in frames:
            if frame.correlation == correlation:
                return frame
    return None


def _shows_nothing(kind: FrameKind, answer: Frame) -> bool:
    """Whether a list has no entry."""
    match kind:
        case FrameKind.FETCH:
            return all(each.error is not None for each in unpack(Fetched, answer.header).queues)
        case FrameKind.METADATA:
            return not unpack(ClusterView, answer.header).topics
        case FrameKind.GROUPS:
            return not unpack(FoundConsumerGroups, answer.header).groups
        case FrameKind.MEMBERS:
            return not unpack(FoundMembers, answer.header).members
        case FrameKind.COMMITTED:
            return not unpack(CommittedOffsets, answer.header).offsets
        case FrameKind.BACKLOGS:
            return not unpack(popping.FoundBacklogs, answer.header).backlogs
    return False


def _attempts(catalog: Catalog) -> Iterator[_Attempt]:
    """Requests about things that exist."""
    for kind, message in _of_cluster():
        yield kind, message, b""
    topic = next(iter(catalog.topics.values()), None)
    if topic is None:
        return
    queue, group = topic.queues[0], topic.groups[0]
    yield FrameKind.PRODUCE, None, bytes(encode([b"intrusion"]).to_bytes(queue=queue))
    for kind, message in _of_queue(queue, group, topic.id, topic.name):
        yield kind, message, b""
    attachment = next(iter(catalog.consumer_groups.attachments.values()), None)
    if attachment is not None:
        for kind, message in _of_attachment(attachment.number, group, queue):
            yield kind, message, b""


def _of_cluster() -> Iterator[tuple[FrameKind, msgspec.Struct]]:
    rule = [INTRUDER, True, "any", "topic", "", True]
    yield FrameKind.METADATA, Metadata(None)
    yield FrameKind.STATUS, Status()
    yield FrameKind.ADMIN, Admin(["create_topic", "intrusion", 1])
    yield FrameKind.ADMIN, Admin(["put_rule", rule])
    yield FrameKind.ADMIN, Admin(["put_user", INTRUDER])
    yield FrameKind.TRANSFER, Transfer(1, 0)
    yield FrameKind.CHANGE_NODE, ChangeNode("remove", 1)
    yield FrameKind.GROUPS, FindConsumerGroups()
    yield FrameKind.MEMBERS, FindMembers()
    yield FrameKind.COMMITTED, Committed(1, None)
    yield FrameKind.BACKLOGS, popping.FindBacklogs(1)
    yield FrameKind.EVENTS, traces.FindEvents(1, 1)
    yield FrameKind.USERS, access.FindUsers()
    yield FrameKind.RULES, access.FindRules()
    yield FrameKind.JUDGE, access.JudgeAct(INTRUDER, "any", "cluster")
    yield FrameKind.AUDIT, access.FindAudit()
    yield FrameKind.QUOTAS, access.FindQuotas()
    yield FrameKind.LOG, traces.FindLog(0)
    yield FrameKind.REPAIR, RepairRange(0, 2, 3)
    yield FrameKind.ADMIN, Admin(["put_quota", ["user", INTRUDER], []])
    yield FrameKind.PROBE, Probe(1, "intruder")


def _of_queue(
    queue: int, group: int, topic_id: int, topic: str
) -> Iterator[tuple[FrameKind, msgspec.Struct]]:
    yield FrameKind.FETCH, Fetch([FetchFrom(queue, 0)], 0, 1000)
    yield FrameKind.OFFSETS, FindOffsets([FindOffset(queue, 0)])
    yield FrameKind.KEY, FindKey(group, topic_id, b"k", 0, 1)
    yield FrameKind.COMMIT, CommitOffsets("readers", [QueueOffset(queue, 0)])
    yield FrameKind.SESSIONS, ClaimSessions(group, 1, [queue], 1)
    yield FrameKind.WHY, traces.FindTrace(group, queue, 0)
    yield FrameKind.ADMIN, Admin(["alter_topic", topic, 1000])


def _of_attachment(
    number: int, group: int, queue: int
) -> Iterator[tuple[FrameKind, msgspec.Struct]]:
    yield FrameKind.POP, popping.Pop(group, number, 1, 10, 0, 0, 1000)
    yield FrameKind.SETTLE, popping.Settle(group, number, 1, 1, [])
    yield FrameKind.LEAVE, popping.Leave(group, number, 1)
    yield FrameKind.DEAD, popping.FindDead(group, number)
    yield FrameKind.CHANGE_DEAD, popping.ChangeDead(group, number, [1], is_purge=True)
    yield FrameKind.RESET, popping.ResetGroup(group, number, [queue], [-1])
    yield FrameKind.CLAIM, popping.Claim(group, number, b"k", 1, 1000)
