"""Plays a schedule: makes each fault happen at its time, and undoes what lasts.

Invariants:
- After `heal` no fault of the schedule has any effect, apart from damage that was done.
"""

from collections import Counter
from collections.abc import Mapping
from random import Random

from raftmq.chaos.core.arena import CoreArena, Make
from raftmq.chaos.core.cluster import Cluster
from raftmq.chaos.core.faults import network, process
from raftmq.chaos.core.node import Node
from raftmq.chaos.faults import FAULTS, Event, Schedule, World
from raftmq.chaos.faults.arena import RunningFault, Skipped, aimed
from raftmq.chaos.faults.shared import shared_in
from raftmq.chaos.outcome import Coverage
from raftmq.chaos.strikes import Strikes
from raftmq.consensus import ProgressState, Role

from .effects import EFFECTS

HANDLERS: Mapping[str, Make] = {
    **shared_in(World.CORE),
    **network.OWN,
    **process.OWN,
}
"""How each fault is made in this world."""


class Nemesis:
    """Plays a schedule. It is state."""

    def __init__(self, cluster: Cluster, schedule: Schedule) -> None:
        self._cluster = cluster
        self._schedule = schedule
        self._running: dict[CoreArena, RunningFault] = {}
        self._is_healed = False
        self.coverage: Counter[Coverage] = Counter()
        """By situation: how often a fault struck in it."""
        self.struck: Counter[str] = Counter()
        """By fault: how often it struck."""
        self._strikes = Strikes(
            EFFECTS,
            cluster.loop.effects,
            struck=self.struck,
            coverage=self.coverage,
            counts=cluster.counts,
        )
        kinds = {event.fault for event in schedule.events}
        cluster.network.keeps_old = "stale-replay" in kinds
        for number, event in enumerate(schedule.events):
            cluster.loop.at(event.at_ms * 1000, self._strike, event, number)

    def _strike(self, event: Event, number: int) -> None:
        cluster, seed = self._cluster, self._schedule.seed
        if self._is_healed:
            return
        end_ms = event.at_ms + event.lasts_ms if event.lasts_ms else self._schedule.heal_ms
        random = Random(f"fault {seed} {event.at_ms} {event.fault}")
        arena = CoreArena(cluster, event, random, min(end_ms, self._schedule.heal_ms) * 1000)
        cluster.environment.trace.note(cluster.loop.now_us, event.at_ms, len(event.fault))
        self._strikes.begin(arena, event.fault, self._situations(event))
        try:
            steps = HANDLERS[event.fault](arena, aimed(event, event.nodes, arena.leader()))
            self._running[arena] = running = arena.play(steps)
            running.go_on()
        except Skipped as why:
            self._running.pop(arena, None)
            self._strikes.drop(arena)
            cluster.counts["skipped"] += 1
            cluster.environment.tell(0, f"{event.fault} skipped: {why}")
            return
        cluster.environment.tell(event.nodes[0] if len(event.nodes) == 1 else 0, f"{event} begins")
        if FAULTS[event.fault].lasts:
            cluster.loop.at(max(arena.end_us, cluster.loop.now_us), self._undo, arena)

    def _undo(self, arena: CoreArena) -> None:
        # The end of the fault or the heal comes first; the second of them finds nothing to undo.
        running = self._running.pop(arena, None)
        if running is not None:
            running.end()
            if FAULTS[arena.event.fault].lasts:
                self._strikes.end(arena)
                self._cluster.environment.tell(0, f"{arena.event.fault} ends")

    def heal(self) -> None:
        """End all faults; damage stays, and processes that are down stay down for now."""
        self._is_healed = True
        for arena in list(self._running):
            self._undo(arena)
        self.conclude()
        self._cluster.network.heal()
        for node in self._cluster.nodes.values():
            node.resume()
            node.clock.set_right()
            node.disk.calm()
            node.disk_factor = 1.0
            node.apply_ms = 0.0
            node.failpoint = ""
            node.loses_power = False
        self._cluster.environment.tell(0, "everything heals")

    def conclude(self) -> None:
        """Count the faults that are not over yet."""
        self._strikes.end_all()

    # Coverage

    def _situations(self, event: Event) -> list[Coverage]:
        places = event.nodes or ((self._leader_place(),) if FAULTS[event.fault].aim else ())
        nodes = [self._cluster.at_place.get(place) for place in places]
        return [self._situation(node, event.fault) for node in nodes if node is not None]

    def _leader_place(self) -> int:
        leader = self._cluster.leader()
        return 0 if leader is None else leader.node.place

    def _situation(self, node: Node, fault: str) -> Coverage:
        replica, leader = node.replica, self._cluster.leader()
        if replica is None:
            return Coverage("dead", "same", "unknown", fault)
        conf = self._cluster.newest_conf()
        role = replica.core.role.name.lower().replace("pre_", "")
        if replica.core.role is Role.FOLLOWER and node.id in conf.learners:
            role = "learner"
        highest = max(n.replica.core.term for n in self._cluster.nodes.values() if n.replica)
        relation = "same" if replica.core.term == highest else "behind"
        progress = "unknown"
        if leader is not None and node.id in leader.core.members:
            seen = leader.core.members[node.id]
            progress = "level" if seen.match == leader.core.log.last_index else "behind"
            if seen.state is not ProgressState.REPLICATE:
                progress = seen.state.value
        return Coverage(role, relation, progress, fault)
