"""Faults of processes and their clocks: signals, limits, and orders (`armed`)."""

import resource
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from random import Random

import trio

from raftmq.chaos.faults import Event
from raftmq.chaos.faults.arena import Skipped
from raftmq.chaos.real.points import POINTS, RARE
from raftmq.chaos.real.stage import Stage
from raftmq.chaos.real.waiting import wait_found, wait_true

from .clocks import ClockEffect
from .handlers import lasting, once

CRASH_WAIT_SECONDS = 4.0
STOP_SECONDS_MAX = 20.0
DESCRIPTORS_SPARE = 1

COMMON_POINTS = tuple(point for point in POINTS if point not in RARE)


@once("kill", "kill-minority", "kill-majority", "kill-all")
async def _kill(stage: Stage, event: Event) -> None:
    for node in stage.nodes_of(event):
        stage.kill(node)


@once("kill-leader")
async def _kill_leader(stage: Stage, event: Event) -> None:
    stage.kill(await stage.leader())


@lasting("restart-storm")
@asynccontextmanager
async def _restart_storm(stage: Stage, event: Event) -> AsyncIterator[None]:
    node = stage.node_of(event)
    async with trio.open_nursery() as nursery:

        async def storm() -> None:
            while True:
                if stage.nodes.pid(node):
                    await trio.sleep(event.level / 1000 * stage.random.uniform(0.5, 2.0))
                    stage.kill(node, down_seconds=0.0)
                await trio.sleep(0.05)

        nursery.start_soon(storm)
        yield
        nursery.cancel_scope.cancel()


@once("rolling-restart")
async def _rolling_restart(stage: Stage, event: Event) -> None:
    for node in stage.nodes_of(event):
        if stage.nodes.is_running(node):
            await _stop(stage, node)
            await wait_found(partial(_serves, stage, node), timeout=5.0)


async def _serves(stage: Stage, node: int) -> bool:
    return await stage.nodes.status(node) is not None


@once("stop")
async def _stop_one(stage: Stage, event: Event) -> None:
    await _stop(stage, stage.node_of(event))


async def _stop(stage: Stage, node: int) -> None:
    """Ask a node to end; complain if the node does not end in time."""
    stage.nodes.resume_quietly(node)
    process = stage.running(node)
    # The operator must not take the end for a crash, and start the node while it hands over.
    stage.down[node] = trio.current_time() + STOP_SECONDS_MAX
    try:
        await stage.nodes.stop(node, timeout=STOP_SECONDS_MAX)
        stage.note(node, "stopped")
    except TimeoutError:
        if stage.nodes.pid(node) == process and stage.nodes.is_running(node):
            stage.complain(
                "V3", f"node {node} did not end within {STOP_SECONDS_MAX:g} s of SIGTERM"
            )
    stage.kill(node, down_seconds=0.1)


@lasting("pause")
@asynccontextmanager
async def _pause(stage: Stage, event: Event) -> AsyncIterator[None]:
    async with _paused(stage, stage.node_of(event)):
        yield


@lasting("pause-leader")
@asynccontextmanager
async def _pause_leader(stage: Stage, event: Event) -> AsyncIterator[None]:
    async with _paused(stage, await stage.leader()):
        yield


@asynccontextmanager
async def _paused(stage: Stage, node: int) -> AsyncIterator[None]:
    process = stage.running(node)
    stage.nodes.pause(node)
    try:
        yield
    finally:
        if stage.nodes.pid(node) == process:
            stage.nodes.resume(node)


@once("pause-kill")
async def _pause_kill(stage: Stage, event: Event) -> None:
    node = stage.node_of(event)
    async with _paused(stage, node):
        await trio.sleep(stage.random.uniform(0.2, 3.0))
        stage.end(node)
    stage.kill(node)


@lasting("slow-node")
@asynccontextmanager
async def _slow_node(stage: Stage, event: Event) -> AsyncIterator[None]:
    """The process runs for one part in `level` of the time, in slices of 10 ms."""
    node = stage.node_of(event)
    stage.running(node)
    async with trio.open_nursery() as nursery:

        async def throttle() -> None:
            run, stand = 0.01, 0.01 * (event.level - 1)
            while True:
                if stage.nodes.is_running(node):
                    async with _paused(stage, node):
                        await trio.sleep(stand)
                await trio.sleep(run)

        nursery.start_soon(throttle)
        yield
        nursery.cancel_scope.cancel()


