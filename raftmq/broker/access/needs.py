"""The acts that each kind of request needs to be allowed: one row for each kind of frame.

| value in the table | who may ask |
|---|---|
| a function from the message to acts | whoever may do all of them |
| `NOTHING` | every user |
| `NODES` | nodes of the cluster |

The answer to a request that needs `NOTHING` shows only what the user may see, or concerns its own
connection; or the request completes a deletion that is committed.

A topic or group that does not exist is judged by its name all the same, so that a refusal does not
tell whether it exists.

Invariants:
- Every `FrameKind` that is a request has a row, and every command of the catalog a case.
- Acts are found by the catalog as it is when the handler begins. A command is applied, and a
  linearizable read answered, later.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, assert_never

import msgspec

from raftmq.access.rules import Act, Operation, Resource
from raftmq.batch import Flag, peek
from raftmq.broker.host import Host
from raftmq.broker.replica.group import Group
from raftmq.broker.serve.answers import of_nodes, taking_over, unknown_attachment, unknown_queue
from raftmq.errors import CorruptRecord, Reason
from raftmq.machine.catalog import access, catalog, membership, quotas
from raftmq.machine.catalog.audit import BeginAct, EndAct
from raftmq.machine.catalog.consumer_groups import (
    Attach,
    Attachment,
    DeleteConsumerGroup,
    Detach,
    PutConsumerGroup,
)
from raftmq.machine.catalog.deletions import PruneDeletions
from raftmq.machine.catalog.levels import RaiseLevel
from raftmq.machine.catalog.nodes import (
    AddGroup,
    DrainNode,
    MoveGroup,
    NameNode,
    NoteAbsence,
    PlaceNode,
)
from raftmq.machine.catalog.replicas import RetireReplica
from raftmq.machine.catalog.settings import PutSettings, Scope, Setting
from raftmq.machine.catalog.subscribers import Subscribe, Unsubscribe
from raftmq.machine.catalog.topics import AlterTopic, CreateTopic, DeleteTopic
from raftmq.machine.machine import PartitionMachine
from raftmq.machine.names import NAME_CHARACTERS_MAX
from raftmq.machine.pop_groups import InHand
from raftmq.machine.queue_numbers import QUEUE_BITS
from raftmq.wire.assignment import CommitOffsets, Committed, Heartbeat
from raftmq.wire.fetches import Fetch
from raftmq.wire.frame import Frame
from raftmq.wire.messages import Admin, ErrorReply, FindKey, FindOffsets, FrameKind
from raftmq.wire.popping import (
    ChangeDead,
    Claim,
    FindBacklogs,
    FindDead,
    Leave,
    Pop,
    ResetGroup,
    Settle,
)
from raftmq.wire.producing import (
    BeginTransaction,
    CancelDelayed,
    ClaimSessions,
    EndTransaction,
    FindTransactions,
    TransactionInput,
)
from raftmq.wire.settings import FindSettings
from raftmq.wire.traces import FindTrace

Acts = Iterable[Act]
_Needs = Callable[[Host, Any], Acts]

NODE_KINDS: Final = frozenset(
    (FrameKind.RAFT, FrameKind.SNAPSHOT, FrameKind.PROBE, FrameKind.DIRECTORY)
)
"""The kinds of frames that only nodes send."""

DESCRIBE_CLUSTER: Final = Act(Operation.DESCRIBE, Resource.CLUSTER)
READ_CLUSTER: Final = Act(Operation.READ, Resource.CLUSTER)
ADMIN_CLUSTER: Final = Act(Operation.ADMIN, Resource.CLUSTER)


class RefusedEarly(Exception):
    """A request is refused before its acts are judged; `reply` is the refusal."""

    def __init__(self, reply: ErrorReply) -> None:
        super().__init__(reply.message)
        self.reply = reply


def NOTHING(_node: Host, _message: object) -> Acts:  # reads as a value of the table
    """Every user may ask this."""
    return ()


def NODES(_node: Host, _message: object) -> Acts:
    """Refuse: only nodes send this, and `Gate.check` lets nodes pass before this table."""
    raise RefusedEarly(of_nodes())


def topic(operation: Operation, name: str) -> Act:
    """An act on a topic."""
    _check_length(name)
    return Act(operation, Resource.TOPIC, name)


def group(operation: Operation, name: str) -> Act:
    """An act on a group; an instance, `group@instance`, is the group's."""
    _check_length(name)
    return Act(operation, Resource.GROUP, name.partition("@")[0])


