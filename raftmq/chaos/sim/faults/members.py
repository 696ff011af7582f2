"""Changes of the cluster's nodes under other faults.

A process of its own asks for each change, as `raftmq cluster add` would; the request may be refused
or go unanswered. Each function begins one change and does not wait for its end.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from random import Random

import trio

from raftmq.chaos.sim.clients import Session
from raftmq.chaos.sim.cluster import PORT
from raftmq.chaos.sim.stage import GONE_SECONDS, Stage
from raftmq.client import Client
from raftmq.errors import RaftmqError, Rejected

NODES_MAX = 7
"""Highest number of a node that a fault brings into a cluster of five founders or fewer; a larger
cluster gets two more nodes. It bounds how many nodes are replaced in one run."""

CHANGE_SECONDS = 6.0
"""Timeout of a request for a change of members."""

SHRINKS_FROM = 3
"""Size of a cluster that may lose a node before another node joins."""

SHRINK_SHARE = 0.5
"""Share of the removals from such a cluster in which a node leaves first, and one joins later."""

LOOK_SECONDS = 0.1
LEAVE_LOOKS = 200
"""Most looks at the catalog before the new node joins: the other node leaves first."""


def new_node(stage: Stage) -> int:
    """A number that was never used."""
    return max(stage.cluster.machines) + 1


def may_grow(stage: Stage) -> bool:
    """True if a fault may bring one more node into the cluster."""
    return new_node(stage) <= max(NODES_MAX, len(stage.seats) + 2)


async def ask(stage: Stage, change: Callable[[Client], Awaitable[None]]) -> bool:
    """Let a client ask for a change; True if it was granted."""
    is_granted = False
    stage.agenda.effects["changes asked for"] += 1

    async def job(mq: Client, _: Session) -> None:
        nonlocal is_granted
        try:
            await change(mq)
            is_granted = True
        except Rejected:
            stage.counts["changes refused"] += 1
        except RaftmqError:
            stage.counts["changes unanswered"] += 1

    with trio.move_on_after(2 * CHANGE_SECONDS):
        await stage.clients.once(job)
    return is_granted


def start_new(stage: Stage) -> int:
    """Start a node that is to join; returns its number."""
    new = new_node(stage)
    stage.cluster.prepare(new)
    stage.joining.add(new)
    stage.restart(new)
    return new


async def replace(stage: Stage, old: int, new: int) -> bool:
    """Ask for a new node in the place of another; True if that was granted."""
    stage.clients.asked_to_leave.add(old)
    host = stage.host(new)
    change = partial(_replace, old=old, new=new, host=host, timeout=CHANGE_SECONDS)
    is_granted = await ask(stage, change)
    stage.counts["replaced"] += is_granted
    return is_granted


async def _replace(mq: Client, *, old: int, new: int, host: str, timeout: float) -> None:
    await mq.admin.replace_node(old, new, host, PORT, timeout=timeout)


async def _add(stage: Stage) -> None:
    if not may_grow(stage):
        return
    new = start_new(stage)

    async def change(mq: Client) -> None:
        await mq.admin.add_node(new, stage.host(new), PORT, timeout=CHANGE_SECONDS)

    await ask(stage, change)


async def _remove(stage: Stage, node: int) -> None:
    """Take a node out, if as many sound nodes stay as there were founders: a minority may still
    fail."""
    out = {node} | stage.damaged | stage.leaving
    staying = stage.known - out
    may_leave = node in stage.known - stage.clients.must_stay
    if not may_leave or len(staying) < len(stage.seats):
        stage.counts["changes withheld"] += 1
        return

    stage.counts["removed"] += await _ask_to_remove(stage, node)


async def _ask_to_remove(stage: Stage, node: int) -> bool:
    stage.clients.asked_to_leave.add(node)

    async def change(mq: Client) -> None:
        await mq.admin.remove_node(node, timeout=CHANGE_SECONDS)

    return await ask(stage, change)


def add_voter(stage: Stage) -> None:
    """A node joins; it learns first and votes when it has caught up."""
    stage.spawn(_add, stage)


def remove_voter(stage: Stage, node: int, *, at_ms: int) -> None:
    """A node leaves, if enough others stay; else one joins, so that another may leave later."""
    # Its own random numbers: other faults of the seed stay as they are.
    is_shrink = Random(f"shrink {at_ms}").random() < SHRINK_SHARE
    if is_shrink and _may_shrink(stage, node):
        stage.spawn(_shrink_and_grow, stage, node)
    else:
        stage.spawn(_add_and_remove, stage, node)


def _may_shrink(stage: Stage, node: int) -> bool:
    """True if a node may leave a cluster of three though no other can take over its copies: all
    nodes are sound, and no node comes or goes."""
    return (
        len(stage.seats) == len(stage.members()) == SHRINKS_FROM
        and node in stage.known - stage.clients.must_stay
        and not stage.damaged | stage.leaving | stage.joining
        and not stage.shrinks_by
    )


async def _shrink_and_grow(stage: Stage, node: int) -> None:
    """A node leaves, and groups have one copy fewer until another node has joined."""
    stage.shrinks_by = node
    stage.counts["shrunk"] += await _ask_to_remove(stage, node)
    for _ in range(LEAVE_LOOKS):
        if stage.is_healing or stage.has_left(node):
            break
        await trio.sleep(LOOK_SECONDS)
    # Until the node has left, no disk may be damaged: see `Stage.shrinks_by`.
    if stage.has_left(node):
        stage.shrinks_by = 0
    # A node that joins while another is leaving would take over its copies, as a replacement.
    if not stage.is_healing:
        await _add(stage)


async def _add_and_remove(stage: Stage, node: int) -> None:
    if len(stage.members()) <= len(stage.seats):
        await _add(stage)
        await trio.sleep(1)
    if not stage.is_healing:
        await _remove(stage, node)


def replace_node(stage: Stage, old: int) -> None:
    """A new node takes the place of another."""
    if may_grow(stage) and old not in stage.retired | stage.clients.must_stay:
        stage.spawn(_replace_and_retire, stage, old)


async def _replace_and_retire(stage: Stage, old: int) -> None:
    await replace(stage, old, start_new(stage))


def rejoin(stage: Stage, node: int, *, at_ms: int) -> None:
    """A node that left comes back with its old data for a while; it must do no harm. If none has
    left, this one leaves."""
    gone = sorted(n for n in stage.retired if n not in stage.damaged)
    if not gone:
        remove_voter(stage, node, at_ms=at_ms)
        return
    back = stage.random.choice(gone)
    if back not in stage.cluster.processes and not stage.is_spoilt(back):
        stage.counts["rejoined"] += 1
        stage.agenda.effects["changes asked for"] += 1
        stage.cluster.start_soon(back)
        stage.agenda.call_after(GONE_SECONDS, lambda: stage.kill(back, crash=False))
