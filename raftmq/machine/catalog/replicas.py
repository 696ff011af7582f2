"""The member ids of a node in partition groups, and the commands that give it one.

Raft counts on votes and acknowledged records that survive a restart, so an id that voted or
acknowledged must never belong to a log that has forgotten it. Two events begin a new log: a node's
data folder is lost (the node's *generation* rises), or one replica's log is deleted or lost (the
*replica generation* of that group on that node rises). Both are part of the member's id:

| bits | what |
|---|---|
| 52 to 62 | the node's generation |
| 32 to 51 | the replica generation, which begins at 0 in each generation of the node |
| 0 to 31 | the node |

`RetireReplica` names the member whose log is deleted or lost. It takes effect while the catalog has
just that member, so a repeat, a late arrival and a lost answer change nothing: the result is always
the member id that counts by then.

Invariants:
- Under one member id a group has at most one log, ever.
- A newer member of a node has a higher id.
- A replica that is wanted is retired only if its log is lost.
- A group's founders are fixed when the catalog gets the group; each founds it under the id that it
  has then, or not at all.
"""

from collections.abc import Iterable

import msgspec

from raftmq.errors import Reason
from raftmq.machine.queue_numbers import SYSTEM_GROUP
from raftmq.results import Changed, Refused, Result

from .nodes import AddGroup, no_node
from .state import CatalogState, Group

NODE_BITS = 32
"""The number of low bits of a member's id that hold the node's number."""
REPLICA_BITS = 20
"""Bits of the replica generation, above the node's."""
GENERATION_MAX = (1 << 11) - 1
"""Data folders that a node may lose under one number: a member's id stays below 2**63."""
GROUPS_MAX = 4096
"""Data groups of a cluster."""
REPLICA_MAX = (1 << REPLICA_BITS) - 1
"""Logs of one group that a node may delete or lose in one generation."""


class RetireReplica(msgspec.Struct, frozen=True, array_like=True, tag="retire_replica"):
    """A member's log is about to be deleted, or lost: its id must not be used again.

    Refused if the node is wanted in the group and the log is not lost.
    """

    group: int
    """The partition group."""
    member: int
    """The member's id."""
    is_lost: bool = False
    """True if the log is gone already, so that it does not matter whether it is wanted."""


def node_of(member: int) -> int:
    """The node behind a member's id."""
    return member & ((1 << NODE_BITS) - 1)


def listed_members(voters: Iterable[int], learners: Iterable[int], *, leader: int) -> str:
    """The nodes of a group's members, as an error lists them.

    >>> listed_members([1, 2], [3], leader=2)
    '1, 2 (leads), 3 (learns)'
    """
    marks = {node_of(member): " (learns)" for member in learners}
    marks |= {node_of(member): "" for member in voters} | {leader: " (leads)"}
    return ", ".join(f"{node}{mark}" for node, mark in sorted(marks.items()))


def replica_of(member: int) -> int:
    """How many logs of the group this data folder had deleted or lost before."""
    return member >> NODE_BITS & REPLICA_MAX


def generation_of(member: int) -> int:
    """How often the node's data folder had been lost when it became this member."""
    return member >> NODE_BITS + REPLICA_BITS


def member_id(node: int, generation: int, replica: int = 0) -> int:
    """The member that a node is to a group: each new log is another member, so that no vote and no
    acknowledgement of a lost one counts for it.

    >>> member_id(3, 0), node_of(member_id(3, 2, 5)), generation_of(member_id(3, 2, 5))
    (3, 3, 2)
    >>> replica_of(member_id(3, 2, 5)), member_id(3, 2, 5) < member_id(3, 3, 0) < 2**63
    (5, True)
    """
    assert generation <= GENERATION_MAX
    assert replica <= REPLICA_MAX
    return (generation << REPLICA_BITS | replica) << NODE_BITS | node


