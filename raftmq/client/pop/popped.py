"""Popped messages: messages under a lease, one by one or many at once.

Each message is the application's alone until its `deadline`. The application settles it by one of

| call | the message |
|---|---|
| `ack` | is done |
| `nack` | failed: it is handed out again, later |
| `reject` | can never be done: it is a dead letter at once |
| `give_back` | was not begun: any consumer may have it, and this attempt does not count |

or else the message comes again when the lease runs out. A repeat of a settlement changes nothing.
"""

from collections.abc import Iterator
from copy import copy
from typing import Self, TypeVar

import anyio

from raftmq.batch import Batch
from raftmq.client.arguments import milliseconds, typed
from raftmq.client.message import Message, MessageColumns
from raftmq.client.slices import Slice
from raftmq.errors import Reason, Rejected
from raftmq.pop.actions import Action

from .leases import Grip, HeldLease, Part
from .settlements import Settlements
from .tally import Settlement

L = TypeVar("L", bound="LeasedMessage")


class LeasedMessage(Message):
    """A message under a lease."""

    __slots__ = ("_grip", "_settlements")

    def __init__(
        self, batch: Batch, position: int, grip: Grip, topic: str, settlements: Settlements
    ) -> None:
        super().__init__(batch, position, grip.lease.queue_number, topic)
        self._grip = grip
        self._settlements = settlements

    @property
    def attempt(self) -> int:
        """Number of hand-outs of the message, this one included."""
        return self._grip.lease.attempt

    @property
    def token(self) -> int:
        """Names this hand-out for ever; larger than the token of each earlier hand-out of the
        message: a *fencing token* for the application's writes elsewhere."""
        return self._grip.lease.token

    @property
    def deadline(self) -> int:
        """The end of the lease, until which the message is this consumer's alone, by the leader's
        clock, in milliseconds since 1970."""
        return self._grip.lease.deadline_ms

    @property
    def remaining(self) -> float:
        """Seconds until the deadline; negative after it. They count from the arrival of the
        leader's answer, so they are too many by the time that the answer took."""
        return self._grip.lease.deadline - anyio.current_time()

    @property
    def settlements(self) -> Settlements:
        """Internal: settles the message."""
        return self._settlements

    @property
    def part(self) -> Part:
        """Internal: the message as a bit of its lease."""
        lease = self._grip.lease
        return lease, 1 << (self.offset - lease.base)


@typed()
class PoppedMessage(LeasedMessage):
    """A message under a lease: settle it before its time runs out.

    Cancelling a call leaves it done or not done.
    """

    __slots__ = ()

    async def ack(self, *, timeout: float | None = None) -> None:
        """Acknowledge the message. On return the ack is on the disks of a majority: the message
        never comes again.

        Raises:
            Rejected: `FENCED`, its lease is over: another consumer may have it.
            Unavailable: nothing happened within `timeout` seconds (None: the client's default).
            OutcomeUnknown: the ack may have happened; a repeat of the call tells.
        """
        await self._settle(Action.ACK, timeout)

    async def nack(self, delay: float | None = None, *, timeout: float | None = None) -> None:
        """The message failed: it is handed out again after `delay` seconds (None: by the group's
        schedule), or is a dead letter after the last attempt.

        Raises:
            As `ack`.
        """
        await self._settle(Action.NACK, timeout, delay_ms=delay_ms(delay))

    async def reject(self, reason: str = "rejected", *, timeout: float | None = None) -> None:
        """The message can never be done: it is a dead letter, for this reason.

        Raises:
            As `ack`.
        """
        await self._settle(Action.REJECT, timeout, reason=reason)

    async def give_back(self, *, timeout: float | None = None) -> None:
        """The message was not begun: any consumer may have it, and this attempt does not count.

        Raises:
            As `ack`.
        """
        await self._settle(Action.GIVE_BACK, timeout)

    async def extend(self, seconds: float, *, timeout: float | None = None) -> None:
        """Let the lease, with all messages under the same token, run for `seconds` from now. A time
        shorter than the lease's rest ends the lease sooner.

        Raises:
            As `ack`.
        """
        await self._settlements.extend_one(self.part, seconds, timeout=timeout)

    def ack_nowait(self) -> None:
        """As `ack`, without waiting: acks gather while one is under way. `flush` of the consumer
        waits, and returns the fenced messages."""
        self._settlements.settle_nowait([self.part], Action.ACK)

    async def _settle(
        self, action: Action, timeout: float | None, *, delay_ms: int = -1, reason: str = ""
    ) -> None:
        await self._settlements.settle_one(
            self.part, action, delay_ms=delay_ms, reason=reason, timeout=timeout
        )


