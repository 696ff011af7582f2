"""Faults of disks: the overlay makes those of a running node, edits of files make the others.

Invariants:
- A disk is damaged only when all other members hold its records: see
  `Stage.wait_intact_elsewhere`. A power loss and a refused call lose nothing that was
  acknowledged, and need no such wait.
"""

import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random

import trio

from raftmq.broker.cluster import identity
from raftmq.chaos.faults import Event
from raftmq.chaos.faults.arena import Skipped
from raftmq.chaos.real.disk.overlay_model import Faults
from raftmq.chaos.real.stage import Stage
from raftmq.chaos.real.waiting import wait_true

from . import damage
from .handlers import lasting, once

STRIKE_SECONDS = 3.0
REFUSAL_SECONDS_MAX = 60.0
"""Limit for a process to start and to check its folder, on a busy machine."""
SLOW_CALL_MS = 0.2
"""Delay of a call at level 1; a slow disk delays each call by a multiple."""


async def _lose_power(stage: Stage, node: int) -> None:
    lost = await stage.nodes.disks.power_loss(node)
    stage.counts["unsynced bytes at power losses"] += lost["bytes"]
    stage.counts["unsynced names at power losses"] += lost["names"]


@once("torn-write")
async def _torn_write(stage: Stage, event: Event) -> None:
    stage.need_overlay()
    node = stage.node_of(event)
    process = stage.running(node)
    await stage.nodes.disks.set(node, cut_at_write=process)
    is_gone = await _wait_gone(stage, node, process)
    # Without a write in time, a late one must not kill the node when the fault is over.
    await stage.nodes.disks.set(node, cut_at_write=0)
    if not is_gone:
        raise Skipped("nothing was written")
    async with stage.stopped(node):
        await _lose_power(stage, node)


@once("sync-error")
async def _sync_error(stage: Stage, event: Event) -> None:
    await _refuse(stage, event, "fsync", errno.EIO)


@once("write-error")
async def _write_error(stage: Stage, event: Event) -> None:
    await _refuse(stage, event, "write", errno.EIO)


@once("interrupted-write")
async def _interrupted_write(stage: Stage, event: Event) -> None:
    await _refuse(stage, event, "write", errno.EINTR)


async def _refuse(stage: Stage, event: Event, call: str, number: int) -> None:
    stage.need_overlay()
    node = stage.node_of(event)
    stage.running(node)
    await stage.nodes.disks.refuse(node, call, number)
    await trio.sleep(STRIKE_SECONDS)


@once("read-error")
async def _read_error(stage: Stage, event: Event) -> None:
    """A running node reads from memory nearly always, so the node is killed: it meets the error
    when it starts."""
    stage.need_overlay()
    node = stage.node_of(event)
    await stage.nodes.disks.refuse(node, "read", errno.EIO)
    stage.kill(node)


@once("sync-lies")
async def _sync_lies(stage: Stage, event: Event) -> None:
    """A sync fails, and its bytes are lost later: the node must end at once."""
    stage.need_overlay()
    node = stage.node_of(event)
    process = stage.running(node)
    await stage.nodes.disks.set(node, is_lying=True)
    is_gone = await _wait_gone(stage, node, process)
    await stage.nodes.disks.set(node, is_lying=False)
    if not is_gone:
        raise Skipped("nothing was synced")
    async with stage.stopped(node):
        stage.counts["bytes that syncs lied about"] += await stage.nodes.disks.evict(node)


@once("short-write")
async def _short_write(stage: Stage, event: Event) -> None:
    stage.need_overlay()
    await stage.nodes.disks.set(stage.node_of(event), is_short=True)


@lasting("full-disk")
@asynccontextmanager
async def _full_disk(stage: Stage, event: Event) -> AsyncIterator[None]:
    async with _with_disk(stage, event, space_bytes=int(event.level)):
        yield


@lasting("full-quota")
@asynccontextmanager
async def _full_quota(stage: Stage, event: Event) -> AsyncIterator[None]:
    async with _with_disk(stage, event, quota_bytes=int(event.level)):
        yield


@lasting("read-only")
@asynccontextmanager
async def _read_only(stage: Stage, event: Event) -> AsyncIterator[None]:
    async with _with_disk(stage, event, is_read_only=True):
        yield


@lasting("slow-disk")
@asynccontextmanager
async def _slow_disk(stage: Stage, event: Event) -> AsyncIterator[None]:
    async with _with_disk(stage, event, delay_ms=SLOW_CALL_MS * event.level):
        yield


@asynccontextmanager
async def _with_disk(stage: Stage, event: Event, **fields: object) -> AsyncIterator[None]:
    stage.need_overlay()
    node = stage.node_of(event)
    well = {name: getattr(Faults(), name) for name in fields}
    await stage.nodes.disks.set(node, **fields)
    try:
        yield
    finally:
        with trio.CancelScope(shield=True):
            await stage.nodes.disks.set(node, **well)


# Edits of a stopped node's files

_Edit = Callable[[Path, Random], str]

_EDITS: dict[str, _Edit] = {
    "bit-flip": damage.flip_bit,
    "bad-sector": damage.zero_sector,
    "misdirected-write": damage.misdirect,
    "cut-tail": damage.cut_tail,
    "missing-segment": damage.lose_segment,
    "wipe": damage.wipe,
}

_LATENT = frozenset({"bit-flip", "bad-sector", "misdirected-write", "missing-segment"})
"""Damage that no read may find for a long time."""


@once(*_EDITS)
async def _edit(stage: Stage, event: Event) -> None:
    is_latent = event.fault in _LATENT
    await _edit_stopped(stage, stage.node_of(event), _EDITS[event.fault], is_latent=is_latent)


@once("lost-write", "time-travel", "lost-hard-state")
async def _go_back(stage: Stage, event: Event) -> None:
    """Copy the folder now, and later put the old content of a segment back.

    The hard state is in the marks of a segment, so the hard state goes back, too.
    """
    node = stage.node_of(event)
    aside = stage.copies / f"node-{node}-{event.at_ms}"
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


@once("clone")
async def _clone(stage: Stage, event: Event) -> None:
    """A node finds another node's files in its folder and must refuse; then it gets its own files
    back."""
    nodes = stage.nodes_of(event)
    if len(nodes) < 2:
        raise Skipped("it needs two nodes")
    node, other = nodes[0], nodes[1]
    if {node, other} & stage.broken.keys():
        raise Skipped("a disk is damaged already")
    own, foreign = stage.copies / f"own-{event.at_ms}", stage.copies / f"other-{event.at_ms}"
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


async def _wait_gone(stage: Stage, node: int, process: int) -> bool:
    return await wait_true(lambda: stage.nodes.pid(node) != process, timeout=STRIKE_SECONDS)
