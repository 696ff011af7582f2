"""Requests of clients for the catalog, for offsets and for this node, and the batches they produce.

A request for a queue or group that another node leads is refused with `not_leader` and the leader's
id; the client asks that node.
"""

from functools import partial

import msgspec
from msgspec.structs import replace

from raftmq.access.rules import Resource
from raftmq.batch import admit, peek
from raftmq.batch.layout import COMPRESSED, BatchHead
from raftmq.broker.access.acts import authored, authored_change
from raftmq.broker.cluster.preference import prefer
from raftmq.broker.cluster.reconfiguration import plan
from raftmq.broker.cluster.upgrade import why_too_early
from raftmq.broker.cluster.views import view
from raftmq.broker.deliver.group_deletion import forget_first
from raftmq.broker.host import Host
from raftmq.broker.quotas.pace import Pace
from raftmq.broker.quotas.wide_changes import WideChanges
from raftmq.broker.replica.group import Group, node_of
from raftmq.broker.replica.replicas import why_not_retire
from raftmq.broker.service import Service
from raftmq.broker.settings import Limits
from raftmq.broker.world import Worker
from raftmq.errors import CorruptRecord, Reason
from raftmq.log.record import Kind
from raftmq.machine import offsets as offset_commands
from raftmq.machine import producers as producer_commands
from raftmq.machine.catalog import catalog as catalog_commands
from raftmq.machine.catalog.access import SEED_BYTES, PutUser
from raftmq.machine.catalog.audit import BeginAct, EndAct
from raftmq.machine.catalog.catalog import (
    SYSTEM_GROUP,
    Authored,
    Command,
    Once,
    PutGroup,
    PutNode,
    Reconfigure,
    is_of_users,
)
from raftmq.machine.catalog.levels import RaiseLevel
from raftmq.machine.catalog.nodes import NoteAbsence, PlaceNode
from raftmq.machine.catalog.replicas import RetireReplica, taker_of
from raftmq.machine.catalog.settings import PutSettings
from raftmq.machine.catalog.state import NODES_MAX
from raftmq.machine.machine import PartitionMachine
from raftmq.results import Appended, Delayed, Refused
from raftmq.wire.address import why_no_address
from raftmq.wire.assignment import CommitOffsets, Committed, CommittedOffsets, OffsetsCommitted
from raftmq.wire.consumer_groups import FindConsumerGroups, FoundConsumerGroups
from raftmq.wire.frame import Frame
from raftmq.wire.messages import (
    EARLIEST,
    LATEST,
    Admin,
    AdminDone,
    ChangeNode,
    Done,
    ErrorReply,
    FindOffsets,
    FindSubscriptions,
    FoundOffset,
    FoundOffsets,
    FoundSubscriptions,
    FrameKind,
    Metadata,
    NodeStatus,
    Produced,
    Status,
    Transfer,
)
from raftmq.wire.numbers import NODE_MAX
from raftmq.wire.producing import ClaimSessions, SessionsClaimed, SessionView

from .answers import LATER, Answer, OpenRequest, elsewhere, of_nodes, refusal, unknown_queue
from .dispatcher import data_group, frame_route, group_route, route, system_group
from .fetches import Fetches
from .names import misnamed, misnamed_commit
from .pages import committed_page, consumer_groups_page, subscriptions_page

LARGE_BYTES = 1024 * 1024
"""Compressed bodies from this size on are checked on the reading thread: decompressing 16 MiB
(66 KB of lz4) would hold the loop for up to 44 ms."""


