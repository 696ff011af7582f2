"""The machine of the system group: nodes, partition groups, topics, and where each queue lives.

Same core, same rules as a data group's machine; only COMMANDS records mean anything here.

| command | effect | result |
|---|---|---|
| `Bootstrap` | names the founding nodes and spreads data groups over them; once | - |
| `PutNode` | adds a node or moves its address | - |
| `NameNode` | notes which data folder is a node's, once | - |
| `RenewNode` | puts a blank folder in the place of a lost one, under a new generation | - |
| `RemoveNode` | takes out a node that no group uses now | - |
| `PutGroup` | the members that a partition group shall have | - |
| `Reconfigure` | several of `PutNode` and `PutGroup`: a change of the nodes | - |
| `DrainNode` | a node shall lead nothing, or lead again (`nodes`) | whether it changed |
| `PlaceNode` | the zone and the machine of a node | - |
| `NoteAbsence` | a node has been silent for long, or answers again | whether it changed |
| `MoveGroup` | a data group goes to other nodes, or has another first one | whether it changed |
| `AddGroup` | another data group (`replicas`) | whether it changed |
| `RaiseLevel` | all nodes know a feature level (`levels`) | the cluster's level |
| `RetireReplica` | a replica's log is deleted or lost: its member id is used up | the next one |
| `CreateTopic` | a topic with queues, spread over the data groups | the topic's number |
| `AlterTopic` | more queues | the topic's number |
| `DeleteTopic` | the name is free again; numbers are never used twice | the topic's number |
| `Subscribe`, `Unsubscribe` | what a consumer group wants of a topic | the version |
| `PutConsumerGroup` | a consumer group with a mode and a policy | the policy's version |
| `DeleteConsumerGroup` | attachments and filters are gone, offsets follow (`deletions`) | index |
| `PruneDeletions` | every data group has carried out the deletions up to there | how many |
| `Attach` | a consumer group takes messages of a topic | number, the policy's version |
| `Detach` | it takes no more of them | the number that it had |
| `PutUser`, … | users, tokens and rules (`access`) | whether it changed anything |
| `PutQuota`, `DropQuota` | the quota of a user or topic (`quotas`) | whether it changed anything |
| `PutSettings` | dynamic settings (`settings`) | the version of all of them |
| `Once` | one of those from `CreateTopic` on, once (`repeats`) | its result |
| `JoinGroup`, … | who reads which queue (`membership`) | what the member has |
| `Authored` | a command with its author; most make an entry (`audit`) | its result |
| `BeginAct`, `EndAct` | an entry about an act of another log | its number; whether it changed |

Invariants:
- Every command may be repeated: the second time changes nothing, and it answers the same. A change
  has a number (`Once`), so a repeat does not undo what others did meanwhile; and what takes
  something away names the one that its caller saw. (Those of older software have neither.)
- Under one generation a node has one data folder, and generations only rise, also over a removal:
  number and generation together never mean two folders.
- Under one replica generation a node has one log of a group (`replicas`).
- A queue never changes its partition group; adding queues leaves the old ones where they are.
- An act of administration and its entry in the audit log are one record.

Left out: moving a queue to another partition group.
"""

from functools import partial
from typing import Any, assert_never

import google_crc32c
import msgspec

from raftmq.errors import Reason
from raftmq.log.record import Kind, Record
from raftmq.machine.commands import decode_commands
from raftmq.machine.names import why_no_name
from raftmq.machine.queue_numbers import SYSTEM_GROUP as SYSTEM_GROUP  # the catalog's own number
from raftmq.pop.policy import Policy
from raftmq.results import Changed, Refused, Result, UnsupportedVersion

