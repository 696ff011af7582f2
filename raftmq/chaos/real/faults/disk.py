"""Damage to the files of stopped nodes, in the real world.

Invariants:
- A disk is damaged only when all other members hold its records: see
  `RunState.wait_intact_elsewhere`.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from random import Random

import trio

from raftmq.broker.cluster import identity
from raftmq.chaos.faults.arena import Skipped
from raftmq.chaos.real.run_state import RunState

from . import damage

REFUSAL_SECONDS_MAX = 60.0
"""Limit for a process to start and to check its folder, on a busy machine."""

_Edit = Callable[[Path, Random], str]

Harm = Callable[[RunState, int], Awaitable[None]]
"""Does one kind of damage to a node."""


def _edit(edit: _Edit, *, is_latent: bool = False) -> Harm:
    """Damage to the files as they are; no read may find latent damage for a long time."""

    async def harm(state: RunState, node: int) -> None:
        await _edit_stopped(state, node, edit, is_latent=is_latent)

    return harm


async def _go_back(state: RunState, node: int) -> None:
    """Copy the folder now, and later put the old content of a segment back.

    The hard state is in the marks of a segment, so the hard state goes back, too.
    """
    aside = state.copies / f"node-{node}-{state.now_ms}"
    try:
        await trio.to_thread.run_sync(damage.keep_copy, state.nodes.data(node), aside)
    except OSError as error:
        raise Skipped("the files changed under the copy") from error
    await trio.sleep(state.random.uniform(0.3, 2.0))

    def edit(data: Path, random: Random) -> str:
        return damage.go_back(data, aside, random)

    await _edit_stopped(state, node, edit, is_latent=True)


async def _edit_stopped(state: RunState, node: int, edit: _Edit, *, is_latent: bool) -> None:
    await state.need_health(node)
    async with state.stopped(node):
        was_broken = node in state.broken
        await state.wait_intact_elsewhere(node, is_latent=is_latent)
        random = Random(state.random.getrandbits(64))
        data = state.nodes.data(node)
        async with state.nodes.disks.spared(node):
            done = await trio.to_thread.run_sync(partial(edit, data, random))
        if not done:
            # `wait_intact_elsewhere` listed the node as damaged, and no damage was done.
            if not was_broken:
                state.broken.pop(node, None)
            raise Skipped("nothing to damage")
        if edit is damage.wipe:
            state.wiped.add(node)
        state.note(node, f"damaged: {done}")


async def clone(state: RunState, node: int, other: int) -> None:
    """A node finds another node's files in its folder and must refuse; then it gets its own files
    back."""
    if {node, other} & state.broken.keys():
        raise Skipped("a disk is damaged already")
    own, foreign = state.copies / f"own-{state.now_ms}", state.copies / f"other-{state.now_ms}"
    data, run = state.nodes.data(node), trio.to_thread.run_sync
    disks = state.nodes.disks
    async with state.stopped(node, other), disks.spared(node):
        # A node that has just joined has no identity file yet, by which a folder is refused.
        if not all((state.nodes.data(each) / identity.FILE).exists() for each in (node, other)):
            raise Skipped("a folder that no node has yet")
        await run(damage.keep_copy, data, own)
        async with disks.spared(other):
            await run(damage.keep_copy, state.nodes.data(other), foreign)
        # The other node's files are copied, so the operator may start it.
        state.held.discard(other)
        # A cancellation in the middle of a copy must not leave half a folder.
        with trio.CancelScope(shield=True):
            await run(damage.restore, foreign, data)
            try:
                await _expect_refusal(state, node, other)
            finally:
                state.kill(node)
                await run(damage.restore, own, data)


async def _expect_refusal(state: RunState, node: int, other: int) -> None:
    """Start a node on another node's files: it must end, and name the owner of the files."""
    await state.up(node)
    try:
        status = await state.nodes.wait_exit(node, timeout=REFUSAL_SECONDS_MAX)
    except TimeoutError:
        state.complain("clone-accepted", f"node {node} runs on the files of node {other}")
        return
    words = state.nodes.last_words(node)
    state.note_end(node, status)
    if status == 0 or "belongs to node" not in words:
        state.complain("clone-refused-oddly", f"node {node} ended with {status}: {words}")


HARMS: Mapping[str, Harm] = {
    "bit-flip": _edit(damage.flip_bit, is_latent=True),
    "bad-sector": _edit(damage.zero_sector, is_latent=True),
    "misdirected-write": _edit(damage.misdirect, is_latent=True),
    "lost-write": _go_back,
    "time-travel": _go_back,
    "cut-tail": _edit(damage.cut_tail),
    "missing-segment": _edit(damage.lose_segment, is_latent=True),
    "lost-hard-state": _go_back,
    "wipe": _edit(damage.wipe),
}
"""By kind of damage."""
