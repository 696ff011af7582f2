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

from collections.abc import Iterable
from functools import partial
from random import Random

import anyio

from raftmq.chaos.faults import Event
from raftmq.chaos.player import Nemesis
from raftmq.errors import RaftmqError
from raftmq.testing import Cluster

DOWN_SECONDS = (0.3, 3.0)
"""A killed node starts again within this."""

LEADER_SECONDS_MAX = 5.0
"""Limit for finding the leader; without a leader the fault hits no node."""

GROUP = 1
"""A fault at the leader hits the leader of this group."""


class Processes:
    """Breaks and mends the nodes of one cluster."""

    def __init__(self, cluster: Cluster, nemesis: Nemesis) -> None:
        self._cluster = cluster
        self._nemesis = nemesis
        self._paused: set[int] = set()
        self._random = Random(f"processes {nemesis.seed}")
        nemesis.nodes = len(cluster.nodes)
        for name in ("kill", "kill-minority", "kill-majority", "kill-all"):
            nemesis.can(name, lambda event: self._kill(event.nodes))
        nemesis.can("kill-leader", lambda event: self._kill(self._leader()))
        nemesis.can("pause", lambda event: self._pause(event.nodes), self._resume)
        nemesis.can("pause-leader", lambda event: self._pause(self._leader()), self._resume)
        nemesis.can("pause-kill", self._pause_kill)
        nemesis.can("stop", lambda event: self._stop(event.nodes))
        nemesis.can("rolling-restart", lambda event: self._stop(event.nodes))
        nemesis.can("restart-storm", self._storm, lambda event: None)
        nemesis.heals(self._heal)

    def _leader(self) -> list[int]:
        async def ask() -> int:
            return await self._cluster.leader(GROUP, timeout=LEADER_SECONDS_MAX)

        try:
            return [anyio.run(ask)]
        except RaftmqError:
            self._nemesis.note("no node leads, so none is hit")
            return []

    def _kill(self, nodes: Iterable[int]) -> None:
        for node in nodes:
            if self._cluster.pid(node):
                self._cluster.kill(node)
                self._paused.discard(node)
                self._nemesis.note("dead", node)
                self._start_later(node)

    def _start_later(self, node: int) -> None:
        self._nemesis.later(self._random.uniform(*DOWN_SECONDS), partial(self._start, node))

    def _start(self, node: int) -> None:
        if not self._cluster.pid(node):
            self._cluster.start(node)
            self._nemesis.note("starts", node)

    def _pause(self, nodes: Iterable[int]) -> None:
        for node in nodes:
            if self._cluster.is_running(node):
                self._cluster.pause(node)
                self._paused.add(node)

    def _resume(self, event: Event) -> None:
        # A leader's pause names no nodes: resume every paused node.
        for node in sorted(self._paused & set(event.nodes or self._paused)):
            self._cluster.resume(node)
            self._paused.discard(node)

    def _pause_kill(self, event: Event) -> None:
        self._pause(event.nodes)
        seconds = self._random.uniform(*DOWN_SECONDS)
        self._nemesis.later(seconds, partial(self._kill, event.nodes))

    def _stop(self, nodes: Iterable[int]) -> None:
        for node in nodes:
            if not self._cluster.is_running(node):
                continue
            try:
                anyio.run(self._cluster.stop, node)
            except TimeoutError:
                # The node hangs: the test's history decides whether a promise was broken.
                self._nemesis.note("does not end when asked to", node)
                self._cluster.kill(node)
            self._nemesis.note("stopped", node)
            self._start(node)

    def _storm(self, event: Event) -> None:
        end_ms = self._nemesis.elapsed_ms + event.lasts_ms

        def again() -> None:
            if self._nemesis.elapsed_ms < end_ms:
                for node in event.nodes:
                    self._cluster.kill(node)
                    self._start(node)
                self._nemesis.later(max(event.level, 100) / 1000, again)

        again()

    def _heal(self) -> None:
        for node in sorted(self._paused):
            self._cluster.resume(node)
        self._paused.clear()
        for node in self._cluster.nodes:
            self._start(node)
