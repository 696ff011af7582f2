"""Changes of the members of a cluster of real processes."""

from collections.abc import Awaitable, Callable
from contextlib import suppress

import trio

import raftmq
from raftmq.chaos.faults.arena import Skipped
from raftmq.chaos.real.stage import Stage
from raftmq.errors import RaftmqError
from raftmq.machine.catalog.replicas import node_of

MEMBERS_MAX, MEMBERS_MIN = 4, 3
CHANGE_SECONDS_MAX = 8.0

Change = Callable[[raftmq.client.Admin], Awaitable[None]]


async def ask_change(stage: Stage, change: Change, *, timeout: float = CHANGE_SECONDS_MAX) -> bool:
    """Ask for a change of members; False: refused, or not confirmed in time."""
    with trio.move_on_after(timeout):
        try:
            async with raftmq.connect(stage.url, timeout=timeout, wait_refused=None) as mq:
                await change(mq.admin)
                return True
        except* RaftmqError as errors:
            stage.counts[f"refused changes: {type(errors.exceptions[0]).__name__}"] += 1
    return False


async def new_node(stage: Stage) -> int:
    """Start a node under a number that was never used.

    The node counts as a member at once: the answer to its admission may stay unknown for long.
    """
    node = max(stage.used) + 1
    stage.used.add(node)
    stage.members.add(node)
    stage.nodes.add(node)
    stage.note(node, "joins")
    await stage.up(node)
    return node


async def add_voter(stage: Stage) -> None:
    """Add a node."""
    if len(stage.members) >= MEMBERS_MAX:
        raise Skipped("there are as many nodes as there may be")
    async with stage.changing:
        node = await new_node(stage)
        port = stage.nodes.public_port(node)
        if not await ask_change(
            stage, lambda admin: admin.add_node(node, stage.nodes.host(node), port)
        ):
            stage.counts["changes in doubt"] += 1


async def remove_voter(stage: Stage, node: int) -> None:
    """Remove a node; the node goes on running until no group counts on it."""
    if len(stage.members) <= MEMBERS_MIN:
        raise Skipped("there are as few nodes as there may be")
    async with stage.changing:
        if await ask_change(stage, lambda admin: admin.remove_node(node)):
            leave(stage, node)


async def replace(stage: Stage, node: int) -> bool:
    """Replace a node by a new one; True if the cluster confirmed the change."""
    async with stage.changing:
        if node not in stage.members:
            return False
        new = await new_node(stage)
        port = stage.nodes.public_port(new)

        async def change(admin: raftmq.client.Admin) -> None:
            await admin.replace_node(node, new, stage.nodes.host(new), port)

        if not await ask_change(stage, change):
            # Both nodes stay members: `settle_changes` ends the one that the cluster does not know.
            stage.counts["changes in doubt"] += 1
            return False
        leave(stage, node)
        stage.counts["replaced nodes"] += 1
        return True


async def settle_changes(stage: Stage) -> None:
    """End the members that the cluster does not know: their doubtful changes did not happen."""
    async with stage.changing:
        known: set[int] = set()
        with suppress(RaftmqError):
            async with raftmq.connect(stage.url, timeout=20.0, wait_refused=None) as mq:
                known = {node.id for node in (await mq.admin.cluster(timeout=20.0)).nodes}
        for node in sorted(stage.members - known) if known else []:
            stage.members.discard(node)
            stage.broken.pop(node, None)
            stage.note(node, "was never taken in")
            stage.end(node)


def leave(stage: Stage, node: int) -> None:
    """Take a node out of the members; the node runs until no group counts on it."""
    stage.members.discard(node)
    stage.leaving.add(node)
    stage.broken.pop(node, None)
    stage.nursery.start_soon(_see_off, stage, node)


async def _see_off(stage: Stage, node: int) -> None:
    while True:
        if not await is_counted_on(stage, node):
            break
        await trio.sleep(0.3)
    stage.leaving.discard(node)
    stage.note(node, "left")
    stage.end(node)


async def is_counted_on(stage: Stage, node: int) -> bool:
    """Does any group have the node as a member? True unless all members answer and say no."""
    statuses = await stage.nodes.statuses()
    members = {other: statuses[other] for other in stage.members if other in statuses}
    if len(members) < len(stage.members):
        return True
    return any(
        node in map(node_of, (*group["voters"], *group["voters_outgoing"], *group["learners"]))
        for status in members.values()
        for group in status["groups"]
    )


async def rejoin(stage: Stage) -> None:
    """A removed node comes back with its old data for a while, and must not disturb the cluster."""
    gone = sorted(stage.used - stage.members - stage.leaving)
    gone = [node for node in gone if not stage.nodes.pid(node)]
    if not gone:
        raise Skipped("no node has left yet")
    node = stage.random.choice(gone)
    stage.note(node, "comes back though it was removed")
    await stage.up(node)
    try:
        await trio.sleep(stage.random.uniform(1.0, 4.0))
    finally:
        stage.end(node)
