"""Which replicas a node carries, and under which member ids it opens them.

The catalog gives the ids (`raftmq.machine.catalog.replicas`). The node durably remembers the last
replica that it opened of each group (`node.json`), before that replica sends its first message. So
a folder that never held a log differs from one whose log is gone:

| the group's folder | the last replica opened here | what follows |
|---|---|---|
| holds a log | any | it is opened as that replica |
| holds none | none | a founder founds the group, also if it was moved away; another node opens a |
| | | blank replica |
| holds none | one that the catalog has replaced | it was deleted; the next one is opened |
| holds none | the one that the catalog names | its log is *lost*: the catalog gives another id |

A lost replica must not come back under its id, be its node a founder or not: it has forgotten its
votes, and the records that it acknowledged. As a member with a new id it is added as a learner,
gets a snapshot and the log, and counts when it has caught up. No older snapshot names the new id,
so the replica cannot campaign under a membership of long ago.

Of the system group the node has no catalog to look into. It asks all members at its start, those of
their newest table among them (`links`), and waits; the catalog's leader tells it the id.

Invariants:
- Under one member id a node has one log of a group, as long as it has one data folder.
- The id of a replica is durable in `node.json` before its first message leaves. A founder's log is
  durable before that, so that a crash in between does not leave a group without founders.
- A log counts as lost only if its own node says so over the leader's link to it.
- A lost replica takes an id that a member told, is this folder's, and is no lower than its own one.
- No replica is opened by a catalog that is older than what this node has opened.

Left out: undoing it. A log that was out of reach and turns up after another member took its place
is deleted as any replica that is not wanted; of the system group the node stops, and says so.
"""

from contextlib import suppress

import msgspec
import trio

from raftmq.broker.cluster.identity import Identity, load, save
from raftmq.broker.cluster.upgrade import record_version
from raftmq.broker.cluster.views import ask_all
from raftmq.broker.host import Host
from raftmq.errors import Unavailable
from raftmq.log.faults import LogFault
from raftmq.machine.catalog.catalog import SYSTEM_GROUP
from raftmq.machine.catalog.replicas import (
    RetireReplica,
    generation_of,
    member_id,
    member_of,
    replica_of,
)
from raftmq.wire.messages import ErrorReply, FrameKind, Probe, ProbeReply

from .group import node_of
from .opener import GroupOpener, founding_members, group_folder
from .removal import ReplicaRemoval, has_left

ASK_SECONDS = 0.5
"""Pause between two attempts to learn the member id of a lost replica of the system group."""

ANSWER_SECONDS_MAX = 2.0
"""A peer that does not answer within this time is asked again in the next round."""


class ReplicaReplaced(LogFault):
    """Another member took the place of this node's replica of the system group."""


