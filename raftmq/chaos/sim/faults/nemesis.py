"""Plays a schedule: each fault begins at its time, and ends after its duration or at the heal.

`HANDLERS` has an entry for every fault of the catalogue that can be made here; a test checks that.
"""

from collections.abc import Mapping
from functools import partial

from raftmq.chaos.faults import FAULTS, Event, Schedule, World
from raftmq.chaos.faults.arena import RunningFault, Skipped, aimed
from raftmq.chaos.faults.shared import shared_in
from raftmq.chaos.sim.arena import Make, SimArena
from raftmq.chaos.sim.checks.availability import Availability
from raftmq.chaos.sim.faults import access, network, returning, strangers
from raftmq.chaos.sim.faults import disk as disks
from raftmq.chaos.sim.run_state import RunState
from raftmq.chaos.strikes import Strikes

from .effects import EFFECTS

HANDLERS: Mapping[str, Make] = {
    **shared_in(World.SIM),
    **network.OWN,
    **disks.OWN,
    **returning.OWN,
    **access.OWN,
    "old-address": strangers.old_address,
}
"""How each fault is made in this world."""


class Nemesis:
    """Makes the faults of a schedule, and ends them."""

    def __init__(self, state: RunState, schedule: Schedule, availability: Availability) -> None:
        self._state = state
        self._schedule = schedule
        self._availability = availability
        self._running: dict[int, RunningFault] = {}
        self._strikes = Strikes(
            EFFECTS,
            state.agenda.effects,
            struck=state.struck,
            coverage=state.watch.coverage,
            counts=state.counts,
        )

    def begin(self) -> None:
        """Put all events into the agenda."""
        state = self._state
        for number, event in enumerate(self._schedule.events):
            state.agenda.call_after(event.at_ms / 1000, partial(self._begin, number, event))

    def _begin(self, number: int, event: Event) -> None:
        state = self._state
        if state.is_healing:
            return
        state.watch.note(0, str(event))
        # Before the fault strikes: the situations and the excuse are those of the present leader.
        nodes = state.nodes_of(event) or [state.leader()]
        situations = [each for node in nodes for each in state.watch.situations(node, event.fault)]
        self._strikes.begin(number, event.fault, situations)
        self._availability.fault_begins(number, event)
        try:
            hit = aimed(event, state.nodes_of(event), state.leader())
            arena = SimArena(state, event)
            self._running[number] = running = arena.play(HANDLERS[event.fault](arena, hit))
            running.go_on()
        except Skipped as why:
            # The fault found no target: it excuses no later failure.
            self._running.pop(number, None)
            self._strikes.drop(number)
            state.counts[f"skipped: {event.fault}: {why}"] += 1
            self._availability.fault_ends(number)
            return
        if FAULTS[event.fault].lasts:
            state.agenda.call_after(event.lasts_ms / 1000, partial(self._end, number, event))
        else:
            self._availability.fault_ends(number)

    def _end(self, number: int, event: Event) -> None:
        running = self._running.pop(number, None)
        if running is not None:
            self._state.watch.note(0, f"{event.fault} ends")
            running.end()
            self._availability.fault_ends(number)
            self._strikes.end(number)

    def heal(self) -> None:
        """End all faults, and start dead nodes again."""
        state = self._state
        # Before any undo: no client begins a change of members, or comes back, from now on.
        state.clients.is_healed = True
        state.watch.note(0, "heal")
        for number in sorted(self._running):
            self._running.pop(number).end()
        self._strikes.end_all()
        for link in state.cluster.network.links():
            link.heal()
        for machine in state.cluster.machines.values():
            machine.disk.calm()
            machine.clock.heal()
            machine.slowness = 1.0
        for process in state.cluster.processes.values():
            process.wake()
        for node in state.members():
            state.restart(node)
        self._availability.heal()
