"""The network between a run's nodes, as a protocol: see `proxy` and `namespaces`."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

import trio

from .rules import Flow, Rules


class Network(Protocol):
    """All connections of a cluster."""

    is_proxy: bool
    """Frames are seen, and nodes have a private port beside the one that the world is told."""
    rules: Rules
    """What is wrong; changed while it runs."""
    frames: int
    """Frames or packets that arrived."""
    broken: int
    """Connections that broke because a rule said so."""

    @property
    def observer(self) -> str:
        """The address to connect from so that no rule holds."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Other figures."""

    def host(self, node: int) -> str:
        """Where a node listens."""

    def place(self, node: int) -> AbstractContextManager[None]:
        """Processes that this thread starts meanwhile are placed with the node."""

    def add(self, node: int, *, public: int, private: int) -> None:
        """A node exists; it is closed until `open`."""

    async def open(self, node: int) -> None:
        """A node's process is there: take its connections."""

    def close(self, node: int) -> None:
        """A node's process is gone: connections to it are refused."""

    def unplug(self, node: int) -> None:
        """A node's machine is about to be gone without a word, until `open`."""

    def break_connections(self, flows: set[Flow]) -> int:
        """Break what is open between these parties; how many that were."""

    def repeat_old(self, flow: Flow, count: int) -> int:
        """Send old frames again; returns how many there were."""

    def resend(self, to: int) -> bool:
        """Send the last batch of any client to a node; False: there is none."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Work until cancelled."""

    def shut(self) -> None:
        """Leave nothing behind."""
