"""Requests of clients: one handler for each.

Each handler runs in one step of the event loop. It answers at once, or it leaves a ticket with a
group and answers when the record is committed and applied. A request for a queue or group that
another node leads is refused with `not_leader` and the leader's id; the client asks that node.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

import msgspec

from raftmq.batch import admit, peek
from raftmq.batch.layout import COMPRESSED, BatchHead
from raftmq.broker.cluster.reconfiguration import plan
from raftmq.broker.deliver.group_deletion import forget_first
from raftmq.broker.replica.group import Group, node_of
from raftmq.broker.settings import Limits
from raftmq.broker.world import Worker
from raftmq.errors import CorruptRecord, Reason
from raftmq.log.record import Kind
from raftmq.machine import offsets as offset_commands
from raftmq.machine import producers as producer_commands
from raftmq.machine.catalog import catalog as catalog_commands
from raftmq.machine.catalog.catalog import SYSTEM_GROUP, Catalog, PutGroup, PutNode
from raftmq.machine.catalog.replicas import RetireReplica, taker_of
from raftmq.machine.commands import encode_commands
from raftmq.machine.delays import RESERVED
from raftmq.machine.machine import PartitionMachine
from raftmq.results import Appended, Delayed, Refused, Result
from raftmq.wire.address import why_no_address
from raftmq.wire.assignment import CommitOffsets, OffsetsCommitted
from raftmq.wire.codec import pack, unpack
from raftmq.wire.consumer_groups import FindConsumerGroups
from raftmq.wire.frame import Frame
from raftmq.wire.messages import (
    EARLIEST,
    LATEST,
    Admin,
    AdminDone,
    ChangeMember,
    ClusterView,
    Committed,
    Done,
    ErrorReply,
    FindOffsets,
    FindSubscriptions,
    FoundOffset,
    FoundOffsets,
    FrameKind,
    Metadata,
    NodeStatus,
    Produced,
    Status,
    Transfer,
)
from raftmq.wire.numbers import NODE_MAX
from raftmq.wire.sessions import ClaimSessions, SessionsClaimed, SessionView

from .answers import answering, elsewhere, refusal
from .connection import Connection
from .fetches import Fetches, Source
from .names import misnamed, misnamed_commit
from .pages import QUESTIONS_MAX, committed_page, consumer_groups_page, subscriptions_page

LARGE_BYTES = 1024 * 1024
"""Compressed bodies from this size on are checked on the reading thread: decompressing 16 MiB
(66 KB of lz4) would hold the loop for up to 44 ms."""


class Service(Protocol):
    """The part of the node that the handlers use."""

    @property
    def catalog(self) -> Catalog:
        """The system group's machine."""

    def group(self, number: int) -> Group | None:
        """This node's replica of a partition group."""

    def source(self, queue: int) -> Source | ErrorReply:
        """The source to read a queue from on this node, or the refusal."""

    def view(self, topics: list[str] | None, *, after: int) -> ClusterView:
        """A page of the routing table."""

    def status(self, *, after: int) -> dict[str, Any]:
        """A page of this node's picture of itself."""

    def read_failed(self, error: BaseException) -> ErrorReply:
        """The refusal for a request whose records cannot be read."""

    def start_soon(self, task: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Run a task under the node's supervisor."""

    async def prefer(self, group: Group, node: int) -> ErrorReply | None:
        """Note in the catalog which node shall lead a group; None, or the refusal."""

    async def retire_member(
        self, connection: Connection, frame: Frame, group: Group, command: RetireReplica
    ) -> None:
        """Carry out the command if the log is lost, or the group has let go of the member."""


class _Produce:
    """A batch that waits for its commit."""

    __slots__ = ("_connection", "_correlation")

    def __init__(self, connection: Connection, correlation: int) -> None:
        self._connection = connection
        self._correlation = correlation

    def done(self, results: list[Result]) -> None:
        result = results[0]
        if isinstance(result, Appended):
            header = pack(Produced(result.base_offset, result.timestamp, result.duplicate))
            self._connection.reply(FrameKind.PRODUCE, self._correlation, header)
        elif isinstance(result, Delayed):
            header = pack(Produced(-1, result.timestamp, result.duplicate, result.number))
            self._connection.reply(FrameKind.PRODUCE, self._correlation, header)
        else:
            assert isinstance(result, Refused)
            self._connection.refuse(self._correlation, refusal(result))

    def failed(self, error: ErrorReply) -> None:
        self._connection.refuse(self._correlation, error)


class Requests:
    """The handlers, by frame kind."""

    def __init__(
        self,
        service: Service,
        *,
        fetches: Fetches,
        others: dict[int, Callable[[Connection, Frame], None]],
        reader: Worker,
        limits: Limits,
    ) -> None:
        """`others`: handlers of frame kinds that are served elsewhere."""
        self._service = service
        self._fetches = fetches
        self._reader = reader
        self._limits = limits
        self._handlers: dict[int, Callable[[Connection, Frame], None]] = {
            FrameKind.PRODUCE: self._produce,
            FrameKind.FETCH: fetches.start,
            FrameKind.METADATA: self._metadata,
            FrameKind.COMMIT: self._commit,
            FrameKind.COMMITTED: self._committed,
            FrameKind.OFFSETS: self._offsets,
            FrameKind.ADMIN: self._admin,
            FrameKind.STATUS: self._status,
            FrameKind.TRANSFER: self._transfer,
            FrameKind.MEMBER: self._member,
            FrameKind.FORGET: fetches.forget,
            FrameKind.SUBSCRIBED: self._subscribed,
            FrameKind.GROUPS: self._consumer_groups,
            FrameKind.SESSIONS: self._sessions,
            **others,
        }

    def handle(self, connection: Connection, frame: Frame) -> None:
        """Carry out a request. Raises `ProtocolError` if the frame makes no sense."""
        handler = self._handlers.get(frame.kind)
        if handler is None:
            message = f"this node does not know requests of kind {frame.kind}"
            connection.refuse(frame.correlation, ErrorReply(Reason.BAD_ARGUMENT.value, message))
            return
        handler(connection, frame)

    def _produce(self, connection: Connection, frame: Frame) -> None:
        try:
            head = peek(frame.body)
        except CorruptRecord as error:
            connection.refuse(frame.correlation, _corrupt(error))
            return
        group = self._group_of(head.queue)
        if isinstance(group, ErrorReply):
            # Refused before the bodies are decompressed: that work is only for queues that exist.
            connection.refuse(frame.correlation, group)
            return
        check = partial(admit, frame.body, bytes_max=self._limits.batch_bytes_max)
        if not head.flags & COMPRESSED or head.body_bytes < LARGE_BYTES:
            try:
                check()
            except CorruptRecord as error:
                connection.refuse(frame.correlation, _corrupt(error))
            else:
                self._append(connection, frame, head, group)
            return

        def done(_: object, error: BaseException | None) -> None:
            connection.go_on()
            if isinstance(error, CorruptRecord):
                connection.refuse(frame.correlation, _corrupt(error))
            elif error is not None:
                connection.refuse(frame.correlation, self._service.read_failed(error))
            else:
                self._append(connection, frame, head, group)

        # The batches that follow on this connection must not overtake this one.
        connection.pause()
        self._reader.submit(check, done)

    def _append(self, connection: Connection, frame: Frame, head: BatchHead, group: Group) -> None:
        if head.producer >= RESERVED:
            message = f"producer {head.producer} is the brokers' own: a client's is below 2^63"
            connection.refuse(frame.correlation, ErrorReply(Reason.BAD_ARGUMENT.value, message))
            return
        group.propose(Kind.BATCH, frame.body, _Produce(connection, frame.correlation))

    def _sessions(self, connection: Connection, frame: Frame) -> None:
        request = unpack(ClaimSessions, frame.header)
        for queue in request.queues:
            group = self._group_of(queue)
            if not isinstance(group, ErrorReply) and group.number != request.partition_group:
                message = f"queue {queue} is not in partition group {request.partition_group}"
                group = ErrorReply(Reason.BAD_ARGUMENT.value, message)
            if isinstance(group, ErrorReply):
                connection.refuse(frame.correlation, group)
                return
        found = self._service.group(request.partition_group)
        if found is None or not isinstance(found.machine, PartitionMachine):
            connection.refuse(frame.correlation, elsewhere(request.partition_group))
            return
        command = producer_commands.ClaimSessions(
            request.producer, request.queues, request.label, request.part, request.parts
        )
        payload = encode_commands([command])
        found.propose(Kind.COMMANDS, payload, answering(connection, frame, _sessions_claimed))

    def _group_of(self, queue: int) -> Group | ErrorReply:
        number = self._service.catalog.group_of(queue)
        if number is None:
            return _unknown_queue(queue)
        group = self._service.group(number)
        return group if group is not None else elsewhere(number)

    def _metadata(self, connection: Connection, frame: Frame) -> None:
        request = unpack(Metadata, frame.header)

        def answer() -> None:
            view = self._service.view(request.topics, after=request.after)
            connection.reply(frame.kind, frame.correlation, pack(view))

        if not request.is_latest:
            answer()
            return
        group = self._service.group(SYSTEM_GROUP)
        if group is None:
            connection.refuse(frame.correlation, elsewhere(SYSTEM_GROUP))
            return
        self._read(connection, frame, group, answer)

    def _commit(self, connection: Connection, frame: Frame) -> None:
        request = unpack(CommitOffsets, frame.header)
        if not request.offsets:
            connection.reply(frame.kind, frame.correlation, pack(OffsetsCommitted()))
            return
        group = self._group_of(request.offsets[0].queue)
        if isinstance(group, ErrorReply):
            connection.refuse(frame.correlation, group)
            return
        assert isinstance(group.machine, PartitionMachine)
        name = request.consumer_group
        error = None
        if group.is_current:
            error = misnamed_commit(name, group.machine, self._service.catalog)
        if error is not None:
            connection.refuse(frame.correlation, error)
            return
        command = offset_commands.CommitOffsets(
            name,
            [item.queue for item in request.offsets],
            [item.offset for item in request.offsets],
            [item.epoch for item in request.offsets if item.epoch],
            request.sequence,
            request.kept_ms,
            request.is_reset,
            request.sender,
        )
        if (error := forget_first(self._service.catalog, group, command)) is not None:
            connection.refuse(frame.correlation, error)
            return
        payload = encode_commands([command])
        group.propose(Kind.COMMANDS, payload, answering(connection, frame, _offsets_committed))

    def _read(
        self, connection: Connection, frame: Frame, group: Group, answer: Callable[[], None]
    ) -> None:
        """Call `answer` when reading the group's machine is linearizable."""

        def ready(error: ErrorReply | None) -> None:
            if error is not None:
                connection.refuse(frame.correlation, error)
            else:
                answer()

        group.read(ready)

    def _committed(self, connection: Connection, frame: Frame) -> None:
        request = unpack(Committed, frame.header)
        group = self._service.group(request.partition_group)
        if group is None or not isinstance(group.machine, PartitionMachine):
            connection.refuse(frame.correlation, elsewhere(request.partition_group))
            return

        def answer() -> None:
            assert isinstance(group.machine, PartitionMachine)
            page = committed_page(group.machine, request, passed=self._fetches.passed)
            connection.reply(frame.kind, frame.correlation, pack(page))

        self._read(connection, frame, group, answer)

    def _subscribed(self, connection: Connection, frame: Frame) -> None:
        request = unpack(FindSubscriptions, frame.header)
        self._read_catalog(connection, frame, lambda known: subscriptions_page(known, request))

    def _consumer_groups(self, connection: Connection, frame: Frame) -> None:
        request = unpack(FindConsumerGroups, frame.header)
        self._read_catalog(connection, frame, lambda known: consumer_groups_page(known, request))

    def _read_catalog(
        self, connection: Connection, frame: Frame, page: Callable[[Catalog], msgspec.Struct]
    ) -> None:
        """Answer with a page of the catalog, linearizably."""
        group = self._service.group(SYSTEM_GROUP)
        if group is None:
            connection.refuse(frame.correlation, elsewhere(SYSTEM_GROUP))
            return

        def answer() -> None:
            connection.reply(frame.kind, frame.correlation, pack(page(self._service.catalog)))

        self._read(connection, frame, group, answer)

    def _offsets(self, connection: Connection, frame: Frame) -> None:
        request = unpack(FindOffsets, frame.header)
        if len(request.queues) > QUESTIONS_MAX:
            message = f"{len(request.queues)} queues are asked for; the limit is {QUESTIONS_MAX}"
            connection.refuse(frame.correlation, ErrorReply(Reason.TOO_LARGE.value, message))
            return
        groups: dict[int, Group] = {}
        for item in request.queues:
            group = self._group_of(item.queue)
            if isinstance(group, ErrorReply):
                connection.refuse(frame.correlation, group)
                return
            groups[group.number] = group
        waiting = len(groups)
        if not waiting:
            connection.reply(frame.kind, frame.correlation, pack(FoundOffsets([])))

        def ready() -> None:
            nonlocal waiting
            waiting -= 1
            if waiting == 0:
                self._find_offsets(connection, frame, request)

        for group in groups.values():
            self._read(connection, frame, group, ready)

    def _find_offsets(self, connection: Connection, frame: Frame, request: FindOffsets) -> None:
        found = []
        for item in request.queues:
            source = self._service.source(item.queue)
            if isinstance(source, ErrorReply):
                connection.refuse(frame.correlation, source)
                return
            earliest = source.earliest(item.queue)
            match item.at:
                case _ if item.at == EARLIEST:
                    offset = earliest
                case _ if item.at == LATEST:
                    offset = source.end
                case at:
                    at_time = source.group.index.at_time(item.queue, at)
                    offset = source.end if at_time is None else at_time
            found.append(FoundOffset(item.queue, offset, earliest, source.end))
        connection.reply(frame.kind, frame.correlation, pack(FoundOffsets(found)))

    def _admin(self, connection: Connection, frame: Frame) -> None:
        request = unpack(Admin, frame.header)
        try:
            command = catalog_commands.parse_command(request.command, request.request)
        except msgspec.ValidationError as error:
            message = f"no such command: {error}"
            connection.refuse(frame.correlation, ErrorReply(Reason.BAD_ARGUMENT.value, message))
            return
        problem = ""
        if isinstance(command, PutNode):
            problem = why_no_address(command.node.host, command.node.port)
            if not 1 <= command.node.id <= NODE_MAX:
                problem = f"a node's number is 1 to {NODE_MAX}, not {command.node.id}"
        if problem:
            # Refused here and not when applied: logs may hold such an address already, and a
            # record must have one result on all replicas.
            connection.refuse(frame.correlation, ErrorReply(Reason.BAD_ARGUMENT.value, problem))
            return
        group = self._founded_group(connection, frame)
        if group is None:
            return
        # A leader that has applied its log knows the names that the cluster has.
        misnaming = misnamed(command, self._service.catalog) if group.is_current else None
        if misnaming is not None:
            connection.refuse(frame.correlation, misnaming)
            return
        payload = encode_commands([command])
        if isinstance(command, PutGroup) and not self._keeps_members(group, command):
            connection.refuse(frame.correlation, _changing())
            return
        if isinstance(command, RetireReplica) and node_of(command.member) != connection.from_node:
            message = "only the node itself can say that a replica's log is deleted or lost"
            connection.refuse(frame.correlation, ErrorReply(Reason.BAD_ARGUMENT.value, message))
            return
        if isinstance(command, RetireReplica) and (
            taker := taker_of(self._service.catalog, command)
        ):
            # A node that was removed hears nothing of the catalog, and asks again and again.
            connection.reply(frame.kind, frame.correlation, pack(AdminDone(taker)))
            return
        if isinstance(command, RetireReplica) and group.is_leader:
            service = self._service
            service.start_soon(service.retire_member, connection, frame, group, command)
            return
        group.propose(Kind.COMMANDS, payload, answering(connection, frame, AdminDone))

    def _founded_group(self, connection: Connection, frame: Frame) -> Group | None:
        """The system group, for a change of the catalog; None: the request was refused, as it must
        go elsewhere, or wait until the cluster is founded."""
        group = self._service.group(SYSTEM_GROUP)
        if group is None:
            connection.refuse(frame.correlation, elsewhere(SYSTEM_GROUP))
        elif group.is_leader and not self._service.catalog.is_bootstrapped:
            message = "the cluster is not founded yet"
            error = ErrorReply("unavailable", message, group=SYSTEM_GROUP, retry_ms=50)
            connection.refuse(frame.correlation, error)
        else:
            return group
        return None

    def _keeps_members(self, group: Group, command: PutGroup) -> bool:
        """True if a command changes the order of a group's members only, by the newest catalog."""
        known = self._service.catalog.groups.get(command.group.id)
        same = known is not None and sorted(known.members) == sorted(command.group.members)
        return same and group.is_settled

    def _member(self, connection: Connection, frame: Frame) -> None:
        group = self._founded_group(connection, frame)
        if group is None:
            return
        change = unpack(ChangeMember, frame.header)

        def ready() -> None:
            if not group.is_settled:
                # A plan made from a catalog that is about to change would undo that change.
                connection.refuse(frame.correlation, _changing())
                return
            commands = plan(change, self._service.catalog)
            if isinstance(commands, Refused):
                connection.refuse(frame.correlation, refusal(commands))
                return
            payload = encode_commands(commands)
            group.propose(Kind.COMMANDS, payload, answering(connection, frame, lambda _: Done()))

        self._read(connection, frame, group, ready)

    def _status(self, connection: Connection, frame: Frame) -> None:
        request = unpack(Status, frame.header)
        header = pack(NodeStatus(self._service.status(after=request.after)))
        connection.reply(frame.kind, frame.correlation, header)

    def _transfer(self, connection: Connection, frame: Frame) -> None:
        request = unpack(Transfer, frame.header)
        number = request.partition_group
        group = self._service.group(number)
        if number not in self._service.catalog.groups:
            message = f"there is no partition group {number}"
            connection.refuse(frame.correlation, ErrorReply(Reason.BAD_ARGUMENT.value, message))
        elif group is None or not group.is_leader:
            connection.refuse(frame.correlation, group.not_leader() if group else elsewhere(number))
        else:
            self._service.start_soon(self._hand_over, connection, frame, group, request.to)

    async def _hand_over(self, connection: Connection, frame: Frame, group: Group, to: int) -> None:
        # The catalog notes the wish first: else the next check of leaders would undo the transfer.
        error = None if to == 0 else await self._service.prefer(group, to)
        error = error or group.transfer(group.voter_of(to) if to else 0)
        if error is not None:
            connection.refuse(frame.correlation, error)
        else:
            connection.reply(frame.kind, frame.correlation, pack(Done()))


def _offsets_committed(fenced: list[int] | None) -> OffsetsCommitted:
    return OffsetsCommitted(fenced or [])


def _sessions_claimed(value: list[list[int]]) -> SessionsClaimed:
    return SessionsClaimed([SessionView(*session) for session in value])


def _corrupt(error: CorruptRecord) -> ErrorReply:
    return ErrorReply(Reason.CORRUPT_BATCH.value, str(error))


def _unknown_queue(queue: int) -> ErrorReply:
    message = f"queue {queue} belongs to no topic"
    return ErrorReply(Reason.UNKNOWN_TOPIC.value, message)


def _changing() -> ErrorReply:
    return ErrorReply("busy", "the catalog is being changed", group=SYSTEM_GROUP, retry_ms=50)
