"""A cluster of real processes, as Spark's workers need it, driven from plain functions."""

from contextlib import ExitStack
from typing import Self

from anyio.from_thread import BlockingPortal, start_blocking_portal

from raftmq import testing

QUICK = {"spark.driver.extraJavaOptions": "-Xss8m -XX:TieredStopAtLevel=1"}
"""Settings of the tests' Spark: Java's first compiler alone starts a third faster, and no test runs
for long."""


class Nodes:
    """Three nodes; use it as `with Nodes() as nodes`."""

    def __init__(self, count: int = 3, settings: testing.Settings | None = None) -> None:
        self._count = count
        self._settings = settings
        self._stack = ExitStack()
        self._portal: BlockingPortal
        self._cluster: testing.Cluster

    def __enter__(self) -> Self:
        portal = self._portal = self._stack.enter_context(start_blocking_portal("trio"))
        cluster = testing.cluster(self._count, settings=self._settings, timeout=120.0)
        made = portal.wrap_async_context_manager(cluster)
        self._cluster = self._stack.enter_context(made)
        return self

    def __exit__(self, *_: object) -> None:
        """No process outlives it."""
        self._stack.close()

    @property
    def url(self) -> str:
        """What `raftmq.connect` takes."""
        return self._cluster.url

    def leader(self, group: int = 1) -> int:
        """The node that leads a partition group."""
        return self._portal.call(self._cluster.leader, group)

    def kill(self, node: int) -> None:
        """As in a crash of the process."""
        self._cluster.kill(node)

    def restart(self, node: int) -> None:
        """It goes on with its folder, and answers."""
        self._portal.call(self._cluster.restart, node)
