"""A cluster in memory that speaks the protocol, for the client's tests.

Consensus is abstracted away: each partition group is one real `PartitionMachine` fed by one list of
records, and `leaders` says which node may feed it. So stored messages, and the answers to repeats,
are those of `raftmq.machine`; the connections, refusals and silences are scripted.

`fate` is asked about each request and says what happens to it:

| fate | the request is applied | the client gets |
|---|---|---|
| DONE | yes | the answer |
| NOT_APPLIED / APPLIED_AND_CUT | no / yes | the connection closes |
| UNKNOWN_NOT_APPLIED / UNKNOWN_APPLIED | no / yes | `outcome_unknown` |
| BUSY, UNAVAILABLE, NOT_LEADER | no | that refusal |
| BEHIND | no | `unknown_topic`, as from a node that has not heard of a new topic yet |
| IGNORED / APPLIED_AND_IGNORED | no / yes | nothing, and the connection stays open |
| APPLIED_LATE | yes, some time after the connection closed | the connection closes |
"""

import struct
from collections.abc import Callable
from enum import Enum, auto
from random import Random

import anyio
import anyio.lowlevel
import msgspec
from anyio.abc import TaskGroup

from raftmq.batch import Batch, peek
from raftmq.broker.deliver.group_deletion import next_part
from raftmq.broker.serve.group_coordinator import members_page
from raftmq.broker.serve.pages import consumer_groups_page, subscriptions_page
from raftmq.errors import Reason
from raftmq.log.record import Kind, Record
from raftmq.log.record import encode as encode_record
from raftmq.machine.catalog import catalog as catalog_commands
from raftmq.machine.catalog.catalog import Bootstrap, Catalog, Node
from raftmq.machine.catalog.topics import CreateTopic
from raftmq.machine.commands import encode_commands
from raftmq.machine.machine import PartitionMachine
from raftmq.machine.offsets import CommitOffsets as CommitCommand
from raftmq.machine.producers import ClaimSessions as ClaimCommand
from raftmq.results import Appended, Changed, Delayed, Refused, Result
from raftmq.wire.assignment import (
    CommitOffsets,
    Committed,
    CommittedOffset,
    CommittedOffsets,
    FindMembers,
    OffsetsCommitted,
)
from raftmq.wire.codec import pack, unpack
from raftmq.wire.consumer_groups import FindConsumerGroups, ForgetGroup
from raftmq.wire.fetches import FetchedQueue
from raftmq.wire.frame import FRAME_BYTES_MAX, Frame, FrameParser, encode_frame
from raftmq.wire.messages import (
    EARLIEST,
    LATEST,
    PROTOCOL,
    REPLY,
    Admin,
    AdminDone,
    ClusterView,
    Done,
    ErrorReply,
    FindKey,
    FindOffsets,
    FindSubscriptions,
    FoundBatch,
    FoundKey,
    FoundOffset,
    FoundOffsets,
    FrameKind,
    GroupView,
    Hello,
    Metadata,
    NodeStatus,
    NodeView,
    Produced,
    Status,
    TopicView,
    Transfer,
    Welcome,
)
from raftmq.wire.producing import ClaimSessions, SessionsClaimed, SessionView

from .fake_fetching import FakeFetching
from .fake_popping import FakePopping
from .fake_transactions import FakeTransactions
from .pipe import Pipe

URL = "raftmq://node1:1,node2:2,node3:3"


class Fate(Enum):
    """The fate of a request; see the table above."""

    DONE = auto()
    NOT_APPLIED = auto()
    APPLIED_AND_CUT = auto()
    UNKNOWN_NOT_APPLIED = auto()
    UNKNOWN_APPLIED = auto()
    BUSY = auto()
    UNAVAILABLE = auto()
    NOT_LEADER = auto()
    BEHIND = auto()
    IGNORED = auto()
    APPLIED_AND_IGNORED = auto()
    APPLIED_LATE = auto()


