"""Noting in the catalog which node shall lead a group: the first of the group's members.

Any node may be asked to hand a group over. The catalog must know the wish first, or the next look
at who leads what would undo it; the leader of the system group notes it.
"""

from typing import TYPE_CHECKING

import msgspec

from raftmq.broker.replica.group import Group, node_of
from raftmq.broker.replica.tickets import Callback
from raftmq.errors import Unavailable
from raftmq.log.record import Kind
from raftmq.machine.catalog.catalog import SYSTEM_GROUP, PutGroup
from raftmq.machine.commands import encode_commands
from raftmq.wire.messages import Admin, AdminDone, ErrorReply, FrameKind

from .peers import Declined

if TYPE_CHECKING:
    from raftmq.broker.node import Node


async def prefer(node: "Node", group: Group, leader: int) -> ErrorReply | None:
    """Note that `leader` shall lead a group; why that could not be done, or None.

    Cancelling leaves it open.
    """
    wanted = node.catalog.groups[group.number]
    if group.number == SYSTEM_GROUP or leader not in wanted.members[1:]:
        return None
    members = [leader, *(member for member in wanted.members if member != leader)]
    command = PutGroup(msgspec.structs.replace(wanted, members=members))
    system = node.groups[SYSTEM_GROUP]
    asked = node_of(system.leader)
    if asked == node.id and not system.is_settled:
        return ErrorReply("busy", "the catalog is being changed", retry_ms=50)
    if asked == node.id:
        system.propose(
            Kind.COMMANDS, encode_commands([command]), Callback(lambda _: None, lambda _: None)
        )
        return None
    link = node.links.get(asked)
    try:
        if link is None:
            raise Unavailable("the system group has no leader")
        await link.ask(FrameKind.ADMIN, Admin(msgspec.to_builtins(command)), AdminDone)
    except Declined as declined:
        return declined.reply
    except Unavailable as error:
        return ErrorReply("unavailable", str(error), retry_ms=200)
    return None
