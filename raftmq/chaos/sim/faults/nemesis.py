"""Plays a schedule: each fault begins at its time, and ends after its duration or at the heal.

`HANDLERS` has an entry for every fault of the catalogue that can be made here; a test checks that.
"""

from collections.abc import Mapping
from functools import partial

from raftmq.chaos.faults import FAULTS, Event, Schedule, World
from raftmq.chaos.faults.arena import Player, Skipped, aimed
from raftmq.chaos.faults.shared import shared_in
from raftmq.chaos.sim.arena import Make, SimArena
from raftmq.chaos.sim.checks.availability import Availability
from raftmq.chaos.sim.faults import disk as disks
from raftmq.chaos.sim.faults import network, returning, strangers
from raftmq.chaos.sim.stage import Stage
from raftmq.chaos.strikes import Strikes

from .effects import EFFECTS

HANDLERS: Mapping[str, Make] = {
    **shared_in(World.SIM),
    **network.OWN,
    **disks.OWN,
    **returning.OWN,
    "old-address": strangers.old_address,
}
"""How each fault is made in this world."""


class Nemesis:
    """Makes the faults of a schedule, and ends them."""

    def __init__(self, stage: Stage, schedule: Schedule, availability: Availability) -> None:
        self._stage = stage
        self._schedule = schedule
        self._availability = availability
        self._playing: dict[int, Player] = {}
        self._strikes = Strikes(
            EFFECTS,
            stage.agenda.effects,
            struck=stage.struck,
            coverage=stage.watch.coverage,
            counts=stage.counts,
        )

    def begin(self) -> None:
        """Put all events into the agenda."""
        stage = self._stage
        for number, event in enumerate(self._schedule.events):
            stage.agenda.call_after(event.at_ms / 1000, partial(self._begin, number, event))

    def _begin(self, number: int, event: Event) -> None:
        stage = self._stage
        if stage.is_healing:
            return
        stage.watch.note(0, str(event))
        # Before the fault strikes: the situations and the excuse are those of the present leader.
        nodes = stage.nodes_of(event) or [stage.leader()]
        situations = [each for node in nodes for each in stage.watch.situations(node, event.fault)]
        self._strikes.begin(number, event.fault, situations)
        self._availability.fault_begins(number, event)
        try:
            hit = aimed(event, stage.nodes_of(event), stage.leader())
            arena = SimArena(stage, event)
            self._playing[number] = player = arena.play(HANDLERS[event.fault](arena, hit))
            player.go_on()
        except Skipped as why:
            # The fault found no target: it excuses no later failure.
            self._playing.pop(number, None)
            self._strikes.drop(number)
            stage.counts[f"skipped: {event.fault}: {why}"] += 1
            self._availability.fault_ends(number)
            return
        if FAULTS[event.fault].lasts:
            stage.agenda.call_after(event.lasts_ms / 1000, partial(self._end, number, event))
        else:
            self._availability.fault_ends(number)

    def _end(self, number: int, event: Event) -> None:
        player = self._playing.pop(number, None)
        if player is not None:
            self._stage.watch.note(0, f"{event.fault} ends")
            player.end()
            self._availability.fault_ends(number)
            self._strikes.end(number)

    def heal(self) -> None:
        """End all faults, and start dead nodes again."""
        stage = self._stage
        # Before any undo: no client begins a change of members, or comes back, from now on.
        stage.clients.is_healed = True
        stage.watch.note(0, "heal")
        for number in sorted(self._playing):
            self._playing.pop(number).end()
        self._strikes.end_all()
        for link in stage.cluster.network.links():
            link.heal()
        for machine in stage.cluster.machines.values():
            machine.disk.calm()
            machine.clock.heal()
            machine.slowness = 1.0
        for process in stage.cluster.processes.values():
            process.wake()
        for node in stage.members():
            stage.restart(node)
        self._availability.heal()
