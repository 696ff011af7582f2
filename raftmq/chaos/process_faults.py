"""How a test's nemesis breaks the processes of a `raftmq.testing.Cluster`.

| fault | how |
|---|---|
| kill, kill-leader, -minority, -majority, -all | SIGKILL; it starts again some seconds later |
| pause, pause-leader | SIGSTOP, then SIGCONT |
| pause-kill | SIGSTOP, then SIGKILL |
| stop, rolling-restart | SIGTERM, then it starts again |
| restart-storm | SIGKILL each time it has come up |

Left out: faults of network, disk and clock, which need the real world of `raftmq.chaos.real`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from random import Random

import anyio

from raftmq.chaos.faults import FAULTS, Aim, Event, World
from raftmq.chaos.faults.arena import Arena, RunningFault, Skipped, aimed
from raftmq.chaos.faults.processes import PROCESSES
from raftmq.chaos.nemesis import Nemesis
from raftmq.errors import RaftmqError
from raftmq.testing import Cluster

MADE = (
    "kill", "kill-leader", "kill-minority", "kill-majority", "kill-all", "pause", "pause-leader",
    "pause-kill", "stop", "rolling-restart", "restart-storm",
)  # fmt: skip
"""The faults that need no other verbs than kill, stop and pause."""

DOWN_SECONDS = (0.3, 3.0)
"""A killed node starts again within this."""

LEADER_SECONDS_MAX = 5.0
"""Limit for finding the leader; without a leader the fault hits no node."""

GROUP = 1
"""A fault at the leader hits the leader of this group."""


class Processes(Arena):
    """Breaks and mends the nodes of one cluster."""

    world = World.REAL

    def __init__(self, cluster: Cluster, nemesis: Nemesis) -> None:
        self.random = Random(f"processes {nemesis.seed}")
        self._cluster = cluster
        self._nemesis = nemesis
        self._running: list[tuple[Event, RunningFault]] = []
        nemesis.nodes = len(cluster.nodes)
        for name in MADE:
            nemesis.can(name, self._begin, self._end if FAULTS[name].lasts else None)
        nemesis.heals(self._heal)

    def members(self) -> list[int]:
        """The cluster's nodes."""
        return list(self._cluster.nodes)

    def leader(self) -> int:
        """The leader of `GROUP`; 0: none was found in time."""

        async def ask() -> int:
            return await self._cluster.leader(GROUP, timeout=LEADER_SECONDS_MAX)

        try:
            return anyio.run(ask)
        except RaftmqError:
            return 0

    def kill(self, node: int, *, down_seconds: float | None = None) -> None:
        """SIGKILL, if the node runs."""
        if self._cluster.pid(node):
            self._cluster.kill(node)
            self._nemesis.note("dead", node)
            seconds = self.random.uniform(*DOWN_SECONDS) if down_seconds is None else down_seconds
            self._nemesis.later(seconds, partial(self._start, node))

    def stop(self, node: int) -> None:
        """SIGTERM, if the node runs; returns when the node has been started again."""
        if not self._cluster.is_running(node):
            return
        try:
            anyio.run(self._cluster.stop, node)
        except TimeoutError:
            # The node hangs: the test's history decides whether a promise was broken.
            self._nemesis.note("does not end when asked to", node)
            self._cluster.kill(node)
        self._nemesis.note("stopped", node)
        self._start(node)

    @contextmanager
    def pause(self, node: int) -> Iterator[None]:
        """SIGSTOP, and SIGCONT at the end."""
        process = self._cluster.pid(node)
        if not self._cluster.is_running(node):
            raise Skipped("the node is down, or stands still")
        self._cluster.pause(node)
        try:
            yield
        finally:
            if self._cluster.pid(node) == process:
                self._cluster.resume(node)

    def _start(self, node: int) -> None:
        if not self._cluster.pid(node):
            self._cluster.start(node)
            self._nemesis.note("starts", node)

    def _begin(self, event: Event) -> None:
        leader = self.leader() if FAULTS[event.fault].aim is Aim.LEADER else 0
        try:
            steps = PROCESSES[event.fault](self, aimed(event, event.nodes, leader))
            running = RunningFault(steps, self._nemesis.later)
            self._running.append((event, running))
            running.go_on()
        except Skipped as why:
            self._nemesis.note(f"{event.fault} hits no node: {why}")

    def _end(self, event: Event) -> None:
        for begun, running in self._running:
            if begun is event:
                running.end()

    def _heal(self) -> None:
        for _, running in self._running:
            running.end()
        for node in self._cluster.nodes:
            self._start(node)
