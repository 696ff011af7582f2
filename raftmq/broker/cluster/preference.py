"""Noting in the catalog which node shall lead a group: the first of the group's members.

Any node may be asked to hand a group over. The catalog must hold the preference first: else the
next check of leaders would undo the transfer. The leader of the system group notes the preference.
The note holds all members of the group, so it is made from a catalog that is known to be new.
"""

import msgspec

from raftmq.broker.host import Host
from raftmq.broker.replica.group import Group, node_of
from raftmq.errors import Reason
from raftmq.machine.catalog.catalog import SYSTEM_GROUP, PutGroup
from raftmq.machine.catalog.levels import MOVES_LEVEL
from raftmq.machine.catalog.nodes import MoveGroup
from raftmq.wire.messages import ErrorReply

from .catalog_changes import change_catalog
from .views import renew_catalog


async def prefer(node: Host, group: Group, leader: int) -> ErrorReply | None:
    """Note that `leader` shall lead a group; why that could not be done, or None.

    Cancelling leaves open whether it was noted.
    """
    if leader in node.catalog.drained:
        text = f"node {leader} is drained: `raftmq cluster undrain {leader}` first"
        return ErrorReply(Reason.BAD_ARGUMENT.value, text)
    if group.number == SYSTEM_GROUP or leader == node.catalog.groups[group.number].members[0]:
        return None
    if not await renew_catalog(node):
        return ErrorReply("unavailable", "the catalog's leader does not answer", retry_ms=200)
    wanted = node.catalog.groups[group.number]
    if leader not in wanted.members:
        if group.voter_of(leader) not in group.conf_state.voters:
            # The transfer that follows refuses this node, and says why.
            return None
        nodes = ", ".join(map(str, wanted.members))
        text = f"partition group {group.number} is moving away from node {leader}, to nodes {nodes}"
        return ErrorReply(Reason.UNKNOWN_NODE.value, f"{text}: name one of these")
    members = [leader, *(member for member in wanted.members if member != leader)]
    command: PutGroup | MoveGroup = MoveGroup(group.number, members, wanted.members)
    if node.catalog.level < MOVES_LEVEL:
        command = PutGroup(msgspec.structs.replace(wanted, members=members))
    system = node.groups[SYSTEM_GROUP]
    if node_of(system.leader) == node.id and not system.is_settled:
        return ErrorReply("busy", "the catalog is being changed", retry_ms=50)
    refused = await change_catalog(node, command)
    return refused if isinstance(refused, ErrorReply) else None
