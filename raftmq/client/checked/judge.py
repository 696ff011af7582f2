"""A judge: `Client` gives it the making of producers and consumers. The cluster's client has
`Checking`, the embedded queue its own."""

from typing import Any, Protocol

from raftmq.client.consume.consumer import Consumer
from raftmq.client.pop.consumer import PopConsumer
from raftmq.client.produce.producer import Producer

from .verdict import Checked


class Judge(Protocol):
    """Makes producers and consumers with recorders, and judges what the recorders saw."""

    def producer(self, *arguments: Any, **parts: Any) -> Producer:
        """A recorded `Producer`."""

    def consumer(self, *arguments: Any, **parts: Any) -> Consumer:
        """A recorded `Consumer`."""

    def pop_consumer(self, *arguments: Any, **parts: Any) -> PopConsumer:
        """A recorded `PopConsumer`."""

    async def judge(self) -> Checked:
        """See `Client.check`."""

    def raise_found(self) -> None:
        """Raise `Inconsistent` if a breach is known that no check has raised. Asks no node."""