def _check_length(name: str) -> None:
    # Connections remember acts: names that nothing can have would be kept for nothing.
    if len(name) > NAME_CHARACTERS_MAX:
        message = f"{name[:40]!r}... is no name: it has {len(name)} characters"
        raise RefusedEarly(ErrorReply(Reason.BAD_NAME.value, message))


def _require_some(items: Sequence[object], what: str) -> None:
    """Refuse a request about nothing: it would be a record of a log all the same."""
    if not items:
        raise RefusedEarly(ErrorReply(Reason.BAD_ARGUMENT.value, f"the request names no {what}"))


def _of_queues(node: Host, operation: Operation, queues: Iterable[int]) -> Acts:
    # One queue stands for all of its topic.
    for queue in {queue >> QUEUE_BITS: queue for queue in queues}.values():
        yield topic(operation, _topic_name(node, queue))


def _topic_name(node: Host, queue: int) -> str:
    found = node.catalog.topic_of(queue)
    if found is None:
        raise RefusedEarly(unknown_queue(queue))
    return found.name


def _attachment(node: Host, number: int) -> Attachment:
    groups = node.catalog.consumer_groups
    if (unknown := unknown_attachment(groups, number)) is not None:
        raise RefusedEarly(unknown)
    return groups.attachments[number]


def _of_attachment(node: Host, operation: Operation, number: int) -> Acts:
    return (group(operation, _attachment(node, number).consumer_group),)


def _produce(node: Host, frame: Frame) -> Acts:
    try:
        head = peek(frame.body)
    except CorruptRecord:
        return  # The handler refuses it.
    yield topic(Operation.WRITE, _topic_name(node, head.queue))
    found = node.group(node.catalog.group_of(head.queue) or catalog.SYSTEM_GROUP)
    if found is None or not isinstance(found.machine, PartitionMachine):
        return  # Likewise.
    transaction = found.machine.transactions.open.get(head.producer)
    if transaction is not None:
        # Transactions are seen in lists: a message of anybody else could make the commit fail.
        yield from _of_transaction(node, transaction.producer_group, transaction.inputs)
    elif head.flags & Flag.DELIVERY and found.is_leader:
        # This may be a message of a transaction that is not known here yet.
        _require_current(found)


def _fetch(node: Host, request: Fetch) -> Acts:
    if request.consumer_group:
        yield group(Operation.READ, request.consumer_group)
    # A queue of a topic that is gone is answered with an error of its own.
    known = [each.queue for each in request.queues if node.catalog.topic_of(each.queue)]
    yield from _of_queues(node, Operation.READ, known)


def _commit(node: Host, request: CommitOffsets) -> Acts:
    operation = Operation.ADMIN if request.is_reset else Operation.READ
    yield group(operation, request.consumer_group)
    # The refusal of an offset tells how far its queue goes.
    yield from _of_queues(node, Operation.DESCRIBE, (each.queue for each in request.offsets))


def _committed(_: Host, request: Committed) -> Acts:
    name = request.consumer_group
    return () if name is None else (group(Operation.DESCRIBE, name),)


def _offsets(node: Host, request: FindOffsets) -> Acts:
    return _of_queues(node, Operation.DESCRIBE, (each.queue for each in request.queues))


def _key(node: Host, request: FindKey) -> Acts:
    return _of_queues(node, Operation.READ, [request.topic << QUEUE_BITS])


def _pop(node: Host, request: Pop) -> Acts:
    attachment = _attachment(node, request.number)
    name = _topic_name(node, attachment.topic_id << QUEUE_BITS)
    return topic(Operation.POP, name), group(Operation.READ, attachment.consumer_group)