_APPLIED = {Fate.DONE, Fate.APPLIED_AND_CUT, Fate.UNKNOWN_APPLIED, Fate.APPLIED_AND_IGNORED}
_CUT = {Fate.NOT_APPLIED, Fate.APPLIED_AND_CUT, Fate.APPLIED_LATE}
_UNKNOWN = {Fate.UNKNOWN_NOT_APPLIED, Fate.UNKNOWN_APPLIED}
_REFUSED = {Fate.BUSY: "busy", Fate.UNAVAILABLE: "unavailable", Fate.NOT_LEADER: "not_leader"}
_REFUSED[Fate.BEHIND] = Reason.UNKNOWN_TOPIC.value


class Log:
    """The records of one partition group and the machine that applied them."""

    def __init__(self) -> None:
        self.machine = PartitionMachine()
        self.records: list[Record] = []
        self.batches: dict[int, list[tuple[int, Record]]] = {}
        self.counts: dict[tuple[int, int], int] = {}
        self.earliest: dict[int, int] = {}

    def add(self, kind: Kind, payload: bytes, now_ms: int) -> Result:
        (result,) = self.add_all(kind, payload, now_ms)
        return result

    def add_all(self, kind: Kind, payload: bytes, now_ms: int) -> list[Result]:
        if self.records:
            now_ms = max(now_ms, self.records[-1].timestamp)
        index = self.machine.applied + 1
        chain = self.records[-1].crc if self.records else 0
        record = encode_record(
            payload, index=index, term=1, kind=kind, timestamp=now_ms, chain=chain
        )
        self.records.append(record)
        results = self.machine.apply(record)
        for result in results:
            if isinstance(result, Appended) and not result.duplicate:
                self.batches.setdefault(result.queue, []).append((result.base_offset, record))
                self.counts[result.base_offset, result.queue] = result.count
        return results

    def describe(self, queue: int, taken: list[tuple[int, Record]]) -> FetchedQueue:
        count = len(taken)
        return FetchedQueue(
            queue,
            self.earliest.get(queue, 0),
            self.machine.ends.get(queue, 0),
            struct.pack(f"<{count}Q", *[base for base, _ in taken]),
            struct.pack(f"<{count}q", *[record.timestamp for _, record in taken]),
            struct.pack(f"<{count}I", *[len(record.payload) for _, record in taken]),
        )

    def bodies(self, queue: int) -> list[bytes]:
        return [
            body
            for base, record in self.batches.get(queue, [])
            for body in Batch.decode(record.payload, base_offset=base).bodies
        ]