from .access import (
    AccessCommand,
    DropRule,
    DropToken,
    DropUser,
    PutRule,
    PutToken,
    PutUser,
)
from .audit import BEGUN, DONE, UNCHANGED, AdminAct, BeginAct, EndAct
from .consumer_groups import (
    Attach,
    ConsumerGroupCommand,
    DeleteConsumerGroup,
    Detach,
    PutConsumerGroup,
)
from .deletions import PruneDeletions
from .group_deletion import delete_group, gone, is_expelled
from .levels import LEVEL, VERSIONS, RaiseLevel
from .membership import (
    JoinGroup,
    LeaveGroup,
    MemberCommand,
    RegrantQueues,
    ReleaseQueues,
    RenewMembers,
)
from .nodes import (
    AddGroup,
    DrainNode,
    MoveGroup,
    NameNode,
    NodeCommand,
    NoteAbsence,
    PlaceNode,
    note_on_nodes,
)
from .quotas import DropQuota, PutQuota, QuotaCommand, SubjectKind
from .replicas import GENERATION_MAX, RetireReplica, add_group, forget_replicas, retire
from .settings import PutSettings
from .state import QUEUES_MAX, CatalogState
from .state import Group as Group  # the catalog's own names
from .state import Node as Node
from .state import Topic as Topic
from .subscribers import Subscribe, Unsubscribe
from .topics import AlterTopic, CreateTopic, DeleteTopic, spread, unknown_topic

TOPICS_MAX = 100_000
"""Topics of a cluster: each node keeps them all in memory."""


class Bootstrap(msgspec.Struct, frozen=True, array_like=True, tag="bootstrap"):
    """The first command of a cluster."""

    nodes: list[Node]
    """The founding nodes."""
    groups: int
    """How many data groups to make."""
    replicas: int
    """Members of each data group, at most the number of nodes."""


class PutNode(msgspec.Struct, frozen=True, array_like=True, tag="put_node"):
    """Add a node, or change the address of one."""

    node: Node
    """The node with its address."""


class RenewNode(msgspec.Struct, frozen=True, array_like=True, tag="renew_node"):
    """Put a blank data folder in the place of a node's lost one; its generation rises by one.

    Refused if the node has another folder than `old`: that folder took the place meanwhile. A node
    without a folder is not refused.
    """

    id: int
    """Its number."""
    old: str
    """The random name of the folder that is lost."""
    new: str
    """The random name of the blank one."""


class RemoveNode(msgspec.Struct, frozen=True, array_like=True, tag="remove_node"):
    """Take a node out; refused while a group counts on it."""

    id: int
    """Its number."""


class PutGroup(msgspec.Struct, frozen=True, array_like=True, tag="put_group"):
    """Set the members that a partition group shall have; the brokers then bring it about."""

    group: Group
    """The group and its members."""


class Reconfigure(msgspec.Struct, frozen=True, array_like=True, tag="reconfigure"):
    """Change nodes and the members of groups, as one act. Only nodes write it: they judge the whole
    first (`raftmq.broker.cluster.reconfiguration`), as a part that is refused undoes no other."""

    changes: list[PutNode | PlaceNode | PutGroup]
    """The parts, in the order in which they are carried out."""


Change = (
    CreateTopic
    | AlterTopic
    | DeleteTopic
    | Subscribe
    | Unsubscribe
    | ConsumerGroupCommand
    | AccessCommand
    | QuotaCommand
    | PutSettings
    | DrainNode
    | MoveGroup
    | AddGroup
)
"""Commands of administrators and applications."""


class Once(msgspec.Struct, frozen=True, array_like=True, tag="once"):
    """A change with a number: a repeat of it changes nothing and is answered alike."""

    request: int
    """A random number of the caller's own, from 1 on."""
    change: Change
    """The change; carried out once for each `request`."""


AuthoredCommand = Once | Change | PutNode | RemoveNode | PutGroup | Reconfigure | JoinGroup
"""Commands that can have an author."""


class Authored(msgspec.Struct, frozen=True, array_like=True, tag="authored"):
    """A command with its author. Only nodes write it: a client can't name another author."""

    act: AdminAct
    """The author; and what the audit log says of the command, if it makes an entry."""
    command: AuthoredCommand
    """The command."""


Command = (
    Bootstrap
    | PutNode
    | RenewNode
    | RemoveNode
    | PutGroup
    | Reconfigure
    | RaiseLevel
    | NodeCommand
    | RetireReplica
    | Once
    | Change
    | PruneDeletions
    | MemberCommand
    | Authored
    | BeginAct
    | EndAct
)


