"""Results of settlements: of a call that waits for them, and of all that no call waits for."""

from typing import NamedTuple

import anyio
import anyio.lowlevel

from raftmq.client.message import format_id
from raftmq.errors import RaftmqError
from raftmq.pop.spans import offsets_of


class Gone(NamedTuple):
    """Messages that were no longer this consumer's when it settled them."""

    queue_number: int
    """The cluster-wide number of the queue."""
    token: int
    """The lease's token."""
    base: int
    """The offset of bit 0."""
    bits: int
    """The messages, as bits."""


class Fenced(NamedTuple):
    """A message that this consumer no longer had."""

    id: str
    """The message's id."""
    token: int
    """The token of the settled hand-out; the message may be here under a newer token."""


class Settlement:
    """The result of settling many messages: on the disks of a majority."""

    __slots__ = ("_gone", "settled")

    def __init__(self, settled: int, gone: list[Gone]) -> None:
        self.settled = settled
        """Number of messages settled as asked."""
        self._gone = gone

    @property
    def is_complete(self) -> bool:
        """True if all messages are settled."""
        return not self._gone

    @property
    def fenced(self) -> list[Fenced]:
        """Messages that this consumer no longer had: their time ran out, they were settled in
        another way, or retention dropped them. The call did nothing with them."""
        return [
            Fenced(format_id(each.queue_number, offset), each.token)
            for each in self._gone
            for offset in offsets_of(each.base, each.bits)
        ]

    def __repr__(self) -> str:
        return f"<Settlement: {self.settled} settled, {len(self.fenced)} fenced>"


class Tally:
    """Results of settlements."""

    __slots__ = ("error", "gone", "settled")

    def __init__(self) -> None:
        self.settled = 0
        """Number of messages settled as asked."""
        self.gone: list[Gone] = []
        """Messages that were no longer this consumer's."""
        self.error: RaftmqError | None = None
        """Why some settlements failed as a whole."""


class Waiter(Tally):
    """A call that waits for settlements, of any leases and partition groups."""

    __slots__ = ("_event", "done", "open")

    def __init__(self) -> None:
        super().__init__()
        self._event = anyio.Event()
        self.open = 0
        """Items under way."""
        self.done = 0
        """Items that have their result."""

    def close_one(self) -> None:
        """One item has its result; wake the call after the last."""
        self.open -= 1
        self.done += 1
        if self.open == 0:
            self._event.set()

    async def wait(self) -> None:
        """Wait until no item is under way. Cancelling stops the waiting, not the settling."""
        if self.open:
            await self._event.wait()
        else:
            await anyio.lowlevel.checkpoint()

    def fail(self, error: RaftmqError) -> None:
        """The client failed inside, or was closed: no answer will come."""
        self.error = error
        self._event.set()