def _in_hand(node: Host, request: Settle | Leave | Claim) -> Acts:
    # A consumer may settle the messages in its hand even if it may no longer pop the topic.
    return _of_attachment(node, Operation.READ, request.number)


def _change_group(node: Host, request: ChangeDead | ResetGroup) -> Acts:
    return _of_attachment(node, Operation.ADMIN, request.number)


def _dead(node: Host, request: FindDead) -> Acts:
    return _of_attachment(node, Operation.DESCRIBE, request.number)


def _backlogs(node: Host, request: FindBacklogs) -> Acts:
    return _of_attachment(node, Operation.DESCRIBE, request.number) if request.number else ()


def _heartbeat(node: Host, request: Heartbeat) -> Acts:
    yield from _of_member(node, request.member)
    # A member that may no longer read gives its queues up: others get them.
    assignment = node.catalog.memberships.of_member.get(request.member)
    if assignment is not None:
        yield from _of_queues(node, Operation.READ, [assignment.topic << QUEUE_BITS])


def _of_member(node: Host, member: int) -> Acts:
    assignment = node.catalog.memberships.of_member.get(member)
    return () if assignment is None else (group(Operation.READ, assignment.consumer_group),)


def _join(node: Host, command: membership.JoinGroup) -> Acts:
    yield topic(Operation.READ, command.topic)
    yield group(Operation.READ, command.consumer_group)
    known = node.catalog.memberships.of_member.get(command.member)
    if known is not None and known.consumer_group != command.offsets_name:
        # The machine refuses this, too, and names the other group.
        message = f"member {command.member} takes part in another group already"
        raise RefusedEarly(ErrorReply(Reason.BAD_ARGUMENT.value, message))


def _cancel(node: Host, request: CancelDelayed) -> Acts:
    _require_some(request.queues, "message")
    return _of_queues(node, Operation.WRITE, request.queues)


def _begin(node: Host, request: BeginTransaction) -> Acts:
    _require_some([*filter(None, [request.producer_group]), *request.inputs], "producer group")
    yield from _of_transaction(node, request.producer_group, request.inputs)


def _of_transaction(
    node: Host, producer_group: str, inputs: Iterable[InHand | TransactionInput]
) -> Acts:
    """The acts that a transaction needs: to begin it, to add to it, and to end it."""
    if producer_group:
        yield group(Operation.WRITE, producer_group)
    for number in {each.number: None for each in inputs}:
        yield from _of_attachment(node, Operation.READ, number)


def _require_current(found: Group) -> None:
    """Refuse a request by transactions that a new leader may not know yet."""
    if not found.is_current:
        raise RefusedEarly(taking_over(found.number))


def _end(node: Host, request: EndTransaction) -> Acts:
    found = node.group(request.partition_group)
    machine = None if found is None else found.machine
    if found is None or not isinstance(machine, PartitionMachine) or not found.is_leader:
        return  # The handler refuses it.
    _require_current(found)
    transaction = machine.transactions.open.get(request.transaction)
    if transaction is None:
        # An ended transaction answers its outcome by its number. The end of one that never began
        # would be remembered and push out another's, so a made-up number is refused.
        if request.producer_group:
            yield group(Operation.WRITE, request.producer_group)
        elif not machine.transactions.has_ended(request.transaction):
            message = f"no transaction {request.transaction} is open here"
            raise RefusedEarly(ErrorReply(Reason.UNKNOWN_TRANSACTION.value, message))
        return
    if request.is_commit:
        queues = [half.queue for half in transaction.halves]
        known = [queue for queue in queues if node.catalog.topic_of(queue)]
        yield from _of_queues(node, Operation.WRITE, known)
    yield from _of_transaction(node, transaction.producer_group, transaction.inputs)


def _transactions(_: Host, request: FindTransactions) -> Acts:
    name = request.producer_group
    return (group(Operation.DESCRIBE, name),) if name else ()


def _why(node: Host, request: FindTrace) -> Acts:
    return _of_queues(node, Operation.READ, [request.queue])


def _sessions(node: Host, request: ClaimSessions) -> Acts:
    _require_some(request.queues, "queue")
    return _of_queues(node, Operation.WRITE, request.queues)


