"""Acts of administration in words: what the audit log says of a request.

| request | act |
|---|---|
| ADMIN with a command about topics, groups, users, quotas and the like | the command's name |
| CHANGE_NODE | `add_node`, `remove_node`, `replace_node` |
| COMMIT by an operator, RESET that moves queues | `reset_offsets` |
| CHANGE_DEAD | `redrive_dead`, `purge_dead` |
| TRANSFER | `transfer_leader` |

Commands of applications (a consumer group attaches, joins, changes its filter) make no entry. The
first use of a consumer group creates it, and so the author goes along.

Invariants:
- The node that takes a request from a client writes its author; what a client says of itself has
  no effect.
- Words hold names and numbers alone: no key, digest, salt or note.
"""

from typing import NamedTuple, assert_never

import msgspec

from raftmq.broker.host import Host
from raftmq.broker.serve.connection import Connection
from raftmq.machine.catalog import access, catalog
from raftmq.machine.catalog.audit import AdminAct, BeginAct, EndAct
from raftmq.machine.catalog.consumer_groups import (
    Attach,
    DeleteConsumerGroup,
    Detach,
    PutConsumerGroup,
)
from raftmq.machine.catalog.deletions import PruneDeletions
from raftmq.machine.catalog.levels import RaiseLevel
from raftmq.machine.catalog.membership import (
    JoinGroup,
    LeaveGroup,
    RegrantQueues,
    ReleaseQueues,
    RenewMembers,
)
from raftmq.machine.catalog.nodes import (
    AddGroup,
    DrainNode,
    MoveGroup,
    NameNode,
    NoteAbsence,
    PlaceNode,
)
from raftmq.machine.catalog.quotas import DropQuota, PutQuota
from raftmq.machine.catalog.replicas import RetireReplica
from raftmq.machine.catalog.settings import PutSettings, Setting
from raftmq.machine.catalog.subscribers import Subscribe, Unsubscribe
from raftmq.machine.catalog.topics import AlterTopic, CreateTopic, DeleteTopic
from raftmq.machine.queue_numbers import QUEUE_BITS
from raftmq.wire.assignment import CommitOffsets
from raftmq.wire.messages import ChangeNode, FrameKind, Transfer
from raftmq.wire.popping import ChangeDead, ResetGroup
from raftmq.words import counted

Noted = CommitOffsets | ResetGroup | ChangeDead | Transfer
"""Requests that may be acts of administration which no command of the catalog carries out."""
NOTED_KINDS = frozenset(
    (
        FrameKind.COMMIT,
        FrameKind.RESET,
        FrameKind.CHANGE_DEAD,
        FrameKind.TRANSFER,
    )
)
"""Their kinds."""

_ClusterCommand = catalog.PutNode | catalog.RemoveNode | catalog.PutGroup
_SHOWN_MEMBERS = 20
"""Nodes of a partition group that an entry lists."""
_SHOWN_TOPICS = 10
"""Topics that an entry lists."""
_SHOWN_SETTINGS = 10
"""Dynamic settings that an entry lists."""


class Words(NamedTuple):
    """An act without its author: see `AdminAct`."""

    what: str
    resource: str
    name: str
    detail: str = ""


_NO_WORDS = Words("", "", "")


def act_of(connection: Connection, words: Words = _NO_WORDS) -> AdminAct:
    """An act of the user at the other end of a connection; without words it makes no entry."""
    return AdminAct(connection.user, connection.address, *words)


def authored(node: Host, connection: Connection, command: catalog.Command) -> catalog.Command:
    """A client's command with its author, if that matters."""
    inner = command.change if isinstance(command, catalog.Once) else command
    words = _of_command(node, inner)
    if words is not None:
        assert isinstance(command, catalog.Once | catalog.Change | _ClusterCommand)
        return catalog.Authored(act_of(connection, words), command)
    if isinstance(inner, Attach | JoinGroup) and connection.user:
        assert isinstance(command, catalog.Once | catalog.Change | JoinGroup)
        return catalog.Authored(act_of(connection), command)
    return command


