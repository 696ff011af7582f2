"""The state of the catalog: what its commands change, and how it is stored.

`catalog` has the commands.
"""

from collections.abc import Callable
from typing import Any, Self

import cbor2
import msgspec

from raftmq.machine.queue_numbers import QUEUE_BITS, SYSTEM_GROUP
from raftmq.machine.repeats import Repeats
from raftmq.results import UnsupportedVersion

from .access import AccessState
from .audit import Audit
from .consumer_groups import ConsumerGroups
from .deletions import Deletions
from .levels import FIRST_LEVEL, LEARNERS_LEVEL, LEVEL, VERSIONS
from .membership import Memberships
from .quotas import OwnedCounts, QuotaState
from .settings import SettingsState
from .subscribers import Subscribers

NODES_MAX = 1000
"""Nodes of a cluster: each has links to all others, and a routing table has all in one frame."""
QUEUES_MAX = 1 << QUEUE_BITS
"""Queues of one topic."""

SYSTEM_VOTERS_MAX = 5
"""Voters of the system group. More would make each record of the catalog wait for more disks, and
each node that is down or slow count against its majority."""

_READ_VERSIONS = range(1, VERSIONS[LEVEL].state + 1)
"""Versions of snapshots that are read: the first one had no subscriptions, the second no consumer
groups, the third no members, the fourth no deletions, the fifth none that were carried out, the
sixth no `Repeats`, the seventh no `Beginnings`, the eighth no `run` in a policy, the ninth no
`AccessState`, the tenth no `Audit`, no owners and no `QuotaState`, the eleventh no level, no
drained nodes, no places, no absences and no dynamic settings."""


class Node(msgspec.Struct, frozen=True, array_like=True):
    """A node of the cluster."""

    id: int
    """Its number, from 1."""
    host: str
    """Where clients and peers reach it."""
    port: int
    """The native protocol's port."""
    is_leaving: bool = False
    """True while the groups it carries are moved to others; then it is removed."""
    incarnation: str = ""
    """The random name of its data folder; empty: it was not seen yet, and can carry nothing."""
    generation: int = 0
    """How often a blank data folder took the place of a lost one."""
    has_left: bool = False
    """True in a snapshot for a node that was removed."""


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Where a node stands."""

    zone: str = ""
    """The rack, room or data centre; empty: not said."""
    machine: str = ""
    """The machine, if other nodes run there as well; empty: the node has one of its own."""


class Group(msgspec.Struct, frozen=True, array_like=True):
    """A partition group and who shall carry it."""

    id: int
    """Its number; 0 is the system group."""
    members: list[int]
    """Node ids; the first is the one that should lead when all is well."""
    founders: list[int] = []
    """The members, by id, that began the group's log with each other; never changed after. A node
    that opened the group before does not found it again: see `raftmq.broker.replica.replicas`."""
    replicas: dict[int, int] = {}
    """Node → its replica generation, if that is above 0; kept when members change."""


class Topic(msgspec.Struct, frozen=True, array_like=True):
    """A topic and the partition group of each of its queues."""

    name: str
    """Unique among the topics that exist."""
    id: int
    """The topic's number; never used again."""
    groups: list[int]
    """Partition group of queue n at position n."""
    created: int
    """When, by the leader's stamp in milliseconds."""
    owner: str = ""
    """The user that created it; empty: not known, as in clusters that do not know their users."""

    @property
    def queues(self) -> list[int]:
        """The numbers of its queues."""
        return [self.id << QUEUE_BITS | n for n in range(len(self.groups))]


