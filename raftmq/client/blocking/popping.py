"""The consumer that pops for plain code: the same names as the async one, without await.

Objects may be used from several threads. A message's part of its lease is read in the loop's
thread, where leases change.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

from raftmq.batch import Batch
from raftmq.client.arguments import Popping
from raftmq.client.pop.claims import HeldClaim
from raftmq.client.pop.consumer import PopConsumer
from raftmq.client.pop.leases import Grip
from raftmq.client.pop.popped import LeasedMessage, LeasedMessages, PoppedMessage, PoppedMessages
from raftmq.client.pop.prefetch_buffer import Taken
from raftmq.client.pop.settlements import Settlements
from raftmq.client.slices import Slice
from raftmq.pop.actions import Action

from .face import Entered, Face, calls, waits
from .loop import Loop


class BlockingPoppedMessage(LeasedMessage):
    """See `raftmq.PoppedMessage`."""

    __slots__ = ("_loop",)

    def __init__(
        self,
        batch: Batch,
        position: int,
        grip: Grip,
        topic: str,
        settlements: Settlements,
        loop: Loop,
    ) -> None:
        super().__init__(batch, position, grip, topic, settlements)
        self._loop = loop

    @property
    def _inner(self) -> PoppedMessage:
        batch, position, grip = self._batch, self._position, self._grip
        return PoppedMessage(batch, position, grip, self.topic, self._settlements)

    @property
    def remaining(self) -> float:
        """See `PoppedMessage.remaining`."""
        return self._loop.call(lambda: super(BlockingPoppedMessage, self).remaining)

    ack = waits(PoppedMessage.ack)
    nack = waits(PoppedMessage.nack)
    reject = waits(PoppedMessage.reject)
    give_back = waits(PoppedMessage.give_back)
    extend = waits(PoppedMessage.extend)
    ack_nowait = calls(PoppedMessage.ack_nowait)


class BlockingPoppedMessages(LeasedMessages[BlockingPoppedMessage]):
    """See `raftmq.PoppedMessages`."""

    __slots__ = ("_loop",)

    def __init__(
        self,
        slices: list[Slice],
        grips: list[Grip],
        topic: str,
        settlements: Settlements,
        loop: Loop,
    ) -> None:
        super().__init__(slices, grips, topic, settlements)
        self._loop = loop

    def _message(self, n: int, position: int) -> BlockingPoppedMessage:
        batch, grip = self._slices[n].batch, self._grips[n]
        return BlockingPoppedMessage(
            batch, position, grip, self.topic, self._settlements, self._loop
        )

    @property
    def _inner(self) -> PoppedMessages:
        return PoppedMessages(self._slices, self._grips, self.topic, self._settlements)

    ack = waits(PoppedMessages.ack)
    nack = waits(PoppedMessages.nack)
    reject = waits(PoppedMessages.reject)
    give_back = waits(PoppedMessages.give_back)
    extend = waits(PoppedMessages.extend)
    ack_nowait = calls(PoppedMessages.ack_nowait)


class BlockingPopConsumer(Popping, Entered[PopConsumer]):
    """See `raftmq.PopConsumer`; use it as `with`, and iterate with `for`."""

    def __iter__(self) -> Iterator[BlockingPoppedMessage]:
        """Messages one by one, without an end: `break` when you have enough."""
        consumer, loop = self._inner, self._loop
        while True:
            taken, grip = loop.wait(consumer._next_one, self._give_back_one)
            batch, start, _, _ = taken.part
            settlements = consumer._open_settlements()
            yield BlockingPoppedMessage(batch, start, grip, consumer.topic, settlements, loop)

    def pop(
        self, count: int = 1, *, wait: float = 1.0, invisible: float | None = None
    ) -> BlockingPoppedMessages:
        """See `PopConsumer.pop`."""
        pop = partial(self._inner.pop, count, wait=wait, invisible=invisible)
        popped = self._loop.wait(pop, self._give_back)
        topic, settlements = self._inner.topic, self._inner._open_settlements()
        return BlockingPoppedMessages(popped.slices, popped.grips, topic, settlements, self._loop)

    async def _give_back_one(self, taken: tuple[Taken, Grip]) -> None:
        part = (taken[0].lease, taken[0].bits)
        self._inner._open_settlements().settle_nowait([part], Action.GIVE_BACK)

    async def _give_back(self, popped: LeasedMessages[Any]) -> None:
        """Give back messages that the application did not get: other consumers may have them."""
        self._inner._open_settlements().settle_nowait(popped.parts, Action.GIVE_BACK)

    ack = waits(PopConsumer.ack)
    nack = waits(PopConsumer.nack)
    flush = waits(PopConsumer.flush)

    def claim(
        self, key: str | bytes, *, ttl: float, timeout: float | None = None
    ) -> "BlockingClaim | None":
        """See `PopConsumer.claim`."""
        work = partial(self._inner.claim, key, ttl=ttl, timeout=timeout)
        held = self._loop.wait(work)
        return None if held is None else BlockingClaim(self._loop, held)


class BlockingClaim(Face[HeldClaim]):
    """See `raftmq.client.HeldClaim`."""

    release = waits(HeldClaim.release)
