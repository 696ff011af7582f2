"""A new group's first election, in processes that begin to serve one after the other.

The first founder of a group campaigns when it opens its replica (`replica.opener`). The other
founders may be opening theirs still, and a node drops consensus messages for groups that it does
not have yet. If two of three founders open later, the campaign is lost, and the group would wait
for an election timeout of one to two seconds. So the first founder asks again, until a majority is
there to vote:

    node 1   opens, asks      asks      asks: leads
    node 2               opens
    node 3                        opens

Pre-votes come before votes, so asking changes no term. After a vote it asks no more: a second
campaign beside one that is under way would split the votes.

Left out: the simulators run nodes without `hasten`, so that some of their groups are founded by
timeouts.
"""

import trio

from raftmq.broker.host import Host
from raftmq.broker.replica.group import Group
from raftmq.broker.replica.opener import FOUNDING_INDEX, FOUNDING_TERM, founding_members
from raftmq.machine.catalog.catalog import SYSTEM_GROUP

ASK_SECONDS = 0.05
"""Pause between two campaigns."""

SECONDS_MAX = 10.0
"""After this time the election timeouts have found a leader, or a majority is down."""


async def hasten(node: Host) -> None:
    """Campaign in groups that were just founded and whose first founder is this node.

    Ends by itself after `SECONDS_MAX`; at once in a node whose group 0 is led or has records.
    Cancelling leaves nothing behind.
    """
    if not _is_blank(node.groups[SYSTEM_GROUP]):
        return
    until = trio.current_time() + SECONDS_MAX
    while trio.current_time() < until:
        await trio.sleep(ASK_SECONDS)
        for number, group in node.groups.items():
            if _is_blank(group) and founding_members(node, number)[:1] == [group.raft.id]:
                group.campaign()


def _is_blank(group: Group) -> bool:
    """True if neither a record, nor a leader, nor a vote came after the founding."""
    raft = group.raft
    return not group.leader and raft.last_index == FOUNDING_INDEX and raft.term <= FOUNDING_TERM
