"""The graceful end of a node: other nodes take over its leaderships before it leaves.

Each group that it leads is handed to the voter within reach that is furthest and may lead. A node
that stops as well, is drained, or whose disk is full, may not lead: it says so when probed, so that
a whole cluster that is stopped at once does not wait for heirs that will never be leaders.

Cancelling leaves the leaderships where they are; the others find out by the links that break.
"""

from contextlib import suppress

import trio

from raftmq.broker.cluster.peers import PeerLink
from raftmq.broker.host import Host
from raftmq.broker.replica.disk import DiskLoop
from raftmq.broker.replica.group import Group, node_of
from raftmq.errors import Unavailable
from raftmq.wire.messages import FrameKind, Probe, ProbeReply

CHECK_SECONDS = 0.05
CHECKS_MAX = 100
"""A stopping node checks in this interval, at most this many times, whether it leads no group."""


async def hand_over(node: Host, disk: DiskLoop) -> None:
    """Take no more proposals, and give away each leadership that another node can take."""
    for group in node.groups.values():
        group.stop("this node is stopping")
    for _ in range(CHECKS_MAX):
        heirs = await _nodes_that_may_lead(node)
        if _is_handed_over(node, heirs) and disk.is_idle:
            break
        await trio.sleep(CHECK_SECONDS)
    # A moment for the answers that became ready last.
    await trio.sleep(CHECK_SECONDS)


async def _nodes_that_may_lead(node: Host) -> set[int]:
    """The nodes that answer at once, and do not say that they must not."""
    found: set[int] = set()
    probe = Probe(node.id, node.incarnation)

    async def ask(link: PeerLink) -> None:
        with suppress(Unavailable):
            if (await link.ask(FrameKind.PROBE, probe, ProbeReply)).may_lead:
                found.add(link.peer.id)

    with trio.move_on_after(CHECK_SECONDS):
        async with trio.open_nursery() as nursery:
            for link in node.links.members():
                nursery.start_soon(ask, link)
    return found


def _is_handed_over(node: Host, heirs: set[int]) -> bool:
    """True when this node leads no group that another one could; hands such groups over."""
    is_done = True
    for group in node.groups.values():
        heir = _heir(group, heirs) if group.is_leader else 0
        if heir:
            is_done = False
            if not group.raft.status().transferee:
                group.transfer(heir)
    return is_done


def _heir(group: Group, heirs: set[int]) -> int:
    """The voter that takes a group over: of those that may lead the furthest one; 0: none."""
    progress = group.raft.status().progress
    voters = [member for member in group.conf_state.voters if node_of(member) in heirs]
    return max(voters, key=lambda member: (progress[member].match, -member), default=0)
