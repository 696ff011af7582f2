"""Changes of the members of a cluster of real processes."""

from collections.abc import Awaitable, Callable

import trio

import raftmq
from raftmq.chaos import balancing
from raftmq.chaos.faults.arena import Skipped
from raftmq.chaos.real.run_state import RunState
from raftmq.errors import RaftmqError
from raftmq.machine.catalog.replicas import node_of

MEMBERS_MAX, MEMBERS_MIN = 4, 3
CHANGE_SECONDS_MAX = 8.0
LOOKS_MAX, LOOK_SECONDS_MAX = 3, 20.0
"""How often, and for how long, the healed cluster is asked for its members."""

Change = Callable[[raftmq.client.Admin], Awaitable[None]]


async def ask_change(
    state: RunState, change: Change, *, timeout: float = CHANGE_SECONDS_MAX
) -> bool:
    """Ask for a change of members, or for the members; False: refused, or no answer in time."""
    with trio.move_on_after(timeout):
        try:
            async with raftmq.connect(state.url, timeout=timeout, wait_refused=None) as mq:
                await change(mq.admin)
                return True
        except* RaftmqError as errors:
            state.counts[f"refused changes: {type(errors.exceptions[0]).__name__}"] += 1
    return False


async def new_node(state: RunState) -> int:
    """Start a node under a number that was never used.

    The node counts as a member at once: the answer to its admission may stay unknown for long.
    """
    node = max(state.used) + 1
    state.used.add(node)
    state.members.add(node)
    state.nodes.add(node)
    state.note(node, "joins")
    await state.up(node)
    return node


async def add_voter(state: RunState) -> None:
    """Add a node."""
    if len(state.members) >= MEMBERS_MAX:
        raise Skipped("there are as many nodes as there may be")
    async with state.changing:
        node = await new_node(state)
        port = state.nodes.public_port(node)
        if not await ask_change(
            state, lambda admin: admin.add_node(node, state.nodes.host(node), port)
        ):
            state.counts["changes in doubt"] += 1


async def remove_voter(state: RunState, node: int) -> None:
    """Remove a node; the node goes on running until no group counts on it."""
    if len(state.members) <= MEMBERS_MIN:
        raise Skipped("there are as few nodes as there may be")
    async with state.changing:
        if await ask_change(state, lambda admin: admin.remove_node(node)):
            leave(state, node)


async def replace(state: RunState, node: int) -> bool:
    """Replace a node by a new one; True if the cluster confirmed the change."""
    async with state.changing:
        if node not in state.members:
            return False
        new = await new_node(state)
        port = state.nodes.public_port(new)

        async def change(admin: raftmq.client.Admin) -> None:
            await admin.replace_node(node, new, state.nodes.host(new), port)

        if not await ask_change(state, change):
            # Both nodes stay members: `settle_changes` ends the one that the cluster does not know.
            state.counts["changes in doubt"] += 1
            return False
        leave(state, node)
        state.counts["replaced nodes"] += 1
        return True


async def drain(state: RunState, node: int, *, is_on: bool) -> None:
    """Have a node lead nothing, or its share again."""
    if await ask_change(state, lambda admin: admin.drain_node(node, is_on=is_on)):
        state.counts["drained nodes" if is_on else "undrained nodes"] += 1


async def even_out(state: RunState) -> None:
    """Begin some moves of a plan."""

    async def change(admin: raftmq.client.Admin) -> None:
        await balancing.even_out(admin, state.random, able=state.members)

    async with state.changing:
        state.counts["plans carried out"] += await ask_change(state, change)


async def settle_changes(state: RunState) -> None:
    """End the members that the cluster does not know: their doubtful changes did not happen."""
    async with state.changing:
        known: set[int] = set()

        async def look(admin: raftmq.client.Admin) -> None:
            known.update(node.id for node in (await admin.cluster()).nodes)

        # A cluster that has just been healed elects first, on a busy machine for long.
        for _ in range(LOOKS_MAX):
            if await ask_change(state, look, timeout=LOOK_SECONDS_MAX):
                break
        for node in sorted(state.members - known) if known else []:
            state.members.discard(node)
            state.broken.pop(node, None)
            state.note(node, "was never taken in")
            state.end(node)


async def are_groups_settled(state: RunState) -> bool:
    """True if three members or more vote in each group, and no node that is not a member. Damaged
    members are not asked."""
    statuses = await state.nodes.statuses()
    asked = state.members - state.broken.keys()
    if not asked <= statuses.keys():
        return False
    return all(
        len(group["voters"]) >= 3
        and {*map(node_of, group["voters"])} <= state.members
        and not group["voters_outgoing"]
        for node in asked
        for group in statuses[node]["groups"]
    )


def leave(state: RunState, node: int) -> None:
    """Take a node out of the members; the node runs until no group counts on it."""
    state.members.discard(node)
    state.leaving.add(node)
    state.broken.pop(node, None)
    state.nursery.start_soon(_see_off, state, node)


async def _see_off(state: RunState, node: int) -> None:
    while True:
        if not await is_counted_on(state, node):
            break
        await trio.sleep(0.3)
    state.leaving.discard(node)
    state.note(node, "left")
    state.end(node)


async def is_counted_on(state: RunState, node: int) -> bool:
    """Does any group have the node as a member? True unless all members answer and say no."""
    statuses = await state.nodes.statuses()
    members = {other: statuses[other] for other in state.members if other in statuses}
    if len(members) < len(state.members):
        return True
    return any(
        node in map(node_of, (*group["voters"], *group["voters_outgoing"], *group["learners"]))
        for status in members.values()
        for group in status["groups"]
    )


async def rejoin(state: RunState) -> None:
    """A removed node comes back with its old data for a while, and must not disturb the cluster."""
    gone = sorted(state.used - state.members - state.leaving)
    gone = [node for node in gone if not state.nodes.pid(node)]
    if not gone:
        raise Skipped("no node has left yet")
    node = state.random.choice(gone)
    state.note(node, "comes back though it was removed")
    await state.up(node)
    try:
        await trio.sleep(state.random.uniform(1.0, 4.0))
    finally:
        state.end(node)