def is_of_users(command: Command) -> bool:
    """Whether a command changes users, tokens or rules, or gives users a quota."""
    change = command.change if isinstance(command, Once) else command
    if isinstance(change, PutQuota):
        return change.subject.kind is SubjectKind.USER
    return isinstance(change, AccessCommand)


def _is_quiet(command: Command) -> bool:
    """Whether a command leaves alone all that nodes and clients follow by `version`. Members come,
    go and are renewed all the time."""
    inner = command.command if isinstance(command, Authored) else command
    return isinstance(inner, MemberCommand | BeginAct | EndAct)


def parse_command(values: list[Any], request: int = 0) -> Command:
    """The command of a positional array and the number of the request, as they came over the wire.

    Raises:
        msgspec.ValidationError: no command looks like this; the message says what is wrong.
    """
    command: Command = msgspec.convert(values, Command, builtin_types=(bytes,), str_keys=True)
    return Once(request, command) if request and isinstance(command, Change) else command


class Catalog(CatalogState):
    """The state of the system group after a prefix of its log."""

    record_version = VERSIONS[LEVEL].catalog  # as in `PartitionMachine`

    def apply(self, record: Record) -> list[Result]:
        """Apply the record at `applied + 1`; one result for each command in it."""
        assert record.index == self.applied + 1, f"{record.index} after {self.applied}"
        if record.version > self.record_version:
            raise UnsupportedVersion(
                f"record {record.index} has version {record.version}, this software knows up to "
                f"{self.record_version}: upgrade this node"
            )
        results: list[Result] = []
        if record.kind == Kind.COMMANDS:
            results = self._run(bytes(record.payload), record)
        self.applied = record.index
        assert self.version <= self.applied, "a change of a later record"
        self.digest = google_crc32c.extend(self.digest, record.encoded[:4])
        return results

    def _run(self, payload: bytes, record: Record) -> list[Result]:
        commands = decode_commands(payload, list[Command])
        if isinstance(commands, Refused):
            return [commands]
        results = [self._run_one(command, record.timestamp) for command in commands]
        if not all(map(_is_quiet, commands)):
            self.version = record.index
        return results

    def _run_one(self, command: Command, now: int, author: str = "") -> Result:
        match command:
            case Bootstrap():
                return self._bootstrap(command)
            case PutNode(node=node):
                return self._put_node(node)
            case RenewNode():
                return self._renew_node(command)
            case RemoveNode(id=number):
                return self._remove_node(number)
            case PutGroup(group=group):
                return self._put_group(group)
            case Reconfigure(changes=changes):
                results = [self._run_one(each, now) for each in changes]
                return next((each for each in results if isinstance(each, Refused)), Changed())
            case RaiseLevel(level=level):
                return Changed(self.raise_level(level))
            case AddGroup():
                return add_group(self, command)
            case RetireReplica():
                return retire(self, command)
            case NameNode() | DrainNode() | PlaceNode() | NoteAbsence() | MoveGroup():
                return note_on_nodes(self, command)
            case Once(request=request, change=change):
                return self.repeats.once(request, partial(self._run_one, change, now, author))
            case Authored():
                return self._run_authored(command, now)
            case BeginAct(act=act):
                return Changed(self.audit.add(act, now, BEGUN))
            case EndAct(number=number, result=result):
                return self.audit.end(number, result)
            case CreateTopic():
                return self._create_topic(command, now, author)
            case AlterTopic():
                return self._alter_topic(command)
            case DeleteTopic():
                return self._delete_topic(command)
            case Subscribe() | Unsubscribe():
                return self._subscribe(command)
            case PutConsumerGroup():
                return self._over_groups(command.name, author) or self.consumer_groups.put(
                    command, self.applied + 1, author
                )
            case DeleteConsumerGroup():
                return delete_group(self, command)
            case PruneDeletions(until=until):
                return self.deletions.prune(until)
            case Attach() | Detach():
                return self._attach(command, author)
            case PutUser() | DropUser() | PutToken() | DropToken() | PutRule() | DropRule():
                return self.access.apply(command, index=self.applied + 1, now=now)
            case PutQuota() | DropQuota():
                return self.quotas.apply(command, index=self.applied + 1)
            case PutSettings():
                return self.settings.apply(command, now=now, user=author)
            case JoinGroup():
                return self._join(command, now, author)
            case RegrantQueues():
                return self._regrant(command)
            case LeaveGroup() | ReleaseQueues() | RenewMembers():
                return self.memberships.apply(command, index=self.applied + 1, now=now)
            case _:
                assert_never(command)

    def _run_authored(self, authored: Authored, now: int) -> Result:
        act, command = authored.act, authored.command
        # Its entry was made the first time.
        is_repeat = isinstance(command, Once) and command.request in self.repeats
        if is_repeat or not act.what:
            return self._run_one(command, now, act.user)
        before = self._changed_part(command)
        result = self._run_one(command, now, act.user)
        if isinstance(result, Refused):
            outcome = result.reason.value
        else:
            outcome = UNCHANGED if self._changed_part(command) == before else DONE
        self.audit.add(act, now, outcome)
        return result

    def _changed_part(self, command: AuthoredCommand) -> object:
        """The part of the catalog that an act may change, or that part's version. If it is equal
        before and after, the act changed nothing."""
        inner = command.change if isinstance(command, Once) else command
        match inner:
            case CreateTopic(name=name) | AlterTopic(name=name) | DeleteTopic(name=name):
                return self.topics.get(name)
            case PutConsumerGroup(name=name):
                return self.consumer_groups.groups.get(name)
            case DeleteConsumerGroup(name=name):
                # A group of which only offsets are kept is not in `groups`.
                return self.consumer_groups.groups.get(name), self.deletions.last
            case Detach():
                return self.consumer_groups.version
            case PutUser() | DropUser() | PutToken() | DropToken() | PutRule() | DropRule():
                return self.access.version
            case PutQuota() | DropQuota():
                return self.quotas.version
            case PutSettings():
                return self.settings.version
            case PutNode(node=Node(id=number)) | RemoveNode(id=number):
                return self.nodes.get(number)
            case DrainNode(node=number):
                return number in self.drained
            case PutGroup(group=Group(id=number)) | MoveGroup(group=number) | AddGroup(number):
                return self.groups.get(number)
            case Reconfigure(changes=changes):
                return [
                    self._changed_part(each) for each in changes if not isinstance(each, PlaceNode)
                ]
            case Subscribe() | Unsubscribe() | Attach() | JoinGroup():
                return None  # Applications do this all the time: nodes ask for no entry.
            case _:
                assert_never(inner)

    def _bootstrap(self, command: Bootstrap) -> Result:
        if self.is_bootstrapped:
            return Changed()
        if not command.nodes or command.groups < 1 or command.replicas < 1:
            return Refused(Reason.BAD_ARGUMENT, "nodes, groups and replicas must be at least 1")
        self.nodes = {node.id: node for node in command.nodes}
        ids = sorted(self.nodes)
        members = min(command.replicas, len(ids))
        self.groups[SYSTEM_GROUP] = Group(SYSTEM_GROUP, ids, ids)
        for number in range(1, command.groups + 1):
            # Group g prefers node g, g+1, …: leaders and copies spread evenly.
            rotated = [ids[(number - 1 + step) % len(ids)] for step in range(members)]
            self.groups[number] = Group(number, rotated, rotated)
        return Changed()

    def _put_node(self, node: Node) -> Result:
        known = self.nodes.get(node.id) or self.left.pop(node.id, None)
        self.nodes[node.id] = msgspec.structs.replace(
            node,
            incarnation=known.incarnation if known else node.incarnation,
            generation=known.generation if known else 0,
            has_left=False,
        )
        return Changed()

    def _renew_node(self, command: RenewNode) -> Result:
        node = self.nodes.get(command.id)
        if node is None:
            return Refused(Reason.UNKNOWN_NODE, f"there is no node {command.id}")
        if node.incarnation == command.new and node.generation:
            return Changed()
        # The blank folder may have been named before the lost one was missed.
        if node.incarnation not in ("", command.old, command.new):
            message = f"node {node.id} is {node.incarnation}, not {command.old}"
            return Refused(Reason.BAD_ARGUMENT, message)
        if node.is_leaving:
            return Refused(Reason.BAD_ARGUMENT, f"node {node.id} is about to leave the cluster")
        if node.generation == GENERATION_MAX:
            return Refused(Reason.BAD_ARGUMENT, f"node {node.id} must get another number")
        self.nodes[node.id] = msgspec.structs.replace(
            node, incarnation=command.new, generation=node.generation + 1
        )
        forget_replicas(self, node.id)
        return Changed()

    def _remove_node(self, number: int) -> Result:
        users = [group.id for group in self.groups.values() if number in group.members]
        if users:
            message = f"node {number} still carries partition groups {users}: move them first"
            return Refused(Reason.BAD_ARGUMENT, message)
        node = self.nodes.pop(number, None)
        self.drained.discard(number)
        self.absent.discard(number)
        self.places.pop(number, None)
        if node is not None:
            self.left[number] = msgspec.structs.replace(node, is_leaving=False, has_left=True)
        return Changed()

    def _put_group(self, group: Group) -> Result:
        unknown = [member for member in group.members if member not in self.nodes]
        if unknown:
            return Refused(Reason.UNKNOWN_NODE, f"nodes {unknown} do not belong to the cluster")
        if not group.members or len(set(group.members)) != len(group.members):
            return Refused(Reason.BAD_ARGUMENT, "a group needs members, each named once")
        old = self.groups.get(group.id)
        # A command that moves a group must not change its founders or replica generations.
        old = old or Group(group.id, [], group.members)
        self.groups[group.id] = msgspec.structs.replace(
            group, founders=old.founders, replicas=old.replicas
        )
        return Changed()

    def _create_topic(self, command: CreateTopic, now: int, author: str) -> Result:
        if problem := why_no_name(command.name, "topic"):
            return Refused(Reason.BAD_NAME, problem)
        beside = self.topics.get(command.beside)
        if command.beside and beside is None:
            return unknown_topic(command.beside)
        existing = self.topics.get(command.name)
        if existing is not None:
            if beside is not None and existing.groups[0] != beside.groups[0]:
                message = f"topic {command.name!r} exists, and not beside {command.beside!r}"
                return Refused(Reason.TOPIC_EXISTS, message)
            if len(existing.groups) == command.queues:
                return Changed(existing.id)
            message = f"topic {command.name!r} exists with {len(existing.groups)} queues"
            return Refused(Reason.TOPIC_EXISTS, message)
        if not 1 <= command.queues <= QUEUES_MAX:
            return Refused(Reason.BAD_ARGUMENT, f"a topic has 1 to {QUEUES_MAX} queues")
        if not self.is_bootstrapped or len(self.topics) >= TOPICS_MAX:
            message = f"the cluster is not founded, or has {TOPICS_MAX} topics already"
            return Refused(Reason.BAD_ARGUMENT, message)
        if over := self._over_topics(author, topics=1, queues=command.queues):
            return over
        self.topic_last += 1
        assert self.topic_last not in self._names, "a topic's number is used again"
        groups = spread(self, beside, 0, command.queues)
        self._keep_topic(Topic(command.name, self.topic_last, groups, now, author))
        return Changed(self.topic_last)

    def _delete_topic(self, command: DeleteTopic) -> Result:
        if command.id and command.id not in self._names:
            # A repeat: what has the name by now is another topic.
            return Changed(command.id)
        topic = self.topics.pop(command.name, None)
        if topic is None:
            return unknown_topic(command.name)
        del self._names[topic.id]
        self.owned_topics.add(topic.owner, -1)
        self.owned_queues.add(topic.owner, -len(topic.groups))
        assert len(self._names) == len(self.topics), "names and topics out of step"
        self.last_drop = self.applied + 1
        self.subscribers.drop_topic(topic.id, self.applied + 1)
        self.consumer_groups.drop_topic(topic.id, self.applied + 1)
        self.memberships.drop_topic(topic.id)
        return Changed(topic.id)

    def _subscribe(self, command: Subscribe | Unsubscribe) -> Result:
        topic = self.topics.get(command.topic)
        if topic is None:
            return unknown_topic(command.topic)
        index = self.applied + 1
        if isinstance(command, Subscribe):
            return self.subscribers.subscribe(topic.id, command, index)
        return self.subscribers.unsubscribe(topic.id, command.consumer_group, index)

    def _attach(self, command: Attach | Detach, author: str) -> Result:
        topic = self.topics.get(command.topic)
        if isinstance(command, Detach) and command.number:
            return self.consumer_groups.detach(command.number, self.applied + 1)
        if topic is None:
            return unknown_topic(command.topic)
        index = self.applied + 1
        if isinstance(command, Attach):
            queues, name = len(topic.groups), command.consumer_group
            return self._over_groups(name, author) or self.consumer_groups.attach(
                topic.id, queues, command, index, author
            )
        attachment = self.consumer_groups.find(topic.id, command.consumer_group)
        return self.consumer_groups.detach(attachment.number if attachment else 0, index)

    def _join(self, command: JoinGroup, now: int, author: str) -> Result:
        topic, index = self.topics.get(command.topic), self.applied + 1
        name, mode = command.consumer_group, command.mode
        if topic is None:
            return unknown_topic(command.topic)
        known = self.consumer_groups.groups.get(name)
        if known is not None and known.mode is not mode:
            message = f"consumer group {name!r} has mode {known.mode}, not {mode}: use it as that"
            return Refused(Reason.GROUP_MODE, message)
        if known is None and is_expelled(self, command):
            return gone(name)
        if over := self._over_groups(name, author):
            return over
        result = self.memberships.join(topic.id, len(topic.groups), command, index=index, now=now)
        if known is None and isinstance(result, Changed):
            # If there are too many groups already, this one has members and no entry.
            self.consumer_groups.put(PutConsumerGroup(name, mode, Policy()), index, author)
            self.version = index
        return result

    def _over_groups(self, name: str, author: str) -> Refused | None:
        """The refusal of a command that would create a consumer group, if its author owns as many
        as it may."""
        if name in self.consumer_groups.groups:
            return None
        return self.quotas.over(author, groups=(self.consumer_groups.owned.of(author), 1))

    def _over_topics(self, owner: str, *, topics: int = 0, queues: int) -> Refused | None:
        """The refusal of topics and queues that a user is to own."""
        has_topics, has_queues = self.owned_topics.of(owner), self.owned_queues.of(owner)
        return self.quotas.over(owner, topics=(has_topics, topics), queues=(has_queues, queues))

    def _regrant(self, command: RegrantQueues) -> Result:
        topic = self.topics.get(command.topic)
        if topic is None:
            return unknown_topic(command.topic)
        return self.memberships.regrant(topic.id, command, index=self.applied + 1)

    def _alter_topic(self, command: AlterTopic) -> Result:
        if command.id and command.id not in self._names:
            return Changed(command.id)
        topic = self.topics.get(command.name)
        if topic is None:
            return unknown_topic(command.name)
        have = len(topic.groups)
        if not have <= command.queues <= QUEUES_MAX:
            message = f"{command.name!r} has {have} queues; it can grow up to {QUEUES_MAX}"
            return Refused(Reason.BAD_ARGUMENT, message)
        # A repeat takes nothing, so it is refused by no quota.
        more = command.queues - have
        if more and (over := self._over_topics(topic.owner, queues=more)):
            return over
        added = spread(self, topic, have, command.queues)
        assert have + len(added) == command.queues, "queues without a group"
        self.topics[topic.name] = msgspec.structs.replace(topic, groups=topic.groups + added)
        self.owned_queues.add(topic.owner, more)
        self.subscribers.topic_changed(topic.id, self.applied + 1)
        self.consumer_groups.topic_changed(topic.id, self.applied + 1)
        self.memberships.topic_changed(topic.id, command.queues, self.applied + 1)
        return Changed(topic.id)
