"""Changes of the cluster's nodes under other faults.

A process of its own asks for each change, as `raftmq cluster add` would; the request may be refused
or go unanswered. Each function begins one change and does not wait for its end.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from random import Random

import trio

from raftmq.chaos import balancing
from raftmq.chaos.sim.clients import Session
from raftmq.chaos.sim.cluster import PORT
from raftmq.chaos.sim.run_state import GONE_SECONDS, RunState
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

UNDRAINS_MAX = 10
"""Most requests to end a drain: the node may have left."""

LOOK_SECONDS = 0.1
LEAVE_LOOKS = 200
"""Most looks at the catalog before the new node joins: the other node leaves first."""


def new_node(state: RunState) -> int:
    """A number that was never used."""
    return max(state.cluster.machines) + 1


def may_grow(state: RunState) -> bool:
    """True if a fault may bring one more node into the cluster."""
    return new_node(state) <= max(NODES_MAX, len(state.seats) + 2)


async def ask(state: RunState, change: Callable[[Client], Awaitable[None]]) -> bool:
    """Let a client ask for a change; True if it was granted."""
    is_granted = False
    state.agenda.effects["changes asked for"] += 1

    async def job(mq: Client, _: Session) -> None:
        nonlocal is_granted
        try:
            await change(mq)
            is_granted = True
        except Rejected:
            state.counts["changes refused"] += 1
        except RaftmqError:
            state.counts["changes unanswered"] += 1

    with trio.move_on_after(2 * CHANGE_SECONDS):
        await state.clients.once(job)
    return is_granted


def start_new(state: RunState) -> int:
    """Start a node that is to join; returns its number."""
    new = new_node(state)
    state.cluster.prepare(new)
    state.joining.add(new)
    state.restart(new)
    return new


async def replace(state: RunState, old: int, new: int) -> bool:
    """Ask for a new node in the place of another; True if that was granted."""
    state.clients.asked_to_leave.add(old)
    host = state.host(new)
    change = partial(_replace, old=old, new=new, host=host, timeout=CHANGE_SECONDS)
    is_granted = await ask(state, change)
    state.counts["replaced"] += is_granted
    return is_granted


async def _replace(mq: Client, *, old: int, new: int, host: str, timeout: float) -> None:
    await mq.admin.replace_node(old, new, host, PORT, timeout=timeout)


async def _add(state: RunState) -> None:
    if not may_grow(state):
        return
    new = start_new(state)

    async def change(mq: Client) -> None:
        await mq.admin.add_node(new, state.host(new), PORT, timeout=CHANGE_SECONDS)

    await ask(state, change)


async def _remove(state: RunState, node: int) -> None:
    """Take a node out, if as many sound nodes stay as there were founders: a minority may still
    fail."""
    out = {node} | state.damaged | state.leaving
    staying = state.known - out
    may_leave = node in state.known - state.clients.must_stay
    if not may_leave or len(staying) < len(state.seats):
        state.counts["changes withheld"] += 1
        return

    state.counts["removed"] += await _ask_to_remove(state, node)


async def _ask_to_remove(state: RunState, node: int) -> bool:
    state.clients.asked_to_leave.add(node)

    async def change(mq: Client) -> None:
        await mq.admin.remove_node(node, timeout=CHANGE_SECONDS)

    return await ask(state, change)


def add_voter(state: RunState) -> None:
    """A node joins; it learns first and votes when it has caught up."""
    state.spawn(_add, state)


def remove_voter(state: RunState, node: int, *, at_ms: int) -> None:
    """A node leaves, if enough others stay; else one joins, so that another may leave later."""
    # Its own random numbers: other faults of the seed stay as they are.
    is_shrink = Random(f"shrink {at_ms}").random() < SHRINK_SHARE
    if is_shrink and _may_shrink(state, node):
        state.spawn(_shrink_and_grow, state, node)
    else:
        state.spawn(_add_and_remove, state, node)


def _may_shrink(state: RunState, node: int) -> bool:
    """True if a node may leave a cluster of three though no other can take over its copies: all
    nodes are sound, and no node comes or goes."""
    return (
        len(state.seats) == len(state.members()) == SHRINKS_FROM
        and node in state.known - state.clients.must_stay
        and not state.damaged | state.leaving | state.joining
        and not state.shrinks_by
    )


async def _shrink_and_grow(state: RunState, node: int) -> None:
    """A node leaves, and groups have one copy fewer until another node has joined."""
    state.shrinks_by = node
    state.counts["shrunk"] += await _ask_to_remove(state, node)
    for _ in range(LEAVE_LOOKS):
        if state.is_healing or state.has_left(node):
            break
        await trio.sleep(LOOK_SECONDS)
    # Until the node has left, no disk may be damaged: see `RunState.shrinks_by`.
    if state.has_left(node):
        state.shrinks_by = 0
    # A node that joins while another is leaving would take over its copies, as a replacement.
    if not state.is_healing:
        await _add(state)


async def _add_and_remove(state: RunState, node: int) -> None:
    if len(state.members()) <= len(state.seats):
        await _add(state)
        await trio.sleep(1)
    if not state.is_healing:
        await _remove(state, node)


def replace_node(state: RunState, old: int) -> None:
    """A new node takes the place of another."""
    if may_grow(state) and old not in state.retired | state.clients.must_stay:
        state.spawn(_replace_and_retire, state, old)


async def _replace_and_retire(state: RunState, old: int) -> None:
    await replace(state, old, start_new(state))


def drain(state: RunState, node: int) -> None:
    """A node shall lead nothing."""
    state.spawn(_drain, state, node, True)


def undrain(state: RunState, node: int) -> None:
    """A node leads its share again."""
    state.spawn(_undrain, state, node)


async def _drain(state: RunState, node: int, is_on: bool) -> bool:
    async def change(mq: Client) -> None:
        await mq.admin.drain_node(node, is_on=is_on, timeout=CHANGE_SECONDS)

    is_granted = await ask(state, change)
    state.counts["drained nodes" if is_on else "undrained nodes"] += is_granted
    return is_granted


async def _undrain(state: RunState, node: int) -> None:
    for _ in range(UNDRAINS_MAX):
        if await _drain(state, node, False):
            return
        await trio.sleep(1)


def even_out(state: RunState) -> None:
    """An operator begins some moves of a plan."""
    state.spawn(_even_out, state)


async def _even_out(state: RunState) -> None:
    async def change(mq: Client) -> None:
        able = set(state.members()) - state.damaged
        await balancing.even_out(mq.admin, state.random, able=able)

    state.counts["plans carried out"] += await ask(state, change)


def rejoin(state: RunState, node: int, *, at_ms: int) -> None:
    """A node that left comes back with its old data for a while; it must do no harm. If none has
    left, this one leaves."""
    gone = sorted(n for n in state.retired if n not in state.damaged)
    if not gone:
        remove_voter(state, node, at_ms=at_ms)
        return
    back = state.random.choice(gone)
    if back not in state.cluster.processes and not state.is_spoilt(back):
        state.counts["rejoined"] += 1
        state.agenda.effects["changes asked for"] += 1
        state.cluster.start_soon(back)
        state.agenda.call_after(GONE_SECONDS, lambda: state.kill(back, crash=False))