def authored_change(
    connection: Connection, change: ChangeNode, command: catalog.Reconfigure
) -> catalog.Authored:
    """The command that carries out a change of the nodes, with its author."""
    at = f"{change.host}:{change.port}" if change.host else ""
    detail = f"by node {change.new} at {at}" if change.new else at
    words = Words(f"{change.action}_node", "node", str(change.node), detail)
    return catalog.Authored(act_of(connection, words), command)


def _of_command(node: Host, command: catalog.Command) -> Words | None:
    """The words about a command; None: it is no act of administration."""
    match command:
        case CreateTopic() | AlterTopic() | DeleteTopic():
            return _of_topic(command)
        case PutConsumerGroup() | DeleteConsumerGroup() | Detach():
            return _of_group(node, command)
        case (
            access.PutUser()
            | access.DropUser()
            | access.PutToken()
            | access.DropToken()
            | access.PutRule()
            | access.DropRule()
        ):
            return _of_access(node, command)
        case PutQuota(subject=subject) | DropQuota(subject=subject):
            amounts = str(command.quota) if isinstance(command, PutQuota) else ""
            return Words(_tag(command), subject.kind.value, subject.name, amounts)
        case PutSettings(settings=settings):
            return _of_settings(settings)
        case MoveGroup(group=number, members=members):
            return _of_group_members("move_group", number, members)
        case AddGroup(group=number, members=members):
            return _of_group_members("add_group", number, members)
        case DrainNode(node=number, is_on=is_on):
            return Words("drain_node" if is_on else "undrain_node", "node", str(number), "")
        case catalog.PutNode() | catalog.RemoveNode() | catalog.PutGroup():
            return _of_cluster(command)
        case (
            # Applications do this all the time, or nodes by themselves.
            Subscribe()
            | Unsubscribe()
            | Attach()
            | JoinGroup()
            | LeaveGroup()
            | ReleaseQueues()
            | RenewMembers()
            | RegrantQueues()
            | catalog.Bootstrap()
            | NameNode()
            | catalog.RenewNode()
            | catalog.Reconfigure()
            | RetireReplica()
            | RaiseLevel()
            | PlaceNode()
            | NoteAbsence()
            | PruneDeletions()
            # One of those with a number, or with an author already.
            | catalog.Once()
            | catalog.Authored()
            | BeginAct()
            | EndAct()
        ):
            return None
        case _:
            assert_never(command)


def _tag(command: msgspec.Struct) -> str:
    return str(command.__struct_config__.tag)


def _of_settings(settings: list[Setting]) -> Words:
    scopes, names = {each.scope.value for each in settings}, {each.of for each in settings}
    resource = scopes.pop() if len(scopes) == 1 else "cluster"
    name = names.pop() if len(names) == 1 else ""
    more = len(settings) - _SHOWN_SETTINGS
    shown = ", ".join(map(str, settings[:_SHOWN_SETTINGS]))
    return Words("put_settings", resource, name, f"{shown} and {more} more" if more > 0 else shown)


def _of_topic(command: CreateTopic | AlterTopic | DeleteTopic) -> Words:
    detail = ""
    if isinstance(command, CreateTopic | AlterTopic):
        detail = counted(command.queues, "queue")
    if isinstance(command, CreateTopic) and command.beside:
        detail += f", beside {command.beside}"
    return Words(_tag(command), "topic", command.name, detail)


def _of_group(node: Host, command: PutConsumerGroup | DeleteConsumerGroup | Detach) -> Words:
    match command:
        case PutConsumerGroup(name=name, mode=mode, policy=policy):
            detail = f"mode {mode}, {counted(policy.attempts_max, 'attempt')}"
        case DeleteConsumerGroup(name=name):
            detail = "forced" if command.is_forced else ""
        case Detach(consumer_group=name, number=number):
            # The catalog goes by the number, if there is one.
            detail = (_topic(node, number) if number else "") or f"topic {command.topic}"
    return Words(_tag(command), "group", name, detail)


