"""Damage to the files of stopped nodes, in the real world.

Invariants:
- A disk is damaged only when all other members hold its records: see
  `Stage.wait_intact_elsewhere`.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from random import Random

import trio

from raftmq.broker.cluster import identity
from raftmq.chaos.faults.arena import Skipped
from raftmq.chaos.real.stage import Stage

from . import damage

REFUSAL_SECONDS_MAX = 60.0
"""Limit for a process to start and to check its folder, on a busy machine."""

_Edit = Callable[[Path, Random], str]

Harm = Callable[[Stage, int], Awaitable[None]]
"""Does one kind of damage to a node."""


def _edit(edit: _Edit, *, is_latent: bool = False) -> Harm:
    """Damage to the files as they are; no read may find latent damage for a long time."""

    async def harm(stage: Stage, node: int) -> None:
        await _edit_stopped(stage, node, edit, is_latent=is_latent)

    return harm


async def _go_back(stage: Stage, node: int) -> None:
    """Copy the folder now, and later put the old content of a segment back.

    The hard state is in the marks of a segment, so the hard state goes back, too.
    """
    aside = stage.copies / f"node-{node}-{stage.now_ms}"
    try:
        await trio.to_thread.run_sync(damage.keep_copy, stage.nodes.data(node), aside)
    except OSError as error:
        raise Skipped("the files changed under the copy") from error
    await trio.sleep(stage.random.uniform(0.3, 2.0))

    def edit(data: Path, random: Random) -> str:
        return damage.go_back(data, aside, random)

    await _edit_stopped(stage, node, edit, is_latent=True)


async def _edit_stopped(stage: Stage, node: int, edit: _Edit, *, is_latent: bool) -> None:
    await stage.need_health(node)
    async with stage.stopped(node):
        was_broken = node in stage.broken
        await stage.wait_intact_elsewhere(node, is_latent=is_latent)
        random = Random(stage.random.getrandbits(64))
        data = stage.nodes.data(node)
        async with stage.nodes.disks.spared(node):
            done = await trio.to_thread.run_sync(partial(edit, data, random))
        if not done:
            # `wait_intact_elsewhere` listed the node as damaged, and no damage was done.
            if not was_broken:
                stage.broken.pop(node, None)
            raise Skipped("nothing to damage")
        if edit is damage.wipe:
            stage.wiped.add(node)
        stage.note(node, f"damaged: {done}")


async def clone(stage: Stage, node: int, other: int) -> None:
    """A node finds another node's files in its folder and must refuse; then it gets its own files
    back."""
    if {node, other} & stage.broken.keys():
        raise Skipped("a disk is damaged already")
    own, foreign = stage.copies / f"own-{stage.now_ms}", stage.copies / f"other-{stage.now_ms}"
    data, run = stage.nodes.data(node), trio.to_thread.run_sync
    disks = stage.nodes.disks
    async with stage.stopped(node, other), disks.spared(node):
        # A node that has just joined has no identity file yet, by which a folder is refused.
        if not all((stage.nodes.data(each) / identity.FILE).exists() for each in (node, other)):
            raise Skipped("a folder that no node has yet")
        await run(damage.keep_copy, data, own)
        async with disks.spared(other):
            await run(damage.keep_copy, stage.nodes.data(other), foreign)
        # The other node's files are copied, so the operator may start it.
        stage.held.discard(other)
        # A cancellation in the middle of a copy must not leave half a folder.
        with trio.CancelScope(shield=True):
            await run(damage.restore, foreign, data)
            try:
                await _expect_refusal(stage, node, other)
            finally:
                stage.kill(node)
                await run(damage.restore, own, data)


async def _expect_refusal(stage: Stage, node: int, other: int) -> None:
    """Start a node on another node's files: it must end, and name the owner of the files."""
    await stage.up(node)
    try:
        status = await stage.nodes.wait_exit(node, timeout=REFUSAL_SECONDS_MAX)
    except TimeoutError:
        stage.complain("clone-accepted", f"node {node} runs on the files of node {other}")
        return
    words = stage.nodes.last_words(node)
    stage.note_end(node, status)
    if status == 0 or "belongs to node" not in words:
        stage.complain("clone-refused-oddly", f"node {node} ended with {status}: {words}")


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
