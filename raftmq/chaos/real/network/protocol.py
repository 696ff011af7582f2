"""The network between a run's nodes, as a protocol: see `proxy` and `namespaces`."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

import trio

from .rules import Flow, Rules
from .trust import Trust


class Network(Protocol):
    """All connections of a cluster."""

    is_proxy: bool
    """True: frames are visible, and each node has a private port beside its public one."""
    rules: Rules
    """Faults of the network; they change while it runs."""
    frames: int
    """Frames or packets that arrived."""
    broken: int
    """Connections that broke because a rule said so."""
    trust: Trust | None
    """The certificates of the nodes, for who reads their frames; None: connections are plain."""

    @property
    def observer(self) -> str:
        """The source address of connections that no rule covers."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Other figures."""

    def host(self, node: int) -> str:
        """The address that a node listens on."""

    def place(self, node: int) -> AbstractContextManager[None]:
        """A context in which processes that this thread starts use the node's network."""

    def add(self, node: int, *, public: int, private: int) -> None:
        """Add a node; connections to it are refused until `open`."""

    async def open(self, node: int) -> None:
        """A node's process runs: accept connections to it."""

    def close(self, node: int) -> None:
        """A node's process has ended: refuse connections to it."""

    def unplug(self, node: int) -> None:
        """A node's machine is turned off, and closes no connection, until `open`."""

    def break_connections(self, flows: set[Flow]) -> int:
        """Break the open connections of these flows; returns their number."""

    def repeat_old(self, flow: Flow, count: int) -> int:
        """Send up to `count` old frames of a flow again; returns their number."""

    def resend(self, to: int) -> bool:
        """Send a kept batch of some client to a node; False: no batch is kept."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Carry traffic until cancelled."""

    def shut(self) -> None:
        """Close everything that outlives `run`."""
