"""A new group's first election, in processes that begin to serve one after the other.

The first founder of a group campaigns when it opens its replica (`replica.opener`). The other
founders may be opening theirs still, and a node drops consensus messages for groups that it does
not have yet. If two of three founders open later, the campaign is lost, and the group would wait
for an election timeout of one to two seconds. So the first founder asks again, until the group has
a leader:

    node 1   opens, asks      asks      asks: leads
    node 2               opens
    node 3                        opens

Pre-votes come before votes, so asking changes no term; another leader that is there stays.

Left out: the simulators run nodes without `hasten`, so that some of their groups are founded by
timeouts.
"""

import trio

from raftmq.broker.host import Host
from raftmq.broker.replica.group import Group
from raftmq.broker.replica.opener import FOUNDING_INDEX
from raftmq.consensus import Role
from raftmq.machine.catalog.catalog import SYSTEM_GROUP

ASK_SECONDS = 0.05
"""Pause between two campaigns."""

SECONDS_MAX = 10.0
"""After this time the election timeouts have found a leader, or a majority is down."""


async def hasten(node: Host) -> None:
    """Campaign in groups that were just founded and whose first founder is this node.

    Ends by itself after `SECONDS_MAX`, at once in a node that served before. Cancelling leaves
    nothing behind.
    """
    if not _is_blank(node.groups[SYSTEM_GROUP]):
        return
    until = trio.current_time() + SECONDS_MAX
    while trio.current_time() < until:
        await trio.sleep(ASK_SECONDS)
        for number, group in node.groups.items():
            if _is_blank(group) and _first_founder(node, number) == node.id:
                group.campaign()


def _is_blank(group: Group) -> bool:
    """True if no record and no leader came after the founding. A candidate is left alone: its votes
    may be on their way."""
    is_asking = group.raft.role in (Role.FOLLOWER, Role.PRE_CANDIDATE)
    return is_asking and not group.leader and group.raft.last_index == FOUNDING_INDEX


def _first_founder(node: Host, number: int) -> int:
    """The node that campaigns when it opens a new group; 0: none."""
    if number == SYSTEM_GROUP:
        founders = [peer.id for peer in node.settings.node.peers]
    else:
        founders = node.catalog.groups[number].founders
    return founders[0] if founders else 0
