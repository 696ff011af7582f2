"""An operator who evens out the cluster, by loads that are drawn: so each plan is another one."""

from collections.abc import Container
from random import Random

from raftmq.broker.placement.balance import GroupLoad, NodeRoom, balance
from raftmq.client.admin.admin import Admin
from raftmq.machine.catalog.state import Place

MOVES_MAX = 3
"""Groups that are moved at a time."""
ROOM = 1 << 50
MEAN_BYTES = 1 << 30
MEAN_RATE = 1 << 20


async def even_out(admin: Admin, random: Random, *, able: Container[int]) -> None:
    """Begin some moves of a plan, whose nodes that come are among the `able` ones.

    Raises:
        RaftmqError: a move was refused, or not answered; those before it were begun.
    """
    view = await admin.cluster()
    nodes = [
        NodeRoom(
            node.id,
            Place(node.zone, node.machine),
            node.is_drained,
            ROOM if node.id in able else None,
        )
        for node in view.nodes
        if not node.is_leaving
    ]
    groups = [
        GroupLoad(
            group.id,
            group.wanted,
            int(random.expovariate(1 / MEAN_BYTES)),
            random.expovariate(1 / MEAN_RATE),
        )
        for group in view.groups
        if group.id
    ]
    moves = balance(nodes, groups)
    random.shuffle(moves)
    for move in moves[:MOVES_MAX]:
        await admin.move_group(move.group, move.members, before=move.before)