class Replicas:
    """The replicas of one node."""

    def __init__(self, node: Host, opener: GroupOpener, removal: ReplicaRemoval) -> None:
        own = node.settings.node
        identity = load(node.world.files, own.data, cluster=own.cluster, node=own.id)
        assert identity is not None, "a node takes up its folder before it opens replicas"
        self._node = node
        self._opener = opener
        self._removal = removal
        self._identity: Identity = identity
        # Groups that had a folder without a log at the start: the files there are of no use.
        self._remains: set[int] = set()

    async def open_all(self) -> None:
        """At the start: open the groups that have a folder here, the system group first.

        Waits only if this node's replica of the system group is lost. Cancelling leaves nothing
        behind but, perhaps, an id that was used up.
        """
        await self._open_system()
        for number in self._opener.numbers_on_disk():
            if number == SYSTEM_GROUP:
                continue
            if self._opener.has_log(number):
                self._open(number, self._identity.replicas.get(number, 0), [])
            else:
                self._remains.add(number)

    def open_wanted(self) -> None:
        """Open the groups that this node shall carry, by the catalog as it is now."""
        catalog, own = self._node.catalog, self._node.id
        self._check_system()
        for replica in self._node.groups.values():
            replica.record_version = record_version(catalog.level, partition_group=replica.number)
        for group in list(catalog.groups.values()):
            if not self._is_missing(group.id):
                self._clear_remains(group.id)
                continue
            generation = replica_of(member_of(catalog, group.id, own))
            if self._identity.replicas.get(group.id, -1) < generation:
                self._open(group.id, generation, founding_members(self._node, group.id))
        self.think()

    def _clear_remains(self, number: int) -> None:
        """Remove what is left of a log that was lost, if its group has moved away since."""
        is_wanted = self._node.id in self._node.catalog.groups[number].members
        if number in self._remains and not is_wanted:
            self._opener.clear(number)
            self._remains.discard(number)

    def think(self) -> None:
        """Ask for the ids of replicas that are wanted here and whose logs are lost."""
        for number in sorted(self._node.catalog.groups):
            if self._is_lost(number) and number not in self._node.lost_logs:
                self._node.lost_logs.add(number)
                self._node.start_soon(self._replace, number)

    def _is_missing(self, number: int) -> bool:
        """True if a group is wanted here and not carried, by a catalog that knows this folder."""
        node, catalog = self._node, self._node.catalog
        known = catalog.nodes.get(node.id)
        return (
            known is not None
            and known.generation == node.generation
            and (node.id in catalog.groups[number].members or self._is_unopened_founder(number))
            and number not in node.groups
            and number not in self._removal.under_way
        )

    def _is_unopened_founder(self, number: int) -> bool:
        """True if this node is to found a group with others, and has not done its part. If the
        group was moved away meanwhile, a majority may still lack this part: without it the group
        would never have a leader who carries out the move."""
        own = member_id(self._node.id, self._node.generation, 0)
        is_founder = own in self._node.catalog.groups[number].founders
        return is_founder and number not in self._identity.replicas

    def _is_lost(self, number: int) -> bool:
        replica = replica_of(member_of(self._node.catalog, number, self._node.id))
        return self._is_missing(number) and self._identity.replicas.get(number) == replica

    async def _replace(self, number: int) -> None:
        """Have the catalog give a lost replica another id. It is opened when the catalog says so
        here: an answer that is lost costs nothing."""
        member = member_of(self._node.catalog, number, self._node.id)
        try:
            await self._removal.retire(number, member, is_lost=True)
        finally:
            self._node.lost_logs.discard(number)

    async def _open_system(self) -> None:
        node = self._node
        founders = founding_members(node, SYSTEM_GROUP)
        replica, is_sure = self._identity.replicas.get(SYSTEM_GROUP, 0), False
        while not self._open(SYSTEM_GROUP, replica, founders, may_be_blank=is_sure):
            node.waits_for = (
                "its log of partition group 0 is lost: it waits for the group's leader, and so for "
                f"a majority of the other nodes, to take it in as another member{node.links.advice}"
            )
            node.lost_logs.add(SYSTEM_GROUP)
            own = member_id(node.id, node.generation, self._identity.replicas[SYSTEM_GROUP])
            taker = await self._removal.retire(SYSTEM_GROUP, own, is_lost=True)
            if not _may_take(taker, own):
                await node.links.introduce()
                await trio.sleep(ASK_SECONDS)
                continue
            # The same id if the catalog never had this node: it is about to join.
            replica, is_sure = replica_of(taker), taker == own
        node.waits_for = ""
        node.lost_logs.discard(SYSTEM_GROUP)

    def _check_system(self) -> None:
        """End the node if another member took the place of its replica of the system group."""
        taker = member_of(self._node.catalog, SYSTEM_GROUP, self._node.id)
        if taker > self._node.groups[SYSTEM_GROUP].raft.id:
            text = (
                "this node's log of partition group 0 was taken for lost, and another member has "
                f"its place: remove {group_folder(self._node, SYSTEM_GROUP)} and start it again"
            )
            self._node.fail(ReplicaReplaced(text))

    def _open(
        self, number: int, replica: int, founders: list[int], *, may_be_blank: bool = False
    ) -> bool:
        """Open a replica; False if its log is lost, and another one must take its place.

        Args:
            number: the partition group.
            replica: the replica generation.
            founders: the members that found the group if it was not founded yet.
            may_be_blank: whether the replica is known to have said nothing yet.
        """
        node, known = self._node, self._identity.replicas.get(number)
        if not self._opener.has_log(number):
            if known == replica and not may_be_blank:
                return False
            self._opener.clear(number)
        # From now on a log stands there.
        self._remains.discard(number)
        member = member_id(node.id, node.generation, replica)
        # A node or a replica that began again has another id: the group was founded.
        is_founder = member in founders and known is None
        # A log is opened under the id that is remembered. The log of a next self must not be met
        # under the former id, which may vote: so its id is remembered first. A crash in between
        # leaves a lost log, which costs one more id.
        is_next = known != replica and (known is not None or replica > 0)
        if is_next:
            self._note(number, replica)
        group = self._opener.open(number, member, founders if is_founder else [])
        # Remembered first, the log of a group that is founded here would be taken for lost.
        if known is None and not is_next:
            self._note(number, replica)
        node.groups[number] = group
        group.record_version = record_version(node.catalog.level, partition_group=number)
        node.mark(group)
        return True

    def _note(self, number: int, replica: int) -> None:
        """Durably remember the replica before it sends its first message."""
        replicas = self._identity.replicas | {number: replica}
        self._identity = msgspec.structs.replace(self._identity, replicas=replicas)
        save(self._node.world.files, self._node.settings.node.data, self._identity)


async def why_not_retire(node: Host, command: RetireReplica) -> ErrorReply | None:
    """On the system group's leader: None if a member's node says itself that its log is lost, or if
    the member's group has let go of it; else the refusal. The request may be late, and the member
    count again.

    Any node may send the command. Cancelling leaves nothing behind.
    """
    number = node_of(command.member)
    message = ""
    # A node that the catalog does not have yet has no id to lose: it hears which it has.
    if command.is_lost and number in node.catalog.nodes:
        if not await _has_lost(node, number, command.group):
            message = (
                f"node {number} does not say itself that its log of group {command.group} is lost"
            )
    elif not command.is_lost and not has_left(command.member, command.group, await ask_all(node)):
        message = f"node {number} is still a member of group {command.group}, or it has no leader"
    return ErrorReply("unavailable", message) if message else None


async def _has_lost(node: Host, other: int, number: int) -> bool:
    """Whether another node says, over the link to it, that its log of a group is lost."""
    link = node.links.get(other)
    # The node that asks for the retirement waits twice as long for its own answer.
    with trio.move_on_after(ANSWER_SECONDS_MAX / 2), suppress(Unavailable):
        if link is not None:
            probe = Probe(node.id, node.incarnation)
            return number in (await link.ask(FrameKind.PROBE, probe, ProbeReply)).lost_logs
    return False


def _may_take(taker: int, own: int) -> bool:
    """True if a member may come after `own`, in the same folder. A lower one has a log that is
    forgotten, too."""
    is_same_folder = taker == member_id(node_of(own), generation_of(own), replica_of(taker))
    return is_same_folder and taker >= own