@once("crash-point")
async def _crash_point(stage: Stage, event: Event) -> None:
    """The seed chooses the point; a node that does not reach the point in time goes on."""
    node = stage.node_of(event)
    process = stage.running(node)
    random = Random(f"{event.at_ms} {node}")
    point, count = random.choice(COMMON_POINTS), random.choice([1, 1, 2, 5, 20])
    stage.nodes.order(node, crash=f"{point}:{count}")
    try:
        await wait_true(lambda: stage.nodes.pid(node) != process, timeout=CRASH_WAIT_SECONDS)
    finally:
        stage.nodes.order(node, crash="")
    if stage.nodes.pid(node) == process:
        raise Skipped("the point was not reached")
    stage.note(node, f"crashed at {point}")
    stage.counts[f"crash at {point}"] += 1
    stage.kill(node)


@lasting("no-descriptors")
@asynccontextmanager
async def _no_descriptors(stage: Stage, event: Event) -> AsyncIterator[None]:
    """Lower the limit to the descriptors in use plus one: further ones get `EMFILE`."""
    process = stage.running(stage.node_of(event))
    with suppress(ProcessLookupError, FileNotFoundError):
        limit = resource.prlimit(process, resource.RLIMIT_NOFILE)
        entries = await trio.to_thread.run_sync(_descriptors, process)
        resource.prlimit(process, resource.RLIMIT_NOFILE, (entries + DESCRIPTORS_SPARE, limit[1]))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            resource.prlimit(process, resource.RLIMIT_NOFILE, limit)


def _descriptors(process: int) -> int:
    import os

    return max(map(int, os.listdir(f"/proc/{process}/fd"))) + 1


@lasting("stall-loop")
@asynccontextmanager
async def _stall_loop(stage: Stage, event: Event) -> AsyncIterator[None]:
    """Block the loop again and again, each time for `level` milliseconds."""
    node = stage.node_of(event)
    stage.running(node)
    async with trio.open_nursery() as nursery:

        async def stall() -> None:
            while True:
                number = stage.nodes.orders(node).stall[0] + 1
                stage.nodes.order(node, stall=(number, int(event.level)))
                await trio.sleep(3 * event.level / 1000)

        nursery.start_soon(stall)
        yield
        nursery.cancel_scope.cancel()


# Clocks


@asynccontextmanager
async def _wrong_clock(
    stage: Stage, node: int, kind: str, level: float
) -> AsyncIterator[ClockEffect]:
    effect = ClockEffect(kind, level, time.time_ns() // 1_000_000)
    stage.nodes.order(node, clocks=[*stage.nodes.orders(node).clocks, effect])
    try:
        yield effect
    finally:
        left = [other for other in stage.nodes.orders(node).clocks if other != effect]
        stage.nodes.order(node, clocks=left)


@lasting("skew", "drift", "strobe-clock", "periodic-clock")
@asynccontextmanager
async def _clock(stage: Stage, event: Event) -> AsyncIterator[None]:
    kind = event.fault.removesuffix("-clock")
    async with _wrong_clock(stage, stage.node_of(event), kind, event.level):
        yield


@once("step-clock")
async def _step_clock(stage: Stage, event: Event) -> None:
    """The clock stays wrong until the heal."""
    effect = ClockEffect("step", event.level, time.time_ns() // 1_000_000)
    node = stage.node_of(event)
    stage.nodes.order(node, clocks=[*stage.nodes.orders(node).clocks, effect])


@once("leap-second")
async def _leap_second(stage: Stage, event: Event) -> None:
    effect = ClockEffect("leap", 0, time.time_ns() // 1_000_000)
    for node in stage.everyone:
        stage.nodes.order(node, clocks=[*stage.nodes.orders(node).clocks, effect])


def end_all(stage: Stage) -> None:
    """Correct all clocks, cancel all crash orders, and resume all paused nodes."""
    for node in stage.nodes.nodes:
        stage.nodes.resume_quietly(node)
        stage.nodes.order(node, crash="", clocks=[])
