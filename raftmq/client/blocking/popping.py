"""The consumer that pops for plain code: the same names as the async one, without await.

Objects may be used from several threads. What a message is part of is read in the loop's thread,
where it changes.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from raftmq.batch import Batch
from raftmq.client.message import Slice
from raftmq.client.pop.claims import HeldClaim
from raftmq.client.pop.consumer import PopConsumer
from raftmq.client.pop.leases import Grip
from raftmq.client.pop.popped import LeasedMessage, LeasedMessages, Settlement, delay_ms
from raftmq.client.pop.prefetch_buffer import Taken
from raftmq.client.pop.settlement import Settlements
from raftmq.wire.popping import Action

from .loop import Entered, Loop


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
    def remaining(self) -> float:
        """See `PoppedMessage.remaining`."""
        return self._loop.call(lambda: super(BlockingPoppedMessage, self).remaining)

    def ack(self, *, timeout: float | None = None) -> None:
        """See `PoppedMessage.ack`."""
        self._settle(Action.ACK, timeout)

    def nack(self, delay: float | None = None, *, timeout: float | None = None) -> None:
        """See `PoppedMessage.nack`."""
        self._settle(Action.NACK, timeout, wait_ms=delay_ms(delay))

    def reject(self, reason: str = "rejected", *, timeout: float | None = None) -> None:
        """See `PoppedMessage.reject`."""
        self._settle(Action.REJECT, timeout, reason=reason)

    def give_back(self, *, timeout: float | None = None) -> None:
        """See `PoppedMessage.give_back`."""
        self._settle(Action.GIVE_BACK, timeout)

    def extend(self, seconds: float, *, timeout: float | None = None) -> None:
        """See `PoppedMessage.extend`."""
        self._loop.wait(lambda: self._settlements.extend_one(self.part, seconds, timeout=timeout))

    def ack_nowait(self) -> None:
        """See `PoppedMessage.ack_nowait`."""
        self._loop.call(lambda: self._settlements.settle_nowait([self.part], Action.ACK))

    def _settle(
        self, action: Action, timeout: float | None, *, wait_ms: int = -1, reason: str = ""
    ) -> None:
        self._loop.wait(
            lambda: self._settlements.settle_one(
                self.part, action, delay_ms=wait_ms, reason=reason, timeout=timeout
            )
        )


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

    def ack(self, *, timeout: float | None = None) -> Settlement:
        """See `PoppedMessages.ack`."""
        return self._settle(Action.ACK, timeout)

    def nack(self, delay: float | None = None, *, timeout: float | None = None) -> Settlement:
        """See `PoppedMessages.nack`."""
        return self._settle(Action.NACK, timeout, wait_ms=delay_ms(delay))

    def reject(self, reason: str = "rejected", *, timeout: float | None = None) -> Settlement:
        """See `PoppedMessages.reject`."""
        return self._settle(Action.REJECT, timeout, reason=reason)

    def give_back(self, *, timeout: float | None = None) -> Settlement:
        """See `PoppedMessages.give_back`."""
        return self._settle(Action.GIVE_BACK, timeout)

    def extend(self, seconds: float, *, timeout: float | None = None) -> Settlement:
        """See `PoppedMessages.extend`."""
        return self._loop.wait(
            lambda: self._settlements.extend(self.parts, seconds, timeout=timeout)
        )

    def ack_nowait(self) -> None:
        """See `PoppedMessages.ack_nowait`."""
        self._loop.call(lambda: self._settlements.settle_nowait(self.parts, Action.ACK))

    def _settle(
        self, action: Action, timeout: float | None, *, wait_ms: int = -1, reason: str = ""
    ) -> Settlement:
        return self._loop.wait(
            lambda: self._settlements.settle(
                self.parts, action, delay_ms=wait_ms, reason=reason, timeout=timeout
            )
        )


class BlockingPopConsumer(Entered):
    """See `raftmq.PopConsumer`; use it as `with`, and iterate with `for`."""

    def __init__(self, loop: Loop, consumer: PopConsumer) -> None:
        super().__init__(loop, consumer)
        self._consumer = consumer

    def __iter__(self) -> Iterator[BlockingPoppedMessage]:
        """Messages one by one, without an end: `break` when you have enough."""
        consumer, loop = self._consumer, self._loop
        while True:
            taken, grip = loop.wait(consumer._next_one, self._give_back_one)
            batch, start, _, _ = taken.part
            settlements = consumer._open_settlements()
            yield BlockingPoppedMessage(batch, start, grip, consumer.topic, settlements, loop)

    def pop(
        self, count: int = 1, *, wait: float = 1.0, invisible: float | None = None
    ) -> BlockingPoppedMessages:
        """See `PopConsumer.pop`."""
        pop = partial(self._consumer.pop, count, wait=wait, invisible=invisible)
        popped = self._loop.wait(pop, self._give_back)
        topic, settlements = self._consumer.topic, self._consumer._open_settlements()
        return BlockingPoppedMessages(popped.slices, popped.grips, topic, settlements, self._loop)

    async def _give_back_one(self, taken: tuple[Taken, Grip]) -> None:
        part = (taken[0].lease, taken[0].bits)
        self._consumer._open_settlements().settle_nowait([part], Action.GIVE_BACK)

    async def _give_back(self, popped: LeasedMessages[Any]) -> None:
        """The application was not handed them: others may have them."""
        self._consumer._open_settlements().settle_nowait(popped.parts, Action.GIVE_BACK)

    def ack(self, messages: Iterable[LeasedMessage], *, timeout: float | None = None) -> Settlement:
        """See `PopConsumer.ack`."""
        return self._loop.wait(partial(self._consumer.ack, messages, timeout=timeout))

    def nack(
        self,
        messages: Iterable[LeasedMessage],
        delay: float | None = None,
        *,
        timeout: float | None = None,
    ) -> Settlement:
        """See `PopConsumer.nack`."""
        return self._loop.wait(partial(self._consumer.nack, messages, delay, timeout=timeout))

    def claim(
        self, key: str | bytes, *, ttl: float, timeout: float | None = None
    ) -> "BlockingClaim | None":
        """See `PopConsumer.claim`."""
        work = partial(self._consumer.claim, key, ttl=ttl, timeout=timeout)
        held = self._loop.wait(work)
        return None if held is None else BlockingClaim(held, self._loop)

    def flush(self, *, timeout: float | None = None) -> Settlement:
        """See `PopConsumer.flush`."""
        return self._loop.wait(partial(self._consumer.flush, timeout=timeout))


class BlockingClaim:
    """See `raftmq.client.HeldClaim`."""

    def __init__(self, held: HeldClaim, loop: Loop) -> None:
        self._held = held
        self._loop = loop

    def release(self, *, timeout: float | None = None) -> bool:
        """See `HeldClaim.release`."""
        return self._loop.wait(partial(self._held.release, timeout=timeout))