def _admin(node: Host, request: Admin) -> Acts:
    try:
        command = catalog.parse_command(request.command)
    except msgspec.ValidationError:
        return ()  # The handler refuses it.
    return _of_command(node, command)


def user_changed_by(node: Host, request: Admin) -> str:
    """The user whose logins a command changes; empty: it changes none."""
    try:
        command = catalog.parse_command(request.command)
    except msgspec.ValidationError:
        return ""
    match command.change if isinstance(command, catalog.Once) else command:
        case access.PutUser(name=name) | access.DropUser(name=name):
            return name
        case access.PutToken(user=user):
            return user
        case access.DropToken(id=id_):
            token = node.catalog.access.tokens.get(id_)
            return "" if token is None else token.user
    return ""


def _of_command(node: Host, command: catalog.Command) -> Acts:
    match command:
        case catalog.Once(change=change):
            return _of_command(node, change)
        case CreateTopic(name=name, beside=beside):
            own = topic(Operation.ADMIN, name)
            return (own, topic(Operation.DESCRIBE, beside)) if beside else (own,)
        case AlterTopic(name=name) | DeleteTopic(name=name):
            return (topic(Operation.ADMIN, name),)
        case Subscribe() | Unsubscribe() | membership.RegrantQueues():
            own = group(Operation.READ, command.consumer_group)
            return own, topic(Operation.DESCRIBE, command.topic)
        case PutConsumerGroup(name=name) | DeleteConsumerGroup(name=name):
            return (group(Operation.ADMIN, name),)
        case Attach():
            own = group(Operation.READ, command.consumer_group)
            return topic(Operation.POP, command.topic), own
        case Detach(number=number):
            # The machine goes by the number; a repeat finds it gone.
            if number > node.catalog.consumer_groups.number_last:
                return _of_attachment(node, Operation.ADMIN, number)
            attachment = node.catalog.consumer_groups.attachments.get(number)
            if attachment is not None and attachment.consumer_group != command.consumer_group:
                shown = command.consumer_group[:NAME_CHARACTERS_MAX]
                message = f"attachment {number} is not of group {shown!r}"
                raise RefusedEarly(ErrorReply(Reason.UNKNOWN_GROUP.value, message))
            # The answer to a command without a number tells whether the topic exists.
            own = group(Operation.ADMIN, command.consumer_group)
            return own, topic(Operation.DESCRIBE, command.topic)
        case PutSettings(settings=settings):
            return (_of_setting(each) for each in settings)
        case membership.JoinGroup():
            return _join(node, command)
        case membership.LeaveGroup(member=member) | membership.ReleaseQueues(member=member):
            return _of_member(node, member)
        case (
            catalog.PutNode()
            | catalog.RemoveNode()
            | catalog.PutGroup()
            | DrainNode()
            | MoveGroup()
            | AddGroup()
            | access.PutUser()
            | access.DropUser()
            | access.PutToken()
            | access.DropToken()
            | access.PutRule()
            | access.DropRule()
            | quotas.PutQuota()
            | quotas.DropQuota()
        ):
            return (ADMIN_CLUSTER,)
        case (
            catalog.Bootstrap()
            | NameNode()
            | catalog.RenewNode()
            | catalog.Reconfigure()
            | membership.RenewMembers()
            | RetireReplica()
            | RaiseLevel()
            | PlaceNode()
            | NoteAbsence()
            | PruneDeletions()
            | catalog.Authored()
            | BeginAct()
            | EndAct()
        ):
            return NODES(node, command)
        case _:
            assert_never(command)


def _of_setting(setting: Setting) -> Act:
    # Messages that stay for long take disk from all topics.
    if setting.scope is Scope.TOPIC and not setting.name.startswith("log."):
        return topic(Operation.ADMIN, setting.of)
    return ADMIN_CLUSTER


def _settings(_: Host, request: FindSettings) -> Acts:
    # Clients follow what is meant for them; the answer leaves out topics that they may not see.
    is_for_clients = all(each.scope in (Scope.TOPIC, Scope.CLIENT) for each in request.scopes)
    return () if request.scopes and is_for_clients else (DESCRIBE_CLUSTER,)