class LeasedMessages(MessageColumns[L]):
    """Messages under leases: a sequence, and the same as columns."""

    __slots__ = ("_grips", "_settlements")

    def __init__(
        self, slices: list[Slice], grips: list[Grip], topic: str, settlements: Settlements
    ) -> None:
        super().__init__(slices, topic)
        # One for each slice.
        self._grips = grips
        self._settlements = settlements

    @property
    def attempts(self) -> list[int]:
        """Number of hand-outs of each message, this one included."""
        return self._spread([grip.lease.attempt for grip in self._grips])

    @property
    def tokens(self) -> list[int]:
        """The token of each message's hand-out."""
        return self._spread([grip.lease.token for grip in self._grips])

    @property
    def deadline(self) -> int | None:
        """When the first of the leases runs out, by the leaders' clocks, in milliseconds since
        1970; None: there are no messages."""
        return min((grip.lease.deadline_ms for grip in self._grips), default=None)

    def by_partition_group(self) -> list[Self]:
        """The messages of each partition group by themselves, in order: a transaction acknowledges
        messages of one partition group."""
        groups = [grip.lease.group for grip in self._grips]
        return [
            self._some([n for n, each in enumerate(groups) if each == group])
            for group in sorted(set(groups))
        ]

    def _some(self, numbers: list[int]) -> Self:
        """The messages of some slices."""
        part = copy(self)
        MessageColumns.__init__(part, [self._slices[n] for n in numbers], self.topic)
        part._grips = [self._grips[n] for n in numbers]
        return part

    @property
    def settlements(self) -> Settlements:
        """Internal: settles the messages."""
        return self._settlements

    @property
    def grips(self) -> list[Grip]:
        """Internal: the grip of each slice, which holds its lease."""
        return self._grips

    @property
    def parts(self) -> list[Part]:
        """Internal: the messages as bits of their leases."""
        found: dict[HeldLease, int] = {}
        for (batch, start, stop, _), grip in zip(self._slices, self._grips, strict=True):
            lease = grip.lease
            mask = lease.mask(batch.base_offset + start, batch.base_offset + stop)
            found[lease] = found.get(lease, 0) | mask
        return list(found.items())

    def _spread(self, values: list[int]) -> list[int]:
        """Repeat each slice's value for each message of the slice."""
        spread: list[int] = []
        for value, part in zip(values, self._slices, strict=True):
            spread += [value] * (part.stop - part.start)
        return spread


@typed()
class PoppedMessages(LeasedMessages[PoppedMessage]):
    """Messages under leases, to be settled together or one by one.

    A call settles all messages that are not settled yet; its result lists those that were no longer
    this consumer's. The call raises `Unavailable` if nothing happened within `timeout` seconds
    (None: the client's default), `OutcomeUnknown` if some are or may be settled; a repeat is safe,
    and settles the rest. Cancelling leaves some settled and others not.
    """

    __slots__ = ()

    def __iter__(self) -> Iterator[PoppedMessage]:
        topic, settlements = self.topic, self._settlements
        for (batch, start, stop, _), grip in zip(self._slices, self._grips, strict=True):
            for position in range(start, stop):
                yield PoppedMessage(batch, position, grip, topic, settlements)

    def _message(self, n: int, position: int) -> PoppedMessage:
        batch = self._slices[n].batch
        return PoppedMessage(batch, position, self._grips[n], self.topic, self._settlements)

    async def ack(self, *, timeout: float | None = None) -> Settlement:
        """Acknowledge the messages; see `PoppedMessage.ack`."""
        return await self._settlements.settle(self.parts, Action.ACK, timeout=timeout)

    async def nack(self, delay: float | None = None, *, timeout: float | None = None) -> Settlement:
        """The messages failed; see `PoppedMessage.nack`."""
        wait = delay_ms(delay)
        return await self._settlements.settle(
            self.parts, Action.NACK, delay_ms=wait, timeout=timeout
        )

    async def reject(self, reason: str = "rejected", *, timeout: float | None = None) -> Settlement:
        """The messages can never be done; see `PoppedMessage.reject`."""
        return await self._settlements.settle(
            self.parts, Action.REJECT, reason=reason, timeout=timeout
        )

    async def give_back(self, *, timeout: float | None = None) -> Settlement:
        """The messages were not begun; see `PoppedMessage.give_back`."""
        return await self._settlements.settle(self.parts, Action.GIVE_BACK, timeout=timeout)

    async def extend(self, seconds: float, *, timeout: float | None = None) -> Settlement:
        """Let the leases run for `seconds` from now; see `PoppedMessage.extend`. No message is
        settled; `fenced` names the messages that this consumer no longer has."""
        return await self._settlements.extend(self.parts, seconds, timeout=timeout)

    def ack_nowait(self) -> None:
        """As `ack`, without waiting; see `PoppedMessage.ack_nowait`."""
        self._settlements.settle_nowait(self.parts, Action.ACK)


def delay_ms(delay: float | None) -> int:
    """The delay of a nack in milliseconds; -1: by the schedule.

    Raises:
        Rejected: `BAD_ARGUMENT`, the delay is negative, or no number.
    """
    if delay is None:
        return -1
    asked = milliseconds(delay, "delay")
    if delay < 0:
        # Rounded to milliseconds it could be -1, which means "by the schedule".
        raise Rejected(Reason.BAD_ARGUMENT, f"delay is 0 or more seconds, not {delay}")
    return asked
