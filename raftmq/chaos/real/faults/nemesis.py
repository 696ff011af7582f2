"""Plays a schedule: each event in a task of its own, until the time of the heal.

Invariants:
- When `play` returns, no handler is running, and no lasting fault is left.
- Every event is counted: as struck, as skipped with the reason, or as without effect.

A lasting fault of the network counts as struck if a rule changed a frame while the fault lasted;
another fault counts as struck when its handler has made it.

Left out: which fault caused an effect, if two faults of the network overlap.
"""

import math
from collections.abc import Mapping
from contextlib import suppress

import trio

from raftmq.chaos.faults import FAMILIES, FAULTS, Aim, Event, Schedule, World
from raftmq.chaos.faults.arena import Skipped, Steps, aimed
from raftmq.chaos.faults.shared import shared_in
from raftmq.chaos.outcome import Coverage
from raftmq.chaos.real.arena import Make, RealArena
from raftmq.chaos.real.run_state import RunState
from raftmq.chaos.real.watch import Watch

from . import certificates, process

HANDLERS: Mapping[str, Make] = {**shared_in(World.REAL), **process.OWN, **certificates.OWN}
"""How each fault is made in this world."""

OVERLAY_ONLY = frozenset(
    {
        *("power-loss", "power-loss-majority", "power-loss-all", "torn-write", "sync-error"),
        *("sync-lies", "write-error", "read-error", "full-disk", "full-quota", "short-write"),
        *("interrupted-write", "read-only", "slow-disk"),
    }
)
"""Faults that need the overlay."""


RULED = {name for name in FAMILIES["network"] if FAULTS[name].lasts} - {"strangers"}
"""Lasting faults that are made by rules alone."""


async def play(state: RunState, schedule: Schedule, watch: Watch) -> None:
    """Play until the schedule's time of the heal. Cancelling ends all lasting faults, too."""
    with trio.move_on_at(state.began + schedule.heal_ms / 1000):
        async with trio.open_nursery() as nursery:
            for event in schedule.events:
                await trio.sleep_until(state.began + event.at_ms / 1000)
                nursery.start_soon(_play_one, state, event, watch)
            await trio.sleep_forever()


async def _play_one(state: RunState, event: Event, watch: Watch) -> None:
    victim = state.node_of(event) if event.nodes else 0
    situation = watch.situation(victim, event.fault)
    try:
        leader = await state.leader() if FAULTS[event.fault].aim is Aim.LEADER else 0
        arena = RealArena(state, watch)
        hit = aimed(event, state.nodes_of(event), leader)
        steps = HANDLERS[event.fault](arena, hit)
        try:
            await _make(state, hit, arena, steps, situation)
        finally:
            await _undo(arena, steps)
    except Skipped as why:
        state.counts[f"skipped: {event.fault}: {why}"] += 1
    except ProcessLookupError:
        state.counts[f"skipped: {event.fault}: the process had just ended"] += 1


async def _make(
    state: RunState, event: Event, arena: RealArena, steps: Steps, situation: Coverage
) -> None:
    """Make a fault, until its end if it lasts."""
    victim, effects = event.nodes[0] if event.nodes else 0, state.rules.effects
    lasts = FAULTS[event.fault].lasts
    seconds = await _step(arena, steps)
    state.note(victim, f"{event.fault} begins" if lasts else event.fault)
    try:
        with trio.move_on_after(event.lasts_ms / 1000 if lasts else math.inf):
            while lasts or seconds is not None:
                await trio.sleep(math.inf if seconds is None else seconds)
                # The fault was made: it ends here, and counts.
                with suppress(Skipped):
                    seconds = await _step(arena, steps)
                    continue
                seconds = None
    finally:
        # The heal cancels a fault that lasts until then: it counts, too.
        is_seen = event.fault not in RULED or state.rules.effects > effects
        _count(state, situation, is_seen=is_seen)
    if lasts:
        state.note(victim, f"{event.fault} ends")


async def _undo(arena: RealArena, steps: Steps) -> None:
    arena.forget()
    steps.close()
    with trio.CancelScope(shield=True):
        await arena.done()


async def _step(arena: RealArena, steps: Steps) -> float | None:
    """Resume a fault, and do what it asked for; returns its wait in seconds, if it waits."""
    seconds = next(steps, None)
    await arena.done()
    return seconds


def _count(state: RunState, situation: Coverage, *, is_seen: bool) -> None:
    if is_seen:
        state.struck[situation.fault] += 1
        state.coverage[situation] += 1
    else:
        state.counts[f"without effect: {situation.fault}"] += 1


async def heal(state: RunState) -> None:
    """End every fault, and let the operator start all nodes that are down."""
    state.rules.clear()
    process.end_all(state)
    for node in state.nodes.nodes:
        for fault, count in (await state.nodes.disks.heal(node)).items():
            state.counts[f"disk faults that hit: {fault}"] += count
    state.workload.consumers_stand_still = False
    state.workload.consumer_pause_seconds = 0.0
    now = trio.current_time()
    for node in state.down:
        state.down[node] = min(state.down[node], now)
    state.note(0, "heal")