def _always(*acts: Act) -> _Needs:
    return lambda _node, _message: acts


BY_NAME = frozenset(
    (
        FrameKind.ADMIN,
        FrameKind.COMMITTED,
        FrameKind.TRANSACTIONS,
        FrameKind.STATUS,
        FrameKind.TRANSFER,
        FrameKind.CHANGE_NODE,
        FrameKind.EVENTS,
        FrameKind.USERS,
        FrameKind.RULES,
        FrameKind.JUDGE,
        FrameKind.AUDIT,
        FrameKind.QUOTAS,
        FrameKind.SETTINGS,
        FrameKind.SETTINGS_HISTORY,
        FrameKind.LOG,
        FrameKind.REPAIR,
    )
)
"""The kinds that name what they are about: see `is_by_name`."""


def is_by_name(kind: int, message: Any) -> bool:
    """Whether a request names what it is about: a refusal may repeat the name. Others have numbers,
    as have two commands about a member."""
    if kind != FrameKind.ADMIN:
        return kind in BY_NAME
    command = catalog.parse_command(message.command)
    return not isinstance(command, membership.LeaveGroup | membership.ReleaseQueues)


NEEDS: Mapping[int, _Needs] = {
    FrameKind.PRODUCE: _produce,
    FrameKind.FETCH: _fetch,
    FrameKind.FORGET: NOTHING,
    FrameKind.METADATA: NOTHING,
    FrameKind.COMMIT: _commit,
    FrameKind.COMMITTED: _committed,
    FrameKind.OFFSETS: _offsets,
    FrameKind.KEY: _key,
    FrameKind.ADMIN: _admin,
    FrameKind.STATUS: _always(DESCRIBE_CLUSTER),
    FrameKind.TRANSFER: _always(ADMIN_CLUSTER),
    FrameKind.CHANGE_NODE: _always(ADMIN_CLUSTER),
    FrameKind.SUBSCRIBED: NOTHING,
    FrameKind.POP: _pop,
    FrameKind.SETTLE: _in_hand,
    FrameKind.LEAVE: _in_hand,
    FrameKind.CLAIM: _in_hand,
    FrameKind.BACKLOGS: _backlogs,
    FrameKind.DEAD: _dead,
    FrameKind.CHANGE_DEAD: _change_group,
    FrameKind.RESET: _change_group,
    FrameKind.GROUPS: NOTHING,
    FrameKind.FORGET_GROUP: NOTHING,
    FrameKind.HEARTBEAT: _heartbeat,
    FrameKind.MEMBERS: NOTHING,
    FrameKind.CANCEL: _cancel,
    FrameKind.BEGIN: _begin,
    FrameKind.END: _end,
    FrameKind.TRANSACTIONS: _transactions,
    FrameKind.SESSIONS: _sessions,
    FrameKind.WHY: _why,
    FrameKind.EVENTS: _always(READ_CLUSTER),
    FrameKind.USERS: _always(ADMIN_CLUSTER),
    FrameKind.RULES: _always(ADMIN_CLUSTER),
    FrameKind.JUDGE: _always(ADMIN_CLUSTER),
    FrameKind.AUDIT: _always(ADMIN_CLUSTER),
    FrameKind.QUOTAS: _always(ADMIN_CLUSTER),
    FrameKind.SETTINGS: _settings,
    FrameKind.SETTINGS_HISTORY: _always(DESCRIBE_CLUSTER),
    FrameKind.CLIENTS: _always(DESCRIBE_CLUSTER),
    FrameKind.DIRECTORY_NODES: _always(DESCRIBE_CLUSTER),
    FrameKind.LEASE: _always(ADMIN_CLUSTER),
    # The log of the system group has the keys of passwords.
    FrameKind.LOG: _always(ADMIN_CLUSTER),
    FrameKind.REPAIR: _always(ADMIN_CLUSTER),
    FrameKind.LOG_IN: NOTHING,
    **dict.fromkeys(NODE_KINDS, NODES),
}
"""For each kind of request the acts that it needs."""
