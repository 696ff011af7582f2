"""Faults around the cluster: nodes that come and go, and clients that behave badly."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import trio

import raftmq
from raftmq.chaos.faults import Event
from raftmq.chaos.faults.arena import CLIENTS, Skipped
from raftmq.chaos.faults.partitions import isolate
from raftmq.chaos.real.network.rules import Kind
from raftmq.chaos.real.stage import Stage
from raftmq.errors import RaftmqError
from raftmq.machine.catalog.replicas import node_of

from .handlers import lasting, once

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


@once("add-voter")
async def _add_voter(stage: Stage, event: Event) -> None:
    await add_voter(stage)


@once("remove-voter")
async def _remove_voter(stage: Stage, event: Event) -> None:
    await remove_voter(stage, stage.node_of(event))


@once("replace-node")
async def _replace_node(stage: Stage, event: Event) -> None:
    if stage.broken:
        raise Skipped("a disk is damaged")
    await replace(stage, stage.node_of(event))


@once("two-changes")
async def _two_changes(stage: Stage, event: Event) -> None:
    """Add a node, then replace another one: the first change may still be under way."""
    if stage.broken or len(stage.members) >= MEMBERS_MAX:
        raise Skipped("no room for it")
    await add_voter(stage)
    await replace(stage, stage.node_of(event))


@once("change-when-cut")
async def _change_when_cut(stage: Stage, event: Event) -> None:
    if len(stage.members) >= MEMBERS_MAX:
        raise Skipped("there are as many nodes as there may be")
    rule = stage.rules.add(Kind.BLOCK, isolate([stage.node_of(event)], stage.everyone))
    try:
        await add_voter(stage)
        await trio.sleep(1.0)
    finally:
        stage.rules.remove(rule)


@once("rejoin")
async def _rejoin(stage: Stage, event: Event) -> None:
    """A removed node comes back with its old data, and must not disturb the cluster."""
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


# Clients


@once("client-crash")
async def _client_crash(stage: Stage, event: Event) -> None:
    stage.workload.crash_producer()


@lasting("client-hang")
@asynccontextmanager
async def _client_hang(stage: Stage, event: Event) -> AsyncIterator[None]:
    stage.workload.consumers_stand_still = True
    try:
        yield
    finally:
        stage.workload.consumers_stand_still = False


@lasting("client-slow")
@asynccontextmanager
async def _client_slow(stage: Stage, event: Event) -> AsyncIterator[None]:
    stage.workload.consumer_pause_seconds = 0.5
    try:
        yield
    finally:
        stage.workload.consumer_pause_seconds = 0.0


@once("client-resend")
async def _client_resend(stage: Stage, event: Event) -> None:
    """Send each node old batches again: the leader must recognize a batch as a repetition."""
    sent = [stage.network.resend(node) for node in stage.everyone for _ in range(5)]
    if not any(sent):
        raise Skipped("nothing was sent yet")


@once("client-ack-twice")
async def _ack_twice(stage: Stage, event: Event) -> None:
    stage.workload.commit_oddly("twice")


@once("client-ack-late")
async def _ack_late(stage: Stage, event: Event) -> None:
    stage.workload.commit_oddly("late")


@once("client-churn")
async def _churn(stage: Stage, event: Event) -> None:
    stage.workload.churn()


@lasting("retry-storm")
@asynccontextmanager
async def _retry_storm(stage: Stage, event: Event) -> AsyncIterator[None]:
    flows = {(CLIENTS, node) for node in stage.everyone}
    rule = stage.rules.add(Kind.DUPLICATE, flows, 1.0)
    try:
        yield
    finally:
        stage.rules.remove(rule)