class Requests(Service):
    """The handlers, by frame kind."""

    def __init__(self, node: Host, *, fetches: Fetches, reader: Worker, limits: Limits) -> None:
        self._node = node
        self._fetches = fetches
        self._reader = reader
        self._limits = limits
        self._wide_changes = WideChanges(node, Pace(node))
        system = system_group(node)
        self.routes = {
            FrameKind.PRODUCE: frame_route(self._produce),
            FrameKind.METADATA: route(Metadata, self._metadata),
            FrameKind.COMMIT: route(CommitOffsets, self._commit),
            FrameKind.COMMITTED: group_route(Committed, data_group(node), self._committed),
            FrameKind.OFFSETS: route(FindOffsets, self._offsets),
            FrameKind.ADMIN: route(Admin, self._admin),
            FrameKind.STATUS: route(Status, self._status),
            FrameKind.TRANSFER: group_route(Transfer, self._led_group, self._transfer),
            FrameKind.CHANGE_NODE: group_route(ChangeNode, self._founded_group, self._change_node),
            FrameKind.SUBSCRIBED: group_route(FindSubscriptions, system, self._subscribed),
            FrameKind.GROUPS: group_route(FindConsumerGroups, system, self._consumer_groups),
            FrameKind.SESSIONS: group_route(ClaimSessions, self._session_group, self._sessions),
        }

    # Groups

    def _group_of(self, queue: int) -> Group | ErrorReply:
        number = self._node.catalog.group_of(queue)
        if number is None:
            return unknown_queue(queue)
        group = self._node.group(number)
        return group if group is not None else elsewhere(number)

    def _session_group(self, request: ClaimSessions) -> Group | ErrorReply:
        for queue in request.queues:
            group = self._group_of(queue)
            if isinstance(group, ErrorReply):
                return group
            if group.number != request.partition_group:
                message = f"queue {queue} is not in partition group {request.partition_group}"
                return ErrorReply(Reason.BAD_ARGUMENT.value, message)
        return data_group(self._node)(request)

    def _led_group(self, request: Transfer) -> Group | ErrorReply:
        number = request.partition_group
        if number not in self._node.catalog.groups:
            message = f"there is no partition group {number}"
            return ErrorReply(Reason.BAD_ARGUMENT.value, message)
        group = self._node.group(number)
        if group is None:
            return elsewhere(number)
        return group if group.is_leader else group.not_leader()

    def _founded_group(self, _: object) -> Group | ErrorReply:
        """The system group, for a change of the catalog: it waits until the cluster is founded."""
        group = self._node.group(SYSTEM_GROUP)
        if group is None:
            return elsewhere(SYSTEM_GROUP)
        if group.is_leader and not self._node.catalog.is_bootstrapped:
            message = "the cluster is not founded yet"
            return ErrorReply("unavailable", message, group=SYSTEM_GROUP, retry_ms=50)
        return group

    # Batches

    def _produce(self, frame: Frame, asked: OpenRequest) -> Answer:
        body = frame.body
        try:
            head = peek(body)
        except CorruptRecord as error:
            return _corrupt(error)
        group = self._group_of(head.queue)
        if isinstance(group, ErrorReply):
            # Refused before the bodies are decompressed: that work is only for queues that exist.
            return group
        check = partial(admit, body, bytes_max=self._limits.batch_bytes_max)
        if not head.flags & COMPRESSED or head.body_bytes < LARGE_BYTES:
            try:
                check()
            except CorruptRecord as error:
                return _corrupt(error)
            return _append(group, head, body, asked)

        def admitted(_: object) -> Answer:
            asked.connection.resume()
            # Its right to write may have ended with it.
            return LATER if asked.connection.is_closed else _append(group, head, body, asked)

        def failed(error: BaseException) -> ErrorReply:
            asked.connection.resume()
            is_corrupt = isinstance(error, CorruptRecord)
            return _corrupt(error) if is_corrupt else self._node.read_failed(error)

        # The batches that follow on this connection must not overtake this one.
        asked.connection.pause()
        return asked.run_on(self._reader, check, admitted, failed)

    def _sessions(self, request: ClaimSessions, group: Group, asked: OpenRequest) -> Answer:
        command = producer_commands.ClaimSessions(
            request.producer, request.queues, request.label, request.part, request.parts
        )
        return asked.propose(group, [command], _sessions_claimed)

    # Offsets

    def _commit(self, request: CommitOffsets, asked: OpenRequest) -> Answer:
        if not request.offsets:
            return OffsetsCommitted()
        group = self._group_of(request.offsets[0].queue)
        if isinstance(group, ErrorReply):
            return group
        assert isinstance(group.machine, PartitionMachine)
        name, catalog = request.consumer_group, self._node.catalog
        error = misnamed_commit(name, group.machine, catalog) if group.is_current else None
        if error is not None:
            return error
        command = offset_commands.CommitOffsets(
            consumer_group=name,
            queues=[item.queue for item in request.offsets],
            offsets=[item.offset for item in request.offsets],
            epochs=[item.epoch for item in request.offsets if item.epoch],
            sequence=request.sequence,
            kept_ms=request.kept_ms,
            is_reset=request.is_reset,
            sender=request.sender,
        )
        error = forget_first(catalog, group, command)
        return error or asked.propose(group, [command], _offsets_committed)

    def _committed(self, request: Committed, group: Group, asked: OpenRequest) -> Answer:
        def page(request: Committed) -> CommittedOffsets | Committed:
            assert isinstance(group.machine, PartitionMachine)
            sees = self._node.gate.sees(asked.connection, Resource.GROUP)
            return committed_page(group.machine, request, passed=self._fetches.passed, sees=sees)

        return asked.read_page(group, request, page)

    def _offsets(self, request: FindOffsets, asked: OpenRequest) -> Answer:
        groups: dict[int, Group] = {}
        for item in request.queues:
            group = self._group_of(item.queue)
            if isinstance(group, ErrorReply):
                return group
            groups[group.number] = group
        waiting = len(groups)
        if not waiting:
            return FoundOffsets([])

        def ready() -> Answer:
            nonlocal waiting
            waiting -= 1
            return self._find_offsets(request) if waiting == 0 else LATER

        for group in groups.values():
            asked.read(group, ready)
        return LATER

    def _find_offsets(self, request: FindOffsets) -> Answer:
        found = []
        for item in request.queues:
            source = self._node.source(item.queue)
            if isinstance(source, ErrorReply):
                return source
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
        return FoundOffsets(found)

    # The catalog

    def _metadata(self, request: Metadata, asked: OpenRequest) -> Answer:
        def page() -> Answer:
            sees = self._node.gate.sees(asked.connection, Resource.TOPIC)
            return view(self._node, request.topics, after=request.after, sees=sees)

        if not request.is_latest:
            return page()
        group = self._node.group(SYSTEM_GROUP)
        return elsewhere(SYSTEM_GROUP) if group is None else asked.read(group, page)

    def _subscribed(self, request: FindSubscriptions, group: Group, asked: OpenRequest) -> Answer:
        def page(request: FindSubscriptions) -> FoundSubscriptions | FindSubscriptions:
            sees = self._node.gate.sees(asked.connection, Resource.GROUP)
            return subscriptions_page(self._node.catalog, request, sees)

        return asked.read_page(group, request, page)

    def _consumer_groups(
        self, request: FindConsumerGroups, group: Group, asked: OpenRequest
    ) -> Answer:
        def page(request: FindConsumerGroups) -> FoundConsumerGroups | FindConsumerGroups:
            sees = self._node.gate.sees(asked.connection, Resource.GROUP)
            return consumer_groups_page(self._node.catalog, request, sees)

        return asked.read_page(group, request, page)

    def _admin(self, request: Admin, asked: OpenRequest) -> Answer:
        try:
            command = catalog_commands.parse_command(request.command, request.request)
        except msgspec.ValidationError as error:
            return ErrorReply(Reason.BAD_ARGUMENT.value, f"no such command: {error}")
        is_of_node = isinstance(command, BeginAct | EndAct) and asked.connection.from_node
        is_internal = isinstance(
            command,
            Authored | BeginAct | EndAct | Reconfigure | RaiseLevel | PlaceNode | NoteAbsence,
        )
        if is_internal and not is_of_node:
            # Else a client could name another author, fill the audit log, move groups unjudged,
            # raise the level past a node, or say where a node stands or that it is absent.
            return of_nodes()
        problem = ""
        if isinstance(command, PutNode):
            problem = why_no_address(command.node.host, command.node.port)
            if not 1 <= command.node.id <= NODE_MAX:
                problem = f"a node's number is 1 to {NODE_MAX}, not {command.node.id}"
            nodes = self._node.catalog.nodes
            if command.node.id not in nodes and len(nodes) >= NODES_MAX:
                problem = f"a cluster has at most {NODES_MAX} nodes"
        if problem:
            # Refused here and not when applied: logs may hold such an address already, and a
            # record must have one result on all replicas.
            return ErrorReply(Reason.BAD_ARGUMENT.value, problem)
        if not self._node.gate.is_on and is_of_users(command):
            # Else whoever reaches an open port could make the users of the closed one.
            message = "access control is off here: set access.is_on, see docs/security.md"
            return ErrorReply(Reason.BAD_ARGUMENT.value, message)
        command = self._seeded(command)
        group = self._founded_group(request)
        if isinstance(group, ErrorReply):
            return group
        # A leader that has applied its log knows the names that the cluster has.
        misnaming = misnamed(command, self._node.catalog) if group.is_current else None
        if misnaming is not None:
            return misnaming
        if isinstance(command, RetireReplica):
            return self._retire(command, group, asked)
        if isinstance(command, PutGroup) and not self._keeps_members(group, command):
            return _changing()
        if group.is_leader and (refused := self._why_not_now(command)):
            return refused
        signed: Command = command
        if not asked.connection.from_node:
            signed = authored(self._node, asked.connection, command)
        propose = partial(asked.propose, group, [signed], AdminDone)
        if not group.is_leader:
            return propose()  # It is refused, and another node has the newest members.
        return self._wide_changes.carry_out(command, asked, propose)

    def _why_not_now(self, command: Command) -> ErrorReply | None:
        """On the leader: the refusal of a command that the catalog would carry out."""
        if early := why_too_early(self._node, command):
            return early
        change = command.change if isinstance(command, Once) else command
        if isinstance(change, PutSettings) and (
            problem := self._node.dynamic.why_refused(change.settings)
        ):
            return ErrorReply(Reason.BAD_ARGUMENT.value, problem)
        return None

    def _seeded(self, command: Command) -> Command:
        """A command that makes a user gets a random key, which no client may know."""
        if isinstance(command, Once):
            return Once(command.request, self._seeded(command.change))  # type: ignore[arg-type]
        if isinstance(command, PutUser):
            return replace(command, seed=self._node.world.random.randbytes(SEED_BYTES))
        return command

    def _retire(self, command: RetireReplica, group: Group, asked: OpenRequest) -> Answer:
        if node_of(command.member) != asked.connection.from_node:
            message = "only the node itself can say that a replica's log is deleted or lost"
            return ErrorReply(Reason.BAD_ARGUMENT.value, message)
        taker = taker_of(self._node.catalog, command)
        if taker:
            # A node that was removed hears nothing of the catalog, and asks again and again.
            return AdminDone(taker)
        if not group.is_leader:
            return group.not_leader()
        self._node.start_soon(self._retire_member, command, group, asked)
        return LATER

    async def _retire_member(
        self, command: RetireReplica, group: Group, asked: OpenRequest
    ) -> None:
        error = await why_not_retire(self._node, command)
        # A replica that is deleted gives a full disk space.
        asked.answer(error or asked.propose(group, [command], AdminDone, is_upkeep=True))

    def _keeps_members(self, group: Group, command: PutGroup) -> bool:
        """True if a command changes the order of a group's members only, by the newest catalog."""
        known = self._node.catalog.groups.get(command.group.id)
        same = known is not None and sorted(known.members) == sorted(command.group.members)
        return same and group.is_settled

    def _change_node(self, change: ChangeNode, group: Group, asked: OpenRequest) -> Answer:
        def ready() -> Answer:
            if not group.is_settled:
                # A plan made from a catalog that is about to change would undo that change.
                return _changing()
            command = plan(change, self._node.catalog)
            if isinstance(command, Refused):
                return refusal(command)
            signed = authored_change(asked.connection, change, command)
            return asked.propose(group, [signed], lambda _: Done())

        return asked.read(group, ready)

    # This node

    def _status(self, request: Status, _: OpenRequest) -> Answer:
        return NodeStatus(self._node.status(after=request.after))

    def _transfer(self, request: Transfer, group: Group, asked: OpenRequest) -> Answer:
        self._node.start_soon(self._hand_over, group, request.to, asked)
        return LATER

    async def _hand_over(self, group: Group, to: int, asked: OpenRequest) -> None:
        # The catalog must name the node first: else the next check of leaders undoes the transfer.
        error = None if to == 0 else await prefer(self._node, group, to)
        target, drained = group.voter_of(to) if to else 0, self._node.catalog.drained
        error = error or group.transfer(target, drained=drained)
        asked.answer(error or Done())