class FakeCluster:
    """Three nodes, a system group, data groups; also the `ClientWorld` of the client under test."""

    def __init__(self, tasks: TaskGroup, *, groups: int = 3, seed: int = 0) -> None:
        self.random = Random(seed)
        self.clock_ms = 1_000_000
        self.fate: Callable[[FakeNode, Frame], Fate] = lambda _node, _frame: Fate.DONE
        self.nodes = {number: FakeNode(self, number, tasks) for number in (1, 2, 3)}
        self.leaders = {group: (group - 1) % 3 + 1 if group else 1 for group in range(groups + 1)}
        self.terms = dict.fromkeys(self.leaders, 1)
        self.catalog = Catalog()
        self.logs = {group: Log() for group in range(1, groups + 1)}
        self.hints = True
        self.pop_seconds = 0.0
        self.unreachable: set[int] = set()
        # Node → seconds from a batch to its answer.
        self.produce_seconds: Callable[[int], float] = lambda _node: 0.0
        self.zones: dict[int, str] = {}
        self.connects = 0
        self.page_entries = 1_000_000
        # Of each transaction that has ended: was it committed, and its messages.
        self.ended: list[tuple[bool, int]] = []
        self.changed = anyio.Event()
        nodes = [Node(number, f"node{number}", number) for number in self.nodes]
        self.change_catalog(Bootstrap(nodes, groups, 3))

    # The client's world.

    def now_ms(self) -> int:
        return self.clock_ms

    async def connect(self, host: str, port: int) -> Pipe:
        await anyio.lowlevel.checkpoint()
        self.connects += 1
        node = self.nodes.get(port)
        if node is None or port in self.unreachable or host != f"node{port}":
            raise ConnectionRefusedError(f"no process listens at {host}:{port}")
        client, server = Pipe.pair()
        node.accept(server)
        return client

    # Actions of tests

    def change_catalog(self, command: catalog_commands.Command) -> Result:
        payload = encode_commands([command])
        record = encode_record(
            payload,
            index=self.catalog.applied + 1,
            term=1,
            kind=Kind.COMMANDS,
            timestamp=self.clock_ms,
            chain=0,
        )
        (result,) = self.catalog.apply(record)
        return result

    def create_topic(self, name: str = "orders", queues: int = 1) -> None:
        self.change_catalog(CreateTopic(name, queues))

    def move(self, group: int, to: int) -> None:
        """Another node leads from now on."""
        self.leaders[group] = to
        self.terms[group] += 1
        self.tell()

    def kill(self, node: int) -> None:
        """The node answers no more requests, and its connections close."""
        self.unreachable.add(node)
        self.nodes[node].cut()

    def tell(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    def log_of(self, queue: int) -> Log:
        group = self.catalog.group_of(queue)
        assert group is not None
        return self.logs[group]

    def stored(self, topic: str = "orders") -> list[list[bytes]]:
        """The bodies in each queue of a topic, in order."""
        return [self.log_of(queue).bodies(queue) for queue in self.catalog.topics[topic].queues]

    def trim(self, queue: int, earliest: int) -> None:
        self.log_of(queue).earliest[queue] = earliest

    def view(self, topics: list[str] | None) -> ClusterView:
        wanted = [
            TopicView(topic.name, topic.id, topic.groups)
            for topic in self.catalog.topics.values()
            if topics is None or topic.name in topics
        ]
        groups = [
            GroupView(group, leader, self.terms[group], [1, 2, 3], [])
            for group, leader in self.leaders.items()
        ]
        nodes = [
            NodeView(node, f"node{node}", node, zone=self.zones.get(node, ""))
            for node in self.nodes
        ]
        return ClusterView("fake", self.catalog.version, nodes, groups, wanted)


class FakeNode:
    """One node: answers in the order of the requests, except for fetches that wait."""

    def __init__(self, cluster: FakeCluster, number: int, tasks: TaskGroup) -> None:
        self.cluster = cluster
        self.number = number
        self.requests: list[FrameKind] = []
        self.batch_bytes_max = 16 * 1024 * 1024
        self.welcome_cluster = "fake"
        self._tasks = tasks
        self._pipes: list[Pipe] = []
        self._handlers: dict[
            FrameKind, Callable[[Frame], tuple[bytes, list[bytes]] | ErrorReply]
        ] = {
            FrameKind.PRODUCE: self._produce,
            FrameKind.SESSIONS: self._sessions,
            FrameKind.METADATA: self._metadata,
            FrameKind.COMMIT: self._commit,
            FrameKind.COMMITTED: self._committed,
            FrameKind.OFFSETS: self._offsets,
            FrameKind.KEY: self._key,
            FrameKind.ADMIN: self._admin,
            FrameKind.STATUS: self._status,
            FrameKind.TRANSFER: self._transfer,
            FrameKind.SUBSCRIBED: self._subscribed,
            FrameKind.GROUPS: self._consumer_groups,
            FrameKind.MEMBERS: self._members,
            FrameKind.FORGET_GROUP: self._forget_group,
        }
        self.fetching = FakeFetching(self)
        self.popping = FakePopping(self)
        self._handlers |= self.popping.handlers | FakeTransactions(self).handlers

    def accept(self, pipe: Pipe) -> None:
        self._pipes.append(pipe)
        self._tasks.start_soon(self._serve, pipe)

    def cut(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        self._pipes.clear()

    async def _serve(self, pipe: Pipe) -> None:
        parser = FrameParser(FRAME_BYTES_MAX)
        try:
            while True:
                parser.feed(await pipe.receive())
                for frame in parser.frames():
                    if frame.kind == FrameKind.HELLO:
                        await self._greet(pipe, frame)
                    else:
                        await self._handle(pipe, frame)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pipe.close()

    async def _greet(self, pipe: Pipe, frame: Frame) -> None:
        hello = unpack(Hello, frame.header)
        if hello.cluster not in {"", self.welcome_cluster}:
            error = ErrorReply(Reason.WRONG_CLUSTER.value, f"this is {self.welcome_cluster!r}")
            await _send(pipe, FrameKind.ERROR, frame, pack(error), [])
            return
        welcome = Welcome(
            PROTOCOL, self.welcome_cluster, self.number, "x", "fake", 1 << 26, self.batch_bytes_max
        )
        await _send(pipe, frame.kind | REPLY, frame, pack(welcome), [])

    async def _handle(self, pipe: Pipe, frame: Frame) -> None:
        if frame.kind == FrameKind.SETTINGS:
            return  # It waits for a change, and there is none.
        self.requests.append(FrameKind(frame.kind))
        if frame.kind == FrameKind.FORGET:
            self.fetching.recall(pipe, frame.correlation)
            return
        fate = self.cluster.fate(self, frame)
        if frame.kind == FrameKind.PRODUCE:
            seconds = self.cluster.produce_seconds(self.number)
            if seconds:
                await anyio.sleep(seconds)
        if fate in _REFUSED:
            error = ErrorReply(_REFUSED[fate], f"scripted {fate.name}", retry_ms=1)
            await _send(pipe, FrameKind.ERROR, frame, pack(error), [])
            return
        if frame.kind == FrameKind.FETCH and fate is Fate.DONE:
            self._tasks.start_soon(self.fetching.fetch, pipe, frame)
            return
        if frame.kind == FrameKind.POP and fate is Fate.DONE:
            self._tasks.start_soon(self.popping.pop, pipe, frame)
            return
        answer: tuple[bytes, list[bytes]] | ErrorReply = ErrorReply("unavailable", "not applied")
        if fate in _APPLIED and frame.kind != FrameKind.FETCH:
            answer = self._handlers[FrameKind(frame.kind)](frame)
        if fate in _CUT:
            pipe.close()
            if fate is Fate.APPLIED_LATE and frame.kind != FrameKind.FETCH:
                self._tasks.start_soon(self._apply_late, frame)
        elif fate in _UNKNOWN:
            error = ErrorReply("outcome_unknown", "the leader lost its office")
            await _send(pipe, FrameKind.ERROR, frame, pack(error), [])
        elif fate is not Fate.DONE:
            return
        elif isinstance(answer, ErrorReply):
            await _send(pipe, FrameKind.ERROR, frame, pack(answer), [])
        else:
            await _send(pipe, frame.kind | REPLY, frame, *answer)

    async def send(
        self, pipe: Pipe, frame: Frame, answer: tuple[bytes, list[bytes]] | ErrorReply
    ) -> None:
        """Answer a request, unless the connection is gone."""
        try:
            if isinstance(answer, ErrorReply):
                await _send(pipe, FrameKind.ERROR, frame, pack(answer), [])
            else:
                await _send(pipe, frame.kind | REPLY, frame, *answer)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pipe.close()

    async def _apply_late(self, frame: Frame) -> None:
        await anyio.sleep(self.cluster.random.random() * 0.2)
        self._handlers[FrameKind(frame.kind)](frame)

    # -- requests ---------------------------------------------------------------------------------

    def not_leader(self, group: int) -> ErrorReply | None:
        leader = self.cluster.leaders[group]
        if leader == self.number:
            return None
        hint = leader if self.cluster.hints else 0
        return ErrorReply("not_leader", f"node {leader} leads", group=group, leader=hint)

    def wrong_place(self, queue: int) -> ErrorReply | None:
        group = self.cluster.catalog.group_of(queue)
        if group is None:
            return ErrorReply(Reason.UNKNOWN_TOPIC.value, f"queue {queue} belongs to no topic")
        return self.not_leader(group)

    def _produce(self, frame: Frame) -> tuple[bytes, list[bytes]] | ErrorReply:
        queue = peek(frame.body).queue
        error = self.wrong_place(queue)
        if error is not None:
            return error
        result = self.cluster.log_of(queue).add(Kind.BATCH, frame.body, self.cluster.clock_ms)
        if isinstance(result, Refused):
            return ErrorReply(result.reason.value, result.message, last=result.last)
        self.cluster.tell()
        if isinstance(result, Delayed):
            return pack(Produced(-1, result.timestamp, result.duplicate, result.number)), []
        assert isinstance(result, Appended)
        return pack(Produced(result.base_offset, result.timestamp, result.duplicate)), []

    def _metadata(self, frame: Frame) -> tuple[bytes, list[bytes]] | ErrorReply:
        request = unpack(Metadata, frame.header)
        error = self.not_leader(0) if request.is_latest else None
        view = self.cluster.view(request.topics)
        following = [topic for topic in view.topics if topic.id > request.after]
        page = following[: self.cluster.page_entries]
        last = page[-1].id if len(page) < len(following) else 0
        if request.after:
            view = msgspec.structs.replace(view, nodes=[], groups=[])
        return error or (pack(msgspec.structs.replace(view, topics=page, next=last)), [])

    def _status(self, frame: Frame) -> tuple[bytes, list[bytes]]:
        after = unpack(Status, frame.header).after
        numbers = [number for number in self.cluster.leaders if number > after]
        page = numbers[: self.cluster.page_entries]
        status = {"node": self.number, "groups": [{"group": number} for number in page]}
        following = {"next": page[-1]} if len(page) < len(numbers) else {}
        return pack(NodeStatus(status | following)), []

    def _commit(self, frame: Frame) -> tuple[bytes, list[bytes]] | ErrorReply:
        request = unpack(CommitOffsets, frame.header)
        queues = [item.queue for item in request.offsets]
        error = self.wrong_place(queues[0])
        if error is not None:
            return error
        command = CommitCommand(
            request.consumer_group,
            queues,
            [o.offset for o in request.offsets],
            [o.epoch for o in request.offsets if o.epoch],
            request.sequence,
            request.kept_ms,
            request.is_reset,
            request.sender,
        )
        log = self.cluster.log_of(queues[0])
        result = log.add(Kind.COMMANDS, encode_commands([command]), self.cluster.clock_ms)
        if isinstance(result, Refused):
            return ErrorReply(result.reason.value, result.message, last=result.last)
        assert isinstance(result, Changed)
        return pack(OffsetsCommitted(result.value or [])), []

    def _sessions(self, frame: Frame) -> tuple[bytes, list[bytes]] | ErrorReply:
        request = unpack(ClaimSessions, frame.header)
        error = self.wrong_place(request.queues[0])
        if error is not None:
            return error
        command = ClaimCommand(
            request.producer, request.queues, request.label, request.part, request.parts
        )
        log = self.cluster.log_of(request.queues[0])
        result = log.add(Kind.COMMANDS, encode_commands([command]), self.cluster.clock_ms)
        if isinstance(result, Refused):
            return ErrorReply(result.reason.value, result.message, last=result.last)
        assert isinstance(result, Changed)
        return pack(SessionsClaimed([SessionView(*each) for each in result.value])), []

    def _committed(self, frame: Frame) -> tuple[bytes, list[bytes]] | ErrorReply:
        request = unpack(Committed, frame.header)
        error = self.not_leader(request.partition_group)
        if error is not None:
            return error
        committed = self.cluster.logs[request.partition_group].machine.committed
        offsets = [
            CommittedOffset(group, queue, offset, timestamp)
            for group, of_group in sorted(committed.items())
            if request.consumer_group in {None, group}
            for queue, (offset, timestamp) in sorted(of_group.items())
            if (group, queue) > (request.after_group, request.after_queue)
        ]
        page = offsets[: self.cluster.page_entries]
        return pack(CommittedOffsets(page, len(page) < len(offsets))), []

    def _offsets(self, frame: Frame) -> tuple[bytes, list[bytes]] | ErrorReply:
        found = []
        for item in unpack(FindOffsets, frame.header).queues:
            error = self.wrong_place(item.queue)
            if error is not None:
                return error
            log = self.cluster.log_of(item.queue)
            earliest, end = log.earliest.get(item.queue, 0), log.machine.ends.get(item.queue, 0)
            later = [b for b, r in log.batches.get(item.queue, []) if r.timestamp >= item.at]
            offset = {EARLIEST: earliest, LATEST: end}.get(item.at, min(later, default=end))
            found.append(FoundOffset(item.queue, offset, earliest, end))
        return pack(FoundOffsets(found)), []

    def _key(self, frame: Frame) -> tuple[bytes, list[bytes]] | ErrorReply:
        request = unpack(FindKey, frame.header)
        error = self.not_leader(request.partition_group)
        if error is not None:
            return error
        found: list[FoundBatch] = []
        body: list[bytes] = []
        for queue, batches in self.cluster.logs[request.partition_group].batches.items():
            for base, record in reversed(batches):
                payload = bytes(record.payload)
                if request.key.decode() in Batch.decode(payload).keys:
                    found.append(FoundBatch(queue, base, record.timestamp, len(payload)))
                    body.append(payload)
        return pack(FoundKey(found)), body

    def _admin(self, frame: Frame) -> tuple[bytes, list[bytes]] | ErrorReply:
        error = self.not_leader(0)
        if error is not None:
            return error
        request = unpack(Admin, frame.header)
        command = catalog_commands.parse_command(request.command, request.request)
        result = self.cluster.change_catalog(command)
        if isinstance(result, Refused):
            return ErrorReply(result.reason.value, result.message, last=result.last)
        assert isinstance(result, Changed)
        return pack(AdminDone(result.value)), []

    def _subscribed(self, frame: Frame) -> tuple[bytes, list[bytes]] | ErrorReply:
        page = subscriptions_page(self.cluster.catalog, unpack(FindSubscriptions, frame.header))
        return self.not_leader(0) or (pack(page), [])

    def _consumer_groups(self, frame: Frame) -> tuple[bytes, list[bytes]] | ErrorReply:
        page = consumer_groups_page(self.cluster.catalog, unpack(FindConsumerGroups, frame.header))
        return self.not_leader(0) or (pack(page), [])

    def _forget_group(self, frame: Frame) -> tuple[bytes, list[bytes]] | ErrorReply:
        request = unpack(ForgetGroup, frame.header)
        error = self.not_leader(request.partition_group)
        if error is not None:
            return error
        log = self.cluster.logs[request.partition_group]
        while part := next_part(self.cluster.catalog, log.machine.offsets):
            log.add(Kind.COMMANDS, encode_commands([part]), self.cluster.clock_ms)
        assert log.machine.offsets.forgotten >= request.until
        return pack(Done()), []

    def _members(self, frame: Frame) -> tuple[bytes, list[bytes]] | ErrorReply:
        request, now = unpack(FindMembers, frame.header), self.cluster.clock_ms
        page = members_page(self.cluster.catalog, request, now=now)
        return self.not_leader(0) or (pack(page), [])

    def _transfer(self, frame: Frame) -> tuple[bytes, list[bytes]] | ErrorReply:
        request = unpack(Transfer, frame.header)
        error = self.not_leader(request.partition_group)
        if error is not None:
            return error
        self.cluster.move(request.partition_group, request.to)
        return pack(Done()), []


async def _send(pipe: Pipe, kind: int, frame: Frame, header: bytes, body: list[bytes]) -> None:
    await pipe.send(b"".join(encode_frame(kind, frame.correlation, header, body)))