def _of_access(node: Host, command: access.AccessCommand) -> Words:
    what = _tag(command)
    match command:
        case access.PutUser(name=name):
            kept = ", the one before stays for a while" if command.old_until_ms else ""
            return Words(what, "user", name, f"a password{kept}" if command.salt else "no password")
        case access.DropUser(name=name):
            return Words(what, "user", name)
        case access.PutToken(id=id_):
            return Words(what, "token", id_, f"user {command.user}")
        case access.DropToken(id=id_):
            token = node.catalog.access.tokens.get(id_)
            return Words(what, "token", id_, f"user {token.user}" if token is not None else "")
        case access.PutRule(rule=rule) | access.DropRule(rule=rule):
            return Words(what, "rule", rule.user, str(rule))


def _of_cluster(command: _ClusterCommand) -> Words:
    what = _tag(command)
    match command:
        case catalog.PutNode(node=each):
            leaving = ", leaving" if each.is_leaving else ""
            return Words(what, "node", str(each.id), f"{each.host}:{each.port}{leaving}")
        case catalog.RemoveNode(id=number):
            return Words(what, "node", str(number))
        case catalog.PutGroup(group=group):
            return _of_group_members(what, group.id, group.members)


def _of_group_members(what: str, number: int, members: list[int]) -> Words:
    nodes = ", ".join(map(str, members[:_SHOWN_MEMBERS]))
    return Words(what, "partition_group", str(number), f"nodes {nodes}")


def group_of(node: Host, request: Noted) -> int | None:
    """The partition group whose leader carries a request out; None: it is not known here, or the
    request is no act of administration."""
    match request:
        case CommitOffsets(is_reset=True, offsets=[first, *_]):
            return node.catalog.group_of(first.queue)
        case CommitOffsets() | ResetGroup(queues=[]):
            # A RESET without queues lets a consumer group begin, as its first POP would.
            return None
        case ResetGroup() | ChangeDead() | Transfer():
            return request.partition_group
        case _:
            assert_never(request)


def of_request(node: Host, request: Noted) -> Words:
    """The words about a request that is an act of administration."""
    match request:
        case CommitOffsets(consumer_group=name, offsets=offsets):
            return Words("reset_offsets", "group", name, _queues(node, [q.queue for q in offsets]))
        case ResetGroup(number=number, queues=queues):
            return Words("reset_offsets", "group", _group(node, number), _queues(node, queues))
        case ChangeDead(number=number, letters=letters, is_purge=is_purge):
            what = "purge_dead" if is_purge else "redrive_dead"
            detail = counted(len(letters), "dead letter")
            of = _topic(node, number)
            return Words(what, "group", _group(node, number), f"{of}, {detail}" if of else detail)
        case Transfer(partition_group=group, to=to):
            detail = f"to node {to}" if to else "to any node"
            return Words("transfer_leader", "partition_group", str(group), detail)
        case _:
            assert_never(request)


def _queues(node: Host, queues: list[int]) -> str:
    topics = {queue >> QUEUE_BITS: node.catalog.topic_of(queue) for queue in queues}
    names = [topic.name for topic in topics.values() if topic is not None]
    shown = ", ".join(names[:_SHOWN_TOPICS])
    more = f" and {len(names) - _SHOWN_TOPICS} more" if len(names) > _SHOWN_TOPICS else ""
    of = f" of {'topic' if len(names) == 1 else 'topics'} {shown}{more}" if names else ""
    return f"{counted(len(queues), 'queue')}{of}"


def _group(node: Host, attachment: int) -> str:
    found = node.catalog.consumer_groups.attachments.get(attachment)
    return found.consumer_group if found is not None else ""


def _topic(node: Host, attachment: int) -> str:
    found = node.catalog.consumer_groups.attachments.get(attachment)
    topic = node.catalog.topic_of(found.topic_id << QUEUE_BITS) if found is not None else None
    return f"topic {topic.name}" if topic is not None else ""