def _append(group: Group, head: BatchHead, body: bytes, asked: OpenRequest) -> Answer:
    if head.producer >= producer_commands.RESERVED:
        message = f"producer {head.producer} is the brokers' own: a client's is below 2^63"
        return ErrorReply(Reason.BAD_ARGUMENT.value, message)
    throttle_ms = asked.throttle_ms
    reply = partial(_produced, throttle_ms=throttle_ms) if throttle_ms else _produced
    group.propose(Kind.BATCH, body, asked.ticket(reply))
    return LATER


def _produced(result: Appended | Delayed, throttle_ms: int = 0) -> Produced:
    if isinstance(result, Appended):
        return Produced(
            result.base_offset, result.timestamp, result.duplicate, throttle_ms=throttle_ms
        )
    return Produced(-1, result.timestamp, result.duplicate, result.number, throttle_ms)


def _offsets_committed(fenced: list[int] | None) -> OffsetsCommitted:
    return OffsetsCommitted(fenced or [])


def _sessions_claimed(value: list[list[int]]) -> SessionsClaimed:
    return SessionsClaimed([SessionView(*session) for session in value])


def _corrupt(error: BaseException) -> ErrorReply:
    return ErrorReply(Reason.CORRUPT_BATCH.value, str(error))


def _changing() -> ErrorReply:
    return ErrorReply("busy", "the catalog is being changed", group=SYSTEM_GROUP, retry_ms=50)
