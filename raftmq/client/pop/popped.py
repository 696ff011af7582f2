"""What a consumer that pops is handed: messages under a lease, one by one or many at once.

Each is the application's alone until its `deadline`. It is settled by one of

| call | the message |
|---|---|
| `ack` | is done with |
| `nack` | failed: it is handed out again, later |
| `reject` | can never be done: it is a dead letter at once |
| `give_back` | was not begun with: any consumer may have it, and this attempt does not count |

or else comes again when the lease runs out. A repeat of a settlement changes nothing.
"""

from collections.abc import Iterator
from copy import copy
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

import anyio

from raftmq.batch import Batch
from raftmq.client.arguments import typed
from raftmq.client.consume.start import milliseconds
from raftmq.client.message import Message, MessageColumns, Slice, format_id
from raftmq.errors import Reason, Rejected
from raftmq.wire.popping import Action

from .leases import Grip, HeldLease, offsets_of
from .settlement_sender import Gone

if TYPE_CHECKING:
    from .settlement import Settlements

L = TypeVar("L", bound="LeasedMessage")

Part = tuple[HeldLease, int]
"""Some messages of a lease, as bits."""


class Fenced(NamedTuple):
    """A message that this consumer no longer had."""

    id: str
    """Its id."""
    token: int
    """Under which it was settled: the same message may be here under a newer one."""


class Settlement:
    """What came of settling many messages: on the disks of a majority."""

    __slots__ = ("_gone", "settled")

    def __init__(self, settled: int, gone: list[Gone]) -> None:
        self.settled = settled
        """How many are settled as it was asked."""
        self._gone = gone

    @property
    def is_complete(self) -> bool:
        """True if all are."""
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


class LeasedMessage(Message):
    """A message under a lease."""

    __slots__ = ("_grip", "_settlements")

    def __init__(
        self, batch: Batch, position: int, grip: Grip, topic: str, settlements: "Settlements"
    ) -> None:
        super().__init__(batch, position, grip.lease.queue_number, topic)
        self._grip = grip
        self._settlements = settlements

    @property
    def attempt(self) -> int:
        """How often the message was handed out, this time included."""
        return self._grip.lease.attempt

    @property
    def token(self) -> int:
        """Names this hand-out for ever, and is larger than that of each earlier hand-out of the
        message: a *fencing token* for what the application writes elsewhere."""
        return self._grip.lease.token

    @property
    def deadline(self) -> int:
        """Until when the message is this consumer's alone, by the leader's clock, in milliseconds
        since 1970."""
        return self._grip.lease.deadline_ms

    @property
    def remaining(self) -> float:
        """How many seconds that is from now; negative if it is over. It counts from when the
        leader's answer came, and is too long by the time which that was on its way."""
        return self._grip.lease.deadline - anyio.current_time()

    @property
    def settlements(self) -> "Settlements":
        """Internal: where it is settled."""
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
        """It is done with. On return that is on the disks of a majority: it never comes again.

        Raises:
            Rejected: `FENCED`, its lease is over: another consumer may have it.
            Unavailable: nothing happened within `timeout` seconds (None: the client's default).
            OutcomeUnknown: it may have happened; the same call again tells.
        """
        await self._settle(Action.ACK, timeout)

    async def nack(self, delay: float | None = None, *, timeout: float | None = None) -> None:
        """It failed: it is handed out again after `delay` seconds (None: by the group's schedule),
        or is a dead letter after the last attempt.

        Raises:
            As `ack`.
        """
        await self._settle(Action.NACK, timeout, delay_ms=delay_ms(delay))

    async def reject(self, reason: str = "rejected", *, timeout: float | None = None) -> None:
        """It can never be done: it is a dead letter, for this reason.

        Raises:
            As `ack`.
        """
        await self._settle(Action.REJECT, timeout, reason=reason)

    async def give_back(self, *, timeout: float | None = None) -> None:
        """It was not begun with: any consumer may have it, and this attempt does not count.

        Raises:
            As `ack`.
        """
        await self._settle(Action.GIVE_BACK, timeout)

    async def extend(self, seconds: float, *, timeout: float | None = None) -> None:
        """Let its lease, with all messages under the same token, run for `seconds` from now, also
        if it had longer: a shorter time ends it sooner.

        Raises:
            As `ack`.
        """
        await self._settlements.extend_one(self.part, seconds, timeout=timeout)

    def ack_nowait(self) -> None:
        """As `ack`, without waiting: acks gather while one is under way. `flush` of the consumer
        waits, and tells which were fenced."""
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
        self, slices: list[Slice], grips: list[Grip], topic: str, settlements: "Settlements"
    ) -> None:
        super().__init__(slices, topic)
        # As many as slices.
        self._grips = grips
        self._settlements = settlements

    @property
    def attempts(self) -> list[int]:
        """How often each message was handed out, this time included."""
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
        """The same messages, those of each partition group by themselves, in order: a transaction
        acknowledges messages of one."""
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
    def settlements(self) -> "Settlements":
        """Internal: where they are settled."""
        return self._settlements

    @property
    def grips(self) -> list[Grip]:
        """Internal: what holds each slice's lease."""
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
        """One value for each message, of one for each slice."""
        spread: list[int] = []
        for value, part in zip(values, self._slices, strict=True):
            spread += [value] * (part.stop - part.start)
        return spread


@typed()
class PoppedMessages(LeasedMessages[PoppedMessage]):
    """Messages under leases, to be settled together or one by one.

    A call settles all of them that are not settled yet, and tells how many were ours no more. It
    raises `Unavailable` if nothing happened to some within `timeout` seconds (None: the client's
    default), `OutcomeUnknown` if it may have; the same call again is safe, and settles the rest.
    Cancelling leaves some done and others not.
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
        """They are done with; see `PoppedMessage.ack`."""
        return await self._settlements.settle(self.parts, Action.ACK, timeout=timeout)

    async def nack(self, delay: float | None = None, *, timeout: float | None = None) -> Settlement:
        """They failed; see `PoppedMessage.nack`."""
        wait = delay_ms(delay)
        return await self._settlements.settle(
            self.parts, Action.NACK, delay_ms=wait, timeout=timeout
        )

    async def reject(self, reason: str = "rejected", *, timeout: float | None = None) -> Settlement:
        """They can never be done; see `PoppedMessage.reject`."""
        return await self._settlements.settle(
            self.parts, Action.REJECT, reason=reason, timeout=timeout
        )

    async def give_back(self, *, timeout: float | None = None) -> Settlement:
        """They were not begun with; see `PoppedMessage.give_back`."""
        return await self._settlements.settle(self.parts, Action.GIVE_BACK, timeout=timeout)

    async def extend(self, seconds: float, *, timeout: float | None = None) -> Settlement:
        """Let their leases run for `seconds` from now; see `PoppedMessage.extend`. No message is
        settled; `fenced` names those that this consumer no longer has."""
        return await self._settlements.extend(self.parts, seconds, timeout=timeout)

    def ack_nowait(self) -> None:
        """As `ack`, without waiting; see `PoppedMessage.ack_nowait`."""
        self._settlements.settle_nowait(self.parts, Action.ACK)


def delay_ms(delay: float | None) -> int:
    """The delay of a nack as it is sent.

    Raises:
        Rejected: `BAD_ARGUMENT`, it is negative, or no number.
    """
    if delay is None:
        return -1
    asked = milliseconds(delay, "delay")
    if delay < 0:
        # Rounded to milliseconds it could be -1, which means "by the schedule".
        raise Rejected(Reason.BAD_ARGUMENT, f"delay is 0 or more seconds, not {delay}")
    return asked