class CatalogState:
    """The state of the system group after a prefix of its log."""

    def __init__(self) -> None:
        self.applied = 0
        """Index of the last record applied; 0: none."""
        self.digest = 0
        """CRC-32C over all that was applied."""
        self.version = 0
        """Index of the last record that changed more than members and their queues."""
        self.log_start = 1
        """Part of every machine's face; the catalog trims nothing."""
        self.nodes: dict[int, Node] = {}
        """All nodes by number."""
        self.left: dict[int, Node] = {}
        """Nodes that were removed: what a number stood for must not be forgotten."""
        self.level = FIRST_LEVEL
        """The feature level of the cluster: see `levels`."""
        self.state_version = VERSIONS[FIRST_LEVEL].state
        """The version of the snapshot, as in `PartitionMachine`; it follows from the level."""
        self.drained: set[int] = set()
        """Nodes that shall lead nothing."""
        self.places: dict[int, Place] = {}
        """Where nodes stand, of those that say so."""
        self.absent: set[int] = set()
        """Nodes that have been silent for long: see `nodes`."""
        self.groups: dict[int, Group] = {}
        """All partition groups by number, the system group among them."""
        self.topics: dict[str, Topic] = {}
        """All topics by name."""
        self.owned_topics = OwnedCounts()
        """How many topics each user owns."""
        self.owned_queues = OwnedCounts()
        """How many queues these have."""
        self.subscribers = Subscribers()
        """Subscriptions of consumer groups to topics, with their filters."""
        self.consumer_groups = ConsumerGroups()
        """Consumer groups with a mode and a policy, and which topics they take messages of."""
        self.memberships = Memberships()
        """Members of consumer groups that share out a topic's queues."""
        self.deletions = Deletions()
        """Consumer groups that were deleted, and that data groups may still have to forget."""
        self.repeats = Repeats()
        """Changes that were carried out, with their answers."""
        self.access = AccessState()
        """Users, tokens and rules of access."""
        self.audit = Audit()
        """Acts of administration."""
        self.quotas = QuotaState()
        """Quotas of users and topics."""
        self.settings = SettingsState()
        """Dynamic settings."""
        self.last_drop = 0
        """Index of the last record that deleted a topic, or of the snapshot that was restored."""
        self._names: dict[int, str] = {}
        self.topic_last = 0
        """The highest topic number given so far."""

    @property
    def is_bootstrapped(self) -> bool:
        """True once the founding command is applied."""
        return bool(self.nodes)

    @property
    def idle(self) -> set[int]:
        """Nodes that lead nothing: those drained, and those absent."""
        return self.drained | self.absent

    def voters(self, group: Group) -> list[int]:
        """The members of a group that shall vote; the others learn.

        Every node is a member of the system group, as each needs the catalog. At most five vote:
        those with the lowest numbers that are not absent, so the voters follow from the members.

        >>> catalog = CatalogState()
        >>> catalog.voters(Group(7, [4, 1, 3, 2])), catalog.raise_level(LEARNERS_LEVEL)
        ([4, 1, 3, 2], 2)
        >>> catalog.voters(Group(0, [4, 1, 3, 2])), catalog.absent.add(2)
        ([1, 2, 3], None)
        >>> catalog.voters(Group(0, [4, 1, 3, 2]))
        [1, 3, 4]
        """
        members = group.members
        if group.id != SYSTEM_GROUP or self.level < LEARNERS_LEVEL or len(members) <= 3:
            return members
        count = min(len(members), SYSTEM_VOTERS_MAX)
        ranked = sorted(members, key=lambda node: (node in self.absent, node))
        # An even number survives no more failures than the odd one below it.
        return sorted(ranked[: count - 1 + count % 2])

    def group_of(self, queue: int) -> int | None:
        """The partition group that carries a queue; None if no topic has such a queue."""
        topic = self.topic_of(queue)
        n = queue & (QUEUES_MAX - 1)
        return topic.groups[n] if topic is not None and n < len(topic.groups) else None

    def topic_of(self, queue: int) -> Topic | None:
        """The topic that a queue belongs to; None if it is gone or never was."""
        name = self._names.get(queue >> QUEUE_BITS)
        return None if name is None else self.topics[name]

    def put_place(self, node: int, zone: str, machine: str) -> None:
        """A node stands there; of one that says nothing there is no entry."""
        places = {**self.places, node: Place(zone, machine)}
        # Sorted: equal states have equal bytes, whatever came first.
        self.places = {each: places[each] for each in sorted(places) if places[each] != Place()}

    def _keep_topic(self, topic: Topic) -> None:
        """A topic is created."""
        self.topics[topic.name] = topic
        self._names[topic.id] = topic.name
        self.owned_topics.add(topic.owner, 1)
        self.owned_queues.add(topic.owner, len(topic.groups))

    def snapshot(self) -> bytes:
        """The whole state after `applied`, as bytes that every replica writes alike."""
        state = [
            self.state_version,
            self.applied,
            self.digest,
            self.version,
            self.topic_last,
            [*self.nodes.values(), *self.left.values()],
            list(self.groups.values()),
            list(self.topics.values()),
            self.subscribers.dump(),
            self.consumer_groups.dump(),
            self.memberships.dump(),
            self.deletions.dump(),
            self.repeats.dump(),
            self.memberships.beginnings.dump(),
            self.access.dump(),
            self.audit.dump(),
            self.quotas.dump(),
        ]
        if self.level > FIRST_LEVEL:
            own = [self.level, sorted(self.drained), self.places, sorted(self.absent)]
            state.append([*own, self.settings.dump()])
        return cbor2.dumps(msgspec.to_builtins(state, builtin_types=(bytes,)))

    @classmethod
    def restore(cls, state: bytes) -> Self:
        """The catalog whose `snapshot` gave `state`."""
        version, *values = cbor2.loads(state)
        if version not in _READ_VERSIONS:
            raise UnsupportedVersion(f"snapshot of state version {version}: upgrade this node")
        catalog = cls()
        catalog.applied, catalog.digest, catalog.version, catalog.topic_last = values[:4]
        catalog.last_drop = catalog.applied
        nodes, groups, topics, *newer = values[4:]
        for node in msgspec.convert(nodes, list[Node]):
            (catalog.left if node.has_left else catalog.nodes)[node.id] = node
        catalog.groups = {group.id: group for group in msgspec.convert(groups, list[Group])}
        for topic in msgspec.convert(topics, list[Topic]):
            catalog._keep_topic(topic)
        loading: tuple[Callable[[Any], None], ...] = (
            catalog.subscribers.load,
            catalog.consumer_groups.load,
            catalog.memberships.load,
            catalog.deletions.load,
            catalog.repeats.load,
            catalog.memberships.beginnings.load,
            catalog.access.load,
            catalog.audit.load,
            catalog.quotas.load,
            catalog._load_level,
        )
        for load, dumped in zip(loading, newer, strict=False):
            load(dumped)
        return catalog

    def _load_level(self, dumped: list[Any]) -> None:
        level, drained, places, absent, settings = dumped
        self.raise_level(level)
        self.drained = set(drained)
        self.places = msgspec.convert(places, dict[int, Place])
        self.absent = set(absent)
        self.settings.load(settings)

    def raise_level(self, level: int) -> int:
        """Raise the cluster's level, which is returned; a lower one changes nothing."""
        self.level = max(self.level, level)
        self.state_version = VERSIONS[self.level].state
        return self.level