def member_of(catalog: CatalogState, number: int, node: int) -> int:
    """The member that a node is to a group by the catalog, and would begin a log as now."""
    known = catalog.nodes.get(node) or catalog.left.get(node)
    group = catalog.groups.get(number)
    replica = group.replicas.get(node, 0) if group is not None else 0
    return member_id(node, known.generation if known is not None else 0, replica)


def taker_of(catalog: CatalogState, command: RetireReplica) -> int:
    """The member in the place of one whose id is used up, which stays so; 0: it is not."""
    group, node = catalog.groups.get(command.group), node_of(command.member)
    member = member_of(catalog, group.id, node) if group is not None else 0
    return member if command.member < member else 0


def add_group(catalog: CatalogState, command: AddGroup) -> Result:
    """Apply the command: whether it changed anything."""
    number, members = command.group, command.members
    known, last = catalog.groups.get(number), max(catalog.groups, default=SYSTEM_GROUP)
    if known is not None and known.members == members:
        return Changed(False)
    if number != last + 1 or number > GROUPS_MAX:
        message = (
            f"the last group is {last}, of {GROUPS_MAX} at the most: group {number} is not next"
        )
        return Refused(Reason.BAD_ARGUMENT, message)
    if not members or len(set(members)) != len(members):
        return Refused(Reason.BAD_ARGUMENT, "a group needs nodes, each named once")
    for member in members:
        node = catalog.nodes.get(member)
        if node is None:
            return no_node(catalog, member)
        if node.is_leaving or not node.incarnation or member in catalog.absent:
            message = f"node {member} is leaving, was never seen, or has been silent for long"
            return Refused(Reason.BAD_ARGUMENT, message)
    if catalog.idle >= {*members}:
        message = f"nodes {members} are drained or absent: none would lead group {number}"
        return Refused(Reason.BAD_ARGUMENT, message)
    founders = [member_id(member, catalog.nodes[member].generation, 0) for member in members]
    catalog.groups[number] = Group(number, members, founders)
    return Changed(True)


def retire(catalog: CatalogState, command: RetireReplica) -> Result:
    """Apply the command: the member that takes the place of the retired one."""
    group, node = catalog.groups.get(command.group), node_of(command.member)
    if group is None:
        message = f"there is no partition group {command.group}: {sorted(catalog.groups)}"
        return Refused(Reason.BAD_ARGUMENT, message)
    member = member_of(catalog, group.id, node)
    # No group ever counted on a node that the catalog never had: it has no id to lose yet.
    is_known = node in catalog.nodes or node in catalog.left
    if command.member < member or not is_known:
        return Changed(member)
    if command.member > member:
        message = f"node {node} is member {member} of group {group.id}, not {command.member}"
        return Refused(Reason.BAD_ARGUMENT, message)
    if node in group.members and not command.is_lost:
        message = f"node {node} is wanted in partition group {group.id}: move the group first"
        return Refused(Reason.BAD_ARGUMENT, message)
    if replica_of(member) == REPLICA_MAX:
        message = f"node {node} used all ids in group {group.id}: give it another number"
        return Refused(Reason.BAD_ARGUMENT, message)
    # Sorted: equal states have equal bytes, in whatever order replicas were retired.
    counted = {**group.replicas, node: replica_of(member) + 1}
    replicas = {each: counted[each] for each in sorted(counted)}
    catalog.groups[group.id] = msgspec.structs.replace(group, replicas=replicas)
    taker = member_of(catalog, group.id, node)
    assert taker > member, f"member {member} is retired in favour of {taker}"
    return Changed(taker)


def forget_replicas(catalog: CatalogState, node: int) -> None:
    """A node has a new data folder, and with it ids of its own: count from 0 again."""
    for group in [group for group in catalog.groups.values() if node in group.replicas]:
        replicas = {each: count for each, count in group.replicas.items() if each != node}
        catalog.groups[group.id] = msgspec.structs.replace(group, replicas=replicas)
